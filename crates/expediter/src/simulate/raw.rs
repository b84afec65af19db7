//! The scenario file as it is written. The comments here are the descriptions in its JSON Schema.

use std::collections::BTreeMap;
use std::path::PathBuf;

use expediter_gateway::settings::{Millis, Ratio, RawBreaker, RawPolicyParameters, RawRetry, RawWait, Whole};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::decimal::Decimal;

/// Requests per second. A typing mistake should not fill the memory: no fleet here comes near the upper end.
pub(crate) type Rate = Decimal<1, 100_000>;

/// What `expediter simulate` simulates. Every key has a default; a file names what differs. Times are in whole
/// milliseconds, or microseconds where the name says so. Paths are relative to the folder of this file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "Expediter simulation")]
pub(crate) struct RawScenario {
    /// What the scenario is about, in a line or two; it stands above the results.
    pub(crate) description: String,
    /// Pools of replicas by name. Where there are none, the fleet is the one that the workload is meant for; a pool
    /// that has the name of one there begins from what that is.
    pub(crate) pools: BTreeMap<String, RawPool>,
    /// Gateways in front of the fleet, each with a view of its own. Requests come to them in turn.
    pub(crate) gateways: Whole<1, 64>,
    /// Time in the gateway before a request is sent on, tokenising included, in microseconds.
    pub(crate) gateway_overhead_us: Whole<0, 10_000_000>,
    /// One way between gateway and replica, in microseconds.
    pub(crate) network_delay_us: Whole<0, 10_000_000>,
    /// Time between two readings of a replica's metrics by a gateway, in milliseconds.
    pub(crate) report_interval_ms: Millis<10>,
    /// Time between two health checks of a replica by a gateway, in milliseconds.
    pub(crate) probe_interval_ms: Millis<10>,
    /// The objectives: what counts as goodput, and what makes a rate sustainable.
    pub(crate) slo: RawSlo,
    /// What goes wrong, in any order.
    pub(crate) faults: Vec<RawFault>,
    /// Where requests come from.
    pub(crate) workload: RawWorkload,
    /// Policies to compare, by their names in the gateway's configuration; `all` stands for every one.
    pub(crate) policies: Vec<String>,
    /// Requests per second that are offered, one run for each; the workload's own rate where there are none.
    pub(crate) rates: Vec<Rate>,
    /// The first seed. A seed fixes every draw.
    pub(crate) seed: Whole<0, { 1 << 53 }>,
    /// How many seeds, counted up from the first: one run for each.
    pub(crate) seeds: Whole<1, 1_000>,
    /// Time in which requests arrive, the warm-up included, in milliseconds; where it is left out, as long as the
    /// workload is meant to be: 90 s, most often.
    pub(crate) duration_ms: Option<Millis<1>>,
    /// Requests that arrive in this time from the start are served but not measured, in milliseconds; the
    /// workload's own where it is left out: 30 s, most often.
    pub(crate) warm_up_ms: Option<Millis<0>>,
    /// How long the run goes on after the last arrival for requests that are still open, in milliseconds; 60 s where
    /// it is left out.
    pub(crate) drain_ms: Option<Millis<0>>,
}

/// Replicas that serve the same models alike.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "SimulatedPool")]
pub(crate) struct RawPool {
    /// Replicas at the start; 1 where it is left out.
    pub(crate) replicas: Option<Whole<1, 4_096>>,
    /// The models that each replica lists: the base model first, then its adapters; the pool's name where there
    /// are none.
    pub(crate) models: Vec<String>,
    /// Model and cards whose timing and memory the replicas have; `expediter simulate --list` shows them. The
    /// default is the first of them.
    pub(crate) profile: Option<String>,
    /// File with profiles of your own, of which `profile` names one: a line for each, with name, c0, w1, g, g0, a, k, b,
    /// pp, blocks and `block_bytes`.
    pub(crate) profile_file: Option<PathBuf>,
    /// Coefficients of the step time, in place of the profile's.
    pub(crate) coefficients: Option<RawCoefficients>,
    /// Settings of the engine, in place of the profile's.
    pub(crate) engine: RawEngine,
    /// Settings of the dispatcher, as in the gateway's configuration.
    pub(crate) dispatcher: RawDispatcher,
}

