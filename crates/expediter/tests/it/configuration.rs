//! Aliases, and configurations that cannot be: what is refused, at start and while running, and how it
//! is said.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::kit::gateway::{CHAT, COMPLETIONS, Gateway};
use crate::kit::replica::Replica;
use crate::kit::script;
use crate::kit::wait::{PATIENCE, eventually};

/// Runs `expediter check` or `serve` on this file; `serve` must exit by itself.
fn run(command: &str, text: &str) -> (Output, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("expediter.yaml");
    std::fs::write(&file, text).expect("a file");
    let mut program = Command::new(env!("CARGO_BIN_EXE_expediter"));
    program.arg(command).env_remove("EXPEDITER_ADMIN_TOKEN").stdin(Stdio::null());
    if command == "serve" {
        program.args(["--set", "listen=127.0.0.1:0", "--set", "admin.listen=127.0.0.1:0", "--config"]);
    }
    let mut child =
        program.arg(&file).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().expect("its state").is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("`{command}` accepted what cannot be:\n{text}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().expect("its output");
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output, said)
}

const POOLS: &str =
    "pools:\n  m-8b:\n    replicas: [http://127.0.0.1:9]\n  m-70b:\n    replicas: [http://127.0.0.1:19]\n";

/// Each with the names that the message must give.
const WRONG: [(&str, &str, &[&str]); 12] = [
    ("a circle of two", "aliases: { a: b, b: a }\n", &["`a`", "`b`", "circle"]),
    ("a circle of one", "aliases: { a: a }\n", &["`a`", "circle"]),
    ("a circle of five", "aliases: { a: b, b: c, c: d, d: e, e: a }\n", &["`a`", "`e`", "circle"]),
    ("a way into a circle", "aliases: { x: a, a: b, b: a }\n", &["`a`", "`b`", "circle"]),
    (
        "a circle by weights",
        "aliases: { a: [{ to: m-8b, weight: 9 }, { to: b, weight: 1 }], b: a }\n",
        &["`a`", "`b`", "circle"],
    ),
    (
        "a circle by a weight of nothing",
        "aliases: { a: [{ to: m-8b, weight: 1 }, { to: a, weight: 0 }] }\n",
        &["`a`"],
    ),
    ("a missing pool", "aliases: { a: m-7b }\n", &["m-7b", "a"]),
    (
        "a missing pool among good ones",
        "aliases: { a: [{ to: m-8b, weight: 1 }, { to: nope, weight: 1 }] }\n",
        &["nope"],
    ),
    ("the name of a pool", "aliases: { m-8b: m-70b }\n", &["m-8b"]),
    ("nothing", "aliases: { a: [] }\n", &["a"]),
    ("weights of nothing", "aliases: { a: [{ to: m-8b, weight: 0 }] }\n", &["a"]),
    ("a negative weight", "aliases: { a: [{ to: m-8b, weight: -1 }] }\n", &["weight"]),
];

#[test]
fn f01_aliases_in_a_circle() {
    for (name, aliases, words) in WRONG {
        let text = format!("{POOLS}{aliases}");
        for command in ["check", "serve"] {
            let (output, said) = run(command, &text);
            assert_eq!(output.status.code(), Some(1), "{command}, {name}: {said}");
            for word in words {
                assert!(said.contains(word), "{command}, {name}: {word} is not in: {said}");
            }
            assert!(said.len() < 4000 && !said.contains("panicked"), "{command}, {name}: {said}");
        }
    }
    // Long chains that end are no circle, and are resolved at once.
    let chain = (0..300).map(|n| format!("  a{n}: a{}\n", n + 1)).collect::<Vec<_>>().concat();
    let (output, said) = run("check", &format!("{POOLS}aliases:\n{chain}  a300: m-8b\n"));
    assert_eq!(output.status.code(), Some(0), "{said}");
    // And one that does not end.
    let (output, said) = run("check", &format!("{POOLS}aliases:\n{chain}  a300: a0\n"));
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("circle") && said.len() < 100_000, "{} bytes", said.len());
    // The letters of YAML itself can circle too, or multiply.
    for bomb in [
        "pools: &a\n  m-8b: *a\n".to_owned(),
        format!(
            "a: &a [x,x,x,x,x,x,x,x,x]\n{}",
            (0..12)
                .map(|n| {
                    let (name, before) = ((b'b' + n) as char, (b'a' + n) as char);
                    format!("{name}: &{name} [{}]\n", vec![format!("*{before}"); 9].join(","))
                })
                .collect::<Vec<_>>()
                .concat()
        ),
        format!("pools: {}", "[".repeat(20_000)),
    ] {
        let began = Instant::now();
        let (output, said) = run("check", &bomb);
        assert_eq!(output.status.code(), Some(1), "{}", &said[..said.len().min(500)]);
        assert!(began.elapsed() < Duration::from_secs(10) && said.len() < 1_000_000);
    }
}

