//! The fleets that presets and published results are run on.

use std::time::Duration;

use expediter_core::Settings as DispatcherSettings;
use expediter_engine_sim::{Coefficients, LoraSettings, Profile, Settings as EngineSettings};
use expediter_types::{Blocks, ModelId, Tokens};

use crate::scenario::{Pool, Scenario};

/// A fleet with the names of its models.
#[derive(Clone, Debug, PartialEq)]
pub struct Fleet {
    /// The pools, and what else a run needs.
    pub scenario: Scenario,
    /// What a workload can ask for.
    pub models: Models,
    /// The name of each model, in order of its id from 0.
    pub names: Vec<String>,
}

/// The models that a workload asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Models {
    /// The one that all traffic goes to where nothing else is said.
    pub base: ModelId,
    /// Adapters; none where the fleet has none.
    pub adapters: Vec<ModelId>,
    /// A larger model beside it, where there is one.
    pub large: Option<ModelId>,
}

/// The reference fleet of the requirements: 64 replicas on A100-80GB. `m-8b` 40, `m-8b-lora` 8 that share 60
/// adapters, `m-70b` 16 on two cards each.
pub fn reference_fleet() -> Fleet {
    let (small, large, tuned) = (ModelId(0), ModelId(1), ModelId(2));
    let adapters: Vec<ModelId> = (0..ADAPTERS).map(|number| ModelId(3 + number)).collect();
    let listed = std::iter::once(tuned).chain(adapters.iter().copied()).collect();
    let pools = vec![
        pool_of("m-8b", 40, EngineSettings::of(Profile::Llama3_8bTp1A100), vec![small]),
        pool_of("m-8b-lora", 8, with_adapters(Profile::Llama3_8bTp1A100), listed),
        pool_of("m-70b", 16, EngineSettings::of(Profile::Llama3_70bTp2A100), vec![large]),
    ];
    let names = ["m-8b", "m-70b", "m-8b-lora"].map(str::to_owned).into_iter();
    let names = names.chain((1..=ADAPTERS).map(|number| format!("adapter-{number:02}"))).collect();
    let models = Models { base: small, adapters, large: Some(large) };
    Fleet { scenario: Scenario::of(pools), models, names }
}

/// "About 60" in the requirements.
const ADAPTERS: u32 = 60;

/// Sixteen slots a replica: with two copies of each adapter, eight replicas keep fifteen each. The host has room for
/// all. Slots take their memory from the cache.
fn with_adapters(profile: Profile) -> EngineSettings {
    let lora = LoraSettings { max_loras: 16, max_cpu_loras: Some(ADAPTERS), ..LoraSettings::default() };
    let slots = lora.slot_blocks(profile.calibration().block_bytes);
    let engine = EngineSettings::of(profile);
    EngineSettings { blocks: Blocks(engine.blocks.0.saturating_sub(slots.0)), lora: Some(lora), ..engine }
}

/// One pool of `replicas` as the calibration measures it: vLLM's defaults for an A100, 8 ms in the gateway, 90 s of
/// which the first 30 are not measured.
pub fn pool(name: &str, replicas: u32, profile: Profile) -> Fleet {
    single(name, replicas, EngineSettings::of(profile))
}

/// A pool with the dispatcher's defaults.
pub fn pool_of(name: &str, replicas: u32, engine: EngineSettings, models: Vec<ModelId>) -> Pool {
    let name = name.to_owned();
    Pool { name, replicas, engine, models, dispatcher: DispatcherSettings::default() }
}

fn single(name: &str, replicas: u32, engine: EngineSettings) -> Fleet {
    let scenario = Scenario::of(vec![pool_of(name, replicas, engine, vec![ModelId(0)])]);
    let models = Models { base: ModelId(0), adapters: Vec::new(), large: None };
    Fleet { scenario, models, names: vec![name.to_owned()] }
}

fn lasting(mut fleet: Fleet, warm_up: u64, duration: u64) -> Fleet {
    fleet.scenario.warm_up = Duration::from_secs(warm_up);
    fleet.scenario.duration = Duration::from_secs(duration);
    fleet
}

