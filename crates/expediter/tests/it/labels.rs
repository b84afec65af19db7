//! What of a request may become a label of a metric: nothing that a client writes.

#![allow(clippy::float_cmp, reason = "counts are whole numbers")]

use std::collections::BTreeSet;

use serde_json::json;

use crate::kit::client::{Client, post_bytes};
use crate::kit::gateway::{CHAT, COMPLETIONS, Gateway, chat_body};
use crate::kit::replica::Replica;
use crate::kit::script;

fn series(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.rsplit_once(' ').map(|(series, _)| series.to_owned()))
        .collect()
}

/// Sends requests in batches over one connection, and checks each answer's status class.
fn send_all(gateway: &Gateway, requests: impl Iterator<Item = (Vec<u8>, u16)>) -> usize {
    let mut client: Client = gateway.connect();
    let (mut batch, mut expected, mut sent) = (Vec::new(), Vec::new(), 0);
    let mut flush = |client: &mut Client, batch: &mut Vec<u8>, expected: &mut Vec<u16>| {
        client.send(&batch);
        batch.clear();
        for class in expected.drain(..) {
            let answer = client.read_answer();
            assert_eq!(answer.status / 100, class, "{}", answer.describe());
            sent += 1;
        }
    };
    for (bytes, class) in requests {
        batch.extend(bytes);
        expected.push(class);
        if expected.len() == 50 {
            flush(&mut client, &mut batch, &mut expected);
        }
    }
    flush(&mut client, &mut batch, &mut expected);
    sent
}

#[test]
fn m01_labels_from_the_request_body() {
    let (replica, other) = (Replica::start("m-8b"), Replica::start("m-70b"));
    let gateway = Gateway::with(&[&replica]).pool("m-70b", &[&other]).start();
    for model in ["m-8b", "gpt-fast", "m-70b"] {
        for stream in [false, true] {
            let body = json!({"model": model, "messages": [], "stream": stream}).to_string();
            assert_eq!(gateway.post(CHAT, &body).status, 200);
        }
    }
    // A first one of each kind, so that what is measured is growth and not the first use.
    let odd = |n: usize| {
        let key = if n.is_multiple_of(2) { "Bearer good".to_owned() } else { format!("Bearer bad-{n}") };
        let id = format!("id-{n}");
        let headers = [("authorization", key.as_str()), ("x-request-id", id.as_str())];
        let body =
            json!({"model": format!("model-{n}"), "messages": [], "user": format!("user-{n}")}).to_string();
        let known = json!({"model": "m-8b", "messages": [], "user": format!("user-{n}")}).to_string();
        match n % 4 {
            0 | 1 => (post_bytes(CHAT, &headers, body.as_bytes()), 4),
            2 => (post_bytes(&format!("/v1/path-{n}?q={n}"), &headers, b""), 4),
            _ => (post_bytes(COMPLETIONS, &headers, known.as_bytes()), 2),
        }
    };
    send_all(&gateway, (0..400).map(odd));
    let (before, memory) = (gateway.metrics(), gateway.resident_bytes());
    let sent = send_all(&gateway, (400..10_400).map(odd));
    assert_eq!(sent, 10_000);
    // Methods close the connection or not as they like, so each has its own.
    for n in 0..50 {
        let mut client = gateway.connect();
        client.send(format!("BREW{n} /pot-{n} HTTP/1.1\r\nhost: g{n}\r\nuser-agent: a{n}\r\n\r\n"));
        assert_eq!(client.read_answer().status / 100, 4);
    }
    let after = gateway.metrics();
    let grown: Vec<_> = series(&after).difference(&series(&before)).cloned().collect();
    assert!(grown.len() <= 20, "{} new series: {grown:#?}", grown.len());
    assert!(after.len() <= before.len() + 10_000, "{} bytes more", after.len() - before.len());
    for trace in ["model-", "user-", "path-", "id-4", "BREW", "bad-", "pot-"] {
        assert!(!after.contains(trace), "{trace} is in the metrics");
    }
    let rise = gateway.resident_bytes().saturating_sub(memory);
    assert!(rise < 10 << 20, "memory grew by {rise} bytes");

    let count = |labels: &[(&str, &str)]| gateway.metric("expediter_requests_total", labels);
    assert_eq!(count(&[("pool", "unknown"), ("status_class", "4xx")]), 7800.0 + 50.0);
    assert_eq!(count(&[("pool", "unknown"), ("status_class", "2xx")]), 0.0, "a 404 is no success");
    assert_eq!(count(&[("pool", "m-8b"), ("outcome", "completed"), ("status_class", "2xx")]), 2600.0 + 4.0);
    assert_eq!(count(&[("pool", "m-70b"), ("outcome", "completed")]), 2.0, "a real pool has its own series");
    assert_eq!(gateway.metric("expediter_refusals_total", &[("code", "model_not_found")]), 5200.0);
}

/// Names that replicas bring are labels only while they are there, and never those of adapters.
#[test]
fn names_that_replicas_bring_do_not_pile_up() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::empty()
        .args(&[&replica.url()])
        .set("probe.interval_ms", 50)
        .set("ramp_ms", 0)
        .wait_for(1)
        .start();
    let before = series(&gateway.metrics()).len();
    for n in 0..20 {
        let name = format!("renamed-{n}");
        replica.on_get("/v1/models", script::models(&[&name]));
        crate::kit::wait::eventually(crate::kit::wait::PATIENCE, "the new name is served", || {
            gateway.get("/v1/models").text().contains(&name)
        });
    }
    let after = gateway.metrics();
    let of_old: Vec<_> = series(&after).into_iter().filter(|series| series.contains("renamed-3\"")).collect();
    assert!(
        series(&after).len() < before + 100,
        "{} series instead of {before}; of a name that is gone: {of_old:#?}",
        series(&after).len()
    );
}

/// Odd names in the configuration are escaped where they are labels.
#[test]
fn names_with_quotes_are_escaped() {
    let name = r#"org/m "8b"\x"#;
    let replica = Replica::start(name);
    let gateway = Gateway::empty()
        .config(&format!("pools:\n  'org/m \"8b\"\\x':\n    replicas: [{}]\n", replica.url()))
        .wait_for(1)
        .start();
    let body = json!({"model": name, "messages": []}).to_string();
    assert_eq!(gateway.post(CHAT, &body).status, 200);
    let text = gateway.metrics();
    let escaped = r#"pool="org/m \"8b\"\\x""#;
    assert!(text.contains(escaped), "{escaped} is not in {text}");
    assert!(text.trim_end().ends_with("# EOF"));
    assert_eq!(gateway.post(CHAT, &chat_body(false)).status, 404);
}
