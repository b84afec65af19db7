//! Every fault as a client meets it, and that it heals.

use std::net::SocketAddr;
use std::time::Duration;

use expediter_engine_server::{CutBy, EngineServer, Fault, Replica, Settings};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use crate::client::{Answer, open, read_until, send, until};

const CHAT: &str = "/v1/chat/completions";
const LONG: &str = r#"{"messages":[{"role":"user","content":"hi"}],"max_tokens":5000,"stream":true,"stream_options":{"include_usage":true}}"#;
const SHORT: &str = r#"{"messages":[{"role":"user","content":"hi"}],"max_tokens":4,"stream":true}"#;
const WHOLE: &str = r#"{"messages":[{"role":"user","content":"hi"}],"max_tokens":4}"#;

async fn start() -> (EngineServer, Replica, SocketAddr) {
    let server = EngineServer::start(Settings::default()).await.expect("the default settings can be served");
    let (replica, address) = (server.replicas()[0].clone(), server.addresses()[0]);
    (server, replica, address)
}

async fn rest(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

async fn answers_in_full(address: SocketAddr) {
    let answer = send(address, "POST", CHAT, SHORT).await.expect("it answers");
    assert_eq!(
        (answer.status, answer.complete, answer.events().last().copied()),
        (200, true, Some("[DONE]"))
    );
}

async fn health(address: SocketAddr) -> u16 {
    send(address, "GET", "/health", "").await.map_or(0, |answer| answer.status)
}

/// Nothing comes for a while: the one kind of thing that only time can show.
async fn silent(stream: &mut TcpStream) {
    let mut byte = [0];
    let read = tokio::time::timeout(Duration::from_millis(100), stream.read(&mut byte)).await;
    assert!(read.is_err(), "{read:?}");
}

#[tokio::test]
async fn refuse_closes_the_port_and_lets_streams_end() {
    let (server, replica, address) = start().await;
    let mut stream = open(address, CHAT, SHORT).await;
    let begun = read_until(&mut stream, "data: ").await;
    replica.set_fault(Fault::Refuse).await;
    assert!(TcpStream::connect(address).await.is_err());
    let text = begun + &rest(&mut stream).await.unwrap();
    assert!(text.ends_with("0\r\n\r\n"), "what was in flight ends in full: {text}");
    replica.set_fault(Fault::Ok).await;
    answers_in_full(address).await;
    server.shutdown().await;
}

#[tokio::test]
async fn crash_cuts_everything_and_comes_back_empty() {
    let (server, replica, address) = start().await;
    let mut stream = open(address, CHAT, LONG).await;
    read_until(&mut stream, "data: ").await;
    replica.set_fault(Fault::Crash).await;
    assert!(TcpStream::connect(address).await.is_err());
    assert!(!rest(&mut stream).await.unwrap_or_default().contains("0\r\n\r\n"), "no end of the answer");
    let stats = replica.stats();
    assert_eq!((stats.running, stats.resident.0, stats.generation_tokens.0), (0, 0, 0));
    replica.set_fault(Fault::Ok).await;
    answers_in_full(address).await;
    server.shutdown().await;
}

#[tokio::test]
async fn hang_accepts_and_never_answers() {
    let (server, replica, address) = start().await;
    replica.set_fault(Fault::Hang).await;
    let mut stream = open(address, CHAT, SHORT).await;
    silent(&mut stream).await;
    let answer = send(address, "POST", "/fault", r#"{"fault":"ok"}"#).await.expect("but this is answered");
    assert_eq!(answer.body, r#"{"fault":"ok"}"#);
    answers_in_full(address).await;
    server.shutdown().await;
}

#[tokio::test]
async fn freeze_stops_streams_while_health_is_well_and_metrics_are_stale() {
    let (server, replica, address) = start().await;
    let mut stream = open(address, CHAT, LONG).await;
    read_until(&mut stream, "\"content\":\" ").await;
    replica.set_fault(Fault::Freeze).await;
    let metrics = send(address, "GET", "/metrics", "").await.unwrap().body;
    let mut late = open(address, CHAT, SHORT).await;
    read_until(&mut late, "\r\n\r\n").await;
    silent(&mut late).await;
    assert_eq!(health(address).await, 200);
    assert_eq!(send(address, "GET", "/metrics", "").await.unwrap().body, metrics);
    replica.set_fault(Fault::Ok).await;
    assert!(rest(&mut late).await.unwrap().ends_with("0\r\n\r\n"));
    server.shutdown().await;
}

#[tokio::test]
async fn status_answers_generation_with_it() {
    let (server, replica, address) = start().await;
    replica.set_fault(Fault::Status { status: 503 }).await;
    let answer = send(address, "POST", CHAT, SHORT).await.unwrap();
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains(r#""code":503"#), "{}", answer.body);
    assert_eq!(health(address).await, 200);
    server.shutdown().await;
}

#[tokio::test]
async fn cut_ends_a_stream_after_so_many_events() {
    let (server, replica, address) = start().await;
    for after in [0, 1, 3] {
        for by in [CutBy::Fin, CutBy::Rst] {
            replica.set_fault(Fault::Cut { after, by }).await;
            let mut stream = open(address, CHAT, LONG).await;
            let mut bytes = Vec::new();
            let end = stream.read_to_end(&mut bytes).await;
            assert_eq!(end.is_err(), by == CutBy::Rst, "{after} {by:?}: {end:?}");
            let answer = Answer::parse(&bytes, "POST");
            // A reset may overtake what was sent before it.
            if by == CutBy::Fin {
                assert_eq!(
                    (answer.status, answer.events().len(), answer.complete),
                    (200, after as usize, false)
                );
            }
            until("the engine is idle", || replica.stats().running + replica.stats().waiting == 0).await;
        }
    }
    assert_eq!(send(address, "POST", CHAT, WHOLE).await, None, "an answer in one piece never begins");
    server.shutdown().await;
}

#[tokio::test]
async fn slow_stretches_every_step() {
    let (server, replica, address) = start().await;
    replica.set_fault(Fault::Slow { factor: 1e6 }).await;
    let mut stream = open(address, CHAT, SHORT).await;
    read_until(&mut stream, "\r\n\r\n").await;
    silent(&mut stream).await;
    server.shutdown().await;
}

#[tokio::test]
async fn stale_metrics_are_of_the_past() {
    let (server, replica, address) = start().await;
    replica.set_fault(Fault::StaleMetrics).await;
    let before = send(address, "GET", "/metrics", "").await.unwrap().body;
    answers_in_full(address).await;
    assert_eq!(send(address, "GET", "/metrics", "").await.unwrap().body, before);
    replica.set_fault(Fault::Ok).await;
    assert_ne!(send(address, "GET", "/metrics", "").await.unwrap().body, before);
    server.shutdown().await;
}

#[tokio::test]
async fn unhealthy_says_so_and_works() {
    let (server, replica, address) = start().await;
    replica.set_fault(Fault::Unhealthy).await;
    assert_eq!(health(address).await, 503);
    answers_in_full(address).await;
    server.shutdown().await;
}

#[tokio::test]
async fn abort_ends_every_answer_as_if_it_were_one() {
    let (server, replica, address) = start().await;
    let mut stream = open(address, CHAT, LONG).await;
    read_until(&mut stream, "data: ").await;
    let whole = LONG.replace(r#""stream":true,"stream_options":{"include_usage":true}"#, r#""n":2"#);
    let mut one_piece = open(address, CHAT, &whole).await;
    until("all run", || replica.stats().running == 3).await;
    replica.set_fault(Fault::Abort).await;
    let text = rest(&mut stream).await.unwrap();
    assert!(text.contains(r#""delta":{"content":""},"logprobs":null,"finish_reason":"abort""#), "{text}");
    assert!(
        text.contains(r#""choices":[],"usage":"#) && text.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"),
        "{text}"
    );
    let answer = Answer::parse(rest(&mut one_piece).await.unwrap().as_bytes(), "POST");
    assert_eq!((answer.status, answer.body.matches(r#""finish_reason":"abort""#).count()), (200, 2));
    assert_eq!(replica.fault(), Fault::Ok);
    answers_in_full(address).await;
    server.shutdown().await;
}

#[tokio::test]
async fn error_ends_every_answer_with_the_loss_of_the_engine() {
    let (server, replica, address) = start().await;
    let mut stream = open(address, CHAT, LONG).await;
    read_until(&mut stream, "data: ").await;
    let mut one_piece = open(address, CHAT, &WHOLE.replace("4}", "4000}")).await;
    until("both run", || replica.stats().running == 2).await;
    replica.set_fault(Fault::Error).await;
    let text = rest(&mut stream).await.unwrap();
    assert!(text.contains("data: {\"error\": {\"message\": \"EngineCore encountered"), "{text}");
    assert!(text.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"), "{text}");
    assert_eq!(Answer::parse(rest(&mut one_piece).await.unwrap().as_bytes(), "POST").status, 500);
    answers_in_full(address).await;
    server.shutdown().await;
}

#[tokio::test]
async fn an_order_over_http_lasts_as_long_as_it_says() {
    let (server, replica, address) = start().await;
    let order = r#"{"fault":"refuse","for_ms":50}"#;
    let answer = send(address, "POST", "/fault", order).await.expect("answered before the port closes");
    assert_eq!(answer.body, r#"{"fault":"refuse"}"#);
    until("healed", || replica.fault() == Fault::Ok).await;
    until("it listens", || std::net::TcpStream::connect(address).is_ok()).await;
    answers_in_full(address).await;
    // A crash cuts the connection that asked for it, too.
    let _ = send(address, "POST", "/fault", r#"{"fault":"crash","for_ms":50}"#).await;
    until("healed of the crash", || replica.fault() == Fault::Ok).await;
    until("it listens again", || std::net::TcpStream::connect(address).is_ok()).await;
    answers_in_full(address).await;
    for (bad, message) in [
        (r#"{"fault":"explode"}"#, "unknown variant `explode`"),
        (r#"{"fault":"status","status":200}"#, "`status` must be 400 to 599"),
        (r#"{"fault":"slow","factor":0}"#, "`factor` must be a positive number"),
    ] {
        let answer = send(address, "POST", "/fault", bad).await.unwrap();
        assert!(answer.status == 400 && answer.body.contains(message), "{bad}: {}", answer.body);
    }
    server.shutdown().await;
}
