//! Operators add, drain and remove replicas while they serve.

#![allow(clippy::float_cmp, reason = "counts are whole numbers")]

use std::time::{Duration, Instant};

use serde_json::json;

use crate::kit::client::{Answer, Client, Progress};
use crate::kit::gateway::{CHAT, Gateway, chat_body};
use crate::kit::replica::{Kind, Replica, Script, Then};
use crate::kit::script::{self, script};
use crate::kit::sse;
use crate::kit::wait::{PATIENCE, RaiseOnDrop, Signal, eventually};

/// A stream that begins at once and ends once `go` is raised.
fn held_stream(go: &Signal) -> Script {
    let go = go.clone();
    script(move |conn, _| {
        conn.sse_head()?;
        conn.event(&script::role_frame("cc-1"))?;
        conn.event(&script::token_frame("cc-1", "first"))?;
        conn.wait(&go)?;
        conn.event(&script::token_frame("cc-1", " last"))?;
        conn.event(&script::finish_frame("cc-1", "stop"))?;
        conn.event("[DONE]")?;
        conn.last_chunk()?;
        Ok(Then::KeepAlive)
    })
}

/// Starts a stream that runs on `replica` until `go` is raised. The others must be quicker.
fn stream_on(gateway: &Gateway, replica: &Replica, go: &Signal) -> (Client, Answer) {
    replica.on_post(held_stream(go));
    let before = replica.requests().len();
    loop {
        let mut client = gateway.connect();
        client.post(CHAT, chat_body(true));
        let mut answer = client.begin_answer();
        if replica.requests().len() > before {
            client.read_events(&mut answer, 2);
            replica.on_post(script::good("cc-1", &["ok"]));
            return (client, answer);
        }
        client.finish(&mut answer);
    }
}

fn id(gateway: &Gateway, replica: &Replica) -> String {
    gateway.replica(replica)["id"].as_str().expect("an id").to_owned()
}

fn order(gateway: &Gateway, replica: &Replica, verb: &str, body: Option<&serde_json::Value>) -> Answer {
    let answer = gateway.admin("POST", &format!("/admin/replicas/{}/{verb}", id(gateway, replica)), body);
    assert_eq!(answer.status, 200, "{verb}: {}", answer.describe());
    answer
}

fn chats(gateway: &Gateway, n: usize) {
    for nth in 0..n {
        let answer = gateway.post(CHAT, &chat_body(nth % 2 == 0));
        assert_eq!(answer.status, 200, "{}", answer.describe());
    }
}

#[test]
fn a_drained_replica_finishes_and_gets_nothing_new() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    let gateway = Gateway::with(&[&a, &b]).start();
    let go = Signal::new();
    let (mut client, mut answer) = stream_on(&gateway, &a, &go);
    let drained = order(&gateway, &a, "drain", None).json();
    assert_eq!(drained["state"], "draining");
    let before = a.requests().len();
    chats(&gateway, 20);
    assert_eq!(a.requests().len(), before, "nothing new goes there");
    assert_eq!(gateway.replica(&a)["in_flight"], 1, "what runs is still counted");
    assert_eq!(
        gateway.metric("expediter_replica_state", &[("replica", &a.url()), ("state", "draining")]),
        1.0
    );
    // Again is no error.
    order(&gateway, &a, "drain", Some(&json!({"limit_ms": 60_000})));
    go.raise();
    client.finish(&mut answer);
    assert_eq!(answer.progress, Progress::Complete);
    assert_eq!(sse::text(&answer.body), "first last");
    assert_eq!(answer.payloads().last().map(String::as_str), Some("[DONE]"));
    chats(&gateway, 4);
    assert_eq!(a.requests().len(), before);
    // Its health does not bring it back; an operator does.
    let probes = a.requests_of(Kind::Probe).iter().filter(|probe| probe.path == "/health").count();
    eventually(PATIENCE, "two more probes", || {
        a.requests_of(Kind::Probe).iter().filter(|probe| probe.path == "/health").count() >= probes + 2
    });
    assert_eq!(gateway.replica(&a)["state"], "draining");
    order(&gateway, &a, "undrain", None);
    eventually(PATIENCE, "it serves again", || {
        chats(&gateway, 4);
        a.requests().len() > before
    });
    assert_eq!(gateway.replica(&a)["state"], "ready");
}

