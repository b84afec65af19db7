//! URLs as arguments are all that is needed: pools are found by asking the replicas.

use crate::kit::gateway::{CHAT, Gateway, chat_body};
use crate::kit::replica::Replica;
use crate::kit::script;
use crate::kit::wait::{PATIENCE, eventually};

#[test]
fn replicas_are_grouped_by_the_model_they_list() {
    let (a, b, other) = (Replica::start("m-8b"), Replica::start("m-8b"), Replica::start("m-70b"));
    other.on_post(script::good("cc-70b", &["big"]));
    let urls = [a.url(), b.url(), other.url()];
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let gateway = Gateway::empty().config("{}\n").args(&urls).wait_for(3).start();
    for _ in 0..10 {
        assert_eq!(gateway.chat().json()["id"], "cc-1");
        let big = chat_body(false).replace("m-8b", "m-70b");
        assert_eq!(gateway.post(CHAT, &big).json()["id"], "cc-70b");
    }
    assert!(!a.requests().is_empty() && !b.requests().is_empty() && other.requests().len() == 10);
    let listed = gateway.get("/v1/models").json();
    let mut models: Vec<&str> =
        listed["data"].as_array().unwrap().iter().filter_map(|model| model["id"].as_str()).collect();
    models.sort_unstable();
    assert_eq!(models, ["m-70b", "m-8b"]);
}

/// A replica that is not up yet is asked until it is.
#[test]
fn a_replica_that_comes_later_is_found() {
    let (a, late) = (Replica::start("m-8b"), Replica::start("m-8b"));
    late.close_port();
    let gateway = Gateway::empty().config("{}\n").args(&[&a.url(), &late.url()]).wait_for(1).start();
    assert_eq!(gateway.chat().status, 200);
    late.reopen_port();
    gateway.wait_ready(2);
    eventually(PATIENCE, "it has its share", || {
        assert_eq!(gateway.chat().status, 200);
        !late.requests().is_empty()
    });
}
