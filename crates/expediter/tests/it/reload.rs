//! The configuration changes while requests run.

#![allow(clippy::float_cmp, reason = "counts are whole numbers")]

use std::time::Duration;

use serde_json::json;

use crate::kit::client::Progress;
use crate::kit::gateway::{CHAT, Gateway, chat_body};
use crate::kit::replica::{Kind, Replica, Script, Then};
use crate::kit::script::{self, script};
use crate::kit::sse;
use crate::kit::wait::{PATIENCE, Signal, eventually};

fn held_stream(go: &Signal) -> Script {
    let go = go.clone();
    script(move |conn, _| {
        conn.sse_head()?;
        conn.event(&script::token_frame("cc-1", "first"))?;
        conn.wait(&go)?;
        conn.event(&script::token_frame("cc-1", " last"))?;
        conn.event(&script::finish_frame("cc-1", "stop"))?;
        conn.event("[DONE]")?;
        conn.last_chunk()?;
        Ok(Then::KeepAlive)
    })
}

fn config(replicas: &[&Replica]) -> String {
    let urls: Vec<String> = replicas.iter().map(|replica| replica.url()).collect();
    format!(
        "pools:\n  m-8b:\n    replicas: [{}]\naliases: {{ gpt-fast: m-8b }}\nramp_ms: 0\n",
        urls.join(", ")
    )
}

fn urls(gateway: &Gateway) -> Vec<String> {
    let mut urls: Vec<String> =
        gateway.replicas().iter().map(|replica| replica["url"].as_str().expect("a URL").to_owned()).collect();
    urls.sort();
    urls
}

fn reloads(gateway: &Gateway, message: &str) -> usize {
    gateway.log().iter().filter(|line| line.contains(message)).count()
}

/// Writes another file and waits until it is taken over, or refused.
fn reload(gateway: &Gateway, text: &str, message: &str) {
    let before = reloads(gateway, message);
    gateway.rewrite_config(text);
    eventually(PATIENCE, message, || reloads(gateway, message) > before);
}

const APPLIED: &str = "configuration reloaded";
const REFUSED: &str = "configuration refused";

#[test]
fn a_stream_is_untouched_while_its_replica_leaves_the_file() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    let go = Signal::new();
    a.on_post(held_stream(&go));
    let gateway = Gateway::empty().config(&config(&[&a])).wait_for(1).start();
    let mut client = gateway.connect();
    client.post(CHAT, chat_body(true));
    let mut answer = client.begin_answer();
    client.read_events(&mut answer, 1);

    reload(&gateway, &config(&[&a, &b]), APPLIED);
    eventually(PATIENCE, "the new replica is ready", || gateway.replica(&b)["state"] == "ready");
    assert_eq!(gateway.replica(&a)["in_flight"], 1, "the ledger stays");
    reload(&gateway, &config(&[&b]), APPLIED);
    eventually(PATIENCE, "the old one is gone", || urls(&gateway) == [b.url()]);
    for _ in 0..10 {
        assert_eq!(gateway.chat().status, 200);
    }
    assert_eq!((a.requests().len(), b.requests().len()), (1, 10));
    assert!(a.requests()[0].aborted_at.is_none());
    go.raise();
    client.finish(&mut answer);
    assert_eq!(answer.progress, Progress::Complete);
    assert_eq!(sse::text(&answer.body), "first last");
    // The same connection serves on, elsewhere.
    client.post(CHAT, chat_body(false));
    assert_eq!(client.read_answer().status, 200);
    assert_eq!(b.requests().len(), 11);
    let records = gateway.wait_records(12);
    assert!(records.iter().all(|record| record["outcome"] == "completed"));
    assert_eq!(
        gateway.metric("expediter_requests_total", &[("outcome", "completed")]),
        12.0,
        "counters stay"
    );
    gateway.wait_idle();
}

/// Out of the file and in again while it serves: a new member, and nothing of the old one is lost.
#[test]
fn a_replica_that_leaves_and_comes_back() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    let go = Signal::new();
    a.on_post(held_stream(&go));
    let gateway = Gateway::empty().config(&config(&[&a])).wait_for(1).start();
    let mut client = gateway.connect();
    client.post(CHAT, chat_body(true));
    let mut answer = client.begin_answer();
    client.read_events(&mut answer, 1);
    reload(&gateway, &config(&[&b]), APPLIED);
    reload(&gateway, &config(&[&a, &b]), APPLIED);
    gateway.wait_ready(2);
    a.on_post(script::good("cc-2", &["ok"]));
    go.raise();
    client.finish(&mut answer);
    assert_eq!(sse::text(&answer.body), "first last");
    for _ in 0..20 {
        assert_eq!(gateway.chat().status, 200);
    }
    assert!(a.requests().len() > 1, "it serves again");
    gateway.wait_idle();
}

