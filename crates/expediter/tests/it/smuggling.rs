//! Requests whose end is said in two ways, and text that would like to become a header: nothing
//! reaches a replica that the gateway did not see as a request of its own.

use std::time::Duration;

use crate::kit::client::post_bytes;
use crate::kit::gateway::{CHAT, COMPLETIONS, Gateway, chat_body};
use crate::kit::h2::Frame;
use crate::kit::replica::{Replica, find};
use crate::kit::wait::{PATIENCE, eventually};

/// What an attacker would like a replica to get: no test sends it as a request of its own.
const SMUGGLED: &str = r#"{"model":"m-8b","prompt":"smuggled"}"#;

fn smuggled_request() -> String {
    let bytes = post_bytes(COMPLETIONS, &[("x-smuggled", "1")], SMUGGLED.as_bytes());
    String::from_utf8(bytes).expect("ASCII")
}

/// Every request at the replica has a usage record, under its id, and one alone.
fn assert_all_seen(name: &str, gateway: &Gateway, replica: &Replica) {
    let requests = replica.requests();
    let records = gateway.wait_records(requests.len());
    for request in &requests {
        let ids: Vec<_> =
            request.headers.iter().filter(|(key, _)| key.eq_ignore_ascii_case("x-request-id")).collect();
        assert_eq!(ids.len(), 1, "{name}: {}", String::from_utf8_lossy(&request.head));
        let of_it = records.iter().filter(|record| record["request_id"] == *ids[0].1).count();
        assert_eq!(of_it, 1, "{name}: the gateway saw no request {}", ids[0].1);
        assert!(request.header("transfer-encoding").is_none(), "{name}");
        let length = request.header("content-length").map(str::to_owned);
        assert_eq!(length, Some(request.body.len().to_string()), "{name}");
    }
}

fn assert_not_smuggled(name: &str, replica: &Replica) {
    for request in replica.requests() {
        let bytes = [request.head.as_slice(), &request.body].concat();
        assert!(find(&bytes, b"smuggled").is_none(), "{name}: {}", String::from_utf8_lossy(&bytes));
    }
}

/// Sends bytes on a connection of their own, reads what answers there are, and returns their statuses
/// and whether the gateway closed.
fn exchange(gateway: &Gateway, bytes: &[u8]) -> (Vec<u16>, bool) {
    let mut client = gateway.connect();
    let _ = client.try_send(bytes);
    let mut statuses = Vec::new();
    let mut wait = Duration::from_secs(5);
    loop {
        match client.try_begin_answer_within(wait) {
            Ok(mut answer) => {
                client.finish(&mut answer);
                statuses.push(answer.status);
                wait = Duration::from_millis(250);
            }
            Err(end) => return (statuses, end.is_some()),
        }
    }
}

