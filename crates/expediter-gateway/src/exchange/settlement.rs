//! What happens exactly once at the end of every request that reached a pool, whatever happened to it: release,
//! count, record. It hangs on the value's own drop, not on the happy path.

use std::sync::Arc;

use expediter_types::Time;
use expediter_wire::sse::Usage;
use http::HeaderValue;
use smallvec::SmallVec;

use super::handler::Exchange;
use crate::fleet::{AttemptOutcome, Flight, Pool, Replica};
use crate::metrics::{RequestLabels, StageLabels, status_class};
use crate::usage::{Counted, Record, RecordedAttempt};

/// How a request ended, for metrics and records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Answered in full, be it with the engine's own 4xx.
    Completed,
    /// The gateway said no.
    Refused,
    /// No replica gave an answer.
    Failed,
    /// The client left.
    Cancelled,
    /// The answer had begun and was cut short.
    UpstreamFailure,
}

impl Outcome {
    /// All of them.
    pub(crate) const ALL: [Self; 5] =
        [Self::Completed, Self::Refused, Self::Failed, Self::Cancelled, Self::UpstreamFailure];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::UpstreamFailure => "upstream_failure",
        }
    }
}

/// Where a request is, for the count of those whose clients left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It waits for a replica.
    Waiting,
    /// It was sent, and nothing came yet.
    FirstOutput,
    /// Its answer is on the way.
    Relay,
}

impl Stage {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Waiting, Self::FirstOutput, Self::Relay];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::FirstOutput => "first_output",
            Self::Relay => "relay",
        }
    }
}

/// What is known of a request when it reaches its pool.
pub(super) struct Opening {
    pub(super) pool: Arc<Pool>,
    pub(super) flight: Flight,
    pub(super) arrived: Time,
    pub(super) request_id: HeaderValue,
    pub(super) trace_id: Option<String>,
    pub(super) model: Option<String>,
    pub(super) served_model: Arc<str>,
    pub(super) stream: bool,
    /// Prompt tokens, where the client gave them as ids and they need no estimate.
    pub(super) input_tokens: Option<u64>,
}

/// A request that reached a pool and has not ended.
pub(super) struct Settlement {
    pub(super) opening: Opening,
    exchange: Arc<Exchange>,
    pub(super) stage: Stage,
    attempts: SmallVec<[(Arc<Replica>, AttemptOutcome); 2]>,
    /// The attempt that runs.
    running: Option<Arc<Replica>>,
    dispatched: Option<Time>,
    first_output: Option<Time>,
    pub(super) usage: Usage,
    /// Tokens counted here, for answers that the engine could not count to the end.
    pub(super) events: u64,
    ended: Option<(Outcome, u16, Option<&'static str>)>,
}

impl Settlement {
    pub(super) fn new(exchange: Arc<Exchange>, opening: Opening) -> Self {
        Self {
            opening,
            exchange,
            stage: Stage::Waiting,
            attempts: SmallVec::new(),
            running: None,
            dispatched: None,
            first_output: None,
            usage: Usage::default(),
            events: 0,
            ended: None,
        }
    }

    /// An attempt at `replica` begins.
    pub(super) fn attempt_begins(&mut self, replica: &Arc<Replica>, now: Time) {
        let series = &self.opening.pool.series;
        if self.dispatched.is_some() {
            series.retries.inc();
        } else {
            series.in_flight.inc();
        }
        self.dispatched.get_or_insert(now);
        self.stage = Stage::FirstOutput;
        self.running = Some(Arc::clone(replica));
    }

    /// The running attempt ends.
    pub(super) fn attempt_ends(&mut self, outcome: AttemptOutcome) {
        if let Some(replica) = self.running.take() {
            replica.count(outcome);
            self.attempts.push((replica, outcome));
        }
    }

    /// The first output is here, and is being sent on.
    pub(super) fn first_output(&mut self, now: Time) {
        self.stage = Stage::Relay;
        self.first_output = Some(now);
        self.opening.flight.first_output();
        self.opening.pool.series.first_token.observe(now.since(self.opening.arrived).as_secs_f64());
    }