#[test]
fn f01_a_good_chain_resolves_fully() {
    let replica = Replica::start("m-8b");
    let gateway =
        Gateway::with(&[&replica]).alias("one", "two").alias("two", "three").alias("three", "m-8b").start();
    for (n, model) in ["one", "two", "three", "gpt-fast", "m-8b"].into_iter().enumerate() {
        for path in [CHAT, COMPLETIONS] {
            let body = json!({"model": model, "messages": [], "prompt": "x"}).to_string();
            let answer = gateway.post(path, &body);
            assert_eq!(answer.status, 200, "{model}: {}", answer.describe());
            // The rule: answers say what the engine says, its own name for the model.
            assert_eq!(answer.json()["model"], "m-8b");
            assert_eq!(replica.requests().pop().expect("one").json()["model"], "m-8b");
        }
        let record = gateway.wait_records(2 * n + 2).pop().expect("a record");
        // Records have both: the name that was asked for and the one it stood for.
        assert_eq!((&record["model"], &record["served_model"]), (&json!(model), &json!("m-8b")));
        assert_eq!(record["pool"], "m-8b");
        assert_eq!(record["attempts"].as_array().map(Vec::len), Some(1));
    }
    let list = gateway.get("/v1/models").json();
    let ids: Vec<&str> =
        list["data"].as_array().expect("a list").iter().filter_map(|entry| entry["id"].as_str()).collect();
    assert_eq!(ids, ["gpt-fast", "m-8b", "one", "three", "two"]);
    assert!(list["data"].as_array().expect("a list").iter().all(|entry| entry["root"] == "m-8b"));
}

/// Refused while running: the old configuration stays, whole, and the refusal names the entries.
#[test]
fn f01_a_refused_reload_changes_nothing() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-70b"));
    let good = format!(
        "pools:\n  m-8b:\n    replicas: [{}]\n  m-70b:\n    replicas: [{}]\naliases: {{ gpt-fast: m-8b }}\n",
        a.url(),
        b.url()
    );
    let gateway = Gateway::empty().config(&good).wait_for(2).start();
    let ask = |model: &str| gateway.post(CHAT, &json!({"model": model, "messages": []}).to_string()).status;
    for (name, aliases, words) in WRONG {
        let refused = gateway.log().iter().filter(|line| line.contains("configuration refused")).count();
        // A change besides the mistake must not come through either.
        gateway.rewrite_config(&format!("{POOLS}{aliases}limits: {{ body_bytes_max: 2000 }}\n"));
        gateway.signal("HUP");
        eventually(PATIENCE, "the refusal", || {
            gateway.log().iter().filter(|line| line.contains("configuration refused")).count() > refused
        });
        let log = gateway.log().join("\n");
        assert!(words.iter().all(|word| log.contains(word)), "{name}: {log}");
        assert_eq!((ask("gpt-fast"), ask("m-70b"), ask("a"), ask("x")), (200, 200, 404, 404), "{name}");
        assert_eq!(
            gateway
                .post(CHAT, &json!({"model": "m-8b", "messages": [], "x": "x".repeat(3000)}).to_string())
                .status,
            200
        );
    }
    gateway.rewrite_config(&good.replace("gpt-fast: m-8b", "gpt-fast: m-70b, b: gpt-fast"));
    eventually(PATIENCE, "a good one is taken", || ask("b") == 200);
    let before = b.requests().len();
    assert_eq!(ask("gpt-fast"), 200);
    assert_eq!(b.requests().len(), before + 1);
}

