//! `expediter simulate` from outside: the table, the JSON, the page, and everything that cannot be simulated.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::kit::wait::PATIENCE;

/// What the program did: its exit status, what it wrote to stdout, and to stderr.
struct Ran {
    status: Option<i32>,
    out: String,
    err: String,
    /// Where it ran; it was empty before.
    folder: tempfile::TempDir,
}

fn simulate(arguments: &[&str]) -> Ran {
    let folder = tempfile::tempdir().expect("a directory");
    let mut program = Command::new(env!("CARGO_BIN_EXE_expediter"));
    program.arg("simulate").args(arguments).current_dir(folder.path()).stdin(Stdio::null());
    let output = program.output().expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it writes UTF-8");
    Ran { status: output.status.code(), out: text(output.stdout), err: text(output.stderr), folder }
}

/// A run of a second or less: two replicas, ten seconds.
const SHORT: [&str; 10] = [
    "--workload",
    "capacity",
    "--set",
    "pools.m-8b.replicas=2",
    "--rate",
    "6",
    "--duration",
    "10s",
    "--warm-up",
    "2s",
];

fn short(more: &[&str]) -> Ran {
    simulate(&[&SHORT[..], more].concat())
}

#[test]
fn a_table_compares_policies() {
    let ran = short(&["--policy", "round_robin,least_tokens", "--seeds", "2", "--verbose"]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    for word in [
        "policy",
        "goodput/s",
        "TTFT p50",
        "round_robin",
        "least_tokens",
        "±",
        "history",
        "SLO: TTFT within 400 ms",
    ] {
        assert!(ran.out.contains(word), "`{word}` is not in:\n{}", ran.out);
    }
    let best = ran.out.lines().filter(|line| line.starts_with("* ")).count();
    assert_eq!(best, 1, "one row is marked as the best:\n{}", ran.out);
    let page = std::fs::read_to_string(ran.folder.path().join("simulation.html")).expect("a page unasked");
    assert!(page.contains("round_robin") && ran.err.contains("charts: simulation.html"), "{}", ran.err);
    assert!(!ran.out.contains('\x1b'), "colours go to terminals only");
    assert!(ran.err.contains("4 runs") && ran.err.contains("× real time"), "{}", ran.err);
}

#[test]
fn one_seed_is_one_json_whatever_the_threads_do() {
    let arguments = ["--policy", "all", "--seeds", "2", "--json", "-"];
    let (first, second) = (short(&arguments), short(&arguments));
    assert_eq!((first.status, second.status), (Some(0), Some(0)), "{}", first.err);
    assert!(first.out == second.out, "the same command gave two results");
    assert!(first.err.contains("goodput/s"), "the table gives way to stderr");
    let results: Value = serde_json::from_str(&first.out).expect("JSON");
    assert_eq!(results["format"], 1);
    let runs = results["runs"].as_array().expect("runs");
    assert!(
        runs.len() >= 24 && runs.len().is_multiple_of(2),
        "{} runs of every policy with 2 seeds",
        runs.len()
    );
    assert_eq!(results["comparison"].as_array().expect("groups").len(), runs.len() / 2);
    assert_eq!(
        (&runs[0]["policy"], &runs[0]["seed"], &runs[1]["seed"]),
        (&"round_robin".into(), &1.into(), &2.into())
    );
    for run in runs {
        assert!(run["ttft_seconds"]["p99"].as_f64().is_some_and(|seconds| seconds > 0.0), "{run}");
        assert!(run["requests"]["answered"].as_u64().is_some_and(|answered| answered > 10), "{run}");
    }
    let other = short(&["--policy", "all", "--seeds", "2", "--seed", "7", "--json", "-"]);
    assert!(other.out != first.out, "another seed is another history");
}

#[test]
fn a_page_is_whole_in_itself() {
    let folder = tempfile::tempdir().expect("a directory");
    let page = folder.path().join("page.html");
    let ran = short(&["--policy", "round_robin,least_tokens", "--html", page.to_str().expect("a path")]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    let text = std::fs::read_to_string(&page).expect("the page");
    assert!(text.len() < 2_000_000, "{} bytes", text.len());
    for absent in ["{{", "http://", "https://", "src=", "@import", "url("] {
        assert!(!text.contains(absent), "the page has {absent}");
    }
    let (_, rest) = text.split_once(r#"<script type="application/json" id="data">"#).expect("the data");
    let data: Value = serde_json::from_str(rest.split_once("</script>").expect("their end").0).expect("JSON");
    assert_eq!(data["policies"], serde_json::json!(["round_robin", "least_tokens"]));
    assert!(data["groups"][0]["series"]["in_use"].as_array().is_some_and(|rows| rows.len() == 2), "{data}");
    assert!(
        data["command"].as_str().is_some_and(|command| command.starts_with("expediter simulate --workload"))
    );
}

#[test]
fn a_ceiling_is_found_for_each_policy() {
    let ran = short(&["--policy", "least_tokens", "--find-ceiling", "--json", "-", "--verbose"]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    let results: Value = serde_json::from_str(&ran.out).expect("JSON");
    let ceiling = &results["runs"][0]["ceiling"];
    let (rate, failed) = (&ceiling["rate_per_second"], &ceiling["failed_rate_per_second"]);
    let (rate, failed) = (rate.as_f64().expect("a rate"), failed.as_f64().expect("a rate that failed"));
    assert!(rate > 4.0 && failed > rate && failed <= rate * 1.02, "{ceiling}");
    assert!(ran.err.contains("per replica/s") && ran.err.contains(" yes"), "{}", ran.err);
}

#[test]
fn what_can_be_named_is_listed() {
    let ran = simulate(&["--list"]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    for word in ["reference", "prefix_tokens = 1536", "sticky_until_saturated", "llama3_8b_tp1_a100_80g"] {
        assert!(ran.out.contains(word), "`{word}` is not in:\n{}", ran.out);
    }
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/simulate").join(name)
}

#[test]
fn every_example_can_be_simulated() {
    let folder = example("").read_dir().expect("the examples");
    let mut count = 0;
    for entry in folder {
        let path = entry.expect("an entry").path();
        let file = path.to_str().expect("a path");
        // Long enough for a few requests; the faults of the example lie later.
        let ran = simulate(&[
            "--scenario",
            file,
            "--policy",
            "least_tokens",
            "--rate",
            "4",
            "--seeds",
            "1",
            "--set",
            "faults=[]",
            "--duration",
            "3s",
            "--warm-up",
            "0s",
        ]);
        assert_eq!(ran.status, Some(0), "{file}: {}", ran.err);
        count += 1;
    }
    assert!(count >= 3, "{count} examples");
}

#[test]
fn a_trace_is_replayed() {
    let folder = tempfile::tempdir().expect("a directory");
    let (good, bad) = (folder.path().join("good.jsonl"), folder.path().join("bad.jsonl"));
    let line = |at: u64, id: u64| {
        format!(
            "{{\"timestamp\": {at}, \"input_length\": 1000, \"output_length\": 20, \"hash_ids\": [0, {id}]}}\n"
        )
    };
    let lines: Vec<String> = (0..40).map(|number| line(number * 200, number + 1)).collect();
    std::fs::write(&good, lines.concat()).expect("a file");
    std::fs::write(&bad, [line(5_000, 1), line(2_000, 2)].concat()).expect("a file");
    let replay = |file: &Path, more: &[&str]| {
        let file = file.to_str().expect("a path");
        let trace =
            ["--trace", file, "--format", "mooncake", "--duration", "10s", "--warm-up", "0s", "--json", "-"];
        simulate(&[&trace[..], more].concat())
    };
    let ran = replay(&good, &[]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    let results: Value = serde_json::from_str(&ran.out).expect("JSON");
    assert_eq!(results["runs"][0]["requests"]["answered"], 40);
    let ran = replay(&bad, &[]);
    assert_eq!(ran.status, Some(1), "{}", ran.out);
    for word in ["bad.jsonl", "line 2", "timestamp", "earlier"] {
        assert!(ran.err.contains(word), "`{word}` is not in: {}", ran.err);
    }
    let ran = replay(&good, &["--set", "workload.trace.model_tokens_max=800"]);
    assert_eq!(ran.status, Some(1), "{}", ran.out);
    for word in ["good.jsonl", "line 1", "1020", "800"] {
        assert!(ran.err.contains(word), "`{word}` is not in: {}", ran.err);
    }
}

/// Each with the words that the message must have.
const WRONG: [(&str, &str, &[&str]); 18] = [
    ("an unknown key", "workloads: {}\n", &["scenario.yaml:1:1", "workloads", "did you mean `workload`"]),
    ("broken syntax", "pools: [a\nb: c\n", &["scenario.yaml:2:2", "not YAML"]),
    (
        "no replica",
        "pools: { a: { replicas: 0 } }\n",
        &["scenario.yaml:1:25", "pools.a.replicas", "from 1 to 4096"],
    ),
    ("a rate of nothing", "rates: [0]\n", &["rates[0]", "from 0.001 to 100000"]),
    ("a rate beyond reason", "rates: [1000000000]\n", &["rates[0]", "out of range"]),
    ("too many requests", "rates: [99999]\nduration_ms: 3600000\n", &["rates[0]", "shorten `duration_ms`"]),
    ("an unknown policy", "policies: [least_token]\n", &["policies[0]", "did you mean `least_tokens`"]),
    ("no policy", "policies: []\n", &["policies", "name one, or `all`"]),
    ("an unknown workload", "workload: { name: refrence }\n", &["workload.name", "did you mean `reference`"]),
    (
        "an unknown parameter",
        "workload: { name: capacity, parameters: { hits: 1 } }\n",
        &["workload.parameters.hits", "did you mean `hit`"],
    ),
    (
        "a parameter beyond its range",
        "workload: { name: capacity, parameters: { hit: 2 } }\n",
        &["`hit` is 2"],
    ),
    (
        "a prompt longer than the model",
        "pools: { m-8b: { engine: { blocks: 100 } } }\nworkload: { name: capacity }\n",
        &["request 1 needs 2140 tokens", "`m-8b` holds 1584"],
    ),
    (
        "an unknown profile",
        "pools: { a: { profile: llama3_8b }}\n",
        &["pools.a.profile", "llama3_8b_tp1_a100_80g"],
    ),
    (
        "a fault in no pool",
        "workload: { name: capacity }\nfaults: [{ at_ms: 1, pool: b, replica: 0, kind: crash }]\n",
        &["scenario.yaml:2", "faults[0].pool", "choose `m-8b`"],
    ),
    (
        "a fault of no replica",
        "workload: { name: capacity }\nfaults: [{ at_ms: 1, pool: m-8b, replica: 8, kind: slow, factor: 2 }]\n",
        &["faults[0].replica", "choose 0 to 7"],
    ),
    (
        "adapters that no engine takes",
        "pools: { a: { models: [a, b] } }\n",
        &["pools.a.models", "add `lora`"],
    ),
    (
        "a policy's parameter beyond its range",
        "pools: { a: { dispatcher: { policy_parameters: { bounded_hash: { load_factor: 0.5 } } } } }\n",
        &["load_factor", "out of range"],
    ),
    ("all warm-up", "duration_ms: 1000\nwarm_up_ms: 1000\n", &["warm_up_ms", "scenario.yaml:2"]),
];

#[test]
fn a_scenario_that_cannot_be_is_refused_whole() {
    let folder = tempfile::tempdir().expect("a directory");
    let (file, page) = (folder.path().join("scenario.yaml"), folder.path().join("page.html"));
    for (name, text, words) in WRONG {
        std::fs::write(&file, text).expect("a file");
        let path = |path: &Path| path.to_str().expect("a path").to_owned();
        let ran = simulate(&["--scenario", &path(&file), "--html", &path(&page)]);
        assert_eq!(ran.status, Some(1), "{name}: {}{}", ran.out, ran.err);
        for word in words {
            assert!(ran.err.contains(word), "{name}: `{word}` is not in: {}", ran.err);
        }
        assert!(ran.out.is_empty() && !ran.err.contains("panicked"), "{name}: {}{}", ran.out, ran.err);
        assert!(!page.exists(), "{name}: something was written");
    }
}

#[test]
fn arguments_that_cannot_be_are_refused() {
    let cases: [(&[&str], i32, &[&str]); 9] = [
        (&["--rate", "0"], 1, &["--rate", "from 0.001 to 100000"]),
        (&["--rate", "1e9"], 1, &["--rate", "out of range"]),
        (&["--policy", "fastest"], 1, &["--policy", "`fastest` is no policy"]),
        (&["--workload", "nothing"], 1, &["--workload", "`nothing` is no workload"]),
        (&["--scenario", "/does/not/exist.yaml"], 1, &["/does/not/exist.yaml", "cannot read the file"]),
        (&["--html", "/does/not/exist/page.html"], 1, &["/does/not/exist/page.html", "a folder that exists"]),
        (&["--json", "results", "--html", "./results"], 1, &["--json and --html", "a file of its own"]),
        (&["--find-ceiling", "--rate", "4,8"], 1, &["--find-ceiling", "one --rate"]),
        (&["--duration", "soon"], 2, &["--duration"]),
    ];
    for (arguments, status, words) in cases {
        let ran = simulate(arguments);
        assert_eq!(ran.status, Some(status), "{arguments:?}: {}{}", ran.out, ran.err);
        for word in words {
            assert!(ran.err.contains(word), "{arguments:?}: `{word}` is not in: {}", ran.err);
        }
    }
}

#[test]
fn an_interrupt_ends_the_runs_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a directory");
    let page = folder.path().join("page.html");
    let mut child = Command::new(env!("CARGO_BIN_EXE_expediter"))
        .args(["simulate", "--policy", "all", "--seeds", "9", "--html"])
        .arg(&page)
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    // The page's file is there once the scenario was found to be right.
    let deadline = Instant::now() + PATIENCE;
    while !page.exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(200));
    let id = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw).expect("its id");
    rustix::process::kill_process(id, rustix::process::Signal::INT).expect("a signal");
    while child.try_wait().expect("its state").is_none() {
        assert!(Instant::now() < deadline, "it goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().expect("its output");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("stopped: ") && said.contains("nothing was written"), "{said}");
    assert!(!page.exists(), "the page's file is taken away again");
}

/// Where so few requests come that none is measured, nothing is met or missed, and a ceiling lies higher.
#[test]
fn a_rate_too_low_to_measure_says_nothing() {
    let few =
        ["--workload", "capacity", "--set", "pools.m-8b.replicas=2", "--duration", "10s", "--warm-up", "2s"];
    let ran = simulate(&[&few[..], &["--rate", "0.001"]].concat());
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    assert!(ran.out.contains("no request arrived in the measured time"), "{}", ran.out);
    let ran = simulate(&[&few[..], &["--rate", "0.02", "--find-ceiling"]].concat());
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    assert!(!ran.out.contains("no rate is sustained"), "{}", ran.out);
}