    /// It ends this way; the rest happens when this is dropped.
    pub(super) fn ends(&mut self, outcome: Outcome, status: u16, error_code: Option<&'static str>) {
        self.ended.get_or_insert((outcome, status, error_code));
    }
}

impl Drop for Settlement {
    fn drop(&mut self) {
        // Whoever did not say how it ended was dropped with the client's connection. nginx calls this 499.
        let (outcome, status, error_code) = self.ended.unwrap_or((Outcome::Cancelled, 499, None));
        if outcome == Outcome::Cancelled {
            self.attempt_ends(AttemptOutcome::Cancelled);
        }
        let now = self.exchange.fleet.clock.now();
        let (metrics, pool) = (&self.exchange.fleet.metrics, &self.opening.pool);
        if self.dispatched.is_some() {
            pool.series.in_flight.dec();
        }
        if outcome == Outcome::Completed && (200..300).contains(&status) {
            pool.series.completed.inc();
        } else {
            let (outcome, status_class) = (outcome.as_str(), status_class(status));
            let labels = RequestLabels { pool: pool.label.clone(), outcome, status_class };
            metrics.requests.get_or_create(&labels).inc();
        }
        if outcome == Outcome::Cancelled {
            let labels = StageLabels { pool: pool.label.clone(), stage: self.stage.as_str() };
            metrics.cancelled.get_or_create(&labels).inc();
        }
        let counted = self.counted(outcome);
        pool.series.input_tokens.inc_by(counted.input_tokens.unwrap_or(0));
        pool.series.output_tokens.inc_by(counted.output_tokens.unwrap_or(0));
        pool.series.cached_tokens.inc_by(self.usage.cached_tokens.unwrap_or(0));
        pool.series.request_time.observe(now.since(self.opening.arrived).as_secs_f64());
        if self.exchange.usage.is_on() {
            self.exchange.usage.write(&self.record(outcome, status, error_code, counted, now));
        }
    }
}

impl Settlement {
    /// The engine's counts where it gave them; else what passed through here; else nothing is known.
    fn counted(&self, outcome: Outcome) -> Counted {
        let engine = self.usage;
        match (engine.prompt_tokens, engine.completion_tokens) {
            (None, None) if self.opening.stream && !self.attempts.is_empty() => Counted {
                input_tokens: self.opening.input_tokens,
                output_tokens: Some(self.events),
                by: "gateway",
            },
            (None, None) => {
                // An answer that was never begun has no output; one that came whole and was lost is unknown.
                let nothing = matches!(outcome, Outcome::Refused | Outcome::Failed);
                Counted {
                    input_tokens: self.opening.input_tokens,
                    output_tokens: nothing.then_some(0),
                    by: if nothing { "gateway" } else { "unknown" },
                }
            }
            // A stream that was cut has the engine's running totals, or more events than those.
            (input_tokens, output_tokens) => Counted { input_tokens, output_tokens, by: "engine" },
        }
    }

    fn record<'a>(
        &'a self,
        outcome: Outcome,
        status: u16,
        error_code: Option<&'a str>,
        counted: Counted,
        now: Time,
    ) -> Record<'a> {
        let opening = &self.opening;
        let ms = |from: Time, to: Time| u64::try_from(to.since(from).as_millis()).unwrap_or(u64::MAX);
        Record {
            unix_ms: self.exchange.fleet.clock.unix_ms(opening.arrived),
            request_id: opening.request_id.to_str().unwrap_or_default(),
            trace_id: opening.trace_id.as_deref(),
            pool: &opening.pool.name,
            model: opening.model.as_deref(),
            served_model: &opening.served_model,
            replica: self.attempts.last().map(|(replica, _)| &*replica.name),
            attempts: self
                .attempts
                .iter()
                .map(|(replica, outcome)| RecordedAttempt {
                    replica: &replica.name,
                    outcome: outcome.as_str(),
                })
                .collect(),
            stream: opening.stream,
            status,
            outcome: outcome.as_str(),
            counted,
            cached_tokens: self.usage.cached_tokens,
            queue_ms: ms(opening.arrived, self.dispatched.unwrap_or(now)),
            first_token_ms: self.first_output.map(|at| ms(opening.arrived, at)),
            total_ms: ms(opening.arrived, now),
            error_code,
        }
    }
}
