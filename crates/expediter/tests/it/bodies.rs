//! Bodies of requests: large ones, announced ones, encoded ones, and all the ways of framing them.

#![allow(clippy::float_cmp, reason = "counts are whole numbers")]

use std::fmt::Write as _;
use std::io::Write as _;

use crate::kit::client::{Client, post_bytes};
use crate::kit::fixture;
use crate::kit::gateway::{CHAT, Gateway, chat_body};
use crate::kit::replica::{Replica, Request, Then, chunked};
use crate::kit::script::{self, script};
use crate::kit::sse;

/// `limits.body_bytes_max` unless told otherwise.
const LIMIT: usize = 32 << 20;

/// A chat body of exactly `bytes` with one image in it, for the alias.
fn image_body(bytes: usize) -> String {
    let before = r#"{"model":"gpt-fast","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,"#;
    let after = r#""}}]}],"max_tokens":4}"#;
    let data = "iVBORw0KGgo/".repeat(bytes / 12 + 1);
    let body = format!("{before}{}{after}", &data[..bytes - before.len() - after.len()]);
    assert_eq!(body.len(), bytes);
    body
}

/// A chunked POST in chunks of `size`.
fn chunked_post(headers: &str, body: &[u8], size: usize) -> Vec<u8> {
    let mut bytes = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: gateway.test\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n{headers}\r\n"
    )
    .into_bytes();
    for piece in body.chunks(size) {
        bytes.extend_from_slice(&chunked(piece));
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}

fn last(replica: &Replica) -> Request {
    replica.requests().pop().expect("a request")
}

/// What the replica got is `sent` with the alias replaced, framed once and rightly.
fn assert_arrived(request: &Request, sent: &str) {
    let expected = sent.replacen("gpt-fast", "m-8b", 1);
    assert!(request.body == expected.as_bytes(), "{} bytes came, not as they were sent", request.body.len());
    assert_eq!(request.header("content-length"), Some(expected.len().to_string().as_str()));
    assert_eq!(request.header("transfer-encoding"), None);
}

#[test]
fn c04_big_bodies() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    for bytes in [1_900_000, 2_100_000, 10_000_000, LIMIT] {
        let sent = image_body(bytes);
        let mut client = gateway.connect();
        client.post(CHAT, &sent);
        assert_eq!(client.read_answer().status, 200, "{bytes} bytes, by length");
        assert_arrived(&last(&replica), &sent);
        client.send(chunked_post("", sent.as_bytes(), 60_000));
        assert_eq!(client.read_answer().status, 200, "{bytes} bytes, chunked, on the same connection");
        assert_arrived(&last(&replica), &sent);
    }
}

#[test]
fn c04_a_body_over_the_limit() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let refusals = || gateway.metric("expediter_refusals_total", &[("code", "body_too_large")]);
    let check = |answer: crate::kit::client::Answer, refused: f64| {
        assert_eq!(answer.status, 413, "{}", answer.describe());
        assert_eq!(answer.error_code(), "body_too_large");
        assert_eq!(refusals(), refused);
    };
    // Declared: the answer comes before any of the body was sent.
    let mut client = gateway.connect();
    client.send(format!("POST {CHAT} HTTP/1.1\r\nhost: g\r\ncontent-length: {}\r\n\r\n", LIMIT + 1));
    check(client.read_answer(), 1.0);
    // Declared by a client that only sends, and reads when it is done: it gets its answer all the same.
    let sent = image_body(LIMIT + 1);
    let mut client = gateway.connect();
    let _ = client.try_send(&post_bytes(CHAT, &[], sent.as_bytes())[..1_000_000]);
    check(client.read_answer(), 2.0);
    // Chunked: it is known when the limit is passed.
    let mut client = gateway.connect();
    let _ = client.try_send(chunked_post("", sent.as_bytes(), 60_000));
    check(client.read_answer(), 3.0);
    // A chunk that announces too much is as good as its bytes, or is read to the limit; never more.
    let mut client = gateway.connect();
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n");
    client.send(head + "7fffffffffffffff\r\n{");
    assert!(replica.requests().is_empty(), "no replica heard of any");
    assert!(gateway.resident_bytes() < 500 << 20, "{} bytes resident", gateway.resident_bytes());
    drop(client);
    assert_eq!(gateway.chat().status, 200);
    gateway.wait_idle();
}