/// Framing that two readers read in two ways. RFC 9112 §6.3: refuse it, or read it one way and close;
/// either way the rest of the bytes is never a request.
#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn contradicting_framing_ends_the_connection() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let body = chat_body(false);
    let (length, inner) = (body.len(), smuggled_request());
    let chunked = format!("{length:x}\r\n{body}\r\n0\r\n\r\n");
    let post = format!("POST {CHAT} HTTP/1.1\r\nhost: g\r\n");
    let cases = [
        // By its length the inner request is a body, by its chunks it is a request.
        (
            "CL.TE",
            format!(
                "{post}content-length: {}\r\ntransfer-encoding: chunked\r\n\r\n{chunked}{inner}",
                chunked.len() + inner.len()
            ),
        ),
        ("TE.CL", format!("{post}transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n{chunked}{inner}")),
        (
            "CL 0 and TE",
            format!("{post}content-length: 0\r\ntransfer-encoding: chunked\r\n\r\n{chunked}{inner}"),
        ),
        (
            "two lengths",
            format!(
                "{post}content-length: {length}\r\ncontent-length: {}\r\n\r\n{body}{inner}",
                length + inner.len()
            ),
        ),
        (
            "two lengths, the longer first",
            format!(
                "{post}content-length: {}\r\ncontent-length: {length}\r\n\r\n{body}{inner}",
                length + inner.len()
            ),
        ),
        (
            "a list of lengths",
            format!("{post}content-length: {length}, {}\r\n\r\n{body}{inner}", length + inner.len()),
        ),
        ("length with a sign", format!("{post}content-length: +{length}\r\n\r\n{body}{inner}")),
        ("negative length", format!("{post}content-length: -1\r\n\r\n{body}{inner}")),
        ("length in hexadecimal", format!("{post}content-length: 0x{length:x}\r\n\r\n{body}{inner}")),
        ("length with a space", format!("{post}content-length: {length} 0\r\n\r\n{body}{inner}")),
        (
            "overflowing length",
            format!("{post}content-length: 184467440737095516{length}\r\n\r\n{body}{inner}"),
        ),
        (
            "space before the colon",
            format!("{post}transfer-encoding : chunked\r\ncontent-length: {length}\r\n\r\n{body}{inner}"),
        ),
        ("space before the length's colon", format!("{post}content-length : {length}\r\n\r\n{body}{inner}")),
        (
            "unknown encoding",
            format!("{post}transfer-encoding: xchunked\r\ncontent-length: {length}\r\n\r\n{body}{inner}"),
        ),
        (
            "encoding in quotes",
            format!("{post}transfer-encoding: \"chunked\"\r\ncontent-length: {length}\r\n\r\n{body}{inner}"),
        ),
        (
            "chunked is not last",
            format!("{post}transfer-encoding: chunked, identity\r\n\r\n{chunked}{inner}"),
        ),
        (
            "chunked and then another line",
            format!("{post}transfer-encoding: chunked\r\ntransfer-encoding: cow\r\n\r\n{chunked}{inner}"),
        ),
        (
            "identity and a length",
            format!("{post}transfer-encoding: identity\r\ncontent-length: {length}\r\n\r\n{body}{inner}"),
        ),
        (
            "vertical tab",
            format!("{post}transfer-encoding: \x0bchunked\r\ncontent-length: {length}\r\n\r\n{body}{inner}"),
        ),
        (
            "NUL",
            format!("{post}transfer-encoding: chunked\0\r\ncontent-length: {length}\r\n\r\n{body}{inner}"),
        ),
        (
            "folded",
            format!("{post}transfer-encoding:\r\n chunked\r\ncontent-length: {length}\r\n\r\n{body}{inner}"),
        ),
        (
            "folded into another",
            format!(
                "{post}x-a: b\r\n transfer-encoding: chunked\r\ncontent-length: {length}\r\n\r\n{body}{inner}"
            ),
        ),
        (
            "bare CR",
            format!(
                "{post}x-a: b\rtransfer-encoding: chunked\r\ncontent-length: {length}\r\n\r\n{body}{inner}"
            ),
        ),
        (
            "no colon",
            format!("{post}transfer-encoding chunked\r\ncontent-length: {length}\r\n\r\n{body}{inner}"),
        ),
        ("empty name", format!("{post}: chunked\r\ncontent-length: {length}\r\n\r\n{body}{inner}")),
        (
            "blank first",
            format!(
                "POST {CHAT} HTTP/1.1\r\n transfer-encoding: chunked\r\nhost: g\r\ncontent-length: {length}\r\n\r\n{body}{inner}"
            ),
        ),
        (
            "HTTP/1.0 in chunks",
            format!(
                "POST {CHAT} HTTP/1.0\r\ntransfer-encoding: chunked\r\nconnection: keep-alive\r\n\r\n{chunked}{inner}"
            ),
        ),
    ];
    for (name, sent) in cases {
        let (statuses, closed) = exchange(&gateway, sent.as_bytes());
        assert!(statuses.len() <= 1, "{name}: {statuses:?}, so the rest was a request");
        assert!(closed, "{name}: {statuses:?}, and the connection is open");
        let refused = statuses.iter().all(|status| [200, 400, 411, 415, 501].contains(status));
        assert!(refused, "{name}: {statuses:?}");
        assert_not_smuggled(name, &replica);
        assert_all_seen(name, &gateway, &replica);
    }
    assert_eq!(gateway.chat().status, 200);
}

