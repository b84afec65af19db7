//! What a gateway relies on beyond the shape of an answer.

use expediter_engine_server::{
    Adapter, AdapterSettings, EngineServer, FaultScript, KvEventsSettings, Settings, StartError,
};
use expediter_engine_sim::{LoraSettings, Settings as EngineSettings};
use expediter_types::{Blocks, Tokens};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::client::{open, read_until, request, send, until};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

#[tokio::test]
async fn a_client_that_leaves_ends_its_request_in_the_engine() {
    let engine = EngineSettings { max_num_seqs: 1, ..EngineSettings::default() };
    let server = EngineServer::start(Settings { engine, ..Settings::default() }).await.unwrap();
    let (replica, address) = (&server.replicas()[0], server.addresses()[0]);
    let body = |stream| format!(r#"{{"prompt":"once upon","max_tokens":5000,"stream":{stream}}}"#);
    for (name, stream, half_close) in [
        ("a stream, closed", true, false),
        ("a stream, closed by half", true, true),
        ("no stream, closed", false, false),
        ("no stream, closed by half", false, true),
    ] {
        let mut client = open(address, COMPLETIONS, &body(stream)).await;
        if stream {
            read_until(&mut client, "data: ").await;
        }
        until("it runs", || replica.stats().running == 1).await;
        let mut queued = open(address, COMPLETIONS, &body(stream)).await;
        until("it waits", || replica.stats().waiting == 1).await;
        if half_close {
            queued.shutdown().await.unwrap();
            client.shutdown().await.unwrap();
        } else {
            drop(queued);
            drop(client);
        }
        until(name, || (replica.stats().running, replica.stats().waiting) == (0, 0)).await;
        assert_eq!(replica.stats().in_use, Blocks(0), "{name}");
    }
    server.shutdown().await;
}

#[tokio::test]
async fn the_head_of_a_stream_comes_while_it_waits_in_the_queue() {
    let engine = EngineSettings { max_num_seqs: 1, ..EngineSettings::default() };
    let server = EngineServer::start(Settings { engine, ..Settings::default() }).await.unwrap();
    let body = r#"{"prompt":"once upon","max_tokens":5000,"stream":true}"#;
    let mut running = open(server.addresses()[0], COMPLETIONS, body).await;
    read_until(&mut running, "data: ").await;
    let mut waiting = open(server.addresses()[0], COMPLETIONS, body).await;
    let head = read_until(&mut waiting, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && !head.contains("data: "), "{head}");
    drop(running);
    read_until(&mut waiting, "data: ").await;
    server.shutdown().await;
}

#[tokio::test]
async fn a_repeated_prompt_is_cached_in_whole_blocks_and_a_next_turn_with_its_answer() {
    let server = EngineServer::start(Settings { speed: 100.0, ..Settings::default() }).await.unwrap();
    let address = server.addresses()[0];
    let ask = async |body: &str| -> Value {
        let answer = send(address, "POST", CHAT, body).await.unwrap();
        serde_json::from_str(&answer.body).unwrap()
    };
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    let question = "why is the sky blue and not green? ".repeat(20);
    let first = format!(r#"{{"messages":[{{"role":"user","content":"{question}"}}],"max_tokens":64}}"#);
    let answer = ask(&first).await;
    assert_eq!(cached(&answer), 0);
    let tokens = answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(cached(&ask(&first).await), (tokens - 1) / 16 * 16);
    let said = &answer["choices"][0]["message"]["content"];
    let second = format!(
        r#"{{"messages":[{{"role":"user","content":"{question}"}},{{"role":"assistant","content":{said}}},{{"role":"user","content":"go on"}}],"max_tokens":1}}"#
    );
    // The last token of the answer was never computed.
    assert_eq!(cached(&ask(&second).await), (tokens + 63) / 16 * 16);
    let salted = first.replace("\"max_tokens\"", "\"cache_salt\":\"mine\",\"max_tokens\"");
    assert_eq!(cached(&ask(&salted).await), 0);
    server.shutdown().await;
}

#[tokio::test]
async fn a_seed_makes_the_answer_the_same_on_every_replica() {
    let server =
        EngineServer::start(Settings { speed: 100.0, replicas: 2, ..Settings::default() }).await.unwrap();
    let addresses = server.addresses();
    let ask = async |replica: usize, more: &str| -> Value {
        let body = format!(r#"{{"prompt":"abc","max_tokens":20{more}}}"#);
        let answer = send(addresses[replica], "POST", COMPLETIONS, &body).await.unwrap();
        serde_json::from_str::<Value>(&answer.body).unwrap()["choices"][0]["text"].clone()
    };
    for same in [r#","seed":7"#, r#","temperature":0"#] {
        assert_eq!(ask(0, same).await, ask(1, same).await, "{same}");
    }
    assert_ne!(ask(0, r#","seed":7"#).await, ask(0, r#","seed":8"#).await);
    assert_ne!(ask(0, "").await, ask(0, "").await);
    assert_ne!(ask(0, "").await, ask(1, "").await);
    server.shutdown().await;
}

#[tokio::test]
async fn answers_of_a_drawn_length_stop_by_themselves() {
    let settings = Settings { speed: 1_000.0, answer_tokens_mean: Some(20), ..Settings::default() };
    let server = EngineServer::start(settings).await.unwrap();
    let mut lengths = Vec::new();
    for seed in 0..40 {
        let body =
            format!(r#"{{"messages":[{{"role":"user","content":"hi"}}],"seed":{seed},"min_tokens":3}}"#);
        let answer = send(server.addresses()[0], "POST", CHAT, &body).await.unwrap();
        let answer: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        lengths.push(answer["usage"]["completion_tokens"].as_u64().unwrap());
    }
    assert!(lengths.iter().all(|length| *length >= 3));
    let mean = lengths.iter().sum::<u64>() / 40;
    assert!((10..40).contains(&mean), "{lengths:?}");
    server.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_after_five_seconds() {
    let server = EngineServer::start(Settings::default()).await.unwrap();
    let mut client = TcpStream::connect(server.addresses()[0]).await.unwrap();
    client.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut bytes = [0; 1024];
    assert!(client.read(&mut bytes).await.unwrap() > 0);
    let answered = tokio::time::Instant::now();
    assert_eq!(client.read(&mut bytes).await.unwrap(), 0, "the connection ends");
    assert_eq!(answered.elapsed().as_secs(), 5);
    server.shutdown().await;
}

#[tokio::test]
async fn a_connection_serves_one_request_after_another() {
    let server = EngineServer::start(Settings { speed: 100.0, ..Settings::default() }).await.unwrap();
    let mut client = TcpStream::connect(server.addresses()[0]).await.unwrap();
    let body = r#"{"prompt":"abc","max_tokens":3,"stream":true}"#;
    let ask =
        String::from_utf8(request("POST", COMPLETIONS, body)).unwrap().replace("connection: close\r\n", "");
    for _ in 0..3 {
        client.write_all(ask.as_bytes()).await.unwrap();
        read_until(&mut client, "0\r\n\r\n").await;
    }
    server.shutdown().await;
}

#[tokio::test]
async fn long_heads_pass() {
    let server = EngineServer::start(Settings::default()).await.unwrap();
    let head = format!("GET /health HTTP/1.1\r\nx-big: {}\r\nconnection: close\r\n\r\n", "a".repeat(200_000));
    let answer = crate::client::exchange(server.addresses()[0], head.as_bytes()).await.unwrap();
    assert_eq!(answer.status, 200);
    server.shutdown().await;
}

#[tokio::test]
async fn metrics_rise_with_work_and_fall_back() {
    let server = EngineServer::start(Settings::default()).await.unwrap();
    let address = server.addresses()[0];
    let value = async |name: &str| -> String {
        let page = send(address, "GET", "/metrics", "").await.unwrap().body;
        let name = format!("vllm:{name}{{");
        let line = page.lines().find(|line| line.starts_with(&name)).unwrap_or_else(|| panic!("no {name}"));
        line.rsplit(' ').next().unwrap().to_owned()
    };
    let mut client =
        open(address, COMPLETIONS, r#"{"prompt":"once upon","max_tokens":5000,"stream":true}"#).await;
    read_until(&mut client, "data: ").await;
    assert_eq!(value("num_requests_running").await, "1.0");
    assert_eq!(value("num_requests_waiting").await, "0.0");
    assert_ne!(value("kv_cache_usage_perc").await, "0.0");
    assert_eq!(value("time_to_first_token_seconds_count").await, "1.0");
    drop(client);
    until("it is idle", || server.replicas()[0].stats().running == 0).await;
    assert_eq!(value("num_requests_running").await, "0.0");
    assert_eq!(value("kv_cache_usage_perc").await, "0.0");
    assert_eq!(value("e2e_request_latency_seconds_count").await, "0.0", "a client that left is not counted");
    server.shutdown().await;
}

#[tokio::test]
async fn settings_that_cannot_be_served_say_why() {
    let taken = EngineServer::start(Settings::default()).await.unwrap();
    let listen = taken.addresses()[0];
    let events = |listen: &str, replay: &str| KvEventsSettings {
        listen: listen.parse().unwrap(),
        replay: Some(replay.parse().unwrap()),
        ..KvEventsSettings::default()
    };
    let adapters = |name: &str| AdapterSettings {
        modules: vec![Adapter { name: name.to_owned(), path: "p".to_owned() }],
        ..AdapterSettings::default()
    };
    let with_lora = EngineSettings { lora: Some(LoraSettings::default()), ..EngineSettings::default() };
    let small = EngineSettings { blocks: Blocks(10), ..EngineSettings::default() };
    let large = EngineSettings { blocks: Blocks(15_000_000), ..EngineSettings::default() };
    let cases = [
        (Settings { replicas: 0, ..Settings::default() }, "there must be one replica at least"),
        (Settings { speed: 0.0, ..Settings::default() }, "speed 0 must be a positive number"),
        (Settings { speed: f64::NAN, ..Settings::default() }, "speed NaN must be a positive number"),
        (Settings { speed: 1e9, ..Settings::default() }, "speed 1000000000 must be a positive number"),
        (
            Settings {
                kv_events: Some(KvEventsSettings { hwm: 0, ..KvEventsSettings::default() }),
                ..Settings::default()
            },
            "hwm 0 must be 1 to 10000000 batches",
        ),
        (
            Settings { max_model_len: Tokens(1_000), engine: small, ..Settings::default() },
            "the KV cache holds 144 tokens",
        ),
        (
            Settings { replicas: 2, engine: large, ..Settings::default() },
            "30000000 KV blocks in all are more than the 20000000",
        ),
        (
            Settings { listen: "127.0.0.1:65535".parse().unwrap(), replicas: 2, ..Settings::default() },
            "2 replicas from port",
        ),
        (Settings { listen, ..Settings::default() }, "cannot listen on 127.0.0.1:"),
        (
            Settings {
                kv_events: Some(events("127.0.0.1:7000", "127.0.0.1:7001")),
                replicas: 2,
                ..Settings::default()
            },
            "2 replicas from port 7000 and from port 7001 on overlap",
        ),
        (
            Settings {
                kv_events: Some(events("127.0.0.1:0", "127.0.0.1:65535")),
                replicas: 2,
                ..Settings::default()
            },
            "2 replicas from port 65535 on need ports above 65535",
        ),
        (Settings { adapters: adapters("a"), ..Settings::default() }, "adapters are served only where"),
        (
            Settings { adapters: adapters("tiny"), engine: with_lora, ..Settings::default() },
            "adapter `tiny` has no name of its own",
        ),
        (
            Settings {
                faults: FaultScript::parse(r#"[{"at_ms":0,"replica":1,"fault":"hang"}]"#).unwrap(),
                ..Settings::default()
            },
            "fault 0 of the script is for replica 1, but there are 1",
        ),
    ];
    for (settings, message) in cases {
        let error: StartError = EngineServer::start(settings).await.unwrap_err();
        assert!(error.to_string().starts_with(message), "{error}");
    }
    taken.shutdown().await;
}
