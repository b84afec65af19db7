//! Deadlines in order of time, each with what it is for.

use std::collections::BTreeSet;

use expediter_types::{ReplicaId, RequestId, Time};

/// What a deadline is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// An attempt has been without output for long.
    Silence(RequestId),
    /// A request has waited for a replica as long as it may.
    Wait(RequestId),
    /// A replica is due for a trial.
    Trial(ReplicaId),
    /// A trial should have been answered.
    TrialEnd(ReplicaId),
    /// A drain has taken as long as it may.
    Drain(ReplicaId),
}

impl Timer {
    const fn name(self) -> &'static str {
        match self {
            Self::Silence(_) => "silence",
            Self::Wait(_) => "wait limit",
            Self::Trial(_) => "trial",
            Self::TrialEnd(_) => "trial limit",
            Self::Drain(_) => "drain limit",
        }
    }
}

/// The pending deadlines. Who sets one keeps its time, and takes it back with that.
#[derive(Debug, Default)]
pub(crate) struct Timers(BTreeSet<(Time, Timer)>);

impl Timers {
    pub(crate) fn set(&mut self, at: Time, timer: Timer) {
        self.0.insert((at, timer));
    }

    pub(crate) fn cancel(&mut self, at: Time, timer: Timer) {
        self.0.remove(&(at, timer));
    }

    /// The next deadline and its name.
    pub(crate) fn next(&self) -> Option<(Time, &'static str)> {
        self.0.first().map(|(at, timer)| (*at, timer.name()))
    }

    /// Takes the next deadline out if it has passed.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<Timer> {
        self.0.first().is_some_and(|(at, _)| *at <= now).then(|| self.0.pop_first())?.map(|(_, timer)| timer)
    }
}
