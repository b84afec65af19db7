//! What engines say of their load, in every spelling and state of repair.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::kit::gateway::Gateway;
use crate::kit::replica::{Replica, Script};
use crate::kit::script::{self, script};
use crate::kit::wait::{PATIENCE, eventually};

fn page(text: &str) -> Script {
    script::answer(200, "text/plain; version=0.0.4; charset=utf-8", text)
}

/// Waits until the gateway shows these three numbers for the replica.
fn wait_shown(name: &str, gateway: &Gateway, replica: &Replica, expected: &Value) {
    let shown = || {
        let replica = gateway.replica(replica);
        json!([replica["running"], replica["waiting"], replica["kv_usage"]])
    };
    let deadline = std::time::Instant::now() + PATIENCE;
    while shown() != *expected {
        assert!(std::time::Instant::now() < deadline, "{name}: {} is shown, not {expected}", shown());
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn every_spelling_of_the_gauges_is_read() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).set("probe.report_ms", 50).start();
    let cases = [
        ("as the engine writes", script::metrics_text(4, 2, 0.5), json!([4, 2, 0.5])),
        (
            "without labels",
            "vllm:num_requests_running 5\nvllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 0.25\n".to_owned(),
            json!([5, 1, 0.25]),
        ),
        (
            "several engines",
            "vllm:num_requests_running{engine=\"0\"} 3\nvllm:num_requests_running{engine=\"1\"} 4\n\
             vllm:num_requests_waiting{engine=\"0\"} 0\nvllm:num_requests_waiting{engine=\"1\"} 9\n\
             vllm:kv_cache_usage_perc{engine=\"0\"} 0.125\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.75\n"
                .to_owned(),
            json!([7, 9, 0.75]),
        ),
        (
            "other prefix, exponents, CRLF, times",
            "vllm_num_requests_running{a=\"b\"} 1.1e1 1700000000000\r\nvllm_num_requests_waiting 2E0\r\nvllm_kv_cache_usage_perc 5e-1\r\n"
                .to_owned(),
            json!([11, 2, 0.5]),
        ),
        (
            "labels with anything in them",
            "vllm:num_requests_running{model_name=\"a\\\"} 99 {b\\\\\",x=\"vllm:num_requests_waiting 7\"} 6\n\
             vllm:num_requests_waiting{ engine = \"0\" , } 3\n"
                .to_owned(),
            json!([6, 3, null]),
        ),
        ("cut in the last line", "vllm:num_requests_running 8\nvllm:num_requests_waiting 12".to_owned(), json!([8, null, null])),
        (
            "no numbers",
            "vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\nvllm:kv_cache_usage_perc -1\n".to_owned(),
            json!([null, null, null]),
        ),
        (
            "one of two is broken",
            "vllm:num_requests_running x\nvllm:num_requests_waiting 4\nvllm:kv_cache_usage_perc 0.5\n".to_owned(),
            json!([null, 4, 0.5]),
        ),
        ("renamed beyond recognition", "sglang:queue 4\nllm_running 2\n".to_owned(), json!([null, null, null])),
    ];
    for (name, text, expected) in cases {
        replica.on_get("/metrics", page(&text));
        wait_shown(name, &gateway, &replica, &expected);
        assert_eq!(gateway.chat().status, 200, "{name}");
    }
}

/// A page that is none leaves the last reading, whose age shows; the replica serves on.
#[test]
fn pages_of_no_use_only_grow_old() {
    let replica = Replica::start("m-8b");
    replica.on_get("/metrics", page(&script::metrics_text(4, 2, 0.5)));
    let gateway = Gateway::with(&[&replica])
        .set("probe.report_ms", 50)
        .set("probe.stale_ms", 300)
        .set("probe.timeout_ms", 200)
        .start();
    let endless: Script = script(|conn, _| {
        conn.send("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")?;
        loop {
            conn.send("vllm:num_requests_running 1\n".repeat(300))?;
            conn.pause(Duration::from_millis(1))?;
        }
    });
    let cases: [(&str, Script); 6] = [
        ("404", script::error(404, "x", "y")),
        ("500", script::error(500, "x", "y")),
        ("hanging", script::silent()),
        ("never ending", endless),
        ("reset", script::raw("HTTP/1.1 200 OK\r\n", crate::kit::replica::Then::Reset)),
        (
            "cut",
            script::raw(
                "HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\nvllm:num_requests_running 1\n",
                crate::kit::replica::Then::Fin,
            ),
        ),
    ];
    let age = || gateway.replica(&replica)["report_age_ms"].as_u64().unwrap_or(u64::MAX);
    for (name, script) in cases {
        replica.on_get("/metrics", page(&script::metrics_text(4, 2, 0.5)));
        eventually(PATIENCE, "a fresh reading", || age() < 1000);
        replica.on_get("/metrics", script);
        eventually(PATIENCE, name, || age() > 1000);
        assert_eq!(gateway.replica(&replica)["state"], "ready", "{name}");
        assert_eq!(gateway.chat().status, 200, "{name}");
    }
    assert!(gateway.resident_bytes() < 300 << 20, "{} bytes resident", gateway.resident_bytes());
}

/// Megabytes of other metrics around the few that are read.
#[test]
fn long_pages_are_read() {
    let replica = Replica::start("m-8b");
    let noise =
        (0..40_000).map(|n| format!("vllm:noise_total{{n=\"{n}\"}} {n}\n")).collect::<Vec<_>>().concat();
    replica.on_get("/metrics", page(&format!("{noise}{}{noise}", script::metrics_text(4, 2, 0.5))));
    let gateway = Gateway::with(&[&replica]).start();
    wait_shown("long", &gateway, &replica, &json!([4, 2, 0.5]));
}

/// A replica without metrics at all serves like any other.
#[test]
fn a_replica_without_metrics_serves() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    a.on_get("/metrics", script::error(404, "x", "y"));
    let gateway = Gateway::with(&[&a, &b]).start();
    for _ in 0..20 {
        assert_eq!(gateway.chat().status, 200);
    }
    assert!(a.requests().len() >= 5, "{}", a.requests().len());
}
