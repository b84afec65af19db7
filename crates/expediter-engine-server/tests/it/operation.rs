//! What operators and routers of a fleet see: refusals, priorities, adapters, sleep, and processes that come and go.

use std::net::SocketAddr;

use expediter_engine_server::{
    Adapter, AdapterSettings, EngineServer, Fault, FaultScript, Replica, Settings, Termination,
};
use expediter_engine_sim::{LoraSettings, Scheduling, Settings as EngineSettings};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use crate::client::{Answer, open, read_until, send, until};

const COMPLETIONS: &str = "/v1/completions";
const LONG: &str = r#"{"prompt":"once upon","max_tokens":5000,"stream":true}"#;

async fn start(settings: Settings) -> (EngineServer, Replica, SocketAddr) {
    let server = EngineServer::start(settings).await.unwrap();
    let (replica, address) = (server.replicas()[0].clone(), server.addresses()[0]);
    (server, replica, address)
}

/// A request that runs.
async fn occupy(replica: &Replica, address: SocketAddr) -> TcpStream {
    let running = replica.stats().running;
    let mut stream = open(address, COMPLETIONS, LONG).await;
    read_until(&mut stream, "data: ").await;
    until("it runs", || replica.stats().running == running + 1).await;
    stream
}

async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    _ = stream.read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn post(address: SocketAddr, path: &str, body: &str) -> Answer {
    send(address, "POST", path, body).await.expect("it answers")
}