/// With all drained there is nobody to serve, and that is said at once or after the wait, honestly.
#[test]
fn with_every_replica_drained_requests_are_refused() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).set("wait.limit_ms", 500).start();
    order(&gateway, &replica, "drain", None);
    assert_eq!(gateway.get("/readyz").status, 503);
    assert_eq!(gateway.get("/livez").status, 200);
    let answer = gateway.chat();
    assert_eq!(answer.status, 503, "{}", answer.describe());
    assert_eq!(answer.error_code(), "no_ready_replica");
    assert!(answer.header("retry-after").is_some());
    assert_eq!(gateway.get("/v1/models").json()["data"], json!([]), "nobody serves it");
    assert!(replica.requests().is_empty());
    order(&gateway, &replica, "undrain", None);
    eventually(PATIENCE, "it serves again", || gateway.chat().status == 200);
}

/// What is not done within the limit of a drain is told from outside: the replica is reported as
/// drained or the stream is cut, but nobody waits for ever.
#[test]
fn a_drain_has_a_limit() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    let gateway = Gateway::with(&[&a, &b]).start();
    let go = Signal::new();
    let (mut client, mut answer) = stream_on(&gateway, &a, &go);
    order(&gateway, &a, "drain", Some(&json!({"limit_ms": 300})));
    // `drain_limit_ms`: "time that a drained replica has for its requests before they are cut".
    let began = Instant::now();
    client.finish(&mut answer);
    assert!(began.elapsed() < Duration::from_secs(10));
    assert!(!go.is_raised());
    sse::assert_ends_in_error(&answer.body, &answer.payloads()[..2]);
    assert_eq!(gateway.replica(&a)["in_flight"], 0);
    chats(&gateway, 4);
}

#[test]
fn a_removed_replica_finishes_and_is_forgotten() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    let gateway = Gateway::with(&[&a, &b]).start();
    let go = Signal::new();
    let (mut client, mut answer) = stream_on(&gateway, &a, &go);
    let a_id = id(&gateway, &a);
    assert_eq!(gateway.admin("DELETE", &format!("/admin/replicas/{a_id}"), None).status, 204);
    assert!(gateway.replicas().iter().all(|replica| replica["url"] != a.url()));
    let before = a.requests().len();
    chats(&gateway, 20);
    assert_eq!(a.requests().len(), before);
    let again = gateway.admin("DELETE", &format!("/admin/replicas/{a_id}"), None);
    assert_eq!((again.status, again.error_code().as_str()), (404, "replica_not_found"));
    go.raise();
    client.finish(&mut answer);
    assert_eq!(sse::text(&answer.body), "first last");
    assert_eq!(answer.progress, Progress::Complete);
    // Nobody asks it how it is any more, and its series are gone.
    let probes = a.requests_of(Kind::Probe).len();
    std::thread::sleep(Duration::from_millis(1500));
    assert!(a.requests_of(Kind::Probe).len() <= probes + 1, "it is still probed");
    gateway.wait_idle();
    let text = gateway.metrics();
    assert!(!text.lines().any(|line| line.contains(&a.url()) && line.contains("replica_state")), "{text}");
}

#[test]
fn an_added_replica_serves_and_is_added_once() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    let gateway = Gateway::with(&[&a]).start();
    let added = gateway.admin("POST", "/admin/replicas", Some(&json!({"url": b.url(), "pool": "m-8b"})));
    assert_eq!(added.status, 201, "{}", added.describe());
    let first = added.json()["id"].clone();
    for spelling in [b.url(), format!("{}/", b.url()), b.url().to_uppercase().replace("HTTP", "http")] {
        let again = gateway.admin("POST", "/admin/replicas", Some(&json!({"url": spelling, "pool": "m-8b"})));
        assert!([200, 201, 409].contains(&again.status), "{}", again.describe());
        if again.status != 409 {
            assert_eq!(again.json()["id"], first, "{spelling}");
        }
    }
    assert_eq!(gateway.replicas().len(), 2);
    gateway.wait_ready(2);
    eventually(PATIENCE, "it serves", || {
        chats(&gateway, 2);
        !b.requests().is_empty()
    });
    // Its warm-up came before any client's request.
    let warm_up = b.requests_of(Kind::WarmUp)[0].head_at;
    assert!(b.requests()[0].head_at > warm_up);
}

