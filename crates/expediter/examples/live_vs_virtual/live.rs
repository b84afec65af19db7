//! The trace through sockets: a gateway, replicas of engine-server, and clients that keep to the clock.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use expediter_core::Policy;
use expediter_engine_server::{EngineServer, Settings as ServerSettings};
use expediter_engine_sim::{Batch, Settings as EngineSettings};
use expediter_gateway::Gateway;
use expediter_gateway::settings::{Attachments, RawSettings, Settings};
use expediter_types::{Prng, Tokens};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::Outcome;
use crate::trace::{Ask, fresh};
use crate::virtually::sorted;

/// For replicas to become ready and to leave their ramp behind, before the first request.
pub(crate) const PREPARATION: Duration = Duration::from_secs(15);

/// What the path through gateway and sockets adds to an idle engine's time, and what came of the trace.
pub(crate) fn run(
    policy: Policy,
    engine: &EngineSettings,
    replicas: u16,
    asks: &[Ask],
) -> Result<(Duration, Outcome)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let engines = ServerSettings {
            model: "m".to_owned(),
            replicas,
            engine: engine.clone(),
            ..ServerSettings::default()
        };
        let server = EngineServer::start(engines).await?;
        let (_keep, reload) = watch::channel(Arc::new(settings(policy, &server.addresses())?));
        let gateway = Gateway::start(reload)?;
        sleep(PREPARATION).await;
        let overhead = overhead(gateway.address, engine).await?;
        let outcome = play(gateway.address, asks).await?;
        gateway.stop().await;
        server.shutdown().await;
        Ok((overhead, outcome))
    })
}

fn settings(policy: Policy, replicas: &[SocketAddr]) -> Result<Settings> {
    let urls: Vec<String> = replicas.iter().map(|address| format!("http://{address}")).collect();
    let raw: RawSettings = serde_json::from_value(serde_json::json!({
        "listen": "127.0.0.1:0", "admin": { "listen": "127.0.0.1:0" }, "shards": 1,
        "pools": { "m": { "policy": policy.as_str(), "replicas": urls } },
        "expose": { "replica_header": true }, "limits": { "stop_ms": 1000 },
    }))?;
    Settings::from_raw(raw, &Attachments::default()).map_err(|mistakes| anyhow::anyhow!("{mistakes:?}"))
}

/// The mean over short requests to an idle fleet, less the step that the engine takes for one.
async fn overhead(gateway: SocketAddr, engine: &EngineSettings) -> Result<Duration> {
    let mut batch = Batch::default();
    batch.add_prefill(Tokens(8), Tokens::ZERO);
    let step = engine.coefficients.step_time(&batch) + engine.host_overhead;
    let mut rng = Prng::new(7);
    let mut total = Duration::ZERO;
    for _ in 0..PROBES {
        let body = body(&Ask { at: Duration::ZERO, prompt: fresh(&mut rng, 8).into(), output: 1 });
        total += ask(gateway, body, 1, Instant::now()).await?.ttft;
    }
    Ok((total / PROBES).saturating_sub(step))
}

const PROBES: u32 = 60;

/// Sends every request at its time, and waits for all answers.
async fn play(gateway: SocketAddr, asks: &[Ask]) -> Result<Outcome> {
    let requests: Vec<(Duration, Bytes, u32)> =
        asks.iter().map(|ask| (ask.at, body(ask), ask.output)).collect();
    let begin = Instant::now();
    let mut tasks = JoinSet::new();
    for (at, body, output) in requests {
        sleep_until(begin + at).await;
        tasks.spawn(ask(gateway, body, output, begin + at));
    }
    let (mut dispatched, mut ttft, mut tpot) = (BTreeMap::new(), Vec::new(), Vec::new());
    while let Some(seen) = tasks.join_next().await {
        let seen = seen??;
        *dispatched.entry(seen.replica).or_insert(0) += 1;
        ttft.push(seen.ttft);
        tpot.extend(seen.tpot);
    }
    Ok(Outcome { dispatched: sorted(dispatched.into_values().collect()), ttft, tpot })
}

fn body(ask: &Ask) -> Bytes {
    let body = serde_json::json!({
        "model": "m", "prompt": &*ask.prompt, "max_tokens": ask.output, "ignore_eos": true, "stream": true,
    });
    Bytes::from(body.to_string())
}

struct Seen {
    replica: String,
    ttft: Duration,
    tpot: Option<Duration>,
}

/// One request on a connection of its own. Its time counts from when it was `due`.
async fn ask(gateway: SocketAddr, body: Bytes, output: u32, due: Instant) -> Result<Seen> {
    let stream = TcpStream::connect(gateway).await?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let mut tasks = JoinSet::new();
    // How the connection ends shows in the answer.
    tasks.spawn(async move { _ = connection.await });
    let request = Request::post("/v1/completions")
        .header(HOST, gateway.to_string())
        .header(CONTENT_TYPE, "application/json")
        .body(Full::<Bytes>::from(body))?;
    let mut answer = sender.send_request(request).await?;
    if answer.status() != StatusCode::OK {
        let (status, body) = (answer.status(), answer.collect().await?.to_bytes());
        bail!("{status}: {}", String::from_utf8_lossy(&body));
    }
    let replica = answer.headers().get("x-expediter-replica").context("no replica is named")?;
    let replica = replica.to_str()?.to_owned();
    let (mut first, mut last) = (None, due);
    while let Some(frame) = answer.frame().await {
        let Ok(piece) = frame?.into_data() else { continue };
        if std::str::from_utf8(&piece)?.contains("\"text\":") {
            last = Instant::now();
            first.get_or_insert(last);
        }
    }
    let first = first.context("an answer without a token")?;
    let tpot = (output > 1).then(|| (last - first) / (output - 1));
    Ok(Seen { replica, ttft: first - due, tpot })
}
