//! What is known of one replica, and the states it goes through.
//!
//! ```text
//!             healthy, lists a model        trial answered
//!   Joining ──────────────────────▶ Warming ─────────────▶ Ready ◀──────────────┐
//!      ▲                                                   │   │                │ trial answered
//!      │ undrain, not fit                             drain│   └─▶ SetAside ────┘
//!      └────────────────────────────────────── Draining ◀──┘   failures, health, silence
//! ```
//!
//! Any state can be drained, and any can be removed: `Gone` is what is left while requests are in flight.

mod health;
mod view;

use std::time::Duration;

use expediter_types::{EngineReport, ModelId, ReplicaId, Time};

use crate::breaker::Breaker;
use crate::ledger::Ledger;
use crate::prefix::Slot;
use crate::settings::Settings;
use crate::timers::Timer;
use crate::trial::Trial;
use crate::ttft::Ttft;

pub(crate) use health::Health;
pub use view::{ReplicaState, ReplicaView, SetAsideCause};

/// One replica as the dispatcher sees it.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) id: ReplicaId,
    /// What it is known by on every gateway alike.
    pub(crate) identity: u64,
    /// Its place in the prefix index.
    pub(crate) slot: Slot,
    pub(crate) state: ReplicaState,
    /// Why it was set aside; `Some` in that state only.
    pub(crate) cause: Option<SetAsideCause>,
    /// What it lists, in order of id; empty until it first says.
    pub(crate) models: Vec<ModelId>,
    pub(crate) ledger: Ledger,
    pub(crate) breaker: Breaker,
    pub(crate) health: Health,
    pub(crate) trial: Trial,
    pub(crate) ttft: Ttft,
    pub(crate) reported: Reported,
    pub(crate) push_back: PushBack,
    /// The last output to anybody, or report in which the engine's counters moved.
    pub(crate) last_life: Option<Time>,
    /// When it last became ready.
    pub(crate) ready_since: Time,
    /// Whether it began that on a ramp.
    pub(crate) ramps: bool,
    /// Whether it came back on a trial and no client's request has ended well since.
    pub(crate) unproven: bool,
    pub(crate) drain: Option<Drain>,
    /// The one timer it has pending.
    pub(crate) armed: Option<(Time, Timer)>,
    /// The number of the pool's last decision that chose it; 0 for none yet.
    pub(crate) last_turn: u64,
    pub(crate) dispatched: u64,
    pub(crate) failed: u64,
}

impl Replica {
    pub(crate) fn new(id: ReplicaId, identity: u64, slot: Slot) -> Self {
        Self {
            id,
            identity,
            slot,
            state: ReplicaState::Joining,
            cause: None,
            models: Vec::new(),
            ledger: Ledger::default(),
            breaker: Breaker::default(),
            health: Health::default(),
            trial: Trial::default(),
            ttft: Ttft::default(),
            reported: Reported::default(),
            push_back: PushBack::default(),
            last_life: None,
            ready_since: Time::ZERO,
            ramps: false,
            unproven: false,
            drain: None,
            armed: None,
            last_turn: 0,
            dispatched: 0,
            failed: 0,
        }
    }

    pub(crate) fn lists(&self, model: ModelId) -> bool {
        self.models.binary_search(&model).is_ok()
    }

    /// Whether it may become ready by itself.
    pub(crate) fn may_come(&self) -> bool {
        match self.state {
            ReplicaState::Joining | ReplicaState::Warming | ReplicaState::Ready | ReplicaState::SetAside => {
                true
            }
            ReplicaState::Draining | ReplicaState::Gone => false,
        }
    }

    /// Its share of a full replica's traffic: from a tenth at the start of the ramp to 1 at its end.
    pub(crate) fn weight(&self, ramp: Duration, now: Time) -> f64 {
        let elapsed = now.since(self.ready_since);
        if !self.ramps || elapsed >= ramp {
            return 1.0;
        }
        RAMP_FROM + (1.0 - RAMP_FROM) * (elapsed.as_secs_f64() / ramp.as_secs_f64())
    }

    pub(crate) fn become_ready(&mut self, ramps: bool, now: Time) {
        self.unproven = self.state == ReplicaState::SetAside;
        self.state = ReplicaState::Ready;
        self.cause = None;
        self.breaker = Breaker::default();
        self.push_back = PushBack::default();
        self.health.begin();
        self.ready_since = now;
        self.ramps = ramps;
        self.trial.pending = None;
    }

