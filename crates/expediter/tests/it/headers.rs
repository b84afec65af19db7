//! Which headers travel, in both directions, and which targets lead where.

use serde_json::json;

use crate::kit::client::{Answer, Progress, post_bytes};
use crate::kit::fixture;
use crate::kit::gateway::{CHAT, COMPLETIONS, Gateway, chat_body};
use crate::kit::replica::{Replica, Request, Script, Then};
use crate::kit::script::{self, script};
use crate::kit::sse;

/// An answer with every header about the connection that a replica may send.
fn with_hop_by_hop() -> Script {
    script(|conn, request| {
        let stream = script::wants_stream(request);
        let payloads =
            [script::token_frame("cc-1", "ok"), script::finish_frame("cc-1", "stop"), "[DONE]".into()];
        let body = if stream {
            script::stream_of(&payloads)
        } else {
            script::completion("cc-1", "ok", "stop", 9, 1).into_bytes()
        };
        let kind = if stream { "text/event-stream" } else { "application/json" };
        conn.send(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nConnection: keep-alive, X-Up\r\nX-Up: 1\r\n\
             Keep-Alive: timeout=5\r\nX-Request-Id: up-1\r\nProxy-Authenticate: Basic\r\nx-engine: kept\r\n\
             set-cookie: a=1\r\nset-cookie: b=2\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        ))?;
        conn.send(body)?;
        Ok(Then::KeepAlive)
    })
}

fn last(replica: &Replica) -> Request {
    replica.requests().pop().expect("a request")
}

fn count(request: &Request, name: &str) -> usize {
    request.headers.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name)).count()
}

fn assert_case_at_the_client(answer: &Answer) {
    assert_eq!(answer.status, 200, "{}", answer.describe());
    assert_eq!(answer.progress, Progress::Complete);
    for name in ["x-up", "keep-alive", "proxy-authenticate"] {
        assert_eq!(answer.header(name), None, "{name}: {}", answer.describe());
    }
    let framed =
        answer.headers_named("content-length").len() + answer.headers_named("transfer-encoding").len();
    assert_eq!(framed, 1, "{}", answer.describe());
    assert_eq!(answer.headers_named("x-request-id"), ["client-id-1"]);
    assert_eq!(answer.headers_named("date").len(), 1);
    assert_eq!(answer.header("x-engine"), Some("kept"));
    assert_eq!(answer.headers_named("set-cookie"), ["a=1", "b=2"]);
}

#[test]
fn c06_which_headers_travel() {
    let replica = Replica::start("m-8b");
    replica.on_post(with_hop_by_hop());
    let gateway = Gateway::with(&[&replica]).start();
    for stream in [false, true] {
        let mut sent = String::from_utf8(fixture("C06.http")).expect("ASCII");
        if stream {
            let more = ",\"stream\":true";
            sent = sent.replace("\"max_tokens\":4", &format!("\"max_tokens\":4{more}"));
            sent = sent.replace("Content-Length: 79", &format!("Content-Length: {}", 79 + more.len()));
        }
        let mut client = gateway.connect();
        client.send(&sent);
        assert_case_at_the_client(&client.read_answer());

        let request = last(&replica);
        let authority = replica.address().to_string();
        assert_eq!(count(&request, "host"), 1);
        assert_eq!(request.header("host"), Some(authority.as_str()));
        assert_eq!(count(&request, "content-length") + count(&request, "transfer-encoding"), 1);
        assert_eq!(request.header("content-length"), Some(request.body.len().to_string().as_str()));
        for name in ["x-drop-me", "keep-alive", "proxy-authorization", "te"] {
            assert_eq!(request.header(name), None, "{name}");
        }
        assert!(!request.header("connection").unwrap_or("").to_ascii_lowercase().contains("x-drop-me"));
        assert_eq!(request.header("x-custom-trace"), Some("keep-this"));
        assert_eq!(request.header("content-type"), Some("application/json"));
        assert_eq!(count(&request, "x-request-id"), 1);
        assert_eq!(request.json()["model"], "m-8b");
    }
    for record in gateway.wait_records(2) {
        assert_eq!(record["request_id"], "client-id-1");
    }
}

