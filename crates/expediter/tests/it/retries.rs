//! Attempts: what is tried again elsewhere, what never is, and that no two attempts run at once.

use std::collections::HashSet;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::kit::client::Progress;
use crate::kit::fixture;
use crate::kit::gateway::{CHAT, Gateway, chat_body};
use crate::kit::replica::{Replica, Script, Then, attempts, on_posts_in_order};
use crate::kit::script::{self, finish_frame, role_frame, script, token_frame};
use crate::kit::sse;

/// Two replicas whose first POST is answered by `first` and every later one by `second`.
fn pair(first: Script, second: Script) -> [Replica; 2] {
    let replicas = [Replica::start("m-8b"), Replica::start("m-8b")];
    on_posts_in_order(&[&replicas[0], &replicas[1]], vec![first, second]);
    replicas
}

fn good_b() -> Script {
    script::by_stream(script::sse(fixture("R01-B.sse")), script::good("cc-2", &["from-B"]))
}

#[test]
fn r01_failure_after_the_first_token() {
    for then in [Then::Reset, Then::Fin] {
        let [a, b] = pair(script::sse_cut(fixture("R01-A.sse"), then), good_b());
        let gateway = Gateway::with(&[&a, &b]).start();
        let answer = gateway.chat_stream();
        sse::assert_ends_in_error(&answer.body, &sse::payloads(&fixture("R01-A.sse")));
        assert!(!answer.text().contains("[DONE]"));
        assert_eq!(sse::ids(&answer.body), ["cc-1"], "{then:?}");
        assert_eq!(attempts(&[&a, &b]).len(), 1, "{then:?}: no second attempt");
        let record = gateway.wait_record();
        assert_eq!(record["outcome"], "upstream_failure", "{record}");
        assert_eq!(record["attempts"].as_array().map(Vec::len), Some(1), "{record}");
    }
}

/// Before anything was passed on a retry is allowed; then only its chunks are seen. A role frame may
/// have been passed on.
#[test]
fn r01_failure_before_the_first_token_never_mixes_two_answers() {
    let head = script(|conn, _| conn.sse_head().map(|()| Then::Reset));
    let role = script::sse_cut(script::stream_of(&[role_frame("cc-1")]), Then::Reset);
    for (name, first, retried) in [("head", head, true), ("role frame", role, false)] {
        let [a, b] = pair(first, good_b());
        let gateway = Gateway::with(&[&a, &b]).start();
        let answer = gateway.chat_stream();
        assert_eq!(sse::ids(&answer.body).len(), 1, "{name}: {}", answer.describe());
        if retried || attempts(&[&a, &b]).len() == 2 {
            assert_eq!(answer.payloads(), sse::payloads(&fixture("R01-B.sse")), "{name}");
        } else {
            sse::assert_ends_in_error(&answer.body, &[role_frame("cc-1")]);
        }
        gateway.wait_record();
    }
}

#[test]
fn r02_errors_that_retrying_cannot_cure() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    let errors = [
        (
            400,
            script::error_body(400, "BadRequestError", "This model's maximum context length is 8192 tokens."),
        ),
        (413, script::error_body(413, "PayloadTooLarge", "too large")),
        (422, r#"{"detail":[{"loc":["body","n"],"msg":"value is not a valid integer"}]}"#.to_owned()),
    ];
    for replica in [&a, &b] {
        let errors = errors.clone();
        let good = script::good("cc-1", &["ok"]);
        replica.on_post(script(move |conn, request| {
            let kind = request.json()["kind"].as_u64().and_then(|kind| usize::try_from(kind).ok());
            match kind.and_then(|kind| errors.get(kind)) {
                Some((status, body)) => {
                    conn.answer(*status, "application/json", body).map(|()| Then::KeepAlive)
                }
                None => good(conn, request),
            }
        }));
    }
    let gateway = Gateway::with(&[&a, &b]).start();
    let ask = |n: usize| {
        let stream = n.is_multiple_of(4);
        let kind = if n.is_multiple_of(2) { Some(n / 2 % errors.len()) } else { None };
        let messages = [json!({"role": "user", "content": n.to_string()})];
        let body = json!({"model": "m-8b", "messages": messages, "stream": stream, "kind": kind});
        let answer = gateway.post(CHAT, &body.to_string());
        match kind {
            Some(kind) => {
                assert_eq!((answer.status, &answer.text()), (errors[kind].0, &errors[kind].1), "request {n}");
            }
            None => assert_eq!(answer.status, 200, "request {n}: {}", answer.describe()),
        }
    };
    thread::scope(|scope| {
        for worker in 0..8 {
            let ask = &ask;
            scope.spawn(move || (0..25).for_each(|n| ask(8 * n + worker)));
        }
    });
    let all = attempts(&[&a, &b]);
    let distinct: HashSet<String> =
        all.iter().map(|(_, request)| request.json()["messages"][0]["content"].to_string()).collect();
    assert_eq!((all.len(), distinct.len()), (200, 200), "each request reaches one replica once");
    for replica in [&a, &b] {
        assert_eq!(gateway.replica(replica)["state"], "ready");
        assert!(replica.requests().len() >= 60, "no replica lost its share: {}", replica.requests().len());
    }
    gateway.wait_records(200);
    gateway.wait_idle();
}

