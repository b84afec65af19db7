//! Replicas that are neither alive nor dead: whatever they send instead of an answer, the client
//! gets a good answer from another one, or an honest error, and the next request is not poisoned.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::kit::client::{Progress, post_bytes};
use crate::kit::fixture;
use crate::kit::gateway::{CHAT, Gateway, chat_body};
use crate::kit::replica::{Replica, Script, Then, attempts, on_posts_in_order};
use crate::kit::script::{self, script};
use crate::kit::sse;

/// `first` answers the first POST that comes anywhere; all later ones get a good answer `cc-2`.
fn pair(first: Script) -> [Replica; 2] {
    let replicas = [Replica::start("m-8b"), Replica::start("m-8b")];
    on_posts_in_order(&[&replicas[0], &replicas[1]], vec![first, script::good("cc-2", &["from-B"])]);
    replicas
}

const JSON: &str = "content-type: application/json\r\n";

/// An answer with these header lines, and the body.
fn framed(headers: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\n{JSON}{headers}\r\n{body}")
}

fn body() -> String {
    script::completion("cc-1", "from-A", "stop", 9, 1)
}

#[test]
fn no_answer_at_all_is_retried_elsewhere() {
    let long = format!("x-long: {}\r\n", "x".repeat(100_000));
    let many: String = (0..5000).map(|n| n.to_string() + ": 1\r\n").collect();
    let length = body().len();
    let cases: Vec<(&str, Script)> = vec![
        ("FIN at once", script::raw("", Then::Fin)),
        ("RST at once", script::raw("", Then::Reset)),
        ("garbage", script::raw("\x00\x01\u{7f}garbage\r\n\r\nmore\r\n\r\n", Then::Hold)),
        ("another protocol", script::raw("SSH-2.0-OpenSSH_9.9\r\n", Then::Fin)),
        ("an HTTP/2 preface", script::raw("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Then::Hold)),
        ("half a head, FIN", script::raw("HTTP/1.1 200 OK\r\ncontent-ty", Then::Fin)),
        ("half a head, RST", script::raw("HTTP/1.1 200 OK\r\ncontent-ty", Then::Reset)),
        ("100 Continue, FIN", script::raw("HTTP/1.1 100 Continue\r\n\r\n", Then::Fin)),
        (
            "1xx without end",
            script(|conn, _| {
                loop {
                    conn.send("HTTP/1.1 102 Processing\r\n\r\n".repeat(100))?;
                }
            }),
        ),
        (
            "an endless header",
            script(|conn, _| {
                conn.send("HTTP/1.1 200 OK\r\nx: ")?;
                loop {
                    conn.send("x".repeat(10_000))?;
                }
            }),
        ),
        (
            "a long header",
            script::raw(framed(&format!("{long}content-length: {length}\r\n"), &body()), Then::Fin),
        ),
        (
            "many headers",
            script::raw(framed(&format!("{many}content-length: {length}\r\n"), &body()), Then::Fin),
        ),
        (
            "length and chunked",
            script::raw(
                framed("content-length: 3\r\ntransfer-encoding: chunked\r\n", "0\r\n\r\n"),
                Then::Hold,
            ),
        ),
        (
            "two lengths",
            script::raw(framed("content-length: 3\r\ncontent-length: 4\r\n", "{}  "), Then::Hold),
        ),
        ("a negative length", script::raw(framed("content-length: -1\r\n", "{}"), Then::Hold)),
        (
            "a huge length",
            script::raw(framed("content-length: 99999999999999999999999\r\n", "{}"), Then::Hold),
        ),
        ("no status", script::raw("HTTP/1.1 \r\ncontent-length: 0\r\n\r\n", Then::Hold)),
        (
            "a bad chunk size",
            script::raw(framed("transfer-encoding: chunked\r\n", "zz\r\n{}\r\n0\r\n\r\n"), Then::Hold),
        ),
        ("a cut chunk", script::raw(framed("transfer-encoding: chunked\r\n", "ff\r\n{\"id\":"), Then::Fin)),
        (
            "a body shorter than its length",
            script::raw(framed("content-length: 100000\r\n", &body()), Then::Fin),
        ),
        ("the same, reset", script::raw(framed("content-length: 100000\r\n", &body()), Then::Reset)),
        ("cut, until close", script::raw(framed("connection: close\r\n", &body()[..60]), Then::Fin)),
        ("no JSON", script::raw(framed("content-length: 7\r\n", "{\"id\":\""), Then::KeepAlive)),
    ];
    for (name, first) in cases {
        let [a, b] = pair(first);
        let gateway = Gateway::with(&[&a, &b]).start();
        let asked = Instant::now();
        let answer = gateway.chat();
        // By what came, and not by one of the limits for what did not.
        assert!(asked.elapsed() < Duration::from_secs(5), "{name}: judged after {:?}", asked.elapsed());
        assert_eq!(
            (answer.status, answer.progress),
            (200, Progress::Complete),
            "{name}: {}",
            answer.describe()
        );
        assert_eq!(answer.json()["id"], "cc-2", "{name}");
        assert_eq!(attempts(&[&a, &b]).len(), 2, "{name}");
        let record = gateway.wait_record();
        assert_eq!(record["outcome"], "completed", "{name}: {record}");
        gateway.wait_idle();
        for _ in 0..4 {
            assert_eq!(gateway.chat().json()["id"], "cc-2", "{name}: the next requests");
        }
    }
}

/// With a limit for the first output of half a second instead of ten minutes.
#[test]
fn slow_and_unfinished_heads_meet_the_limit_for_the_first_output() {
    let drip = script(|conn, _| {
        let head = format!("HTTP/1.1 200 OK\r\n{JSON}content-length: {}\r\n\r\n", body().len());
        conn.send_pieces(head.as_bytes(), 1, Duration::from_millis(100))?;
        conn.send(body())?;
        Ok(Then::KeepAlive)
    });
    let cases: Vec<(&str, Script)> = vec![
        ("a head one byte at a time", drip),
        ("100 Continue and nothing", script::raw("HTTP/1.1 100 Continue\r\n\r\n", Then::Hold)),
        ("a head and nothing", script::raw(framed("content-length: 10\r\n", ""), Then::Hold)),
        ("a stream's head and nothing", script(|conn, _| conn.sse_head().map(|()| Then::Hold))),
        (
            "only comments",
            script(|conn, _| {
                conn.sse_head()?;
                loop {
                    conn.chunk(": keep-alive\n\n")?;
                    conn.pause(Duration::from_millis(100))?;
                }
            }),
        ),
    ];
    for (n, (name, first)) in cases.into_iter().enumerate() {
        let [a, b] = pair(first);
        let gateway = Gateway::with(&[&a, &b]).set("limits.first_output_ms", 500).start();
        let answer = gateway.post(CHAT, &chat_body(n >= 3));
        assert_eq!(answer.status, 200, "{name}: {}", answer.describe());
        assert!(answer.text().contains("from-B"), "{name}: {}", answer.describe());
        // The slow one is let go.
        let first = attempts(&[&a, &b])[0].0;
        [&a, &b][first].wait_abort(0);
    }
}

/// Slow is not dead: within the limit the answer is waited for.
#[test]
fn a_head_in_single_bytes_is_an_answer() {
    let [a, b] = pair(script(|conn, _| {
        let answer = framed(&format!("content-length: {}\r\n", body().len()), &body());
        conn.send_pieces(answer.as_bytes(), 1, Duration::from_millis(2))?;
        Ok(Then::KeepAlive)
    }));
    let gateway = Gateway::with(&[&a, &b]).start();
    assert_eq!(gateway.chat().json()["id"], "cc-1");
    assert_eq!(attempts(&[&a, &b]).len(), 1);
}

/// Unusual and legal: the first replica's answer counts, and the next request works too.
#[test]
fn unusual_answers_are_answers() {
    let length = format!("content-length: {}\r\n", body().len());
    let chunks: Vec<u8> =
        body().as_bytes().chunks(10).flat_map(crate::kit::replica::chunked).chain(*b"0\r\n\r\n").collect();
    let chunked = [framed("Transfer-Encoding: CHUNKED\r\n", "").as_bytes(), &chunks].concat();
    let early = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n";
    let old = format!("HTTP/1.0 200 OK\r\n{JSON}\r\n{}", body());
    let old_length = format!("HTTP/1.0 200 OK\r\n{JSON}{length}\r\n{}", body());
    let cases: Vec<(&str, Script)> = vec![
        ("1xx first", script::raw(format!("{early}{}", framed(&length, &body())), Then::KeepAlive)),
        ("chunked", script::raw(chunked, Then::KeepAlive)),
        (
            "connection: close",
            script::raw(framed(&format!("{length}connection: close\r\n"), &body()), Then::Fin),
        ),
        (
            "close, and yet open",
            script::raw(framed(&format!("{length}Connection: Close\r\n"), &body()), Then::Hold),
        ),
        ("until close", script::raw(framed("connection: close\r\n", &body()), Then::Fin)),
        ("HTTP/1.0 until close", script::raw(old, Then::Fin)),
        ("HTTP/1.0 with a length", script::raw(old_length, Then::Fin)),
        ("no reason phrase", script::raw(framed(&length, &body()).replacen(" OK", " ", 1), Then::KeepAlive)),
    ];
    for (name, first) in cases {
        let [a, b] = pair(first);
        let gateway = Gateway::with(&[&a, &b]).start();
        let mut client = gateway.connect();
        client.post(CHAT, chat_body(false));
        let answer = client.read_answer();
        assert_eq!(
            (answer.status, answer.progress),
            (200, Progress::Complete),
            "{name}: {}",
            answer.describe()
        );
        assert_eq!(answer.text(), body(), "{name}");
        assert_eq!(attempts(&[&a, &b]).len(), 1, "{name}");
        for _ in 0..4 {
            client.post(CHAT, chat_body(false));
            assert_eq!(client.read_answer().json()["id"], "cc-2", "{name}: the next requests");
        }
        assert_eq!(gateway.wait_records(5)[0]["outcome"], "completed", "{name}");
    }
}

#[test]
fn a_stream_until_close_counts_as_whole_only_with_its_end() {
    let head = "HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    let whole = fixture("R01-B.sse");
    for (name, file) in [("whole", whole.clone()), ("cut", whole[..whole.len() - 100].to_vec())] {
        let [a, b] = pair(script::raw([head.as_bytes(), &file].concat(), Then::Fin));
        let gateway = Gateway::with(&[&a, &b]).start();
        let answer = gateway.chat_stream();
        if name == "whole" {
            assert_eq!(answer.payloads(), sse::payloads(&whole));
            assert_eq!(gateway.wait_record()["outcome"], "completed");
        } else {
            sse::assert_ends_in_error(&answer.body, &sse::payloads(&file));
            assert_eq!(gateway.wait_record()["outcome"], "upstream_failure");
        }
    }
}

/// More bytes than were announced are not the beginning of the next answer.
#[test]
fn bytes_behind_an_answer_do_not_answer_the_next_request() {
    let stray = framed("content-length: 13\r\n", "{\"id\":\"evil\"}");
    let whole = framed(&format!("content-length: {}\r\n", body().len()), &body());
    let chunked_end = framed("transfer-encoding: chunked\r\n", "2\r\n{}\r\n0\r\n\r\n");
    for (name, first) in [("length", whole), ("chunked", chunked_end)] {
        let replica = Replica::start("m-8b");
        let scripts =
            vec![script::raw(format!("{first}{stray}"), Then::KeepAlive), script::good("cc-2", &["b"])];
        on_posts_in_order(&[&replica], scripts);
        let gateway = Gateway::with(&[&replica]).start();
        gateway.chat();
        for _ in 0..3 {
            assert_eq!(gateway.chat().json()["id"], "cc-2", "{name}");
        }
        let requests = replica.requests();
        assert_ne!(
            requests[0].connection, requests[1].connection,
            "{name}: the connection is not used again"
        );
    }
}

/// An answer without a body is no completion; what matters is that nobody hangs and that a body
/// which comes all the same is not taken for the next answer.
#[test]
fn answers_without_a_body_do_not_hang() {
    let cases = [
        ("204", "HTTP/1.1 204 No Content\r\n\r\n"),
        ("304", "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n"),
        ("200 with length 0", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
        ("204 with a body", "HTTP/1.1 204 No Content\r\ncontent-length: 2\r\n\r\n{}"),
    ];
    for (name, bytes) in cases {
        for stream in [false, true] {
            let [a, b] = pair(script::raw(bytes, Then::KeepAlive));
            let gateway = Gateway::with(&[&a, &b]).start();
            let answer = gateway.post(CHAT, &chat_body(stream));
            // Either retried, or an honest error; never an empty success.
            let from_b = answer.status == 200 && answer.text().contains("from-B");
            assert!(from_b || answer.status >= 300, "{name}: {}", answer.describe());
            for _ in 0..4 {
                assert_eq!(gateway.chat().json()["id"], "cc-2", "{name}: the next requests");
            }
        }
    }
}

/// A replica behind a compressing proxy: what the client asked for reaches it byte for byte, with
/// its header; what it did not ask for is not asked of the replica.
#[test]
fn compressed_answers_pass_as_they_are() {
    let zipped = fixture("completion.json.gz");
    let replica = Replica::start("m-8b");
    replica.on_post(script(move |conn, request| {
        let asked = request.header("accept-encoding").is_some_and(|value| value.contains("gzip"));
        if !asked {
            conn.answer(200, "application/json", script::completion("cc-2", "zipped", "stop", 9, 1))?;
            return Ok(Then::KeepAlive);
        }
        let head = format!(
            "HTTP/1.1 200 OK\r\n{JSON}content-encoding: gzip\r\nvary: accept-encoding\r\ncontent-length: {}\r\n\r\n",
            zipped.len()
        );
        conn.send([head.as_bytes(), &zipped].concat())?;
        Ok(Then::KeepAlive)
    }));
    let gateway = Gateway::with(&[&replica]).start();
    let mut client = gateway.connect();
    client.send(post_bytes(CHAT, &[("accept-encoding", "gzip")], chat_body(false).as_bytes()));
    let answer = client.read_answer();
    assert_eq!(answer.status, 200, "{}", answer.describe());
    if answer.header("content-encoding").is_some() {
        assert_eq!(answer.header("content-encoding"), Some("gzip"));
        assert_eq!(answer.body, fixture("completion.json.gz"));
    } else {
        assert_eq!(answer.json()["choices"][0]["message"]["content"], "zipped");
    }
    let plain = gateway.chat();
    assert_eq!(plain.header("content-encoding"), None);
    assert_eq!(plain.json()["id"], "cc-2");
    assert!(gateway.wait_records(2).iter().all(|record| record["outcome"] == "completed"));
}

/// The port is open, and nobody is behind it. Four requests, so that some are tried there first.
#[test]
fn connections_that_are_closed_or_reset_on_arrival_are_retried_elsewhere() {
    for then in [Then::Fin, Then::Reset] {
        let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
        // Probes are rare here, so that the replica is not found out before it is asked.
        let gateway = Gateway::with(&[&a, &b]).set("probe.interval_ms", 5000).start();
        // Connections that the gateway has by now are dropped as well.
        a.before_body(Some(Arc::new(move |_, _| Ok(Some(then)))));
        a.on_accept(Some(Arc::new(move |_| Ok(Some(then)))));
        for n in 0..4 {
            let answer = gateway.post(CHAT, &chat_body(n % 2 == 0));
            assert_eq!(answer.status, 200, "{then:?}: {}", answer.describe());
        }
        assert_eq!(b.requests().len(), 4);
        assert!(gateway.wait_records(4).iter().all(|record| record["outcome"] == "completed"));
    }
}

#[test]
fn refused_connections_are_retried_elsewhere() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    let gateway = Gateway::with(&[&a, &b]).set("probe.interval_ms", 5000).start();
    a.close_port();
    a.before_body(Some(Arc::new(|_, _| Ok(Some(Then::Reset)))));
    for n in 0..4 {
        let answer = gateway.post(CHAT, &chat_body(n % 2 == 0));
        assert_eq!(answer.status, 200, "{}", answer.describe());
    }
    assert_eq!(b.requests().len(), 4);
}