/// Where the limit is set lower, it is that one.
#[test]
fn the_limit_of_bodies_can_be_set() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).set("limits.body_bytes_max", 2000).start();
    for (bytes, status) in [(2000, 200), (2001, 413)] {
        let sent = image_body(bytes);
        assert_eq!(gateway.post(CHAT, &sent).status, status, "{bytes} by length");
        let mut client = gateway.connect();
        client.send(chunked_post("", sent.as_bytes(), 7));
        assert_eq!(client.read_answer().status, status, "{bytes} chunked");
    }
    assert_eq!(replica.requests().len(), 2);
}

#[test]
fn expect_100_continue_is_answered_where_the_body_is_wanted() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    for stream in [false, true] {
        for expect in ["100-continue", "100-Continue"] {
            let body = chat_body(stream);
            let sent = post_bytes(CHAT, &[("expect", expect)], body.as_bytes());
            let mut client = gateway.connect();
            client.send(&sent[..sent.len() - body.len()]);
            assert_eq!(client.read_interim(), 100, "before the body is sent");
            assert!(
                replica
                    .requests_of(crate::kit::replica::Kind::Work)
                    .iter()
                    .all(|request| request.complete_at.is_some())
            );
            client.send(&body);
            let answer = client.read_answer();
            assert_eq!(answer.status, 200, "{}", answer.describe());
            assert!(answer.interim.is_empty(), "no second 100");
            let request = last(&replica);
            assert_eq!(request.header("expect"), None, "the replica gets the body at once");
            // The next request on the connection is an ordinary one; a body sent without waiting is fine too.
            client.send(&sent);
            assert_eq!(client.read_answer().status, 200);
            client.post(CHAT, &body);
            assert_eq!(client.read_answer().interim, [0u16; 0]);
        }
    }
}

/// A client that waits for the word is told no before it sends anything.
#[test]
fn expect_100_continue_is_not_answered_where_the_body_is_refused() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let over = (LIMIT + 1).to_string();
    let cases = [
        ("over the limit", format!("POST {CHAT} HTTP/1.1\r\nhost: g\r\ncontent-length: {over}\r\n"), 413),
        ("no such route", "POST /v2/x HTTP/1.1\r\nhost: g\r\ncontent-length: 9\r\n".to_owned(), 404),
        ("method", format!("PUT {CHAT} HTTP/1.1\r\nhost: g\r\ncontent-length: 9\r\n"), 405),
        (
            "encoded",
            format!("POST {CHAT} HTTP/1.1\r\nhost: g\r\ncontent-length: 9\r\ncontent-encoding: gzip\r\n"),
            415,
        ),
    ];
    for (name, head, status) in cases {
        let mut client = gateway.connect();
        client.send(format!("{head}expect: 100-continue\r\n\r\n"));
        let answer = client.read_answer();
        assert_eq!(answer.status, status, "{name}: {}", answer.describe());
        assert!(answer.interim.is_empty(), "{name}");
        answer.error_code();
        // Whether the body follows now is the client's choice, so the connection cannot go on.
        client.wait_end();
    }
    assert!(replica.requests().is_empty());
}

#[test]
fn an_unknown_expectation_is_refused_or_ignored() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let mut client = gateway.connect();
    client.send(post_bytes(CHAT, &[("expect", "a-miracle")], chat_body(false).as_bytes()));
    let answer = client.read_answer();
    assert!([200, 417].contains(&answer.status), "{}", answer.describe());
    assert!(replica.requests().iter().all(|request| request.header("expect").is_none()));
}

#[test]
fn encoded_bodies_are_refused_by_name() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let zipped = fixture("completion.json.gz");
    for coding in ["gzip", "br", "deflate", "zstd", "gzip, identity", "GZIP", "x-unknown"] {
        let mut client = gateway.connect();
        client.send(post_bytes(CHAT, &[("content-encoding", coding)], &zipped));
        let answer = client.read_answer();
        assert_eq!(answer.status, 415, "{coding}: {}", answer.describe());
        assert_eq!(answer.error_code(), "unsupported_content_encoding", "{coding}");
    }
    // Two lines of it are one list.
    let mut client = gateway.connect();
    let headers = [("content-encoding", "identity"), ("content-encoding", "gzip")];
    client.send(post_bytes(CHAT, &headers, &zipped));
    let status = client.read_answer().status;
    assert!([400, 415].contains(&status), "{status}");
    assert!(replica.requests().is_empty());
    // Compressed without saying so is no JSON.
    let mut client = gateway.connect();
    client.send(post_bytes(CHAT, &[], &zipped));
    assert_eq!(client.read_answer().status, 400);
    assert!(replica.requests().is_empty());
}

