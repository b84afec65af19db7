//! The dispatcher of one pool: what happened goes in, what to do comes out.
//!
//! Inputs are methods that carry `now`. After every input the caller drains [`Dispatcher::poll_output`], and it
//! calls [`Dispatcher::handle_timeout`] at or after [`Dispatcher::poll_timeout`]. Ids that are not known (any
//! more) are ignored everywhere, so that a late answer, a second report of one end and a settled request do no
//! harm. The parts: `placement` finds a replica for a request, `attempts` follows what becomes of it there,
//! `fleet` moves replicas through their states.

mod attempts;
mod fleet;
mod placement;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use expediter_types::{ModelId, Prng, Prompt, ReplicaId, RequestId, Time, Tokens};

use crate::decision::Decision;
use crate::ledger::Charge;
use crate::policy::{Chooser, PoolView};
use crate::prefix::PrefixIndex;
use crate::refusal::Refusal;
use crate::replica::{Replica, ReplicaView};
use crate::retry_budget::RetryBudget;
use crate::settings::Settings;
use crate::timers::{Timer, Timers};

/// What the dispatcher must know of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The model as replicas list it.
    pub model: ModelId,
    /// Its length and the hashes of its blocks, as well as one knows.
    pub prompt: Prompt,
    /// The most tokens its answer may have.
    pub output_cap: Tokens,
    /// Whether the answer comes token by token. One that does not is silent until it is complete.
    pub stream: bool,
    /// How long it may wait for a replica; the pool's limit where it does not say. Zero means not at all.
    pub wait_limit: Option<Duration>,
}

/// What the caller is to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send the request to this replica.
    Dispatch {
        /// The request.
        id: RequestId,
        /// Where to.
        replica: ReplicaId,
        /// Why.
        decision: Decision,
    },
    /// Tell the client no. The request is settled.
    Refuse {
        /// The request.
        id: RequestId,
        /// Why.
        refusal: Refusal,
    },
    /// The request waited as long as it may, and no replica became ready. It is settled.
    Expire {
        /// The request.
        id: RequestId,
    },
    /// The attempt has been silent for too long: close its connection, then report
    /// [`Failure::Silent`](crate::Failure::Silent). If output came meanwhile the caller may carry on instead.
    Abandon {
        /// The request.
        id: RequestId,
        /// Where it was sent.
        replica: ReplicaId,
    },
    /// The time that a drained replica has for its requests is over: end this one, whatever came of it, then
    /// report [`Failure::Silent`](crate::Failure::Silent).
    Cut {
        /// The request.
        id: RequestId,
        /// Where it was sent.
        replica: ReplicaId,
    },
    /// Send the replica one tiny request of the caller's own and report [`ProbeResult::WarmUp`].
    WarmUp {
        /// The replica.
        replica: ReplicaId,
    },
    /// The drain is over: nothing is in flight, or its limit has passed and what was left is being cut.
    Drained {
        /// The replica.
        replica: ReplicaId,
    },
}

/// What a probe of a replica found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// It is healthy and lists these models. An empty list is taken for [`ProbeFailure::NoModel`].
    Healthy {
        /// The models, in any order.
        models: Vec<ModelId>,
    },
    /// It is not.
    Unhealthy(ProbeFailure),
    /// The answer to [`Output::WarmUp`]: whether the request was answered well.
    WarmUp(bool),
}

/// Why a probe failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeFailure {
    /// No connection.
    Refused,
    /// The health check answered with another status than 200.
    Status(u16),
    /// No answer in time.
    Silent,
    /// Healthy, but no model is listed.
    NoModel,
    /// What came back could not be read.
    Malformed,
}

/// Every decision of one pool: what happened goes in with `now`, what to do comes out.
///
/// After every input the caller drains [`Self::poll_output`], and it calls [`Self::handle_timeout`] at or after
/// [`Self::poll_timeout`]. Time never runs backwards from one input to the next. Ids that are not known (any
/// more) are ignored everywhere.
///
/// ```
/// use expediter_core::{Dispatcher, Output, ProbeResult, Request, Settings};
/// use expediter_types::{ModelId, Prng, Prompt, ReplicaId, RequestId, Time, Tokens};
///
/// let (replica, model) = (ReplicaId(1), ModelId(1));
/// let mut dispatcher = Dispatcher::new(Settings::default(), Prng::new(1));
///
/// dispatcher.join(replica, Time::ZERO);
/// dispatcher.probe(replica, ProbeResult::Healthy { models: vec![model] }, Time::ZERO);
/// assert_eq!(dispatcher.poll_output(), Some(Output::WarmUp { replica }));
/// dispatcher.probe(replica, ProbeResult::WarmUp(true), Time::from_millis(40));
///
/// let request = Request {
///     model,
///     prompt: Prompt::opaque(Tokens(1_800)),
///     output_cap: Tokens(256),
///     stream: true,
///     wait_limit: None,
/// };
/// dispatcher.arrive(RequestId(1), request, Time::from_millis(50));
/// assert!(matches!(dispatcher.poll_output(), Some(Output::Dispatch { .. })));
/// dispatcher.first_output(RequestId(1), Time::from_millis(90));
/// dispatcher.finish(RequestId(1), Time::from_millis(900));
/// assert_eq!(dispatcher.poll_output(), None);
/// ```
#[derive(Debug)]
pub struct Dispatcher {
    settings: Settings,
    rng: Prng,
    /// In order of id.
    fleet: Vec<Replica>,
    requests: BTreeMap<RequestId, Entry>,
    /// Requests that wait, by the ticket drawn at arrival: a request that comes back from a failed attempt
    /// stands before those that arrived later.
    waiting: BTreeMap<u64, RequestId>,
    timers: Timers,
    outputs: VecDeque<Output>,
    budget: RetryBudget,
    chooser: Chooser,
    /// Empty under a policy that does not ask it.
    prefixes: PrefixIndex,
    usual: Usual,
    tickets: u64,
    turns: u64,
}

