//! What a replica says of its prefix cache. The order and the content of events follow the captures of vLLM 0.32.0.

use std::net::SocketAddr;
use std::num::NonZeroU32;

use expediter_engine_server::{
    Adapter, AdapterSettings, Encoding, EngineServer, Fault, HashForm, KvEventsSettings, ReplayForm, Settings,
};
use expediter_engine_sim::{LoraSettings, Settings as EngineSettings};
use expediter_types::{BlockSize, Blocks, Tokens};
use expediter_wire::kv_events::{BlockStored, ExtraKey, Hash, KvEvent, KvEventBatch, decode};
use serde::Deserialize;
use tokio::task::JoinSet;

use crate::client::{send, until};
use crate::subscriber::Peer;

const COMPLETIONS: &str = "/v1/completions";

/// Blocks of 32, as in the captures.
fn engine(blocks: u64) -> EngineSettings {
    EngineSettings {
        block_size: BlockSize(const { NonZeroU32::new(32).unwrap() }),
        blocks: Blocks(blocks),
        ..EngineSettings::default()
    }
}

fn settings(engine: EngineSettings) -> Settings {
    let events = KvEventsSettings {
        replay: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        topic: "kv@x".to_owned(),
        ..KvEventsSettings::default()
    };
    Settings {
        engine,
        speed: 100.0,
        max_model_len: Tokens(1_000),
        kv_events: Some(events),
        ..Settings::default()
    }
}

/// A replica, and a subscriber that it knows of.
async fn start(settings: Settings) -> (EngineServer, Peer) {
    let server = EngineServer::start(settings).await.unwrap();
    let peer = subscribe(&server, 1).await;
    (server, peer)
}

async fn subscribe(server: &EngineServer, subscribers: usize) -> Peer {
    let replica = &server.replicas()[0];
    let peer = Peer::subscribe(replica.kv_events().unwrap(), "kv@").await;
    until("it is subscribed", || replica.kv_events_subscribers() == subscribers).await;
    peer
}