/// The limit of 600 s is half a second here. The case allows 50 ms of overlap; a busy machine may
/// delay the first replica's thread, so three times that.
#[test]
fn r03_retry_while_the_first_try_still_runs() {
    for stream in [true, false] {
        let late = script(|conn, _| {
            conn.pause(Duration::from_secs(20))?;
            conn.answer(200, "application/json", script::completion("cc-1", "late", "stop", 9, 1))?;
            Ok(Then::KeepAlive)
        });
        let [a, b] = pair(late, good_b());
        let gateway = Gateway::with(&[&a, &b]).set("limits.first_output_ms", 500).start();
        let answer = if stream { gateway.chat_stream() } else { gateway.chat() };
        assert_eq!(answer.status, 200, "{}", answer.describe());
        assert!(answer.text().contains("from-B") && !answer.text().contains("cc-1"), "{}", answer.describe());
        let attempts = attempts(&[&a, &b]);
        assert_eq!(attempts.len(), 2);
        assert_ne!(attempts[0].0, attempts[1].0, "another replica");
        let aborted = [&a, &b][attempts[0].0].wait_abort(0);
        let overlap = aborted.saturating_duration_since(attempts[1].1.head_at);
        assert!(overlap <= Duration::from_millis(150), "both ran for {overlap:?}");
        let record = gateway.wait_record();
        assert_eq!(record["outcome"], "completed", "{record}");
        let replicas: HashSet<String> = record["attempts"]
            .as_array()
            .expect("attempts")
            .iter()
            .map(|attempt| attempt["replica"].to_string())
            .collect();
        assert_eq!(replicas.len(), 2, "{record}");
    }
}

#[test]
fn r03_attempts_have_a_limit_and_no_replica_is_tried_twice() {
    let replicas: Vec<Replica> = (0..5).map(|_| Replica::start("m-8b")).collect();
    let all: Vec<&Replica> = replicas.iter().collect();
    for replica in &all {
        replica.on_post(script::silent());
    }
    let gateway = Gateway::with(&all).set("limits.first_output_ms", 300).start();
    let answer = gateway.chat_stream();
    assert_eq!(answer.status, 504, "{}", answer.describe());
    assert_eq!(answer.error_code(), "first_output_timeout");
    let attempts = attempts(&all);
    let distinct: HashSet<usize> = attempts.iter().map(|(replica, _)| *replica).collect();
    assert_eq!((attempts.len(), distinct.len()), (3, 3));
    let record = gateway.wait_record();
    assert_eq!(record["attempts"].as_array().map(Vec::len), Some(3), "{record}");
    assert_eq!(record["outcome"], "failed", "{record}");
    gateway.wait_idle();
}

/// The engine's ways of refusing or failing before the first token: the client sees only the second
/// replica's answer.
#[test]
fn failures_before_the_first_output_are_retried_elsewhere() {
    let frame = |code: u16, kind: &str| script::error_body(code, kind, "EngineCore encountered an issue.");
    let stream = |payloads: &[String]| script::sse(script::stream_of(payloads));
    let done = "[DONE]".to_owned();
    let keep_alive = script(move |conn, _| {
        conn.sse_head()?;
        conn.chunk(": keep-alive\n\n")?;
        conn.pause(Duration::from_millis(100))?;
        conn.chunk(": keep-alive\n\n")?;
        conn.event(&script::error_body(500, "InternalServerError", "EngineCore encountered an issue."))?;
        conn.event("[DONE]")?;
        conn.last_chunk()?;
        Ok(Then::KeepAlive)
    });
    let whole_error = script::answer(200, "application/json", frame(500, "InternalServerError"));
    let aborted = script::completion("cc-1", "cut of", "abort", 9, 2);
    // (name, streamed, what the first replica does)
    let cases: Vec<(&str, bool, Script)> = vec![
        ("an error as the first frame", true, stream(&[frame(500, "InternalServerError"), done.clone()])),
        ("a 503 as the first frame", true, stream(&[frame(503, "Service Unavailable"), done.clone()])),
        ("comments, then an error", true, keep_alive),
        ("an abort as the first frame", true, stream(&[finish_frame("cc-1", "abort"), done])),
        ("an empty stream", true, stream(&[])),
        ("nothing but [DONE]", true, stream(&["[DONE]".to_owned()])),
        ("an error in a whole 200 answer", false, whole_error.clone()),
        ("a whole error answer to a stream", true, whole_error),
        ("finish_reason abort", false, script::answer(200, "application/json", aborted)),
        (
            "500",
            true,
            script::error(500, "InternalServerError", "cannot schedule new futures after shutdown"),
        ),
        ("500, whole", false, script::error(500, "InternalServerError", "no")),
        ("502", false, script::answer(502, "text/html", "<html>bad gateway</html>")),
        ("503", true, script::error(503, "Service Unavailable", "queue full")),
        ("429", false, script::error(429, "TooManyRequests", "slow down")),
    ];
    for (name, streamed, first) in cases {
        let [a, b] = pair(first, good_b());
        let gateway = Gateway::with(&[&a, &b]).start();
        let answer = if streamed { gateway.chat_stream() } else { gateway.chat() };
        assert_eq!(
            (answer.status, answer.progress),
            (200, Progress::Complete),
            "{name}: {}",
            answer.describe()
        );
        if streamed {
            assert_eq!(answer.payloads(), sse::payloads(&fixture("R01-B.sse")), "{name}");
        } else {
            assert_eq!(answer.json()["id"], "cc-2", "{name}");
        }
        let order: HashSet<usize> = attempts(&[&a, &b]).iter().map(|(replica, _)| *replica).collect();
        assert_eq!(order.len(), 2, "{name}: each replica once");
        let record = gateway.wait_record();
        assert_eq!(record["outcome"], "completed", "{name}: {record}");
        assert_eq!(record["attempts"].as_array().map(Vec::len), Some(2), "{name}: {record}");
    }
}

