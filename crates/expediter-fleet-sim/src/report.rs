//! What a run brought.

use std::time::Duration;

use expediter_types::{Blocks, Time, Tokens};

/// One run of one scenario with one policy and one seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Every measured request, in order of arrival.
    pub requests: Vec<RequestRecord>,
    /// The fleet over time, one sample a second.
    pub samples: Vec<Sample>,
    /// Names and sizes of the pools, in the order of the scenario.
    pub pools: Vec<PoolReport>,
    /// The time before anything is measured.
    pub warm_up: Duration,
    /// The time that is measured: from the end of the warm-up until arrivals stop, or until everything had ended
    /// where that was earlier.
    pub measured: Duration,
    /// The virtual time that was simulated.
    pub simulated: Duration,
    /// A digest of every event in order: equal histories, equal digests.
    pub history: u64,
}

/// A pool in a report.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolReport {
    /// As in the scenario.
    pub name: String,
    /// What each replica did, by its number within the pool.
    pub replicas: Vec<ReplicaReport>,
}

/// One replica over a run, warm-up included.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReplicaReport {
    /// Attempts sent there.
    pub dispatched: u64,
    /// Usable KV blocks.
    pub blocks: Blocks,
    /// Preemptions.
    pub preemptions: u64,
    /// Steps computed.
    pub steps: u64,
}

/// What became of one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestRecord {
    /// When the client sent it.
    pub arrived: Time,
    /// Its pool, by its place in the scenario.
    pub pool: u16,
    /// Its tenant.
    pub tenant: u32,
    /// Tokens of its prompt.
    pub prompt: Tokens,
    /// Prompt tokens that any earlier request of the run had brought: what an infinite cache shared by the whole
    /// pool would have held.
    pub ideal: Tokens,
    /// Prompt tokens that its replica had cached.
    pub cached: Tokens,
    /// Prompt tokens that the gateway expected to be cached there; zero for policies that do not ask.
    pub expected: Tokens,
    /// Tokens that reached the client.
    pub output: Tokens,
    /// From the client's sending to the first token there; `None` where none came.
    pub ttft: Option<Duration>,
    /// From the client's sending to the end.
    pub total: Duration,
    /// Attempts made.
    pub attempts: u32,
    /// How it ended.
    pub end: End,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// Answered in full.
    Answered,
    /// The gateway said no, with this code.
    Refused(&'static str),
    /// It waited for a replica as long as it may.
    Expired,
    /// Its answer broke off after it had begun.
    Cut,
    /// It was still open when the run ended.
    Open,
}

/// The fleet at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// When.
    pub at: Time,
    /// Every replica of every pool, pool by pool.
    pub replicas: Vec<ReplicaSample>,
    /// Requests that wait in gateways.
    pub waiting: u64,
    /// Requests refused or expired since the last sample.
    pub refused: u64,
    /// Requests that arrived since the last sample.
    pub arrived: u64,
    /// Prompt tokens of requests whose first token came since the last sample.
    pub input_tokens: Tokens,
    /// Tokens of answers that came since the last sample.
    pub output_tokens: Tokens,
}

/// A replica at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReplicaSample {
    /// Whether it is there at all.
    pub present: bool,
    /// Requests in the batch.
    pub running: u32,
    /// Requests in its queue.
    pub waiting: u32,
    /// Share of KV blocks that live requests hold, 0 to 1.
    pub in_use: f32,
    /// Share of KV blocks with content, cached ones included, 0 to 1.
    pub resident: f32,
}

impl RequestRecord {
    /// Mean time per output token after the first; `None` for answers of one token or none.
    pub fn tpot(&self) -> Option<Duration> {
        let gaps = u32::try_from(self.output.0.checked_sub(1)?).ok().filter(|gaps| *gaps > 0)?;
        Some(self.total.checked_sub(self.ttft?)? / gaps)
    }
}