#[test]
fn a_bad_file_keeps_the_old_one() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    let gateway = Gateway::empty().config(&config(&[&a])).wait_for(1).start();
    let both = config(&[&a, &b]);
    let bad = [
        format!("{both}nonsense: 1\n"),
        format!("{both}limits: {{ gap_ms: -5 }}\n"),
        both.replace("http://", "gopher://"),
        format!("{both}\t}}{{"),
        "pools: [".to_owned(),
        both.replace("m-8b }", "missing }"),
        format!("{both}tls: {{ certificate_file: nowhere.pem, key_file: nowhere.pem }}\n"),
    ];
    for text in bad {
        reload(&gateway, &text, REFUSED);
        assert_eq!(urls(&gateway), [a.url()], "{text}");
        assert_eq!(gateway.chat().status, 200);
        assert_eq!(gateway.get("/readyz").status, 200);
    }
    reload(&gateway, &both, APPLIED);
    gateway.wait_ready(2);
    assert!(reloads(&gateway, "the last good configuration stays") >= 7);
}

/// A file that is away for a while (a botched deployment) is no empty configuration.
#[test]
fn a_missing_or_empty_file_keeps_the_old_one() {
    let a = Replica::start("m-8b");
    let directory = tempfile::tempdir().expect("a directory");
    let list = directory.path().join("replicas.txt");
    std::fs::write(&list, format!("{}\n", a.url())).expect("a file");
    let gateway = Gateway::empty()
        .config(&format!("pools:\n  m-8b:\n    replica_file: {}\n", list.display()))
        .wait_for(1)
        .start();
    std::fs::remove_file(&list).expect("removed");
    eventually(PATIENCE, "it is noticed", || reloads(&gateway, "replica file cannot be used") > 0);
    assert_eq!(urls(&gateway), [a.url()]);
    assert_eq!(gateway.chat().status, 200);
}

#[test]
fn a_replica_file_is_watched() {
    let replicas = [Replica::start("m-8b"), Replica::start("m-8b"), Replica::start("m-8b")];
    let [a, b, c] = &replicas;
    let directory = tempfile::tempdir().expect("a directory");
    let list = directory.path().join("replicas.txt");
    let write = |text: String| {
        let next = directory.path().join("next");
        std::fs::write(&next, text).expect("a file");
        std::fs::rename(&next, &list).expect("in its place");
    };
    write(format!("# the first\n\n{}\n", a.url()));
    let gateway = Gateway::empty()
        .config(&format!(
            "pools:\n  m-8b:\n    replicas: [{}]\n    replica_file: {}\nramp_ms: 0\n",
            c.url(),
            list.display()
        ))
        .wait_for(2)
        .start();
    let mut expected = vec![a.url(), c.url()];
    expected.sort();
    assert_eq!(urls(&gateway), expected);
    // One more, with blanks, a comment behind, Windows' ends of line and no end of the last.
    write(format!("  {}  # still there\r\n\r\n# new:\r\n{}", a.url(), b.url()));
    gateway.wait_ready(3);
    for _ in 0..12 {
        assert_eq!(gateway.chat().status, 200);
    }
    assert!(!b.requests().is_empty(), "the new one serves");
    // Broken: the last good list stays.
    write(format!("{}\nnonsense here\n", a.url()));
    eventually(PATIENCE, "it is noticed", || reloads(&gateway, "replica file cannot be used") > 0);
    assert_eq!(gateway.replicas().len(), 3);
    // The first is gone.
    write(format!("{}\n", b.url()));
    eventually(PATIENCE, "two are left", || gateway.replicas().len() == 2);
    let (of_a, probes) = (a.requests().len(), a.requests_of(Kind::Probe).len());
    for _ in 0..10 {
        assert_eq!(gateway.chat().status, 200);
    }
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(a.requests().len(), of_a, "the removed one gets nothing");
    assert!(a.requests_of(Kind::Probe).len() <= probes + 2, "nor is it probed");
    // Empty is a list too: what the configuration itself names stays.
    write("# nobody\n".to_owned());
    eventually(PATIENCE, "one is left", || urls(&gateway) == [c.url()]);
    assert_eq!(gateway.chat().status, 200);
}