/// Several headers of one name stay several, in order; names have no case; values keep their bytes.
#[test]
fn repeated_headers_and_odd_values_travel_as_they_are() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let mut client = gateway.connect();
    let body = chat_body(false);
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\nhOsT: g\r\nX-Many: 1\r\nCONTENT-TYPE: application/json\r\nx-other: o\r\n\
         X-MANY: 2, 3\r\nx-many: \r\nX-Empty:\r\nx-blank: \t a b \t \r\nx_under: u\r\nx-latin: é\r\ncOnTeNt-LeNgTh: {}\r\n\r\n{body}",
        body.len()
    ));
    let answer = client.read_answer();
    assert_eq!(answer.status, 200, "{}", answer.describe());
    let request = last(&replica);
    let many: Vec<&str> = request
        .headers
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case("x-many"))
        .map(|(_, value)| value.as_str())
        .collect();
    assert_eq!(many, ["1", "2, 3", ""]);
    assert_eq!(request.header("x-empty"), Some(""));
    assert_eq!(request.header("x-blank"), Some("a b"));
    assert_eq!(request.header("x_under"), Some("u"));
    assert_eq!(request.header("x-latin"), Some("é"));
    assert_eq!(count(&request, "content-type"), 1);
}

/// What a client may name in `Connection` takes nothing away that frames or addresses the request.
#[test]
fn connection_lists_cannot_break_the_request() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    for list in [
        "content-length",
        "host, content-length",
        "transfer-encoding",
        "x-request-id",
        ",,,",
        "close, x-a",
        "Upgrade, HTTP2-Settings",
    ] {
        let mut client = gateway.connect();
        let headers = [
            ("connection", list),
            ("x-a", "1"),
            ("upgrade", "h2c"),
            ("http2-settings", "AAMAAABkAAQAoAAAAAIAAAAA"),
        ];
        client.send(post_bytes(CHAT, &headers, chat_body(false).as_bytes()));
        let answer = client.read_answer();
        assert_eq!(answer.status, 200, "{list}: {}", answer.describe());
        let request = last(&replica);
        assert_eq!(
            request.header("content-length"),
            Some(chat_body(false).len().to_string().as_str()),
            "{list}"
        );
        assert_eq!(count(&request, "host"), 1, "{list}");
        assert_eq!(request.header("upgrade"), None, "{list}");
        assert!(request.header("connection").is_none_or(|value| value.eq_ignore_ascii_case("keep-alive")));
    }
}

#[test]
fn a_client_that_says_close_is_closed_behind_its_answer() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    for stream in [false, true] {
        let mut client = gateway.connect();
        client.send(post_bytes(CHAT, &[("connection", "close")], chat_body(stream).as_bytes()));
        let answer = client.read_answer();
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("connection"), Some("close"), "{}", answer.describe());
        client.wait_end();
        assert!(client.unread().is_empty());
    }
}

/// An id that could break a log line, a header or a record is replaced; one of several is taken.
#[test]
fn request_ids_are_one_and_safe() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let long = "x".repeat(10_000);
    let odd =
        ["", " ", "a b", "a\"b", "{\"a\":1}", "a\\nb", "é", "a%0d%0aX-Evil: 1", "\u{1b}[31m", "\t", &long];
    for id in odd {
        let mut client = gateway.connect();
        client.send(post_bytes(CHAT, &[("x-request-id", id)], chat_body(false).as_bytes()));
        let Ok(mut answer) = client.try_begin_answer() else { continue };
        client.finish(&mut answer);
        if answer.status != 200 {
            assert_eq!(answer.status, 400, "{id:?}: {}", answer.describe());
            continue;
        }
        let ids = answer.headers_named("x-request-id");
        assert_eq!(ids.len(), 1, "{id:?}");
        assert!(!ids[0].is_empty() && ids[0].len() <= 256, "{id:?} became {:?}", ids[0]);
        assert!(ids[0].bytes().all(|byte| byte.is_ascii_graphic()), "{id:?} became {:?}", ids[0]);
        assert_eq!(count(&last(&replica), "x-request-id"), 1);
        assert_eq!(last(&replica).header("x-request-id"), Some(ids[0]), "one id everywhere");
        assert_eq!(answer.header("x-evil"), None);
    }
    let mut client = gateway.connect();
    let twice = [("x-request-id", "first"), ("X-Request-ID", "second")];
    client.send(post_bytes(CHAT, &twice, chat_body(true).as_bytes()));
    let answer = client.read_answer();
    assert_eq!(answer.headers_named("x-request-id").len(), 1);
    assert_eq!(count(&last(&replica), "x-request-id"), 1);
    assert_eq!(last(&replica).header("x-request-id"), answer.header("x-request-id"));
    // Two requests without an id do not share one.
    let (one, other) = (gateway.chat(), gateway.chat());
    assert_ne!(one.header("x-request-id"), other.header("x-request-id"));
    // The gateway's own refusals carry one too.
    assert!(gateway.get("/nowhere").header("x-request-id").is_some());
}