/// What a step costs, in milliseconds a unit: `c0 + max(w1*T, g*T - g0) + a*A + k*K + b*B + pp*P`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Coefficients")]
pub(crate) struct RawCoefficients {
    /// A step with nothing in it.
    pub(crate) c0: Decimal<0, 1_000_000>,
    /// A token while the weights' stream dominates.
    pub(crate) w1: Decimal<0, 1_000_000>,
    /// A token while the tensor cores dominate.
    pub(crate) g: Decimal<0, 1_000_000>,
    /// Where the line of `g` meets the axis.
    pub(crate) g0: Decimal<0, 1_000_000>,
    /// A unit of attention area: new tokens × tokens before them, and half of new tokens squared.
    pub(crate) a: Decimal<0, 1_000_000>,
    /// A token of decode context.
    pub(crate) k: Decimal<0, 1_000_000>,
    /// A decode sequence.
    pub(crate) b: Decimal<0, 1_000_000>,
    /// A prefill chunk.
    pub(crate) pp: Decimal<0, 1_000_000>,
}

/// Settings of the engine; what is left out is the profile's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Engine")]
pub(crate) struct RawEngine {
    /// Tokens in a KV block.
    pub(crate) block_size: Option<Whole<1, 1_024>>,
    /// KV blocks as the engine reports them; one of them is never used.
    pub(crate) blocks: Option<Whole<2, 100_000_000>>,
    /// Sequences in the batch at once, at most.
    pub(crate) max_num_seqs: Option<Whole<1, 1_000_000>>,
    /// Tokens in a step, at most.
    pub(crate) max_num_batched_tokens: Option<Whole<1, 1_000_000>>,
    /// Work of the host that is added to every step, in microseconds.
    pub(crate) host_overhead_us: Option<Whole<0, 1_000_000>>,
    /// Standard deviation of the logarithm of a step's noise.
    pub(crate) noise_sigma: Option<Ratio>,
    /// Whether blocks of earlier requests are found again.
    pub(crate) enable_prefix_caching: Option<bool>,
    /// Requests in the engine, waiting and running, above which it refuses.
    pub(crate) max_num_queued_reqs: Option<Whole<1, 1_000_000>>,
    /// Prompt tokens of requests without a first token, from which on it refuses.
    pub(crate) max_num_queued_tokens: Option<Whole<1, 1_000_000_000>>,
    /// Tokens of one prompt in a step, at most, while there are other requests to starve.
    pub(crate) long_prefill_token_threshold: Option<Whole<1, 1_000_000>>,
    /// Adapters on the device; a pool that lists several models needs them.
    pub(crate) lora: Option<RawLora>,
}

/// Adapters on one replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Lora")]
pub(crate) struct RawLora {
    /// Adapters in one step, at most; 1 where it is left out.
    pub(crate) max_loras: Option<Whole<1, 10_000>>,
    /// Adapters kept in the host's memory; as many as `max_loras` where it is left out.
    pub(crate) max_cpu_loras: Option<Whole<1, 1_000_000>>,
    /// The rank of adapters and slots; 16 where it is left out.
    pub(crate) rank: Option<Whole<1, 1_024>>,
    /// How many times as long a step takes with an adapter in its batch; 1.2 where it is left out.
    pub(crate) step_factor: Option<Decimal<1_000, 100>>,
}

/// Settings of the dispatcher. The policy is apart: see `policies`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Dispatcher")]
pub(crate) struct RawDispatcher {
    /// Parameters of the policies that have some.
    pub(crate) policy_parameters: RawPolicyParameters,
    /// When a failed attempt is repeated on another replica.
    pub(crate) retry: RawRetry,
    /// When a replica that fails requests is set aside.
    pub(crate) breaker: RawBreaker,
    /// Requests that wait for a replica to become ready.
    pub(crate) wait: RawWait,
    /// Time over which a replica that became ready is brought up to its full share, in milliseconds.
    pub(crate) ramp_ms: Millis<0>,
    /// Age at which a reading of a replica's metrics is no longer believed, in milliseconds.
    pub(crate) stale_ms: Millis<10>,
    /// Whether a new replica answers one tiny request of the gateway before it gets any of a client.
    pub(crate) warm_up: bool,
}

/// The service level objectives of one request, and how many must meet them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Slo")]
pub(crate) struct RawSlo {
    /// The longest time to first token as the client sees it, in milliseconds.
    pub(crate) ttft_ms: Millis<1>,
    /// The longest mean time per output token after the first, in milliseconds.
    pub(crate) tpot_ms: Millis<1>,
    /// The time to first token is an objective for prompts up to this length only.
    pub(crate) prompt_tokens_max: Whole<1, 100_000_000>,
    /// The share of requests within `ttft_ms` that makes a rate sustainable.
    pub(crate) ttft_share: Ratio,
    /// The share of requests within `tpot_ms` that makes a rate sustainable.
    pub(crate) tpot_share: Ratio,
}