/// Settings that are read at each request follow the file; names, too.
#[test]
fn limits_aliases_and_policies_follow_the_file() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    let text = config(&[&a, &b]);
    let gateway = Gateway::empty().config(&text).wait_for(2).start();
    let long = json!({"model": "m-8b", "messages": [], "x": "x".repeat(3000)}).to_string();
    let ask = |model: &str| gateway.post(CHAT, &json!({"model": model, "messages": []}).to_string()).status;
    assert_eq!((gateway.post(CHAT, &long).status, ask("gpt-fast"), ask("gpt-slow")), (200, 200, 404));
    let changed = text.replace("gpt-fast", "gpt-slow").replace(
        "aliases",
        "    policy: round_robin\nlimits: { body_bytes_max: 2000 }\nexpose: { decision_header: true }\naliases",
    );
    reload(&gateway, &changed, APPLIED);
    eventually(PATIENCE, "the new limit", || gateway.post(CHAT, &long).status == 413);
    assert_eq!((ask("gpt-fast"), ask("gpt-slow")), (404, 200));
    let decision = gateway.chat();
    let decision = decision.header("x-expediter-decision").unwrap_or("").to_owned();
    assert!(decision.contains("round_robin"), "{decision}");
    let before = (a.requests().len(), b.requests().len());
    for _ in 0..10 {
        assert_eq!(gateway.chat().status, 200);
    }
    assert_eq!((a.requests().len() - before.0, b.requests().len() - before.1), (5, 5));
    let list = gateway.get("/v1/models").text();
    assert!(list.contains("gpt-slow") && !list.contains("gpt-fast"), "{list}");
}

/// What an operator has added stays through reloads; what was drained stays drained.
#[test]
fn what_operators_did_stays() {
    let (a, b, c) = (Replica::start("m-8b"), Replica::start("m-8b"), Replica::start("m-8b"));
    let gateway = Gateway::empty().config(&config(&[&a, &b])).wait_for(2).start();
    let added = gateway.admin("POST", "/admin/replicas", Some(&json!({"url": c.url(), "pool": "m-8b"})));
    assert_eq!(added.status, 201);
    gateway.wait_ready(3);
    let id = gateway.replica(&a)["id"].as_str().expect("an id").to_owned();
    assert_eq!(gateway.admin("POST", &format!("/admin/replicas/{id}/drain"), None).status, 200);
    reload(&gateway, &format!("{}limits: {{ gap_ms: 60000 }}\n", config(&[&a, &b])), APPLIED);
    assert_eq!(gateway.replicas().len(), 3);
    assert_eq!(gateway.replica(&a)["state"], "draining");
    assert_eq!(gateway.replica(&a)["id"], id);
    let before = a.requests().len();
    for _ in 0..10 {
        assert_eq!(gateway.chat().status, 200);
    }
    assert_eq!(a.requests().len(), before);
}

/// A pool that leaves the file is gone for new requests, and its streams end in peace.
#[test]
fn a_pool_comes_and_goes() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-70b"));
    let go = Signal::new();
    b.on_post(held_stream(&go));
    let both = config(&[&a]).replace("pools:\n", &format!("pools:\n  m-70b:\n    replicas: [{}]\n", b.url()));
    let gateway = Gateway::empty().config(&config(&[&a])).wait_for(1).start();
    let large = json!({"model": "m-70b", "messages": [], "stream": true}).to_string();
    assert_eq!(gateway.post(CHAT, &large).status, 404);
    reload(&gateway, &both, APPLIED);
    gateway.wait_ready(2);
    let mut client = gateway.connect();
    client.post(CHAT, &large);
    let mut answer = client.begin_answer();
    client.read_events(&mut answer, 1);
    reload(&gateway, &config(&[&a]), APPLIED);
    eventually(PATIENCE, "it is gone", || gateway.post(CHAT, &large).status == 404);
    assert!(!gateway.get("/v1/models").text().contains("m-70b"));
    go.raise();
    client.finish(&mut answer);
    assert_eq!(sse::text(&answer.body), "first last");
    assert_eq!(gateway.chat().status, 200);
    // Requests for names that lead nowhere have none.
    gateway.wait_records(2);
}

/// SIGHUP in a row, and files that change faster than they are read.
#[test]
fn many_changes_in_a_row_end_with_the_last() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    let gateway = Gateway::empty().config(&config(&[&a])).wait_for(1).start();
    for n in 0..40 {
        gateway.rewrite_config(&if n % 3 == 0 { "pools: [".to_owned() } else { config(&[&a]) });
        gateway.signal("HUP");
        assert_eq!(gateway.chat().status, 200);
    }
    gateway.rewrite_config(&config(&[&b]));
    eventually(PATIENCE, "the last one is in force", || urls(&gateway) == [b.url()]);
    eventually(PATIENCE, "it serves", || gateway.chat().status == 200);
}
