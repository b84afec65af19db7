//! Which of several meanings a model's name has, and when a name is unknown.

use std::thread;

use crate::kit::gateway::{CHAT, Gateway, chat_body};
use crate::kit::replica::Replica;
use crate::kit::script;
use crate::kit::wait::{PATIENCE, eventually};

/// Whoever can load an adapter on a replica must not take over a name that the operator gave.
#[test]
fn an_alias_comes_before_a_name_that_replicas_list() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-70b"));
    a.on_get("/v1/models", script::models(&["m-8b", "best"]));
    let gateway =
        Gateway::empty().pool("m-8b", &[&a]).pool("m-70b", &[&b]).alias("best", "m-70b").wait_for(2).start();
    for _ in 0..5 {
        assert_eq!(gateway.post(CHAT, &chat_body(false).replace("m-8b", "best")).status, 200);
    }
    assert_eq!((a.requests().len(), b.requests().len()), (0, 5));
    assert_eq!(b.requests()[0].json()["model"], "m-70b");
}

/// The stock clients try again after a 503 and not after a 404.
#[test]
fn a_model_that_a_replica_out_of_reach_may_serve_is_not_unknown() {
    let (a, late) = (Replica::start("m-8b"), Replica::start("m-70b"));
    late.close_port();
    let gateway = Gateway::empty().config("{}\n").args(&[&a.url(), &late.url()]).wait_for(1).start();
    let body = chat_body(false).replace("m-8b", "m-70b");
    let answer = gateway.post(CHAT, &body);
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (503, &"no_ready_replica".into()));
    late.reopen_port();
    gateway.wait_ready(2);
    assert_eq!(gateway.post(CHAT, &body).status, 200);
    assert_eq!(gateway.post(CHAT, &chat_body(false).replace("m-8b", "m-7b")).status, 404);
}

#[test]
fn a_request_in_the_first_moments_waits_for_the_first_model() {
    let late = Replica::start("m-8b");
    late.close_port();
    let gateway = Gateway::empty().config("{}\n").args(&[&late.url()]).start_unready();
    thread::scope(|scope| {
        let early = scope.spawn(|| gateway.chat().status);
        late.reopen_port();
        assert_eq!(early.join().expect("the client does not panic"), 200);
    });
}

#[test]
fn a_pool_whose_model_changes_serves_the_new_one() {
    let replica = Replica::start("m-8b");
    replica.on_get("/v1/models", script::models(&["m-8b", "m-9b"]));
    let config = |model: &str| {
        format!(
            "admin: {{ token: secret }}\nprobe: {{ interval_ms: 200 }}\n\
             pools: {{ main: {{ model: {model}, replicas: [\"{}\"] }} }}\n",
            replica.url()
        )
    };
    let gateway = Gateway::empty().config(&config("m-8b")).wait_for(1).start();
    let body = chat_body(false).replace("m-8b", "main");
    assert_eq!(gateway.post(CHAT, &body).status, 200);
    gateway.rewrite_config(&config("m-9b"));
    eventually(PATIENCE, "the new model is asked for", || {
        gateway.post(CHAT, &body).status == 200
            && replica.requests().last().is_some_and(|request| request.json()["model"] == "m-9b")
    });
}
