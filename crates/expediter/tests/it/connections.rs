//! Connections of clients: HTTP/1.0, keep-alive, pipelining, HTTP/2, and what is left of one after an error.

#![allow(clippy::float_cmp, reason = "counts are whole numbers")]

use std::time::Duration;

use serde_json::json;

use crate::kit::client::{Client, Progress, post_bytes};
use crate::kit::gateway::{CHAT, COMPLETIONS, Gateway, chat_body};
use crate::kit::h2::H2;
use crate::kit::replica::{Replica, Then};
use crate::kit::script::{self, script};
use crate::kit::sse;

/// A POST in HTTP/1.0.
fn old_post(headers: &str, body: &str) -> String {
    format!(
        "POST {CHAT} HTTP/1.0\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[test]
fn http_1_0_clients_get_whole_answers_and_a_close() {
    let replica = Replica::start("m-8b");
    replica.on_post(script::good("cc-1", &["a", "b"]));
    let gateway = Gateway::with(&[&replica]).start();
    for stream in [false, true] {
        let mut client = gateway.connect();
        client.send(old_post("", &chat_body(stream)));
        let answer = client.read_answer();
        assert_eq!(answer.status, 200, "{}", answer.describe());
        assert_eq!(answer.header("transfer-encoding"), None, "HTTP/1.0 knows no chunks");
        client.wait_end();
        assert!(client.unread().is_empty());
        if stream {
            assert_eq!(sse::text(&answer.body), "ab");
            assert_eq!(answer.payloads().last().map(String::as_str), Some("[DONE]"));
        } else {
            assert_eq!(answer.json()["choices"][0]["message"]["content"], "ab");
        }
        assert!(
            String::from_utf8_lossy(&replica.requests().pop().expect("one").head).contains(" HTTP/1.1\r\n")
        );
    }
    let mut client = gateway.connect();
    client.send("GET /v1/models HTTP/1.0\r\n\r\n");
    assert_eq!(client.read_answer().json()["data"][0]["id"], "gpt-fast");
    client.wait_end();
}

#[test]
fn http_1_0_keep_alive_is_kept_or_closed_but_never_unclear() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let mut client = gateway.connect();
    let mut reused = 0;
    for n in 0..6 {
        let stream = n % 3 == 2;
        client.send(old_post("connection: Keep-Alive\r\n", &chat_body(stream)));
        let answer = client.read_answer();
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("transfer-encoding"), None);
        let says_so =
            answer.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("keep-alive"));
        if answer.header("content-length").is_none() {
            // Its end is the close, and nothing may promise otherwise.
            client.wait_end();
            assert!(!says_so, "kept, without a length: {}", answer.describe());
        }
        if says_so {
            reused += 1;
        } else {
            client.wait_end();
            client = gateway.connect();
        }
    }
    assert!(reused == 0 || reused == 4, "whole answers alike: {reused}");
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let replica = Replica::start("m-8b");
    replica.on_post(script(|conn, request| {
        let slow = request.json()["slow"] == true;
        if slow {
            conn.pause(Duration::from_millis(200))?;
        }
        let id = request.json()["user"].as_str().unwrap_or("").to_owned();
        script::good(&id, &["a", "b"])(conn, request)
    }));
    let gateway = Gateway::with(&[&replica]).start();
    let body = |user: &str, stream: bool, slow: bool| {
        json!({"model": "gpt-fast", "messages": [], "user": user, "stream": stream, "slow": slow}).to_string()
    };
    let mut bytes = Vec::new();
    bytes.extend(post_bytes(CHAT, &[], body("one", false, true).as_bytes()));
    bytes.extend(b"GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n");
    bytes.extend(post_bytes(CHAT, &[], body("two", true, true).as_bytes()));
    bytes.extend(b"GET /nowhere HTTP/1.1\r\nhost: g\r\n\r\n");
    bytes.extend(post_bytes(CHAT, &[], b"{"));
    bytes.extend(post_bytes(COMPLETIONS, &[], body("three", false, false).as_bytes()));
    bytes.extend(post_bytes(CHAT, &[("connection", "close")], body("four", true, false).as_bytes()));
    for size in [bytes.len(), 37] {
        let mut client = gateway.connect();
        for piece in bytes.chunks(size) {
            client.send(piece);
        }
        assert_eq!(client.read_answer().json()["id"], "one");
        assert_eq!(client.read_answer().json()["object"], "list");
        assert_eq!(sse::ids(&client.read_answer().body), ["two"]);
        assert_eq!(client.read_answer().status, 404);
        assert_eq!(client.read_answer().status, 400);
        assert_eq!(client.read_answer().json()["id"], "three");
        assert_eq!(sse::ids(&client.read_answer().body), ["four"]);
        client.wait_end();
        assert!(client.unread().is_empty());
    }
    gateway.wait_records(8);
    gateway.wait_idle();
}