/// Three to one, by lot: of 800 within four standard deviations (12 each).
#[test]
fn weights_split_an_alias() {
    let (a, b, c) = (Replica::start("m-8b"), Replica::start("m-70b"), Replica::start("m-0"));
    let gateway = Gateway::with(&[&a])
        .pool("m-70b", &[&b])
        .pool("m-0", &[&c])
        .yaml(
            "  split: [{ to: m-8b, weight: 3 }, { to: m-70b, weight: 1 }, { to: m-0, weight: 0 }]\n\
             \x20 nested: [{ to: split, weight: 1 }, { to: m-70b, weight: 1 }]\n\
             \x20 twice: [{ to: m-8b, weight: 1 }, { to: m-8b, weight: 1 }]\n\
             \x20 large: [{ to: m-8b, weight: 1000000 }, { to: m-70b, weight: 1 }]\n",
        )
        .start();
    let share = |alias: &str, n: usize| {
        let (of_a, of_b) = (a.requests().len(), b.requests().len());
        let body = json!({"model": alias, "messages": []}).to_string();
        let mut client = gateway.connect();
        for _ in 0..n {
            client.post(CHAT, &body);
            assert_eq!(client.read_answer().status, 200);
        }
        (a.requests().len() - of_a, b.requests().len() - of_b)
    };
    let (of_a, of_b) = share("split", 800);
    assert!(of_a.abs_diff(600) <= 49 && of_a + of_b == 800, "split: {of_a} and {of_b}");
    // Half of three quarters.
    let (of_a, of_b) = share("nested", 800);
    assert!(of_a.abs_diff(300) <= 55 && of_a + of_b == 800, "nested: {of_a} and {of_b}");
    assert_eq!(share("twice", 50), (50, 0));
    let (of_a, _) = share("large", 50);
    assert!(of_a >= 48);
    assert!(c.requests().is_empty(), "a weight of 0 gets nothing");
    // The name within the body is that of the pool that was drawn.
    assert!(a.requests().iter().all(|request| request.json()["model"] == "m-8b"));
    assert!(b.requests().iter().all(|request| request.json()["model"] == "m-70b"));
}

/// A pool may be called otherwise than its model.
#[test]
fn a_pool_has_a_name_of_its_own() {
    let replica = Replica::start("org/m-8b-instruct");
    let gateway = Gateway::empty()
        .config(&format!(
            "pools:\n  fast:\n    model: org/m-8b-instruct\n    replicas: [{}]\n",
            replica.url()
        ))
        .wait_for(1)
        .start();
    for model in ["fast", "org/m-8b-instruct"] {
        let body = json!({"model": model, "messages": []}).to_string();
        assert_eq!(gateway.post(CHAT, &body).status, 200, "{model}");
        assert_eq!(replica.requests().pop().expect("one").json()["model"], "org/m-8b-instruct");
    }
    assert_eq!(gateway.post(CHAT, r#"{"model":"m-8b","messages":[]}"#).status, 404);
}

#[test]
fn unknown_names_reach_nobody() {
    let replica = Replica::start("m-8b");
    replica.on_get(
        "/v1/models",
        script::answer(200, "application/json", r#"{"data":[{"id":"m-8b"},{"id":"ad-1","parent":"m-8b"}]}"#),
    );
    let gateway = Gateway::with(&[&replica]).start();
    for model in ["nope", "gpt-fast2", "GPT-FAST", "ad-9", "m-8b/ad-1", "*", ""] {
        let body = json!({"model": model, "messages": []}).to_string();
        let answer = gateway.post(CHAT, &body);
        if model.is_empty() {
            assert_eq!(answer.status, 200, "an empty name is no name");
            continue;
        }
        assert_eq!(answer.status, 404, "{model}: {}", answer.describe());
        assert_eq!(answer.error_code(), "model_not_found");
        assert_eq!(answer.json()["error"]["param"], "model");
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    }
    assert_eq!(replica.requests().len(), 1);
    // An adapter that is listed is served by its own name.
    assert_eq!(gateway.post(CHAT, r#"{"model":"ad-1","messages":[]}"#).status, 200);
    assert_eq!(replica.requests().pop().expect("one").json()["model"], "ad-1");
}

/// All mistakes at once, each with its line, in one run.
#[test]
fn every_mistake_is_named_with_its_place() {
    let text = "listen: nowhere\nlimts: { gap_ms: 1 }\nlimits: { gap_ms: soon }\npools:\n  m-8b:\n    policy: best\n    \
                replicas: [ftp://x, http://u:secret-pw@y]\naliases: { a: a }\n";
    for command in ["check", "serve"] {
        let (output, said) = run(command, text);
        assert_eq!(output.status.code(), Some(1), "{said}");
        for place in [":1:", ":2:", ":3:", ":6:", ":7:", ":8:"] {
            assert!(said.contains(place), "{command}: nothing at {place}: {said}");
        }
        assert!(said.contains("limits"), "{command}: what was meant by `limts`: {said}");
        assert!(!said.contains("secret-pw"), "{command}: {said}");
    }
    let (output, said) = run("check", &format!("{POOLS}aliases: {{ a: m-8b }}\n"));
    assert_eq!(output.status.code(), Some(0), "{said}");
    // The same path as a pool and an alias of a running gateway: see above. A file that is none:
    for text in ["\u{0}", "- a\n- b\n", "a: b: c\n", "pools: {}\npools: {}\n", "\t- x"] {
        let (output, said) = run("check", text);
        assert_eq!(output.status.code(), Some(1), "{text:?}: {said}");
        assert!(!said.contains("panicked"), "{text:?}: {said}");
    }
}