/// A fault of one replica, from a moment on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Fault")]
pub(crate) struct RawFault {
    /// When, in milliseconds from the start.
    pub(crate) at_ms: Millis<0>,
    /// The name of the pool.
    pub(crate) pool: String,
    /// The replica's number within its pool, from 0; one that joins takes the next number.
    #[serde(default)]
    pub(crate) replica: Option<Whole<0, 1_000_000>>,
    /// What happens.
    pub(crate) kind: RawFaultKind,
    /// Of `slow`: how many times as long every step takes.
    #[serde(default)]
    pub(crate) factor: Option<Decimal<1, 1_000_000>>,
    /// Of `status`: the HTTP status that generation is answered with.
    #[serde(default)]
    pub(crate) status: Option<Whole<400, 599>>,
    /// Of `cut`: the tokens after which answers break off.
    #[serde(default)]
    pub(crate) tokens: Option<Whole<0, 100_000_000>>,
}

/// What can go wrong with a replica, or right again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "FaultKind")]
pub(crate) enum RawFaultKind {
    /// All well again. A crashed engine comes back with an empty cache.
    Heal,
    /// New connections are refused; what is in flight goes on.
    Refuse,
    /// Connections are cut and refused; the engine and its cache are lost.
    Crash,
    /// Nothing is answered, health checks neither.
    Hang,
    /// No step ends, while health checks and reports go on.
    Freeze,
    /// Every step takes `factor` times as long.
    Slow,
    /// Generation is answered with `status`.
    Status,
    /// Reports show the past.
    StaleReports,
    /// Answers break off after `tokens` tokens.
    Cut,
    /// A new replica joins the pool.
    Join,
    /// The replica is drained, then removed.
    Drain,
    /// The replica is removed at once and its engine lost.
    Lose,
}

/// Where requests come from: a workload by name, or a trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Workload")]
pub(crate) struct RawWorkload {
    /// The name of a workload; `expediter simulate --list` shows them and their parameters.
    pub(crate) name: Option<String>,
    /// Parameters of the workload; what is left out is its default.
    pub(crate) parameters: BTreeMap<String, Decimal<0, 1_000_000_000>>,
    /// A trace to replay.
    pub(crate) trace: Option<RawTrace>,
    /// The model that requests ask for; the first of the first pool where it is left out. Adapters are asked for by
    /// their own names, where the workload asks for adapters.
    pub(crate) model: Option<String>,
    /// The larger model beside it, for workloads that ask for one.
    pub(crate) large_model: Option<String>,
}

/// A trace to replay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Trace")]
pub(crate) struct RawTrace {
    /// The file.
    pub(crate) file: PathBuf,
    /// How it is written.
    pub(crate) format: RawTraceFormat,
    /// Each request is moved on by a draw up to this, in milliseconds: it undoes the rounding of timestamps, which is
    /// 3000 in Mooncake's conversation trace.
    #[serde(default = "no_time")]
    pub(crate) spread_ms: Millis<0>,
    /// Where to begin, in milliseconds from the start of the trace.
    #[serde(default = "no_time")]
    pub(crate) skip_ms: Millis<0>,
    /// The longest prompt and answer, together, that the model takes; what a replica's KV cache holds where it is
    /// left out.
    #[serde(default)]
    pub(crate) model_tokens_max: Option<Whole<1, 100_000_000>>,
    /// Whether longer requests are left out. Otherwise the first is a mistake.
    #[serde(default)]
    pub(crate) leave_out_longer: bool,
}

fn no_time() -> Millis<0> {
    Millis::new(0)
}

/// How a trace file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "TraceFormat")]
pub(crate) enum RawTraceFormat {
    /// JSON lines with `timestamp`, `input_length`, `output_length` and `hash_ids` of 512-token blocks.
    Mooncake,
    /// JSON lines with `chat_id`, `turn` and `hash_ids` of 16-token blocks.
    Bailian,
    /// CSV with `TIMESTAMP`, `ContextTokens` and `GeneratedTokens`.
    Azure,
    /// CSV files of rates, one a client, and JSON lines of lengths.
    Servegen,
}

impl RawScenario {
    /// Resolves every path against the folder of the file.
    pub(crate) fn resolve_paths(&mut self, folder: &std::path::Path) {
        let pools = self.pools.values_mut().filter_map(|pool| pool.profile_file.as_mut());
        for path in pools.chain(self.workload.trace.as_mut().map(|trace| &mut trace.file)) {
            *path = folder.join(&path);
        }
    }
}