#[test]
fn trace_context_travels_and_stands_in_the_record() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let mut client = gateway.connect();
    let headers =
        [("traceparent", parent), ("tracestate", "a=1,b=2"), ("tracestate", "c=3"), ("baggage", "k=v")];
    client.send(post_bytes(CHAT, &headers, chat_body(false).as_bytes()));
    assert_eq!(client.read_answer().status, 200);
    let request = last(&replica);
    assert_eq!(request.header("traceparent"), Some(parent));
    assert_eq!(count(&request, "tracestate"), 2);
    assert_eq!(request.header("baggage"), Some("k=v"));
    assert_eq!(gateway.wait_record()["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
}

/// Without a key of the pool's own the client's goes on; with one it never does.
#[test]
fn the_engines_key_replaces_the_clients() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("key");
    std::fs::write(&file, "engine-key-7\n").expect("a file");
    let (open, keyed) = (Replica::start("m-8b"), Replica::start("m-70b"));
    let gateway = Gateway::empty()
        .config(&format!(
            "pools:\n  m-8b:\n    replicas: [{}]\n  m-70b:\n    replicas: [{}]\n    engine_key_file: {}\n",
            open.url(),
            keyed.url(),
            file.display()
        ))
        .wait_for(2)
        .start();
    for (model, replica, expected) in
        [("m-8b", &open, "Bearer client-key"), ("m-70b", &keyed, "Bearer engine-key-7")]
    {
        let mut client = gateway.connect();
        let body = json!({"model": model, "messages": []}).to_string();
        let headers = [("authorization", "Bearer client-key"), ("Authorization", "Basic two")];
        client.send(post_bytes(CHAT, &headers, body.as_bytes()));
        assert_eq!(client.read_answer().status, 200);
        let request = last(replica);
        assert_eq!(request.header("authorization"), Some(expected), "{model}");
        if model == "m-70b" {
            assert_eq!(count(&request, "authorization"), 1);
            assert!(!String::from_utf8_lossy(&request.head).contains("client-key"));
        }
    }
}

/// Query strings go on; absolute targets lead where their path does, whatever host they name.
#[test]
fn targets_with_queries_and_in_absolute_form() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let targets = [
        (
            format!("{CHAT}?api-version=1&x=%20%0d%0a&y=/../a?b"),
            format!("{CHAT}?api-version=1&x=%20%0d%0a&y=/../a?b"),
        ),
        (format!("{CHAT}?"), format!("{CHAT}?")),
        (format!("http://elsewhere.test:99{CHAT}"), CHAT.to_owned()),
        (format!("HTTP://Elsewhere.test{COMPLETIONS}?q=1"), format!("{COMPLETIONS}?q=1")),
        (format!("http://user:pw@elsewhere.test{CHAT}"), CHAT.to_owned()),
    ];
    for (target, expected) in targets {
        let mut client = gateway.connect();
        client.post(&target, chat_body(false));
        let answer = client.read_answer();
        if answer.status == 400 {
            continue;
        }
        assert_eq!(answer.status, 200, "{target}: {}", answer.describe());
        let request = last(&replica);
        assert_eq!(request.path, expected, "{target}");
        assert_eq!(request.header("host"), Some(replica.address().to_string().as_str()), "{target}");
    }
}