/// Names of codings have no case (RFC 9110 §8.4.1).
#[test]
fn identity_is_no_encoding() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    for coding in ["identity", "Identity"] {
        let mut client = gateway.connect();
        client.send(post_bytes(CHAT, &[("content-encoding", coding)], chat_body(false).as_bytes()));
        let answer = client.read_answer();
        assert_eq!(answer.status, 200, "{coding}: {}", answer.describe());
    }
}

/// The replica would compress if it were asked to. Events within gzip could be neither judged nor
/// counted, so it is not asked.
#[test]
fn a_client_that_takes_gzip_gets_an_answer_without() {
    let replica = Replica::start("m-8b");
    replica.on_post(script(|conn, request| {
        let asked = request.headers.iter().any(|(name, value)| {
            name.eq_ignore_ascii_case("accept-encoding") && !value.eq_ignore_ascii_case("identity")
        });
        if asked {
            return conn.answer(500, "text/plain", "asked for an encoding").map(|()| Then::KeepAlive);
        }
        script::good("cc-1", &["a", "b"])(conn, request)
    }));
    let gateway = Gateway::with(&[&replica]).start();
    for accepted in ["gzip", "gzip, deflate, br, zstd", "*", "gzip;q=1.0, identity;q=0", ""] {
        for stream in [false, true] {
            let mut client = gateway.connect();
            client.send(post_bytes(CHAT, &[("accept-encoding", accepted)], chat_body(stream).as_bytes()));
            let answer = client.read_answer();
            assert_eq!(answer.status, 200, "{accepted}: {}", answer.describe());
            assert_eq!(answer.header("content-encoding"), None);
            if stream {
                assert_eq!(sse::text(&answer.body), "ab");
            } else {
                assert_eq!(answer.json()["choices"][0]["message"]["content"], "ab");
            }
        }
    }
}

#[test]
fn chunk_extensions_and_trailers_do_not_travel() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let body = chat_body(false);
    let (first, second) = body.split_at(10);
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: g\r\ntransfer-encoding: Chunked\r\ntrailer: x-sum\r\nte: trailers\r\n\r\n"
    );
    let cases = [
        (
            "extensions",
            format!("a;a=b;c=\"d;e\"\r\n{first}\r\n{:x} ; f\r\n{second}\r\n0;last\r\n\r\n", second.len()),
        ),
        ("leading zeros", format!("000a\r\n{first}\r\n{:04X}\r\n{second}\r\n000\r\n\r\n", second.len())),
        (
            "trailers",
            format!(
                "a\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\nx-sum: 1\r\ncontent-length: 5\r\nhost: evil\r\n\r\n",
                second.len()
            ),
        ),
    ];
    for (name, framed) in cases {
        let mut client = gateway.connect();
        client.send(format!("{head}{framed}"));
        let answer = client.read_answer();
        assert_eq!(answer.status, 200, "{name}: {}", answer.describe());
        let request = last(&replica);
        assert_arrived(&request, &body);
        assert_eq!(request.header("x-sum"), None, "{name}");
        assert_eq!(request.header("trailer"), None, "{name}");
        assert_eq!(request.header("te"), None, "{name}");
        assert_eq!(request.header("host").expect("host"), replica.address().to_string());
        client.post(CHAT, &body);
        assert_eq!(client.read_answer().status, 200, "{name}: the connection goes on");
    }
}

/// A body in the smallest pieces, with every border where a reader could trip.
#[test]
fn bodies_in_single_bytes() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let body = r#"{"model":"gpt-fast","messages":[{"role":"user","content":"é🤖\ud83e\udd16"}]}"#;
    let mut client = gateway.connect();
    for bytes in [post_bytes(CHAT, &[], body.as_bytes()), chunked_post("", body.as_bytes(), 1)] {
        for byte in bytes {
            client.send([byte]);
        }
        assert_eq!(client.read_answer().status, 200);
        assert_arrived(&last(&replica), body);
    }
}