/// The lines of `/metrics` that begin so.
async fn metrics(address: SocketAddr, start: &str) -> Vec<String> {
    let page = send(address, "GET", "/metrics", "").await.unwrap().body;
    page.lines().filter(|line| line.starts_with(start)).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_full_queue_refuses_before_the_stream_or_in_it() {
    for late_refusals in [false, true] {
        let engine = EngineSettings { max_num_queued_reqs: Some(1), ..EngineSettings::default() };
        let (server, replica, address) =
            start(Settings { engine, late_refusals, ..Settings::default() }).await;
        let _running = occupy(&replica, address).await;
        let stream = post(address, COMPLETIONS, LONG).await;
        if late_refusals {
            let events = stream.events();
            assert_eq!((stream.status, stream.complete, events.len(), events[1]), (200, true, 2, "[DONE]"));
            assert!(events[0].starts_with(r#"{"error": {"message": "The engine is currently busy"#));
            assert!(events[0].ends_with(r#""type": "Service Unavailable", "param": null, "code": 503}}"#));
        } else {
            assert_eq!(stream.status, 503);
        }
        let whole = post(address, COMPLETIONS, r#"{"prompt":["a","b"],"max_tokens":4}"#).await;
        assert_eq!(whole.status, 503, "{}", whole.body);
        let rejected = metrics(address, "vllm:admission_rejections_total").await;
        let expected = r#"vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"} "#;
        // The second choice of the batch knocks by itself where nobody asked before.
        let count = if late_refusals { "3.0" } else { "2.0" };
        assert_eq!(rejected[0], format!("{expected}{count}"));
        server.shutdown().await;
    }
}

#[tokio::test]
async fn the_most_urgent_goes_first() {
    let engine =
        EngineSettings { max_num_seqs: 1, scheduling: Scheduling::Priority, ..EngineSettings::default() };
    let (server, replica, address) = start(Settings { engine, speed: 3.0, ..Settings::default() }).await;
    let running = occupy(&replica, address).await;
    let mut waiting = Vec::new();
    for (number, priority) in [5, -5, 0].into_iter().enumerate() {
        let body = format!(r#"{{"prompt":"abc","max_tokens":60,"stream":true,"priority":{priority}}}"#);
        let mut stream = open(address, COMPLETIONS, &body).await;
        read_until(&mut stream, "\r\n\r\n").await;
        until("it waits", || replica.stats().waiting == number as u64 + 1).await;
        waiting.push((priority, stream));
    }
    waiting.sort_by_key(|(priority, _)| *priority);
    drop(running);
    for (left, (_, stream)) in (0..3).rev().zip(&mut waiting) {
        read_until(stream, "data: ").await;
        assert_eq!(replica.stats().waiting, left, "those that are less urgent wait");
        rest(stream).await;
    }
    server.shutdown().await;
}

#[tokio::test]
async fn sets_of_adapters_stay_and_the_newest_counts() {
    let engine = EngineSettings {
        lora: Some(LoraSettings { max_loras: 2, ..LoraSettings::default() }),
        ..EngineSettings::default()
    };
    let module = |name: &str| Adapter { name: name.to_owned(), path: format!("loras/{name}") };
    let adapters = AdapterSettings { modules: vec![module("a"), module("b")], ..AdapterSettings::default() };
    let (server, replica, address) =
        start(Settings { engine, adapters, speed: 100.0, ..Settings::default() }).await;
    let sets = async || -> Vec<(String, f64)> {
        let lines = metrics(address, "vllm:lora_requests_info{").await;
        let set = |line: String| {
            let (labels, time) = line.rsplit_once(' ').unwrap();
            (labels.split('"').nth(3).unwrap().to_owned(), time.parse().unwrap())
        };
        lines.into_iter().map(set).collect()
    };
    assert_eq!(sets().await, [], "nothing before the first request");
    for model in ["a", "b"] {
        let answer = post(address, COMPLETIONS, &format!(r#"{{"model":"{model}","prompt":"x"}}"#)).await;
        assert!(answer.body.contains(&format!(r#""model":"{model}""#)), "{}", answer.body);
    }
    until("it is idle", || replica.stats().running == 0).await;
    let sets = sets().await;
    let newest = sets.iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    assert_eq!(newest.0, "", "nothing runs");
    assert_eq!(sets.iter().map(|(set, _)| set.as_str()).collect::<Vec<_>>(), ["", "a", "b"]);
    assert_eq!(post(address, COMPLETIONS, r#"{"model":"c","prompt":"x"}"#).await.status, 404);
    assert_eq!(post(address, "/v1/load_lora_adapter", "{}").await.status, 404, "not allowed at run time");
    server.shutdown().await;
}

#[tokio::test]
async fn an_engine_that_sleeps_gives_up_what_it_has_and_lets_others_wait() {
    let (server, replica, address) = start(Settings { dev_mode: true, ..Settings::default() }).await;
    let mut running = occupy(&replica, address).await;
    assert_eq!(post(address, "/sleep?level=1", "").await.status, 200);
    assert!(rest(&mut running).await.contains(r#""finish_reason":"abort""#));
    let sleeps = async || send(address, "GET", "/is_sleeping", "").await.unwrap().body;
    assert_eq!(sleeps().await, r#"{"is_sleeping":true}"#);
    let states = metrics(address, "vllm:engine_sleep_state{").await;
    assert!(states[0].ends_with(r#"sleep_state="awake"} 0.0"#), "{states:?}");
    assert!(states[1].ends_with(r#"sleep_state="weights_offloaded"} 1.0"#), "{states:?}");
    let mut waiting = open(address, COMPLETIONS, r#"{"prompt":"abc","max_tokens":3}"#).await;
    until("it waits", || replica.stats().waiting == 1).await;
    assert_eq!(post(address, "/wake_up", "").await.status, 200);
    assert!(rest(&mut waiting).await.starts_with("HTTP/1.1 200 OK"));
    assert_eq!(sleeps().await, r#"{"is_sleeping":false}"#);
    server.shutdown().await;
    let (server, _, address) = start(Settings::default()).await;
    for path in ["/sleep", "/wake_up", "/reset_prefix_cache"] {
        assert_eq!(post(address, path, "").await.status, 404, "{path} without the mode");
    }
    server.shutdown().await;
}

#[tokio::test]
async fn a_process_that_drains_looks_well_and_takes_nothing_new() {
    let (server, replica, address) = start(Settings { speed: 50.0, ..Settings::default() }).await;
    let mut running = occupy(&replica, address).await;
    replica.set_fault(Fault::Terminate { how: Termination::Drain }).await;
    assert_eq!(send(address, "GET", "/health", "").await.unwrap().status, 200);
    let text = post(address, COMPLETIONS, r#"{"prompt":"abc"}"#).await;
    assert_eq!(text.status, 500);
    assert!(text.body.contains("cannot schedule new futures after shutdown"), "{}", text.body);
    let mut ids = open(address, COMPLETIONS, r#"{"prompt":[1,2,3]}"#).await;
    assert!(rest(&mut running).await.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"), "what runs ends in full");
    assert_eq!(rest(&mut ids).await, "", "cut with the process");
    until("nobody listens", || std::net::TcpStream::connect(address).is_err()).await;
    replica.set_fault(Fault::Ok).await;
    assert_eq!(post(address, COMPLETIONS, r#"{"prompt":"abc"}"#).await.status, 200);
    server.shutdown().await;
}

#[tokio::test]
async fn a_process_that_is_told_to_stop_ends_answers_in_one_of_three_ways() {
    let cases = [
        (Termination::Abort, Some(r#""finish_reason":"abort""#)),
        (Termination::Error, Some(r#""code": 500}}"#)),
        (Termination::Silence, None),
    ];
    for (how, end) in cases {
        let (server, replica, address) = start(Settings::default()).await;
        let mut running = occupy(&replica, address).await;
        replica.set_fault(Fault::Terminate { how }).await;
        assert!(TcpStream::connect(address).await.is_err(), "{how:?}: the port is closed");
        if let Some(end) = end {
            let text = rest(&mut running).await;
            assert!(text.contains(end) && text.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"), "{how:?}: {text}");
        }
        replica.set_fault(Fault::Ok).await;
        assert!(!rest(&mut running).await.contains("[DONE]"), "{how:?}: the old process is gone");
        assert_eq!(replica.stats().generation_tokens.0, 0, "{how:?}: a new one");
        assert_eq!(post(address, COMPLETIONS, r#"{"prompt":"abc","max_tokens":2}"#).await.status, 200);
        server.shutdown().await;
    }
}

#[tokio::test]
async fn a_new_process_has_a_new_start_time() {
    let (server, replica, address) = start(Settings::default()).await;
    let before = metrics(address, "process_start_time_seconds").await;
    replica.set_fault(Fault::Crash).await;
    replica.set_fault(Fault::Ok).await;
    assert_ne!(metrics(address, "process_start_time_seconds").await, before);
    server.shutdown().await;
}

#[tokio::test]
async fn faults_come_by_script() {
    let script = r#"[{"at_ms":20,"replica":0,"fault":"unhealthy"},{"at_ms":20,"replica":1,"fault":"hang"}]"#;
    let faults = FaultScript::parse(script).unwrap();
    let (server, replica, address) = start(Settings { replicas: 2, faults, ..Settings::default() }).await;
    until("the first fault", || replica.fault() == Fault::Unhealthy).await;
    until("that of the other", || server.replicas()[1].fault() == Fault::Hang).await;
    let script =
        r#"[{"at_ms":0,"fault":"status","status":502},{"at_ms":30,"fault":"stale_metrics","for_ms":30}]"#;
    assert_eq!(post(address, "/faults", script).await.body, r#"{"faults":2}"#);
    until("one", || replica.fault() == Fault::Status { status: 502 }).await;
    until("two", || replica.fault() == Fault::StaleMetrics).await;
    until("healed", || replica.fault() == Fault::Ok).await;
    for (bad, message) in [
        ("{}", "a script is a JSON list of faults"),
        (r#"[{"at_ms":0,"fault":"x"}]"#, "fault 0 of the script: unknown variant `x`"),
        (r#"[{"at_ms":0,"replica":0,"fault":"ok"}]"#, "fault 0 of the script: leave `replica` out"),
    ] {
        let answer = post(address, "/faults", bad).await;
        assert!(answer.status == 400 && answer.body.contains(message), "{bad}: {}", answer.body);
    }
    server.shutdown().await;
}