/// Only what is served is served: no spelling of a path leads to another route of a replica.
#[test]
fn other_paths_reach_no_replica() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let paths = [
        "/",
        "/v1",
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/v1/chat/../chat/completions",
        "/v1/./chat/completions",
        "/v1/chat/completions%2f",
        "/v1/chat%2fcompletions",
        "/V1/chat/completions",
        "/v1/chat/completions;a=b",
        "/%76%31/chat/completions",
        "/v1/completions/..%2fload_lora_adapter",
        "/v1/load_lora_adapter",
        "/health",
        "/metrics",
        "/reset_prefix_cache",
        "/v1/embeddings",
        "/tokenize",
        "/..",
        "/v1/models/m-8b/../..",
        "/admin/replicas",
        "/v1/chat/completions\\..\\x",
    ];
    let mut client = gateway.connect();
    for path in paths {
        client.post(path, chat_body(false));
        let Ok(mut answer) = client.try_begin_answer() else {
            client = gateway.connect();
            continue;
        };
        client.finish(&mut answer);
        assert!([400, 404, 405].contains(&answer.status), "{path}: {}", answer.describe());
        if client.ended_within(std::time::Duration::from_millis(1)).is_some() {
            client = gateway.connect();
        }
    }
    assert!(replica.requests().is_empty(), "{:?}", replica.requests());
}

#[test]
fn methods_are_answered_as_methods() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    for path in ["/v1/models", "/livez", "/readyz"] {
        let mut client = gateway.connect();
        let whole = gateway.get(path);
        client.send(format!("HEAD {path} HTTP/1.1\r\nhost: g\r\n\r\nGET /livez HTTP/1.1\r\nhost: g\r\n\r\n"));
        let text = client.read_heads(2);
        let (head, rest) = text.split_once("\r\n\r\n").expect("two heads");
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
        let length = whole.body.len();
        assert!(head.to_ascii_lowercase().contains(&format!("content-length: {length}")), "{path}: {head}");
        assert!(rest.starts_with("HTTP/1.1 200"), "{path}: HEAD has no body: {rest}");
    }
    let cases = [
        ("GET", CHAT),
        ("PUT", CHAT),
        ("DELETE", COMPLETIONS),
        ("PATCH", CHAT),
        ("OPTIONS", CHAT),
        ("HEAD", CHAT),
        ("TRACE", CHAT),
        ("BREW", CHAT),
        ("POST", "/v1/models"),
        ("POST", "/livez"),
        ("PROPFIND", "/v1/models"),
    ];
    for (method, path) in cases {
        let mut client = gateway.connect();
        client.send(format!("{method} {path} HTTP/1.1\r\nhost: g\r\n\r\n"));
        let text = client.read_heads(1).to_ascii_lowercase();
        assert!(text.starts_with("http/1.1 405"), "{method} {path}: {text}");
        // RFC 9110 §15.5.6: 405 names what is allowed.
        let allowed = if path.starts_with("/v1/c") { "post" } else { "get" };
        let allow = text.lines().find(|line| line.starts_with("allow:")).unwrap_or("");
        assert!(allow.contains(allowed), "{method} {path}: no `allow: {allowed}` in {text}");
    }
    for line in ["OPTIONS * HTTP/1.1", "CONNECT 127.0.0.1:22 HTTP/1.1", "CONNECT gateway.test:443 HTTP/1.1"] {
        let mut client = gateway.connect();
        client.send(format!("{line}\r\nhost: g\r\n\r\n"));
        if let Ok(answer) = client.try_begin_answer() {
            assert!(
                (400..500).contains(&answer.status) || answer.status == 501,
                "{line}: {}",
                answer.describe()
            );
        }
    }
    assert!(replica.requests().is_empty());
    assert_eq!(gateway.chat().status, 200);
}

/// Headers of a replica's stream that say something about the answer travel; the answer is framed by
/// the gateway.
#[test]
fn headers_of_a_stream_travel() {
    let replica = Replica::start("m-8b");
    replica.on_post(script(|conn, _| {
        conn.send(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\
             Trailer: x-t\r\nx-a: 1\r\nX-A: 2\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n\r\n",
        )?;
        for payload in [script::token_frame("cc-1", "ok"), script::finish_frame("cc-1", "stop"), "[DONE]".into()] {
            conn.event(&payload)?;
        }
        conn.send("0\r\nx-t: 1\r\nx-evil: 1\r\n\r\n")?;
        Ok(Then::KeepAlive)
    }));
    let gateway = Gateway::with(&[&replica]).start();
    let answer = gateway.chat_stream();
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert_eq!(answer.headers_named("x-a"), ["1", "2"]);
    assert_eq!(answer.header("cache-control"), Some("no-cache"));
    assert_eq!(answer.header("trailer"), None);
    assert_eq!(sse::text(&answer.body), "ok");
    assert_eq!(answer.progress, Progress::Complete);
}