/// The engine ends a stream cleanly with `finish_reason: "abort"` when it is told to stop: that is
/// half an answer.
#[test]
fn a_clean_end_with_abort_is_an_error_event() {
    let usage = script::usage_frame("cc-1", 9, 2);
    let frames = [role_frame("cc-1"), token_frame("cc-1", "half"), finish_frame("cc-1", "abort"), usage];
    let stream = [&frames[..], &["[DONE]".to_owned()]].concat();
    let [a, b] = pair(script::sse(script::stream_of(&stream)), good_b());
    let gateway = Gateway::with(&[&a, &b]).start();
    let answer = gateway.chat_stream();
    let payloads = answer.payloads();
    assert!(!payloads.contains(&"[DONE]".to_owned()), "{payloads:?}");
    let error: Value = serde_json::from_str(payloads.last().expect("an event")).expect("JSON");
    assert!(
        error["error"]["message"].is_string() && error["error"]["code"] == "replica_failed",
        "{payloads:?}"
    );
    assert_eq!(payloads[..2], frames[..2], "what came before is kept");
    assert_eq!(attempts(&[&a, &b]).len(), 1);
    let record = gateway.wait_record();
    assert_eq!(record["outcome"], "upstream_failure", "{record}");
}

#[test]
fn an_error_frame_in_mid_stream_ends_the_answer_and_is_not_retried() {
    let error = script::error_body(500, "InternalServerError", "EngineCore encountered an issue.");
    let frames = [role_frame("cc-1"), token_frame("cc-1", "half"), error, "[DONE]".to_owned()];
    let [a, b] = pair(script::sse(script::stream_of(&frames)), good_b());
    let gateway = Gateway::with(&[&a, &b]).start();
    let answer = gateway.chat_stream();
    sse::assert_ends_in_error(&answer.body, &frames[..2]);
    assert_eq!(attempts(&[&a, &b]).len(), 1);
    assert_eq!(gateway.wait_record()["outcome"], "upstream_failure");
}

/// Where every replica refuses, the client gets a status that says so, never a 200.
#[test]
fn overload_everywhere_is_an_error_status_also_where_it_came_in_a_stream() {
    let frame = script::error_body(503, "Service Unavailable", "queue full");
    let in_stream = script::sse(script::stream_of(&[frame, "[DONE]".to_owned()]));
    for script in [in_stream, script::error(503, "Service Unavailable", "queue full")] {
        let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
        a.on_post(script.clone());
        b.on_post(script);
        let gateway = Gateway::with(&[&a, &b]).start();
        let answer = gateway.chat_stream();
        assert!(matches!(answer.status, 429 | 503), "{}", answer.describe());
        assert!(answer.json()["error"]["message"].is_string(), "{}", answer.describe());
        assert!(answer.header("retry-after").is_some(), "{}", answer.describe());
        assert_eq!(attempts(&[&a, &b]).len(), 2);
        assert_eq!(gateway.wait_record()["status"], answer.status);
    }
}

/// A request whose attempts end in replicas' deaths may be what kills them: it is tried once more
/// and then refused.
#[test]
fn a_request_that_kills_replicas_is_tried_twice_at_most() {
    let replicas: Vec<Replica> = (0..4).map(|_| Replica::start("m-8b")).collect();
    let all: Vec<&Replica> = replicas.iter().collect();
    for replica in &all {
        replica.on_post(script::raw("", Then::Reset));
    }
    let gateway = Gateway::with(&all).start();
    let answer = gateway.post(CHAT, &chat_body(false));
    assert!(answer.status >= 500, "{}", answer.describe());
    assert!(!answer.error_code().is_empty());
    assert_eq!(attempts(&all).len(), 2);
    let record = gateway.wait_record();
    assert_eq!(record["outcome"], "failed", "{record}");
}
