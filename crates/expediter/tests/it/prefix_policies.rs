//! Policies that know prefixes: what begins alike meets on one replica, until that is too much for it.

use serde_json::{Value, json};

use crate::kit::client::Client;
use crate::kit::gateway::{CHAT, COMPLETIONS, Gateway};
use crate::kit::replica::{Kind, Replica, Script};
use crate::kit::script::{self, held};
use crate::kit::wait::{PATIENCE, Signal, eventually};

/// Those that send a prompt to where its beginning is; `least_pending_tokens` only counts it.
const DRAWN_TO_PREFIXES: [&str; 5] =
    ["prefix_hash_bounded", "approximate_tree", "lmetric", "weighted", "sticky_until_saturated"];

/// A chat that begins with a long text of its group and ends with a question of its own.
fn chat(model: &str, group: usize, question: usize) -> Value {
    let system = format!("group {group} ").repeat(500);
    let messages =
        json!([{"role": "system", "content": system}, {"role": "user", "content": question.to_string()}]);
    json!({"model": model, "messages": messages, "max_tokens": 16})
}

fn start(policy: &str, replicas: &[Replica]) -> Gateway {
    start_with(policy, replicas, &[])
}

fn start_with(policy: &str, replicas: &[Replica], parameters: &[(&str, &str)]) -> Gateway {
    let replicas: Vec<&Replica> = replicas.iter().collect();
    let builder = Gateway::with(&replicas)
        .set("pools.m-8b.policy", policy)
        .set("expose.decision_header", true)
        .set("ramp_ms", 0);
    let builder = parameters.iter().fold(builder, |builder, (path, value)| {
        builder.set(&format!("pools.m-8b.policy_parameters.{path}"), value)
    });
    builder.start()
}

fn three() -> [Replica; 3] {
    [Replica::start("m-8b"), Replica::start("m-8b"), Replica::start("m-8b")]
}

fn counts(replicas: &[Replica]) -> Vec<usize> {
    replicas.iter().map(|replica| replica.requests().len()).collect()
}

/// Which replica got the request that `send` sends.
fn taken_by(replicas: &[Replica], send: impl FnOnce()) -> usize {
    let before = counts(replicas);
    send();
    let after = counts(replicas);
    (0..replicas.len()).find(|at| after[*at] > before[*at]).expect("a replica that got it")
}

/// What the gateway says of a request's candidates.
fn decision(gateway: &Gateway, path: &str, body: &Value) -> String {
    let answer = gateway.post(path, &body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.describe());
    answer.header("x-expediter-decision").expect("the header").to_owned()
}

#[test]
fn what_begins_alike_meets_on_one_replica() {
    for policy in DRAWN_TO_PREFIXES {
        let replicas = three();
        let gateway = start(policy, &replicas);
        replicas.iter().for_each(read_again);
        let ids = |group: usize, question: usize| -> Vec<usize> {
            let shared = (0..1_000).map(|at| at * 7 + group);
            shared.chain((0..20).map(|at| at * 11 + question)).collect()
        };
        let mut owners = Vec::new();
        for group in 0..4 {
            let forms: [(&str, &dyn Fn(usize) -> Value); 3] = [
                (CHAT, &|question| chat("m-8b", group, question)),
                (COMPLETIONS, &|question| {
                    let prompt = format!("{}{question}", format!("text {group} ").repeat(500));
                    json!({"model": "m-8b", "prompt": prompt})
                }),
                (COMPLETIONS, &|question| json!({"model": "m-8b", "prompt": ids(group, question)})),
            ];
            for (form, (path, body)) in forms.into_iter().enumerate() {
                let send = |question| taken_by(&replicas, || _ = decision(&gateway, path, &body(question)));
                let first = send(0);
                for question in 1..6 {
                    assert_eq!(send(question), first, "{policy}: group {group}, form {form}");
                }
                owners.push(first);
            }
        }
        owners.sort_unstable();
        owners.dedup();
        assert!(owners.len() > 1, "{policy}: groups do not all meet on {owners:?}");
    }
}

/// A chat of group 1 whose end counts.
fn long_question(question: usize) -> Value {
    let mut body = chat("m-8b", 1, 0);
    body["messages"][1]["content"] = format!("question {question} ").repeat(60).into();
    body
}

