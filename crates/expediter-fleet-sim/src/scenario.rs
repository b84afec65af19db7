//! What is simulated: pools of replicas, gateways in front of them, and what goes wrong.

use std::time::Duration;

use expediter_core::Settings as DispatcherSettings;
use expediter_engine_sim::Settings as EngineSettings;
use expediter_types::{ModelId, Time, Tokens};

/// A fleet and what happens to it. The workload is apart: see [`Workload`](crate::Workload).
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The pools; a request goes to the one that serves its model.
    pub pools: Vec<Pool>,
    /// Gateways, each with a view and a dispatcher of its own for each pool. Requests come to them in turn.
    pub gateways: u32,
    /// Time in the gateway before a request is sent on, tokenising included.
    pub gateway_overhead: Duration,
    /// One way between gateway and replica.
    pub network_delay: Duration,
    /// Between two reports of one replica to one gateway.
    pub report_interval: Duration,
    /// What counts as goodput.
    pub slo: Slo,
    /// What goes wrong, in any order.
    pub faults: Vec<FaultAt>,
    /// Arrivals after this time are not sent.
    pub duration: Duration,
    /// Requests that arrive before this time are served but not measured.
    pub warm_up: Duration,
    /// How long after `duration` the run goes on for the requests that are still open.
    pub drain: Duration,
}

/// Replicas that serve the same models alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Its name in the report.
    pub name: String,
    /// Replicas at the start.
    pub replicas: u32,
    /// What each of them is.
    pub engine: EngineSettings,
    /// The models that each of them lists: the base model first, then adapters.
    pub models: Vec<ModelId>,
    /// How requests are placed.
    pub dispatcher: DispatcherSettings,
}

/// The service level objective of one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    /// The longest time to first token, as the client sees it.
    pub ttft: Duration,
    /// The longest mean time per output token.
    pub tpot: Duration,
    /// The time to first token is an objective for prompts up to this length only.
    pub prompt_max: Tokens,
    /// The share of requests within `ttft` that makes a rate sustainable.
    pub ttft_share: f64,
    /// The share of requests within `tpot` that makes a rate sustainable.
    pub tpot_share: f64,
}

impl Default for Slo {
    /// TTFT p99 within 400 ms for prompts up to 4,000 tokens, TPOT p95 within 50 ms.
    fn default() -> Self {
        Self {
            ttft: Duration::from_millis(400),
            tpot: Duration::from_millis(50),
            prompt_max: Tokens(4_000),
            ttft_share: 0.99,
            tpot_share: 0.95,
        }
    }
}

/// A fault of one replica, from a moment on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultAt {
    /// When.
    pub at: Time,
    /// The pool, by its place in the scenario.
    pub pool: usize,
    /// The replica, by its number within the pool, from 0; one that joins takes the next number.
    pub replica: u32,
    /// What happens.
    pub fault: Fault,
}

/// What can go wrong with a replica, or right again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// All well again. A crashed engine comes back with an empty cache.
    Heal,
    /// New connections are refused; what is in flight goes on.
    Refuse,
    /// Connections are cut and refused; the engine and its cache are lost.
    Crash,
    /// Nothing is answered, health checks neither.
    Hang,
    /// No step ends, while health checks and reports (of the past) go on.
    Freeze,
    /// Every step takes this many times as long.
    Slow(f64),
    /// Generation is answered with this status.
    Status(u16),
    /// Reports show the past.
    StaleReports,
    /// The first output token is followed by a reset after so many tokens.
    Cut(u64),
    /// A new replica joins the pool. The replica's number is not used.
    Join,
    /// The replica is drained, then removed.
    Drain,
    /// The replica is removed at once and its engine lost.
    Lose,
}