async fn ask(server: &EngineServer, ids: impl IntoIterator<Item = u32>, more: &str) -> serde_json::Value {
    let ids: Vec<u32> = ids.into_iter().collect();
    let body = format!(r#"{{"prompt":{ids:?}{more}}}"#);
    let answer = send(server.addresses()[0], "POST", COMPLETIONS, &body).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}

async fn next(peer: &mut Peer) -> (u64, KvEventBatch) {
    peer.batch().await.expect("the connection stands")
}

/// The only event of the next batch, which stores blocks.
async fn stored(peer: &mut Peer) -> BlockStored {
    let (_, batch) = next(peer).await;
    assert_eq!(batch.data_parallel_rank, Some(0));
    match <[KvEvent; 1]>::try_from(batch.events) {
        Ok([KvEvent::BlockStored(stored)]) => stored,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn prompts_store_their_full_blocks_and_hits_say_nothing() {
    let (server, mut peer) = start(settings(engine(64))).await;
    let one = r#","max_tokens":1"#;
    ask(&server, 1000..1100, one).await;
    let first = stored(&mut peer).await;
    assert_eq!(first.token_ids, (1000..1096).collect::<Vec<u32>>());
    assert_eq!((first.block_size, first.block_hashes.len(), &first.parent_block_hash), (32, 3, &None));
    assert_eq!(first.extra_keys, Some(vec![None; 3]));
    ask(&server, 1000..1100, one).await;
    // Shares a block and a half.
    ask(&server, (1000..1048).chain(5000..5052), one).await;
    let second = stored(&mut peer).await;
    assert_eq!(second.parent_block_hash.as_ref(), Some(&first.block_hashes[0]));
    assert_eq!((second.token_ids[0], second.block_hashes.len()), (1032, 2));
    // A prompt of exactly k blocks computes its last one again each time.
    ask(&server, 9000..9064, one).await;
    let whole = stored(&mut peer).await;
    ask(&server, 9000..9064, one).await;
    let again = stored(&mut peer).await;
    assert_eq!(again.block_hashes, whole.block_hashes[1..]);
    assert_eq!(
        (again.token_ids, again.parent_block_hash),
        ((9032..9064).collect(), Some(whole.block_hashes[0].clone()))
    );
    server.shutdown().await;
}

#[tokio::test]
async fn what_is_produced_is_stored_with_its_ids() {
    let (server, mut peer) = start(settings(engine(64))).await;
    let answer = ask(&server, 7000..7060, r#","max_tokens":70,"return_token_ids":true"#).await;
    let produced = answer["choices"][0]["token_ids"].as_array().unwrap().iter();
    let ids: Vec<u64> = (7000..7060).chain(produced.map(|id| id.as_u64().unwrap())).take(128).collect();
    let mut seen = Vec::new();
    let mut parent = None;
    while seen.len() < ids.len() {
        let stored = stored(&mut peer).await;
        assert_eq!(stored.parent_block_hash, parent);
        parent = stored.block_hashes.last().cloned();
        seen.extend(stored.token_ids.iter().map(|id| u64::from(*id)));
    }
    assert_eq!(seen, ids);
    server.shutdown().await;
}

#[tokio::test]
async fn adapters_and_salts_show_in_extra_keys() {
    let engine = EngineSettings { lora: Some(LoraSettings::default()), ..engine(64) };
    let module = Adapter { name: "lora-0".to_owned(), path: "loras/lora-0".to_owned() };
    let adapters = AdapterSettings { modules: vec![module], ..AdapterSettings::default() };
    let (server, mut peer) = start(Settings { adapters, ..settings(engine) }).await;
    let key = |key: &str| ExtraKey::Text(key.to_owned());
    let lora = vec![key("lora-0")];
    let both = vec![key("lora-0"), key("salt-A")];
    let cases = [
        (r#","cache_salt":"salt-A""#, vec![Some(vec![key("salt-A")]), None, None]),
        (r#","model":"lora-0""#, vec![Some(lora.clone()), Some(lora.clone()), Some(lora.clone())]),
        (
            r#","model":"lora-0","cache_salt":"salt-A""#,
            vec![Some(both), Some(lora.clone()), Some(lora.clone())],
        ),
    ];
    let mut hashes = Vec::new();
    for (more, keys) in cases {
        ask(&server, 1000..1100, &format!(r#","max_tokens":1{more}"#)).await;
        let stored = stored(&mut peer).await;
        assert_eq!(stored.extra_keys, Some(keys), "{more}");
        let adapter = more.contains("lora").then_some("lora-0");
        assert_eq!((stored.lora_name.as_deref(), stored.lora_id), (adapter, adapter.map(|_| 1)), "{more}");
        hashes.push(stored.block_hashes[2].clone());
    }
    hashes.dedup();
    assert_eq!(hashes.len(), 3, "nothing is shared between them");
    ask(&server, 30_000..30_032, r#","max_tokens":1,"session_id":"sess-1""#).await;
    assert_eq!(stored(&mut peer).await.session_id.as_deref(), Some("sess-1"));
    server.shutdown().await;
}

#[tokio::test]
async fn what_is_evicted_is_told_before_what_takes_its_place() {
    let (server, mut peer) = start(Settings { max_model_len: Tokens(330), ..settings(engine(13)) }).await;
    ask(&server, 9000..9064, r#","max_tokens":1"#).await;
    let (_, first) = next(&mut peer).await;
    ask(&server, 30_000..30_320, r#","max_tokens":1"#).await;
    next(&mut peer).await;
    ask(&server, 31_000..31_320, r#","max_tokens":1"#).await;
    let (_, batch) = next(&mut peer).await;
    let [KvEvent::BlockStored(first)] = &first.events[..] else { panic!("{first:?}") };
    let (last, removed) = batch.events.split_last().unwrap();
    assert!(matches!(last, KvEvent::BlockStored(stored) if stored.block_hashes.len() == 10), "{last:?}");
    let removed: Vec<Hash> = removed
        .iter()
        .map(|event| match event {
            KvEvent::BlockRemoved(removed) if removed.block_hashes.len() == 1 => {
                removed.block_hashes[0].clone()
            }
            other @ (KvEvent::BlockRemoved(_) | KvEvent::BlockStored(_) | KvEvent::AllBlocksCleared) => {
                panic!("{other:?}")
            }
        })
        .collect();
    assert_eq!(removed[..2], [first.block_hashes[1].clone(), first.block_hashes[0].clone()], "tails first");
    server.shutdown().await;
}

#[tokio::test]
async fn an_emptied_cache_is_told_with_the_next_step() {
    let settings = Settings { dev_mode: true, ..settings(engine(64)) };
    let (server, mut peer) = start(settings).await;
    ask(&server, 1000..1100, r#","max_tokens":1"#).await;
    let (_, first) = next(&mut peer).await;
    let answer = send(server.addresses()[0], "POST", "/reset_prefix_cache", "").await.unwrap();
    assert_eq!(answer.body, r#"{"success":true}"#);
    ask(&server, 1000..1100, r#","max_tokens":1"#).await;
    let (sequence, batch) = next(&mut peer).await;
    assert_eq!(
        (sequence, &batch.events[0], &batch.events[1..]),
        (1, &KvEvent::AllBlocksCleared, &first.events[..])
    );
    server.shutdown().await;
}

#[tokio::test]
async fn every_encoding_says_the_same() {
    let mut said = Vec::new();
    for encoding in [Encoding::Mixed, Encoding::Maps, Encoding::Arrays] {
        for hashes in [HashForm::Int, HashForm::Bytes32] {
            let mut settings = settings(engine(64));
            let events = KvEventsSettings { encoding, hashes, ..settings.kv_events.take().unwrap() };
            let (server, mut peer) = start(Settings { kv_events: Some(events), ..settings }).await;
            ask(&server, 1000..1100, r#","max_tokens":1"#).await;
            let frames = peer.message().await.unwrap();
            let first_byte = frames[2][0];
            assert_eq!(first_byte, if encoding == Encoding::Maps { 0x83 } else { 0x93 }, "{encoding:?}");
            let batch = decode(&frames[2]).unwrap();
            let [KvEvent::BlockStored(stored)] = &batch.events[..] else { panic!("{batch:?}") };
            let bytes = |hash: &Hash| matches!(hash, Hash::Bytes(bytes) if bytes.len() == 32);
            assert!(stored.block_hashes.iter().all(|hash| bytes(hash) == (hashes == HashForm::Bytes32)));
            let hashes: Vec<u64> = stored.block_hashes.iter().map(Hash::low_bits).collect();
            said.push((stored.token_ids.clone(), hashes));
            server.shutdown().await;
        }
    }
    said.dedup();
    assert_eq!(said.len(), 1);
}

#[tokio::test]
async fn a_replay_has_what_is_buffered_and_an_end() {
    for form in [ReplayForm::WithTopic, ReplayForm::WithoutTopic] {
        let mut settings = settings(engine(64));
        let events =
            KvEventsSettings { buffer_steps: 3, replay_form: form, ..settings.kv_events.take().unwrap() };
        let (server, mut peer) = start(Settings { kv_events: Some(events), ..settings }).await;
        let mut published = Vec::new();
        for prompt in 0..5 {
            ask(&server, prompt * 100..prompt * 100 + 40, r#","max_tokens":1"#).await;
            published.push(next(&mut peer).await);
        }
        assert_eq!(published.iter().map(|(sequence, _)| *sequence).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        let replay = server.replicas()[0].kv_events_replay().unwrap();
        for (from, expected) in [(0, &published[2..]), (3, &published[3..]), (5, &[]), (u64::MAX, &[])] {
            assert_eq!(Peer::replay(replay, from).await, expected, "from {from}");
        }
        server.shutdown().await;
    }
}

#[tokio::test]
async fn a_gap_is_in_the_replay_only() {
    let (server, mut peer) = start(settings(engine(64))).await;
    let replica = &server.replicas()[0];
    let mut prompt = 0..;
    let mut ask_next = async || {
        let prompt: u32 = prompt.next().unwrap();
        ask(&server, prompt * 100..prompt * 100 + 40, r#","max_tokens":1"#).await;
    };
    ask_next().await;
    replica.set_fault(Fault::EventGap { batches: 2 }).await;
    assert_eq!(replica.fault(), Fault::Ok, "nothing stays wrong");
    for _ in 0..3 {
        ask_next().await;
    }
    assert_eq!((next(&mut peer).await.0, next(&mut peer).await.0), (0, 3));
    let replayed = Peer::replay(replica.kv_events_replay().unwrap(), 1).await;
    assert_eq!(replayed.iter().map(|(sequence, _)| *sequence).collect::<Vec<_>>(), [1, 2, 3]);
    server.shutdown().await;
}

#[tokio::test]
async fn a_crash_closes_the_sockets_and_numbers_begin_again() {
    let (server, mut peer) = start(settings(engine(64))).await;
    let replica = &server.replicas()[0];
    for _ in 0..2 {
        ask(&server, 1000..1100, r#","max_tokens":1"#).await;
    }
    let (_, first) = next(&mut peer).await;
    replica.set_fault(Fault::Crash).await;
    assert_eq!(peer.batch().await, None, "the connection ends");
    for address in [replica.kv_events().unwrap(), replica.kv_events_replay().unwrap()] {
        assert!(tokio::net::TcpStream::connect(address).await.is_err());
    }
    replica.set_fault(Fault::Ok).await;
    let mut peer = subscribe(&server, 1).await;
    assert_eq!(Peer::replay(replica.kv_events_replay().unwrap(), 0).await, []);
    ask(&server, 1000..1100, r#","max_tokens":1"#).await;
    let (sequence, batch) = next(&mut peer).await;
    assert_eq!((sequence, batch.events), (0, first.events), "stored anew under the same hashes");
    server.shutdown().await;
}

#[tokio::test]
async fn a_subscriber_that_does_not_read_holds_up_nobody() {
    let mut settings = settings(engine(64));
    let events = KvEventsSettings { hwm: 2, ..settings.kv_events.take().unwrap() };
    let (server, _silent) = start(Settings { kv_events: Some(events), speed: 10_000.0, ..settings }).await;
    let mut reader = subscribe(&server, 2).await;
    for prompt in 0..100 {
        ask(&server, prompt * 1_000..prompt * 1_000 + 900, r#","max_tokens":1"#).await;
        next(&mut reader).await;
    }
    server.shutdown().await;
}

#[tokio::test]
async fn where_events_come_from_is_told() {
    let (server, _peer) = start(settings(engine(64))).await;
    let replica = &server.replicas()[0];
    let answer = send(server.addresses()[0], "GET", "/kv_event_sources", "").await.unwrap();
    let source: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(source["0"]["endpoint"], format!("tcp://{}", replica.kv_events().unwrap()));
    assert_eq!(source["0"]["replay_endpoint"], format!("tcp://{}", replica.kv_events_replay().unwrap()));
    assert_eq!(source["0"]["topic"], "kv@x");
    server.shutdown().await;
}

/// Requests that were sent to a real engine (vLLM 0.32.0, blocks of 32), and the batches that it published after
/// each. Ours are the same but for times, and for the values of hashes and of tokens that a model chose.
#[tokio::test]
async fn the_steps_of_a_capture_are_told_as_by_the_real_engine() {
    let engine = engine(4_096);
    let settings = Settings { dev_mode: true, max_model_len: Tokens(8_192), ..settings(engine) };
    let server = EngineServer::start(settings).await.unwrap();
    let replay = server.replicas()[0].kv_events_replay().unwrap();
    let (mut theirs, mut ours) = (Canon::default(), Canon::default());
    let mut sequence = 0;
    for line in include_str!("../../fixtures/kv-events/steps.jsonl").lines() {
        let step: Step = serde_json::from_str(line).unwrap();
        let address = server.addresses()[0];
        let mut asked = JoinSet::new();
        for Ask { path, body } in &step.requests {
            let (path, body) = (path.clone(), body.to_string());
            asked.spawn(async move { send(address, "POST", &path, &body).await.unwrap().status });
        }
        assert!(asked.join_all().await.iter().all(|status| *status == 200), "{}", step.name);
        let prompt: Vec<u32> = step.requests.iter().flat_map(Ask::prompt).collect();
        let captured = step.payloads.iter().map(|hex| decode(&bytes(hex)).unwrap());
        let expected: Vec<KvEventBatch> = captured.map(|batch| theirs.batch(batch, &prompt)).collect();
        let published = Peer::replay(replay, sequence).await;
        sequence += published.len() as u64;
        let published: Vec<KvEventBatch> =
            published.into_iter().map(|(_, batch)| ours.batch(batch, &prompt)).collect();
        assert_eq!(published, expected, "{}", step.name);
    }
    assert_eq!(sequence, 16, "the captures are there");
    server.shutdown().await;
}

#[derive(Deserialize)]
struct Step {
    #[serde(rename = "step")]
    name: String,
    requests: Vec<Ask>,
    /// In hexadecimal.
    payloads: Vec<String>,
}

#[derive(Deserialize)]
struct Ask {
    path: String,
    body: serde_json::Value,
}

impl Ask {
    fn prompt(&self) -> Vec<u32> {
        let ids = self.body.get("prompt").and_then(serde_json::Value::as_array);
        ids.into_iter().flatten().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// Hashes by the order in which they were first seen.
#[derive(Default)]
struct Canon(Vec<Hash>);

impl Canon {
    fn batch(&mut self, mut batch: KvEventBatch, prompt: &[u32]) -> KvEventBatch {
        batch.timestamp = 0.0;
        for event in &mut batch.events {
            match event {
                KvEvent::BlockStored(event) => {
                    event.parent_block_hash = event.parent_block_hash.take().map(|hash| self.hash(hash));
                    event.block_hashes = event.block_hashes.drain(..).map(|hash| self.hash(hash)).collect();
                    for id in event.token_ids.iter_mut().filter(|id| !prompt.contains(id)) {
                        *id = 0;
                    }
                }
                KvEvent::BlockRemoved(event) => {
                    event.block_hashes = event.block_hashes.drain(..).map(|hash| self.hash(hash)).collect();
                }
                KvEvent::AllBlocksCleared => {}
            }
        }
        batch
    }

    fn hash(&mut self, hash: Hash) -> Hash {
        let place = self.0.iter().position(|known| *known == hash).unwrap_or_else(|| {
            self.0.push(hash);
            self.0.len() - 1
        });
        Hash::Int(place as u64)
    }
}