#[test]
fn too_much_of_one_beginning_spreads() {
    // A chat has some 1,200 tokens, all but some 180 of which are shared.
    type Parameters = &'static [(&'static str, &'static str)];
    let cases: [(&str, Parameters, usize); 4] = [
        ("prefix_hash_bounded", &[], 17),
        ("approximate_tree", &[("tree.balance_abs", "5")], 20),
        ("lmetric", &[], 32),
        ("sticky_until_saturated", &[("sticky.saturation_tokens", "1000")], 39),
    ];
    for (policy, parameters, most) in cases {
        let replicas = three();
        let gateway = start_with(policy, &replicas, parameters);
        assert_eq!(gateway.post(CHAT, &chat("m-8b", 1, 0).to_string()).status, 200);
        gateway.wait_idle();
        let go = Signal::new();
        for replica in &replicas {
            replica.on_post(held(&go));
        }
        let mut clients: Vec<Client> = (0..40).map(|_| gateway.connect()).collect();
        for (question, client) in clients.iter_mut().enumerate() {
            client.post(CHAT, long_question(question).to_string());
            eventually(PATIENCE, "it has arrived at a replica", || {
                counts(&replicas).iter().sum::<usize>() == question + 2
            });
        }
        let counts = counts(&replicas);
        go.raise();
        for client in &mut clients {
            assert_eq!(client.read_answer().status, 200);
        }
        // The one before the burst may stand in any of the three.
        let largest = counts.iter().max().copied().unwrap_or(0);
        assert!(largest <= most + 1, "{policy}: {counts:?}");
        assert!(counts.iter().filter(|count| **count > 0).count() > 1, "{policy}: {counts:?}");
    }
}

/// Waits until the gateway has read the replica's metrics as they are now.
fn read_again(replica: &Replica) {
    let pages = || replica.requests_of(Kind::Probe).iter().filter(|get| get.path == "/metrics").count();
    let before = pages();
    // The next may have been asked for before; the third is asked for when the second was read.
    eventually(PATIENCE, "two more readings", || pages() >= before + 3);
}

/// The metrics page of an engine that started then.
fn metrics_since(started_at: u32) -> Script {
    let page = format!("process_start_time_seconds {started_at}\n{}", script::metrics_text(0, 0, 0.0));
    script::answer(200, "text/plain; version=0.0.4", page)
}

#[test]
fn a_replica_that_started_again_is_forgotten() {
    let replicas = three();
    for replica in &replicas {
        replica.on_get("/metrics", metrics_since(1_000));
    }
    let gateway = start("sticky_until_saturated", &replicas);
    for replica in &replicas {
        read_again(replica);
    }
    let owner = taken_by(&replicas, || _ = decision(&gateway, CHAT, &chat("m-8b", 1, 0)));
    let knows = |question| decision(&gateway, CHAT, &chat("m-8b", 1, question)).contains("less_prefix");
    assert!(knows(1), "one holds it, the others do not");
    replicas[(owner + 1) % 3].on_get("/metrics", metrics_since(2_000));
    read_again(&replicas[(owner + 1) % 3]);
    assert!(knows(2), "another one started again");
    replicas[owner].on_get("/metrics", metrics_since(2_000));
    read_again(&replicas[owner]);
    assert!(!knows(3), "nobody holds it now");
    assert!(knows(4), "the one that got it since does");
}

#[test]
fn models_and_salts_share_nothing() {
    let replicas = three();
    for replica in &replicas {
        replica.on_get("/v1/models", script::models(&["m-8b", "m-8b-law"]));
    }
    let gateway = start("sticky_until_saturated", &replicas);
    eventually(PATIENCE, "the second model is known", || {
        gateway.post(CHAT, &chat("m-8b-law", 9, 0).to_string()).status == 200
    });
    let knows = |body: Value| decision(&gateway, CHAT, &body).contains("less_prefix");
    let salted = |salt: &str| {
        let mut body = chat("m-8b", 1, 0);
        body["cache_salt"] = salt.into();
        body
    };
    let with_tool = |name: &str| {
        let mut body = chat("m-8b", 1, 0);
        body["tools"] = json!([{"type": "function", "function": {"name": name}}]);
        body
    };
    for (name, body) in [
        ("the model", chat("m-8b", 1, 0)),
        ("another model", chat("m-8b-law", 1, 0)),
        ("a salt", salted("a")),
        ("another salt", salted("b")),
        ("a tool", with_tool("f")),
        ("another tool", with_tool("g")),
    ] {
        assert!(!knows(body.clone()), "{name}: unknown at first");
        assert!(knows(body), "{name}: known then");
    }
    let alias = chat("gpt-fast", 1, 0);
    assert!(knows(alias), "an alias is the model it stands for");
}

#[test]
fn the_ring_is_the_same_on_every_gateway() {
    let replicas = three();
    let owners = |gateway: &Gateway| -> Vec<usize> {
        let send = |group| taken_by(&replicas, || _ = decision(gateway, CHAT, &chat("m-8b", group, 0)));
        (0..12).map(send).collect()
    };
    let first = owners(&start("prefix_hash_bounded", &replicas));
    // Named in another order, so that this gateway numbers them otherwise.
    let second = Gateway::with(&[&replicas[2], &replicas[0], &replicas[1]])
        .set("pools.m-8b.policy", "prefix_hash_bounded")
        .set("expose.decision_header", true)
        .start();
    assert_eq!(owners(&second), first);
}