/// Equal lengths said twice are one length (RFC 9110 §8.6), or refused.
#[test]
fn the_same_length_twice_is_one_or_none() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let body = chat_body(false);
    let length = body.len();
    let twice = [
        format!("content-length: {length}\r\ncontent-length: {length}\r\n"),
        format!("content-length: {length}, {length}\r\n"),
    ];
    for lengths in twice {
        let (statuses, closed) =
            exchange(&gateway, format!("POST {CHAT} HTTP/1.1\r\nhost: g\r\n{lengths}\r\n{body}").as_bytes());
        assert!(statuses == [200] || (statuses == [400] && closed), "{lengths}: {statuses:?}");
        assert_all_seen(&lengths, &gateway, &replica);
    }
}

/// A transfer coding besides chunks is not undone here: what arrives in it is no JSON, or not served at all.
#[test]
fn other_transfer_codings_are_not_undone() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let zipped = crate::kit::fixture("completion.json.gz");
    for coding in ["gzip, chunked", "deflate, chunked", "chunked, chunked"] {
        let mut sent =
            format!("POST {CHAT} HTTP/1.1\r\nhost: g\r\ntransfer-encoding: {coding}\r\n\r\n").into_bytes();
        sent.extend(crate::kit::replica::chunked(&zipped));
        sent.extend(b"0\r\n\r\n");
        let (statuses, _) = exchange(&gateway, &sent);
        assert!(statuses == [400] || statuses == [501], "{coding}: {statuses:?}");
    }
    assert!(replica.requests().is_empty());
}

