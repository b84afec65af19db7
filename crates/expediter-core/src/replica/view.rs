//! What the outside sees of a replica.

use std::fmt;
use std::time::Duration;

use expediter_types::{EngineReport, ModelId, ReplicaId, Time, Tokens};

use super::Replica;

/// The states of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReplicaState {
    /// Known, but not yet healthy with a model listed.
    Joining,
    /// Healthy; has to answer a warm-up request before it gets a client's.
    Warming,
    /// Takes requests.
    Ready,
    /// Takes no new requests and finishes those it has.
    Draining,
    /// Out of rotation until a trial succeeds.
    SetAside,
    /// Removed; known only while requests are in flight.
    Gone,
}

impl ReplicaState {
    /// Every state.
    pub const ALL: [Self; 6] =
        [Self::Joining, Self::Warming, Self::Ready, Self::Draining, Self::SetAside, Self::Gone];

    /// The name in metrics, records and the admin API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Warming => "warming",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::SetAside => "set_aside",
            Self::Gone => "gone",
        }
    }
}

impl fmt::Display for ReplicaState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a replica was set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetAsideCause {
    /// Too many of its attempts failed.
    Failing,
    /// It refuses connections.
    Unreachable,
    /// It takes requests and says nothing.
    Silent,
    /// It aborted an answer because it is going down.
    Lost,
    /// Its health checks fail.
    Health,
    /// It is healthy but lists no model, or no list that can be read.
    NoModel,
}

impl SetAsideCause {
    /// Whether the engine's process is gone, and its cache with it.
    pub(crate) const fn means_loss(self) -> bool {
        match self {
            Self::Unreachable | Self::Lost => true,
            Self::Failing | Self::Silent | Self::Health | Self::NoModel => false,
        }
    }

    /// The name in metrics, records and the admin API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Failing => "failing",
            Self::Unreachable => "unreachable",
            Self::Silent => "silent",
            Self::Lost => "lost",
            Self::Health => "health",
            Self::NoModel => "no_model",
        }
    }
}

impl fmt::Display for SetAsideCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A replica as metrics and the admin API show it.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaView {
    /// The replica.
    pub id: ReplicaId,
    /// Its state.
    pub state: ReplicaState,
    /// Why it was set aside, in that state.
    pub cause: Option<SetAsideCause>,
    /// Requests sent there and not settled.
    pub in_flight: u64,
    /// Tokens that those still mean: prompts not answered yet, and answers as long as they are expected.
    pub in_flight_tokens: Tokens,
    /// Prompt tokens of those without output yet that are not expected to be cached there.
    pub pending_prefill: Tokens,
    /// The engine's last report.
    pub report: Option<EngineReport>,
    /// The age of that report.
    pub report_age: Option<Duration>,
    /// Whether the report is young enough to be used as load.
    pub fresh: bool,
    /// The moving mean of times to first token of streamed answers.
    pub ttft: Option<Duration>,
    /// Attempts made there.
    pub dispatched: u64,
    /// Attempts that failed there in a way that counts against it.
    pub failed: u64,
    /// The models it lists, in order of id.
    pub models: Vec<ModelId>,
}

impl Replica {
    pub(crate) fn view(&self, stale_after: Duration, now: Time) -> ReplicaView {
        ReplicaView {
            id: self.id,
            state: self.state,
            cause: self.cause,
            in_flight: self.ledger.requests(),
            in_flight_tokens: self.ledger.tokens(),
            pending_prefill: self.ledger.prefill(),
            report: self.reported.last.map(|(report, _)| report),
            report_age: self.reported.last.map(|(_, at)| now.since(at)),
            fresh: self.reported.fresh(stale_after, now),
            ttft: self.ttft.mean(),
            dispatched: self.dispatched,
            failed: self.failed,
            models: self.models.clone(),
        }
    }
}