/// Many pipelined requests, in less than the 64 kB that are read ahead: one that sends more while its
/// request runs is taken for gone (`cancellation::a_client_that_floods_behind_its_request_and_leaves_is_seen`).
#[test]
fn a_long_pipeline_is_answered_to_its_end() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let mut client = gateway.connect();
    let n = 200;
    let one = post_bytes(CHAT, &[], chat_body(false).as_bytes());
    assert!(one.len() * n < 60_000, "{} bytes", one.len() * n);
    client.send(one.repeat(n));
    for nth in 0..n {
        assert_eq!(client.read_answer().status, 200, "answer {nth}");
    }
    assert_eq!(replica.requests().len(), n);
    gateway.wait_records(n);
}

/// After each kind of refusal the connection serves on, or is closed; no answer is lost or doubled.
#[test]
fn a_connection_after_an_error_serves_on_or_closes() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).set("limits.body_bytes_max", 10_000).start();
    let body = chat_body(false);
    let long = "x".repeat(20_000);
    let unknown = r#"{"model":"nope","messages":[]}"#;
    let cases: [(&str, Vec<u8>, u16); 9] = [
        ("invalid JSON", post_bytes(CHAT, &[], b"{"), 400),
        ("unknown model", post_bytes(CHAT, &[], unknown.as_bytes()), 404),
        ("no such route", post_bytes("/v1/nowhere", &[], body.as_bytes()), 404),
        ("no such route, long", post_bytes("/v1/nowhere", &[], long.as_bytes()), 404),
        (
            "method",
            [b"PUT".as_slice(), &post_bytes(CHAT, &[], body.as_bytes())[b"POST".len()..]].concat(),
            405,
        ),
        ("too large", post_bytes(CHAT, &[], long.as_bytes()), 413),
        ("encoded", post_bytes(CHAT, &[("content-encoding", "gzip")], body.as_bytes()), 415),
        ("empty", post_bytes(CHAT, &[], b""), 400),
        ("GET route", post_bytes("/v1/models", &[], body.as_bytes()), 405),
    ];
    let mut expected = 0;
    for (name, bytes, status) in &cases {
        let mut client: Client = gateway.connect();
        for round in 0..3 {
            let sent = client.try_send(bytes);
            let answer = match client.try_begin_answer() {
                Ok(mut answer) => {
                    client.finish(&mut answer);
                    answer
                }
                Err(_) if round > 0 || sent.is_err() => {
                    client = gateway.connect();
                    continue;
                }
                Err(end) => panic!("{name}: {end:?} without an answer"),
            };
            assert_eq!(answer.status, *status, "{name}, round {round}: {}", answer.describe());
            assert_eq!(answer.progress, Progress::Complete);
            answer.error_code();
            let closes = answer.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
            if closes || client.ended_within(Duration::from_millis(50)).is_some() {
                client.wait_end();
                assert!(client.unread().is_empty(), "{name}: nothing behind the refusal");
                client = gateway.connect();
                continue;
            }
            client.post(CHAT, &body);
            let answer = client.read_answer();
            assert_eq!(answer.status, 200, "{name}, then a good one: {}", answer.describe());
            expected += 1;
        }
    }
    assert_eq!(replica.requests().len(), expected, "the good ones and no other");
}

/// A replica's failure is no reason to close the client's connection.
#[test]
fn a_connection_after_a_replicas_failure_serves_on() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let mut client = gateway.connect();
    for stream in [false, true] {
        replica.on_post(script::raw("", Then::Reset));
        client.post(CHAT, chat_body(stream));
        let answer = client.read_answer();
        assert_eq!(answer.status, 502, "{}", answer.describe());
        replica.on_post(script::good("cc-1", &["ok"]));
        client.post(CHAT, chat_body(stream));
        assert_eq!(client.read_answer().status, 200);
    }
}

#[test]
fn http_2_by_prior_knowledge() {
    let replica = Replica::start("m-8b");
    replica.on_post(script::good("cc-1", &["a", "é"]));
    let gateway = Gateway::with(&[&replica]).start();
    let mut h2 = H2::connect(gateway.address);
    for _ in 0..3 {
        let answer = h2.post(CHAT, &chat_body(false));
        assert_eq!((answer.status, &answer.error), (200, &None));
        let whole: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
        assert_eq!(whole["choices"][0]["message"]["content"], "aé");
        let answer = h2.post(CHAT, &chat_body(true));
        assert_eq!((answer.status, &answer.error), (200, &None));
        assert_eq!(sse::text(&answer.body), "aé");
        assert!(
            answer.headers.get("transfer-encoding").is_none() && answer.headers.get("connection").is_none()
        );
        for (path, body, status) in [("/nowhere", "{}", 404), (CHAT, "{", 400), ("/v1/models", "{}", 405)] {
            let answer = h2.post(path, body);
            assert_eq!((answer.status, &answer.error), (status, &None), "{path}");
        }
    }
    let request = &replica.requests()[0];
    assert_eq!(request.header("host"), Some(replica.address().to_string().as_str()));
    assert!(request.headers.iter().all(|(name, _)| !name.starts_with(':')));
    assert_eq!(request.header("content-length"), Some(chat_body(false).len().to_string().as_str()));
}