/// Request lines that are no request lines, and heads that end where readers disagree.
#[test]
fn odd_request_lines_reach_no_replica_unseen() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).set("limits.head_ms", 1000).start();
    let body = chat_body(false);
    let inner = smuggled_request();
    let rest = format!("host: g\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let cases = [
        ("twice the version", format!("POST {CHAT} HTTP/1.1 HTTP/1.1\r\n{rest}")),
        ("target with a space", format!("POST {CHAT} x HTTP/1.1\r\n{rest}")),
        ("target with a tab", format!("POST {CHAT}\tx HTTP/1.1\r\n{rest}")),
        ("target with NUL", format!("POST {CHAT}\0 HTTP/1.1\r\n{rest}")),
        ("target with a bare CR", format!("POST {CHAT}\rx HTTP/1.1\r\n{rest}")),
        ("target with a line feed", format!("POST {CHAT}\n HTTP/1.1\r\n{rest}")),
        ("target beyond ASCII", format!("POST {CHAT}\u{e9} HTTP/1.1\r\n{rest}")),
        ("no target", format!("POST HTTP/1.1\r\n{rest}")),
        ("no version", format!("POST {CHAT}\r\n{rest}")),
        ("HTTP/0.9", format!("GET {CHAT}\r\n")),
        ("HTTP/1.2", format!("POST {CHAT} HTTP/1.2\r\n{rest}")),
        ("HTTP/2.0", format!("POST {CHAT} HTTP/2.0\r\n{rest}")),
        ("HTTP/9.9", format!("POST {CHAT} HTTP/9.9\r\n{rest}")),
        ("http in lower case", format!("POST {CHAT} http/1.1\r\n{rest}")),
        ("method in lower case", format!("post {CHAT} HTTP/1.1\r\n{rest}")),
        ("method with a colon", format!("POST: {CHAT} HTTP/1.1\r\n{rest}")),
        ("method with NUL", format!("PO\0ST {CHAT} HTTP/1.1\r\n{rest}")),
        ("blank before the method", format!(" POST {CHAT} HTTP/1.1\r\n{rest}")),
        ("two blanks", format!("POST  {CHAT}  HTTP/1.1\r\n{rest}")),
        ("tabs", format!("POST\t{CHAT}\tHTTP/1.1\r\n{rest}")),
        ("a request as the target", format!("POST {inner}")),
        ("a request in the query", format!("POST {CHAT}?{} HTTP/1.1\r\n{rest}", inner.replace("\r\n", "\n"))),
        ("NUL in a value", format!("POST {CHAT} HTTP/1.1\r\nx-a: b\0c\r\n{rest}")),
        ("bare CR in a value", format!("POST {CHAT} HTTP/1.1\r\nx-a: b\rx-smuggled: 1\r\n{rest}")),
        ("control in a name", format!("POST {CHAT} HTTP/1.1\r\nx-\x01a: b\r\n{rest}")),
        ("parenthesis in a name", format!("POST {CHAT} HTTP/1.1\r\nx(a): b\r\n{rest}")),
        ("CR CR LF", format!("POST {CHAT} HTTP/1.1\r\nx-a: b\r\r\n{rest}")),
        ("absolute with a bad host", format!("POST http://a b{CHAT} HTTP/1.1\r\n{rest}")),
        ("authority form", format!("POST gateway.test:80 HTTP/1.1\r\n{rest}")),
    ];
    for (name, sent) in cases {
        let (statuses, closed) = exchange(&gateway, sent.as_bytes());
        let served = statuses.first() == Some(&200);
        if served {
            // Read leniently, as one request.
            assert_eq!(statuses, [200], "{name}");
        } else {
            assert!(
                closed || statuses.iter().all(|status| (400..506).contains(status)),
                "{name}: {statuses:?}"
            );
        }
        assert_not_smuggled(name, &replica);
        assert_all_seen(name, &gateway, &replica);
    }
    for request in replica.requests() {
        assert_eq!(request.method, "POST");
        assert!(request.path == CHAT || request.path.starts_with(&format!("{CHAT}?")), "{}", request.path);
        assert!(request.head.ends_with(b"\r\n\r\n") && find(&request.head, b"HTTP/1.1\r\n").is_some());
    }
    assert_eq!(gateway.chat().status, 200);
}

/// Lines that end in LF alone are lines (RFC 9112 §2.2), or refused; what goes on has CRLF.
#[test]
fn bare_line_feeds_do_not_travel() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let body = chat_body(false);
    let cases = [
        ("all", format!("POST {CHAT} HTTP/1.1\nhost: g\nx-a: 1\ncontent-length: {}\n\n{body}", body.len())),
        ("last", format!("POST {CHAT} HTTP/1.1\r\nhost: g\r\ncontent-length: {}\r\n\n{body}", body.len())),
        (
            "a value",
            format!(
                "POST {CHAT} HTTP/1.1\r\nhost: g\r\nx-a: 1\nx-b: 2\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            ),
        ),
    ];
    for (name, sent) in cases {
        let (statuses, closed) = exchange(&gateway, sent.as_bytes());
        assert!(statuses == [200] || (statuses == [400] && closed), "{name}: {statuses:?}");
        assert_all_seen(name, &gateway, &replica);
        for request in replica.requests() {
            let head = String::from_utf8_lossy(&request.head).replace("\r\n", "");
            assert!(!head.contains(['\r', '\n']), "{name}: {head:?}");
        }
    }
}