/// Without a pool by name it finds its own by what it lists, also one that is new.
#[test]
fn an_added_replica_finds_its_pool() {
    let (a, b, c) = (Replica::start("m-8b"), Replica::start("m-8b"), Replica::start("m-70b"));
    let gateway = Gateway::with(&[&a]).start();
    for replica in [&b, &c] {
        let added = gateway.admin("POST", "/admin/replicas", Some(&json!({"url": replica.url()})));
        assert_eq!(added.status, 201, "{}", added.describe());
    }
    gateway.wait_ready(3);
    assert_eq!(gateway.replica(&b)["pool"], "m-8b");
    assert_eq!(gateway.replica(&c)["pool"], "m-70b");
    let body = json!({"model": "m-70b", "messages": []}).to_string();
    assert_eq!(gateway.post(CHAT, &body).status, 200);
    assert_eq!(c.requests().len(), 1);
    assert!(gateway.get("/v1/models").text().contains("m-70b"));
}

/// A new address is taken in even while it does not answer, and serves once it does.
#[test]
fn an_added_replica_may_come_later() {
    let (a, late) = (Replica::start("m-8b"), Replica::start("m-8b"));
    late.close_port();
    let gateway = Gateway::with(&[&a]).set("probe.interval_ms", 100).start();
    let added = gateway.admin("POST", "/admin/replicas", Some(&json!({"url": late.url(), "pool": "m-8b"})));
    assert_eq!(added.status, 201, "{}", added.describe());
    chats(&gateway, 6);
    assert_eq!(gateway.replica(&late)["state"], "joining");
    late.reopen_port();
    eventually(PATIENCE, "it is ready", || gateway.replica(&late)["state"] == "ready");
}

#[test]
fn orders_that_mean_nothing_are_refused() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let id = id(&gateway, &replica);
    for unknown in ["r999", "", "%2e%2e", "r1%00", "-1", &"9".repeat(4000)] {
        for (method, verb) in [("DELETE", ""), ("POST", "/drain"), ("POST", "/undrain"), ("GET", "")] {
            let answer = gateway.admin(method, &format!("/admin/replicas/{unknown}{verb}"), None);
            assert_eq!(answer.status, 404, "{method} {unknown}{verb}: {}", answer.describe());
            answer.error_code();
        }
    }
    for body in [json!({"limit_ms": -1}), json!({"limit_ms": "x"}), json!({"limit": 1}), json!(1)] {
        let answer = gateway.admin("POST", &format!("/admin/replicas/{id}/drain"), Some(&body));
        assert_eq!(answer.status, 400, "{body}: {}", answer.describe());
    }
    for (method, path) in [
        ("GET", format!("/admin/replicas/{id}/drain")),
        ("DELETE", "/admin/replicas".to_owned()),
        ("PATCH", format!("/admin/replicas/{id}")),
    ] {
        let answer = gateway.admin(method, &path, None);
        assert_eq!(answer.status, 405, "{method} {path}: {}", answer.describe());
    }
    let long = json!({"url": format!("http://127.0.0.1/{}", "a".repeat(100_000))});
    assert_eq!(gateway.admin("POST", "/admin/replicas", Some(&long)).status, 413);
    assert_eq!(gateway.replica(&replica)["state"], "ready", "none of it had an effect");
    assert_eq!(gateway.replicas().len(), 1);
}

/// A drain that is ordered while the fleet is asked for work loses no request.
#[test]
fn draining_and_undraining_under_load_loses_nothing() {
    let replicas = [Replica::start("m-8b"), Replica::start("m-8b"), Replica::start("m-8b")];
    let gateway = Gateway::with(&[&replicas[0], &replicas[1], &replicas[2]]).set("ramp_ms", 200).start();
    for replica in &replicas {
        replica.on_post(script(|conn, request| {
            conn.pause(Duration::from_millis(20))?;
            script::good("cc-1", &["ok"])(conn, request)
        }));
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = RaiseOnDrop(&stop);
        for nth in 0..8 {
            let (gateway, stop) = (&gateway, &stop);
            scope.spawn(move || {
                let mut client = gateway.connect();
                while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                    client.post(CHAT, chat_body(nth % 2 == 0));
                    let answer = client.read_answer();
                    assert_eq!(answer.status, 200, "{}", answer.describe());
                }
            });
        }
        for round in 0..9 {
            let replica = &replicas[round % 3];
            order(&gateway, replica, "drain", None);
            std::thread::sleep(Duration::from_millis(100));
            order(&gateway, replica, "undrain", None);
            eventually(PATIENCE, "back", || gateway.replica(replica)["state"] == "ready");
        }
    });
    gateway.wait_idle();
}