    /// Takes a ready replica out of rotation until a trial succeeds. Its requests in flight go on.
    pub(crate) fn set_aside(&mut self, cause: SetAsideCause, settings: &Settings, now: Time) {
        match self.state {
            ReplicaState::Ready => {
                self.state = ReplicaState::SetAside;
                self.cause = Some(cause);
                self.health.begin();
                self.trial.set_aside(cause, self.unproven, settings, now);
            }
            // It must prove itself when the drain is taken back.
            ReplicaState::Draining => {
                if let Some(drain) = &mut self.drain {
                    drain.fit = false;
                }
            }
            // It was taken for one that fails requests but lives; it turns out to be worse.
            ReplicaState::SetAside if self.cause == Some(SetAsideCause::Failing) => self.cause = Some(cause),
            ReplicaState::Joining | ReplicaState::Warming | ReplicaState::SetAside | ReplicaState::Gone => {}
        }
    }

    /// The next moment at which something is due for it by itself.
    pub(crate) fn deadline(&self) -> Option<(Time, Timer)> {
        if let Some(pending) = self.trial.pending {
            return Some((pending, Timer::TrialEnd(self.id)));
        }
        match self.state {
            ReplicaState::Warming | ReplicaState::SetAside => {
                self.health.is_well().then_some((self.trial.due, Timer::Trial(self.id)))
            }
            ReplicaState::Draining => {
                let drain = self.drain.as_ref().filter(|drain| !drain.answered);
                drain.map(|drain| (drain.limit, Timer::Drain(self.id)))
            }
            ReplicaState::Joining | ReplicaState::Ready | ReplicaState::Gone => None,
        }
    }
}

/// A tenth of the share is enough to warm caches and too little to drown in.
const RAMP_FROM: f64 = 0.1;

/// A drain under way.
#[derive(Debug)]
pub(crate) struct Drain {
    /// When it ends, with requests in flight or without.
    pub(crate) limit: Time,
    /// Whether its end was told.
    pub(crate) answered: bool,
    /// Whether the replica may go back to work without a trial.
    pub(crate) fit: bool,
}

/// The last report of an engine.
#[derive(Debug, Default)]
pub(crate) struct Reported {
    pub(crate) last: Option<(EngineReport, Time)>,
    /// Requests at the engine beyond ours, as of that report.
    foreign: u64,
}

impl Reported {
    /// Takes a report in; `true` where the engine's counters moved since the one before.
    pub(crate) fn update(&mut self, report: &EngineReport, own: u64, now: Time) -> bool {
        let moved = self.last.is_some_and(|(last, _)| last.progress != report.progress);
        let there = report.running.unwrap_or(0).saturating_add(report.waiting.unwrap_or(0));
        self.foreign = there.saturating_sub(own);
        self.last = Some((*report, now));
        moved
    }

    pub(crate) fn fresh(&self, stale_after: Duration, now: Time) -> bool {
        self.if_fresh(stale_after, now).is_some()
    }

    /// The last report, unless it is stale.
    pub(crate) fn if_fresh(&self, stale_after: Duration, now: Time) -> Option<&EngineReport> {
        self.last.as_ref().filter(|(_, at)| now.since(*at) <= stale_after).map(|(report, _)| report)
    }

    /// Whether `report` is of another process than the one before.
    pub(crate) fn is_restart(&self, report: &EngineReport) -> bool {
        let before = self.last.and_then(|(last, _)| last.started_at);
        before.zip(report.started_at).is_some_and(|(before, now)| before.total_cmp(&now).is_ne())
    }

    /// Requests that went around this gateway; none where the last report is stale.
    pub(crate) fn foreign(&self, stale_after: Duration, now: Time) -> f64 {
        if self.fresh(stale_after, now) { self.foreign as f64 } else { 0.0 }
    }
}

/// How long a replica that said it is full is left alone.
#[derive(Debug, Default)]
pub(crate) struct PushBack {
    pub(crate) until: Time,
    in_row: u32,
}

impl PushBack {
    /// The replica said it is full. Without a time of its own it is left alone for a time that doubles with each
    /// refusal in a row.
    pub(crate) fn refuse(&mut self, retry_after: Option<Duration>, now: Time) {
        let doubled = PUSH_BACK_MIN.saturating_mul(1 << self.in_row.min(16)).min(PUSH_BACK_MAX);
        self.in_row = self.in_row.saturating_add(1);
        let asked = retry_after.map(|asked| asked.min(RETRY_AFTER_MAX));
        self.until = self.until.max(now + asked.unwrap_or(doubled));
    }

    /// The replica took a request.
    pub(crate) fn accept(&mut self) {
        self.in_row = 0;
    }
}

/// A full engine of vLLM says no `Retry-After`; a slot comes free with each answer that ends, so soon.
const PUSH_BACK_MIN: Duration = Duration::from_millis(250);
const PUSH_BACK_MAX: Duration = Duration::from_secs(2);

/// No replica may take itself out for longer than this by a header.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