/// With so many seconds for what is still open at the end.
fn draining(mut fleet: Fleet, drain: u64) -> Fleet {
    fleet.scenario.drain = Duration::from_secs(drain);
    fleet
}

/// Pods of Qwen3-32B on two H100 each, with the 307,328 KV tokens that llm-d reports for a pod, and vLLM's limits
/// for that card.
pub fn qwen_fleet(pods: u32) -> Fleet {
    let engine = EngineSettings::of(Profile::Qwen3_32bTp2H100);
    single("qwen3-32b", pods, EngineSettings { blocks: Blocks(307_328 / 16), ..on_h100(engine) })
}

/// What vLLM takes on cards of 70 GiB and more that are no A100 (`vllm/engine/arg_utils.py`).
fn on_h100(engine: EngineSettings) -> EngineSettings {
    EngineSettings { max_num_batched_tokens: Tokens(8_192), max_num_seqs: 1_024, ..engine }
}

/// Four pods of Llama-3.1-70B on four H100 each, with the 461,376 KV tokens that llm-d reports for a pod.
///
/// The coefficients are those of the A100: what waits for memory is scaled by bandwidth (2.04 to 3.35 TB/s), what
/// waits for the tensor cores by their peak (312 to 989 TFLOP/s).
pub fn large_prefix_fleet() -> Fleet {
    let engine = EngineSettings::of(Profile::Llama3_70bTp4A100);
    let (memory, compute) = (2.04 / 3.35, 312.0 / 989.0);
    let on_a100 = engine.coefficients;
    let coefficients = Coefficients {
        c0: on_a100.c0 * memory,
        w1: on_a100.w1 * memory,
        k: on_a100.k * memory,
        g: on_a100.g * compute,
        g0: on_a100.g0 * compute,
        a: on_a100.a * compute,
        ..on_a100
    };
    let engine = EngineSettings { coefficients, blocks: Blocks(461_376 / 16), ..on_h100(engine) };
    draining(lasting(single("llama3-70b", 4, engine), 30, 120), 300)
}

/// Eight replicas of an 8B at the scale of an L4: about 120,000 KV tokens and a budget of 16,384, as `KubeAI`'s
/// benchmark sets it. The step time stays that of an A100: only ratios can be compared.
pub fn chat_fleet() -> Fleet {
    let engine = EngineSettings::of(Profile::Llama3_8bTp1A100);
    let max_num_batched_tokens = Tokens(16_384);
    lasting(
        single("m-8b", 8, EngineSettings { blocks: Blocks(7_500), max_num_batched_tokens, ..engine }),
        5,
        600,
    )
}

pub(super) fn at_once() -> Fleet {
    lasting(small(), 0, 90)
}

pub(super) fn small() -> Fleet {
    pool("m-8b", 8, Profile::Llama3_8bTp1A100)
}

pub(super) fn rivals() -> Fleet {
    lasting(pool("m-8b", 2, Profile::Llama3_8bTp1A100), 10, 130)
}

pub(super) fn b2b() -> Fleet {
    draining(lasting(qwen_fleet(8), 50, 170), 300)
}

pub(super) fn code_generation() -> Fleet {
    draining(lasting(qwen_fleet(10), 120, 900), 120)
}

/// An answer of 32,000 tokens takes some 20 minutes.
pub(super) fn reasoning() -> Fleet {
    draining(lasting(qwen_fleet(10), 400, 1_600), 1_600)
}

/// The whole trace at its default rate, as with the ones below.
pub(super) fn azure_conversation() -> Fleet {
    lasting(small(), 30, 480)
}

pub(super) fn azure_code() -> Fleet {
    lasting(small(), 60, 1_470)
}

pub(super) fn mooncake_conversation() -> Fleet {
    lasting(small(), 300, 3_540)
}

pub(super) fn mooncake_synthetic() -> Fleet {
    lasting(small(), 100, 1_023)
}