/// An early refusal leaves a body on the connection. It is never read as the next request.
#[test]
fn bodies_of_refused_requests_are_no_requests() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).set("limits.body_bytes_max", 2000).start();
    let inner = smuggled_request();
    let filled = format!("{}{inner}", "\r\n".repeat(5000));
    let length = filled.len();
    let heads = [
        ("too large", format!("POST {CHAT} HTTP/1.1\r\nhost: g\r\ncontent-length: {length}\r\n")),
        ("no such route", format!("POST /x HTTP/1.1\r\nhost: g\r\ncontent-length: {length}\r\n")),
        ("method", format!("PUT {CHAT} HTTP/1.1\r\nhost: g\r\ncontent-length: {length}\r\n")),
        ("GET", format!("GET /v1/models HTTP/1.1\r\nhost: g\r\ncontent-length: {length}\r\n")),
        ("HEAD", format!("HEAD /x HTTP/1.1\r\nhost: g\r\ncontent-length: {length}\r\n")),
        (
            "encoded",
            format!(
                "POST {CHAT} HTTP/1.1\r\nhost: g\r\ncontent-encoding: gzip\r\ncontent-length: {length}\r\n"
            ),
        ),
        (
            "expected",
            format!("POST /x HTTP/1.1\r\nhost: g\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n"),
        ),
    ];
    for (name, head) in heads {
        // At once, and with the body a little later, when the refusal is already on its way.
        for late in [false, true] {
            let mut client = gateway.connect();
            if late {
                client.send(format!("{head}\r\n"));
                std::thread::sleep(Duration::from_millis(50));
                let _ = client.try_send(&filled);
            } else {
                let _ = client.try_send(format!("{head}\r\n{filled}"));
            }
            let mut text = String::new();
            while client.ended_within(Duration::from_millis(300)).is_none()
                && client.unread().len() > text.len()
            {
                text = String::from_utf8_lossy(client.unread()).into_owned();
            }
            let text = String::from_utf8_lossy(client.unread()).into_owned();
            let answers = text.matches("HTTP/1.1 ").count();
            assert!(answers <= 1, "{name}, late {late}: {text}");
            assert_not_smuggled(name, &replica);
        }
    }
    assert!(replica.requests().is_empty());
    // Behind the end of a body a request is a request: that is pipelining, and seen.
    let (statuses, _) = exchange(
        &gateway,
        format!("POST /x HTTP/1.1\r\nhost: g\r\ncontent-length: 2\r\n\r\n{{}}{inner}").as_bytes(),
    );
    assert!(statuses == [404] || statuses == [404, 200], "{statuses:?}");
    assert_all_seen("pipelined", &gateway, &replica);
}