/// Framing of bodies that nobody may guess about.
#[test]
fn broken_chunks_reach_no_replica() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let body = chat_body(false);
    let length = body.len();
    let cases = [
        ("no number", format!("xyz\r\n{body}\r\n0\r\n\r\n")),
        ("prefix", format!("0x{length:x}\r\n{body}\r\n0\r\n\r\n")),
        ("plus", format!("+{length:x}\r\n{body}\r\n0\r\n\r\n")),
        ("minus", format!("-1\r\n{body}\r\n0\r\n\r\n")),
        ("empty size", format!("\r\n{body}\r\n0\r\n\r\n")),
        ("overflow", format!("1{length:016x}\r\n{body}\r\n0\r\n\r\n")),
        ("huge overflow", format!("{}{length:x}\r\n{body}\r\n0\r\n\r\n", "f".repeat(40))),
        ("too short", format!("{:x}\r\n{body}\r\n0\r\n\r\n", length - 1)),
        ("bare LF behind the size", format!("{length:x}\n{body}\r\n0\r\n\r\n")),
        ("bare CR behind the size", format!("{length:x}\r{body}\r\n0\r\n\r\n")),
        ("no CRLF behind the data", format!("{length:x}\r\n{body}0\r\n\r\n")),
        ("LF inside an extension", format!("{length:x};a\nb\r\n{body}\r\n0\r\n\r\n")),
    ];
    for (name, framed) in cases {
        let mut client = gateway.connect();
        client.send(format!("POST {CHAT} HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n{framed}"));
        // An answer, if there is one, is a refusal; the connection is over.
        if let Ok(mut answer) = client.try_begin_answer() {
            client.finish(&mut answer);
            assert_eq!(answer.status, 400, "{name}: {}", answer.describe());
        }
        client.wait_end();
        assert!(replica.requests().is_empty(), "{name}");
    }
    // The end that never comes is no end.
    let mut client = gateway.connect();
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n"
    ));
    client.half_close();
    if let Ok(answer) = client.try_begin_answer() {
        assert_eq!(answer.status, 400, "{}", answer.describe());
    }
    assert!(replica.requests().is_empty(), "a body without its end");
    gateway.wait_idle();
}

/// Endless extensions, trailers and empty lines are bounded.
#[test]
fn endless_chunk_lines_are_cut_off() {
    let replica = Replica::start("m-8b");
    // Where the bytes end without an end of the body, its time does: 10 s unless told otherwise.
    let gateway = Gateway::with(&[&replica]).set("limits.head_ms", 1000).start();
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n");
    let many = 200_000;
    let mut trailers = String::new();
    for n in 0..many {
        let _ = write!(trailers, "x-{n}: {n}\r\n");
    }
    let cases = [
        ("extension", format!("1;{}", "a".repeat(10 << 20))),
        ("extensions", "1;a=b\r\n{\r\n".repeat(2 << 20)),
        ("trailers", format!("0\r\n{trailers}")),
        ("size line of zeros", "0".repeat(10 << 20)),
    ];
    for (name, framed) in cases {
        let mut client = gateway.connect();
        client.send(&head);
        let _ = client.try_send(&framed);
        match client.try_begin_answer() {
            Ok(answer) => assert!((400..500).contains(&answer.status), "{name}: {}", answer.describe()),
            Err(_) => {
                client.wait_end();
            }
        }
    }
    assert!(replica.requests().is_empty());
    assert_eq!(gateway.chat().status, 200);
    assert!(gateway.resident_bytes() < 300 << 20, "{} bytes resident", gateway.resident_bytes());
}

/// A replica that answers with a refusal before it has read all of a long body, and closes: its word
/// counts.
#[test]
fn a_replica_refuses_a_long_body_early() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    replica.before_body(Some(std::sync::Arc::new(|conn, _| {
        conn.answer(400, "application/json", script::error_body(400, "BadRequestError", "too long"))?;
        // The rest is read, as servers do for a while before they close.
        conn.pause(std::time::Duration::from_millis(200))?;
        Ok(Some(Then::Fin))
    })));
    let answer = gateway.post(CHAT, &image_body(3_000_000));
    assert_eq!(answer.status, 400, "{}", answer.describe());
    assert!(answer.text().contains("too long"));
    gateway.wait_idle();
}

/// GET with a body, POST without: a body is where its framing says, whatever the method.
#[test]
fn methods_do_not_decide_about_bodies() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let mut client: Client = gateway.connect();
    let inner = post_bytes(CHAT, &[], chat_body(false).as_bytes());
    let mut bytes = Vec::new();
    let _ = write!(bytes, "GET /v1/models HTTP/1.1\r\nhost: g\r\ncontent-length: {}\r\n\r\n", inner.len());
    bytes.extend_from_slice(&inner);
    client.send(&bytes);
    let answer = client.read_answer();
    assert!([200, 400].contains(&answer.status), "{}", answer.describe());
    if let Ok(mut second) = client.try_begin_answer_within(std::time::Duration::from_millis(300)) {
        client.finish(&mut second);
        panic!("the body of a GET was taken for a request: {}", second.describe());
    }
    assert!(replica.requests().is_empty());
    let mut client = gateway.connect();
    client.send(format!("POST {CHAT} HTTP/1.1\r\nhost: g\r\n\r\n"));
    assert_eq!(client.read_answer().status, 400, "no body is no JSON");
}