/// Large bodies pass flow control in both directions.
#[test]
fn http_2_with_large_bodies() {
    let replica = Replica::start("m-8b");
    let long = "ab".repeat(2_000_000);
    let body = script::completion("cc-1", &long, "stop", 9, 1);
    replica.on_post(script::answer(200, "application/json", body.clone()));
    let gateway = Gateway::with(&[&replica]).start();
    let mut h2 = H2::connect(gateway.address);
    let sent = json!({"model": "gpt-fast", "messages": [{"role": "user", "content": long}]}).to_string();
    let answer = h2.post(CHAT, &sent);
    assert_eq!((answer.status, &answer.error), (200, &None));
    assert!(answer.body == body.as_bytes(), "{} bytes came", answer.body.len());
    assert!(replica.requests()[0].body == sent.replacen("gpt-fast", "m-8b", 1).as_bytes());
    // Over the limit: an answer, by status or as an error of the stream, and the connection lives.
    let mut lower = H2::connect(gateway.address);
    let answer = lower.post(CHAT, &"x".repeat((32 << 20) + 1));
    assert_eq!(answer.status, 413);
    assert_eq!(lower.post(CHAT, &chat_body(false)).status, 200);
}

/// Many requests at a time on one connection; the slow ones do not hold the quick ones.
#[test]
fn http_2_streams_are_independent() {
    let replica = Replica::start("m-8b");
    replica.on_post(script(|conn, request| {
        if request.json()["slow"] == true {
            conn.sse_head()?;
            conn.event(&script::token_frame("slow", "1"))?;
            conn.pause(Duration::from_millis(700))?;
            conn.event(&script::finish_frame("slow", "stop"))?;
            conn.event("[DONE]")?;
            conn.last_chunk()?;
            return Ok(Then::KeepAlive);
        }
        script::good("quick", &["ok"])(conn, request)
    }));
    let gateway = Gateway::with(&[&replica]).start();
    let mut h2 = H2::connect(gateway.address);
    let slow = json!({"model": "m-8b", "messages": [], "stream": true, "slow": true}).to_string();
    let mut streams: Vec<_> = (0..20).map(|_| h2.begin_post(CHAT, &[], &slow)).collect();
    let began = std::time::Instant::now();
    assert_eq!(h2.post(CHAT, &chat_body(false)).status, 200);
    assert_eq!(
        gateway.metric("expediter_in_flight", &[]),
        20.0,
        "after {:?} the slow ones still run",
        began.elapsed()
    );
    for stream in &mut streams {
        while h2.read_more(stream).expect("it lives") {}
        assert_eq!(sse::ids(&stream.body), ["slow"]);
        assert_eq!(sse::payloads(&stream.body).last().map(String::as_str), Some("[DONE]"));
    }
    gateway.wait_idle();
}

/// A client that would rather speak HTTP/2, or WebSocket, goes on in HTTP/1.1.
#[test]
fn upgrades_are_not_made() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    for upgrade in ["h2c", "websocket", "TLS/1.2"] {
        let mut client = gateway.connect();
        let headers = [("connection", "upgrade"), ("upgrade", upgrade), ("sec-websocket-key", "x")];
        client.send(post_bytes(CHAT, &headers, chat_body(false).as_bytes()));
        let answer = client.read_answer();
        assert_eq!(answer.status, 200, "{upgrade}: {}", answer.describe());
        assert!(answer.interim.is_empty());
        client.post(CHAT, chat_body(false));
        assert_eq!(client.read_answer().status, 200, "{upgrade}");
    }
}

/// Bytes of other protocols, and of none, end the connection and nothing else.
#[test]
fn other_protocols_are_turned_away() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).set("limits.head_ms", 1000).start();
    let cases: [&[u8]; 8] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"\0\0\0\0\0\0\0\0",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnot frames at all, and long enough to be some",
        b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\nGET / HTTP/1.1\r\n\r\n",
        b"\r\n\r\n\r\n\r\n",
        b"{\"model\":\"m-8b\"}",
    ];
    for bytes in cases {
        let mut client = gateway.connect();
        let _ = client.try_send(bytes);
        client.wait_end();
    }
    assert!(replica.requests().is_empty());
    assert_eq!(gateway.chat().status, 200);
}
