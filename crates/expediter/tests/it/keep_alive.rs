//! Connections to replicas that end while nobody looks: no client notices, nothing runs twice.

use std::time::Duration;

use serde_json::json;

use crate::kit::gateway::{CHAT, Gateway, chat_body};
use crate::kit::replica::{Manners, Replica, Then, attempts, on_posts_in_order};
use crate::kit::script::{self, script};
use crate::kit::wait::let_pass;

/// A chat body padded to `bytes`.
fn padded(bytes: usize) -> String {
    json!({"model": "m-8b", "messages": [{"role": "user", "content": "x".repeat(bytes)}], "max_tokens": 4})
        .to_string()
}

/// Sends `count` requests on one client connection, with gaps spread evenly over `gaps` in
/// milliseconds; all must be answered 200, and the replica must have run each exactly once.
fn one_after_another(count: usize, body: &str, gaps: std::ops::Range<u64>, manners: Manners) {
    let replica = Replica::start("m-8b");
    replica.manners(manners);
    let gateway = Gateway::with(&[&replica]).start();
    let mut client = gateway.connect();
    for n in 0..count {
        client.post(CHAT, body);
        let answer = client.read_answer();
        assert_eq!(answer.status, 200, "request {n}: {}", answer.describe());
        let spread = (gaps.end - gaps.start) * 1000;
        let step = if spread == 0 { 0 } else { n as u64 * 7919 % spread };
        let_pass(Duration::from_micros(gaps.start * 1000 + step));
    }
    let whole: Vec<_> =
        replica.requests().into_iter().filter(|request| request.complete_at.is_some()).collect();
    assert_eq!(whole.len(), count, "each request ran once");
    let records = gateway.wait_records(count);
    assert!(records.iter().all(|record| record["outcome"] == "completed"));
    assert_eq!(gateway.replica(&replica)["state"], "ready", "a connection's end is no failure");
}

/// The replica's 1.000 s and the client's 0.98–1.02 s are a twentieth of that here: the race is the
/// same, the test is done in 15 s.
#[test]
fn c05_idle_connection_closed_under_our_feet() {
    let manners = Manners { idle_fin: Some(Duration::from_millis(50)), reset_reused: false };
    one_after_another(300, &chat_body(false), 44..56, manners);
}

#[test]
fn c05_idle_connection_closed_under_a_big_body() {
    let manners = Manners { idle_fin: Some(Duration::from_millis(50)), reset_reused: false };
    one_after_another(30, &padded(2_000_000), 44..56, manners);
}

#[test]
fn c05_a_reused_connection_is_reset_unread() {
    one_after_another(100, &chat_body(false), 0..2, Manners { idle_fin: None, reset_reused: true });
}

#[test]
fn c05_a_reused_connection_is_reset_unread_under_a_big_body() {
    one_after_another(15, &padded(2_000_000), 0..2, Manners { idle_fin: None, reset_reused: true });
}

/// Servers that say nothing of it, and close right behind the answer.
#[test]
fn a_connection_that_ends_right_behind_its_answer_is_not_missed() {
    let replica = Replica::start("m-8b");
    replica.on_post(script(|conn, _| {
        conn.answer(200, "application/json", script::completion("cc-1", "ok", "stop", 9, 1))?;
        Ok(Then::Fin)
    }));
    let gateway = Gateway::with(&[&replica]).start();
    let mut client = gateway.connect();
    for n in 0..100 {
        client.post(CHAT, chat_body(false));
        assert_eq!(client.read_answer().status, 200, "request {n}");
    }
    assert_eq!(replica.requests().iter().filter(|request| request.complete_at.is_some()).count(), 100);
}

/// A connection that was used before, and ends without an answer long after the request was sent:
/// that is no race with an idle limit, the replica has had the request. It is not asked again.
#[test]
fn a_death_long_after_the_request_is_no_idle_race() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    let gateway = Gateway::with(&[&a, &b]).set("shards", 1).start();
    let mut client = gateway.connect();
    for _ in 0..6 {
        client.post(CHAT, chat_body(false));
        assert_eq!(client.read_answer().status, 200);
    }
    assert!(!a.requests().is_empty() && !b.requests().is_empty(), "both have a kept connection");
    let before = attempts(&[&a, &b]).len();
    let dying = script(|conn, _| conn.pause(Duration::from_millis(1500)).map(|()| Then::Fin));
    on_posts_in_order(&[&a, &b], vec![dying, script::good("cc-2", &["ok"])]);
    client.post(CHAT, chat_body(false));
    assert_eq!(client.read_answer().json()["id"], "cc-2");
    let tried: Vec<usize> = attempts(&[&a, &b])[before..].iter().map(|(replica, _)| *replica).collect();
    assert_eq!(tried.len(), 2);
    assert_ne!(tried[0], tried[1], "the same replica was asked again");
    let record = gateway.wait_records(7).remove(6);
    assert_eq!(record["attempts"].as_array().map(Vec::len), Some(2), "{record}");
}

/// Some servers say "408 Request Timeout" into an idle connection before they close it. That is no
/// answer to the request that happens to come next.
#[test]
fn words_on_an_idle_connection_do_not_answer_the_next_request() {
    let farewell = "HTTP/1.1 408 Request Timeout\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
    for then in [Then::Fin, Then::KeepAlive] {
        let replica = Replica::start("m-8b");
        replica.on_post(script(move |conn, _| {
            conn.answer(200, "application/json", script::completion("cc-1", "ok", "stop", 9, 1))?;
            conn.pause(Duration::from_millis(5))?;
            conn.send(farewell)?;
            Ok(then)
        }));
        let gateway = Gateway::with(&[&replica]).start();
        let mut client = gateway.connect();
        for n in 0..10 {
            client.post(CHAT, chat_body(false));
            let answer = client.read_answer();
            assert_eq!(answer.status, 200, "{then:?}, request {n}: {}", answer.describe());
            // Long enough that the words have come: a race with them cannot be won by anybody.
            let_pass(Duration::from_millis(200));
        }
    }
}

/// A connection over which a stream was sent is as good as any other, once the stream has ended.
#[test]
fn connections_are_reused_after_clean_ends() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).set("shards", 1).start();
    let mut client = gateway.connect();
    for n in 0..10 {
        client.post(CHAT, chat_body(n % 2 == 0));
        assert_eq!(client.read_answer().status, 200);
    }
    let requests = replica.requests();
    let mut connections: Vec<usize> = requests.iter().map(|request| request.connection).collect();
    connections.dedup();
    assert!(connections.len() <= 2, "each request got a connection of its own: {connections:?}");
}