/// A request that is not settled.
#[derive(Debug)]
struct Entry {
    request: Request,
    ticket: u64,
    /// Replicas where an attempt has failed.
    tried: Vec<ReplicaId>,
    deaths: u32,
    stage: Stage,
}

/// Where a request is.
#[derive(Debug)]
enum Stage {
    Waiting { deadline: Time },
    Attempt(Attempt),
}

/// A request at a replica.
#[derive(Debug)]
struct Attempt {
    replica: ReplicaId,
    /// When it was dispatched.
    since: Time,
    /// Its number among the attempts made at that replica, from 1.
    nth: u64,
    charge: Charge,
    /// Whether any output came.
    output: bool,
    output_tokens: Tokens,
    /// When its silence is looked at next; `None` once output came or the attempt was abandoned.
    armed: Option<Time>,
}

/// What requests of this pool are usually like.
#[derive(Debug)]
struct Usual {
    /// Tokens of an answer.
    answer: Mean,
    /// Tokens that a request means at dispatch.
    charge: Mean,
    /// Nanoseconds to the first token of a stream.
    ttft: Mean,
}

impl Usual {
    /// What is assumed before anything is known: an answer of 256 tokens to a prompt as long, and a first token
    /// after 0.1 s, the order of a small model on an idle GPU.
    const PRIOR: Self = Self { answer: Mean::of(256), charge: Mean::of(512), ttft: Mean::of(100_000_000) };
}

/// A moving mean of the last sixteen values or so, in integers: equal on every machine.
#[derive(Debug)]
struct Mean {
    sixteen: u64,
}

impl Mean {
    const fn of(value: u64) -> Self {
        Self { sixteen: 16 * value }
    }

    fn follow(&mut self, value: u64) {
        self.sixteen = (self.sixteen - self.sixteen / 16).saturating_add(value.min(MEAN_MAX));
    }

    const fn get(&self) -> u64 {
        self.sixteen / 16
    }
}

/// Keeps one absurd value from saturating a mean: 18 minutes in nanoseconds, or more tokens than anybody has.
const MEAN_MAX: u64 = 1 << 40;

impl Dispatcher {
    /// A dispatcher of a pool without replicas. `rng` fixes every draw.
    pub fn new(settings: Settings, rng: Prng) -> Self {
        Self {
            budget: RetryBudget::new(&settings),
            settings,
            rng,
            fleet: Vec::new(),
            requests: BTreeMap::new(),
            waiting: BTreeMap::new(),
            timers: Timers::default(),
            outputs: VecDeque::new(),
            chooser: Chooser::default(),
            prefixes: PrefixIndex::default(),
            usual: Usual::PRIOR,
            tickets: 0,
            turns: 0,
        }
    }

    /// Takes other settings. Replicas keep their states, requests their attempts; a deadline that was already
    /// set stays, the next one follows the new settings.
    pub fn set_settings(&mut self, settings: Settings, now: Time) {
        self.settings = settings;
        if !self.settings.policy.predicts_hits() {
            self.prefixes.clear();
        }
        self.handle_timeout(now);
    }

    /// Does what has become due. Call at or after [`Self::poll_timeout`]; calling it earlier does no harm.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                Timer::Silence(id) => self.check_silence(id, now),
                Timer::Wait(id) => self.expire(id),
                Timer::Trial(replica) | Timer::TrialEnd(replica) | Timer::Drain(replica) => {
                    self.replica_is_due(replica, timer, now);
                }
            }
        }
    }

    /// The next thing to do; `None` when all is done.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When to call [`Self::handle_timeout`], and what for. The reason is for logs.
    pub fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        self.timers.next()
    }

    /// Every replica, in order of id.
    pub fn replicas(&self, now: Time) -> Vec<ReplicaView> {
        self.fleet.iter().map(|replica| replica.view(self.settings.stale_after, now)).collect()
    }

    /// Requests that wait for a replica to become ready.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn index(&self, replica: ReplicaId) -> Option<usize> {
        self.fleet.binary_search_by_key(&replica, |known| known.id).ok()
    }

    /// What a request usually means is the mean of those in flight: a burst of short ones must not make a long
    /// one seem a hundred requests. Where nothing is in flight it is what the last ones were.
    fn pool_view(&self) -> PoolView {
        let (requests, tokens) = self.fleet.iter().fold((0, 0), |(requests, tokens), replica| {
            (requests + replica.ledger.requests(), tokens + replica.ledger.tokens().0)
        });
        let typical_charge = tokens.checked_div(requests).unwrap_or_else(|| self.usual.charge.get());
        PoolView {
            typical_charge: typical_charge.max(1) as f64,
            typical_ttft: self.usual.ttft.get() as f64 / 1e9,
            stale_after: self.settings.stale_after,
            ramp: self.settings.ramp,
        }
    }
}