/// Text in bodies that would like to become a header, a log line or a metric.
#[test]
fn names_of_models_do_not_become_headers_or_lines() {
    let replica = Replica::start("m-8b");
    let gateway =
        Gateway::with(&[&replica]).set("log.level", "debug").set("expose.decision_header", true).start();
    let names = [
        r"evil\r\nx-smuggled: 1",
        r"evil\nx-smuggled: 1",
        r"evil\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
        r#"evil\"} 1\nsmuggled{a=\""#,
        r"evil\u000d\u000ax-smuggled: 1",
        r"\u0000evil",
        r"evil\u0085x\u2028",
        r"evil\u001b[2J",
    ];
    for name in names {
        let answer = gateway.post(CHAT, &format!(r#"{{"model":"{name}","messages":[]}}"#));
        assert!([400, 404].contains(&answer.status), "{name}: {}", answer.describe());
        assert!(find(&answer.head, b"smuggled").is_none() && find(&answer.head, b"evil").is_none(), "{name}");
        answer.error_code();
        assert!(!answer.text().contains(['\r', '\n', '\0', '\u{1b}']), "{name}: {}", answer.text());
    }
    assert!(!gateway.metrics().contains("evil"));
    for line in gateway.log() {
        let entry: serde_json::Value = serde_json::from_str(&line).expect("each line of the log is JSON");
        assert!(entry["timestamp"].is_string(), "{line}");
    }
    assert!(replica.requests().is_empty());
}

/// Headers as names and values.
type Headers = &'static [(&'static str, &'static str)];

/// HTTP/2 frames carry any bytes: what is no header there does not become one in HTTP/1.1.
#[test]
fn http_2_headers_do_not_become_lines() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let cases: [(&str, &str, Headers); 14] = [
        ("CRLF in a value", CHAT, &[("x-a", "b\r\nx-smuggled: 1")]),
        ("LF in a value", CHAT, &[("x-a", "b\nx-smuggled: 1")]),
        ("NUL in a value", CHAT, &[("x-a", "b\0smuggled")]),
        ("CRLF in a name", CHAT, &[("x-a: b\r\nx-smuggled", "1")]),
        ("colon in a name", CHAT, &[("x-smuggled: x", "1")]),
        ("capitals in a name", CHAT, &[("X-Smuggled", "1")]),
        ("empty name", CHAT, &[("", "smuggled")]),
        ("CRLF in the path", "/v1/chat/completions HTTP/1.1\r\nx-smuggled: 1\r\nx: y", &[]),
        ("space in the path", "/v1/chat/completions smuggled", &[]),
        ("chunked", CHAT, &[("transfer-encoding", "chunked")]),
        ("connection", CHAT, &[("connection", "x-smuggled")]),
        ("length too short", CHAT, &[("content-length", "1")]),
        ("length too long", CHAT, &[("content-length", "1000")]),
        ("two lengths", CHAT, &[("content-length", "2"), ("content-length", "3")]),
    ];
    for (name, path, headers) in cases {
        exchange_h2(&gateway, path, headers);
        assert_not_smuggled(name, &replica);
        assert_all_seen(name, &gateway, &replica);
    }
    assert_eq!(gateway.chat().status, 200);
    gateway.wait_idle();
}

/// Sends a POST in frames by hand, in one write, and reads until its stream or the connection ends.
fn exchange_h2(gateway: &Gateway, path: &str, headers: &[(&str, &str)]) {
    let pseudo = [(":method", "POST"), (":scheme", "http"), (":authority", "gateway.test"), (":path", path)];
    let block: Vec<u8> =
        pseudo.iter().chain(headers).flat_map(|(name, value)| literal(name, value)).collect();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(Frame::SETTINGS, 0, 0, b""));
    bytes.extend(frame(Frame::HEADERS, Frame::END_HEADERS, 1, &block));
    bytes.extend(frame(Frame::DATA, Frame::END_STREAM, 1, chat_body(false).as_bytes()));
    let mut client = gateway.connect();
    client.send(bytes);
    let ended = |input: &[u8]| {
        let mut rest = input;
        while rest.len() >= 9 {
            let length = u32::from_be_bytes([0, rest[0], rest[1], rest[2]]) as usize;
            let (kind, flags, stream) = (rest[3], rest[4], rest[8]);
            let over = stream == 1 && (kind == Frame::RST_STREAM || flags & Frame::END_STREAM != 0);
            if kind == Frame::GOAWAY || over {
                return true;
            }
            rest = &rest[rest.len().min(9 + length)..];
        }
        false
    };
    eventually(PATIENCE, "the stream or the connection ends", || {
        client.ended_within(Duration::from_millis(5)).is_some() || ended(client.unread())
    });
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a length").to_be_bytes();
    [&[length[1], length[2], length[3], kind, flags, 0, 0, 0, stream], payload].concat()
}

/// A header in HPACK, literal and without indexing or Huffman coding.
fn literal(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).expect("a short text")], text.as_bytes()].concat();
    [vec![0], text(name), text(value)].concat()
}

/// A client does not choose what the gateway says in its own name.
#[test]
fn headers_of_the_gateway_are_its_own() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let mut client = gateway.connect();
    let headers = [("Host", "second.test"), ("Content-Type", "text/plain"), ("X-Forwarded-Host", "f")];
    client.send(post_bytes(CHAT, &headers, chat_body(false).as_bytes()));
    let mut answer = client.begin_answer();
    client.finish(&mut answer);
    assert!([200, 400].contains(&answer.status), "two hosts: {}", answer.describe());
    for request in replica.requests() {
        let hosts: Vec<_> =
            request.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("host")).collect();
        assert_eq!(hosts.len(), 1, "{hosts:?}");
        assert_eq!(hosts[0].1, replica.address().to_string());
    }
}
