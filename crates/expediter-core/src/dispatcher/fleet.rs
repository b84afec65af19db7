//! Replicas come, prove themselves, fall ill, and go.

use std::time::Duration;

use expediter_types::{EngineReport, ModelId, ReplicaId, Time};

use super::{Dispatcher, Output, ProbeFailure, ProbeResult, Stage};
use crate::replica::{Drain, Replica, ReplicaState};
use crate::timers::Timer;
use crate::trial::Trial;

impl Dispatcher {
    /// A replica is part of the pool from now on. Gateways that are to agree on the ring of
    /// [`Policy::PrefixHashBounded`](crate::Policy::PrefixHashBounded) must know it by the same id.
    pub fn join(&mut self, replica: ReplicaId, now: Time) {
        self.join_as(replica, replica.0.into(), now);
    }

    /// As [`Self::join`], for ids that mean something on this gateway only: `identity` is what every gateway
    /// knows the replica by.
    pub fn join_as(&mut self, replica: ReplicaId, identity: u64, _now: Time) {
        if let Err(index) = self.fleet.binary_search_by_key(&replica, |known| known.id) {
            let slot = self.prefixes.join();
            self.fleet.insert(index, Replica::new(replica, identity, slot));
        }
    }

    /// A probe of a replica ended.
    pub fn probe(&mut self, replica: ReplicaId, result: ProbeResult, now: Time) {
        let Some(index) = self.index(replica) else { return };
        match result {
            ProbeResult::Healthy { models } if models.is_empty() => {
                self.probe_failed(index, ProbeFailure::NoModel, now);
            }
            ProbeResult::Healthy { models } => self.probe_succeeded(index, models, now),
            ProbeResult::Unhealthy(failure) => self.probe_failed(index, failure, now),
            ProbeResult::WarmUp(answered) => self.trial_ended(index, answered, now),
        }
    }

    /// An engine reported.
    pub fn report(&mut self, replica: ReplicaId, report: &EngineReport, now: Time) {
        let Some(index) = self.index(replica) else { return };
        let replica = &mut self.fleet[index];
        if replica.reported.is_restart(report) {
            self.prefixes.forget(replica.slot);
        }
        if replica.reported.update(report, replica.ledger.requests(), now) {
            replica.last_life = Some(now);
        }
    }

    /// Gives a replica no more requests and lets it finish those it has, for at most `limit` or else the pool's
    /// limit. [`Output::Drained`] answers. Draining again sets another limit and is answered again.
    pub fn drain(&mut self, replica: ReplicaId, limit: Option<Duration>, now: Time) {
        let Some(index) = self.index(replica) else { return };
        let limit = now + limit.unwrap_or(self.settings.drain_limit);
        let replica = &mut self.fleet[index];
        let fit = match replica.state {
            ReplicaState::Gone => return,
            ReplicaState::Draining => replica.drain.as_ref().is_some_and(|drain| drain.fit),
            ReplicaState::Ready => true,
            ReplicaState::Joining | ReplicaState::Warming | ReplicaState::SetAside => false,
        };
        replica.state = ReplicaState::Draining;
        replica.cause = None;
        replica.trial.pending = None;
        replica.drain = Some(Drain { limit, answered: false, fit });
        if replica.ledger.requests() == 0 {
            self.answer_drain(index);
        }
        self.rearm(index);
    }

    /// Takes a drain back. A replica that was ready, and is healthy, is so again; any other starts over.
    pub fn undrain(&mut self, replica: ReplicaId, now: Time) {
        let Some(index) = self.index(replica) else { return };
        let replica = &mut self.fleet[index];
        if replica.state != ReplicaState::Draining {
            return;
        }
        let fit = replica.drain.take().is_some_and(|drain| drain.fit);
        replica.state = ReplicaState::Joining;
        if fit && replica.health.is_well() {
            self.become_ready(index, now);
        }
        self.rearm(index);
    }

    /// A replica is not part of the pool any more. Its requests in flight go on and end as they do.
    pub fn remove(&mut self, replica: ReplicaId, _now: Time) {
        let Some(index) = self.index(replica) else { return };
        let replica = &mut self.fleet[index];
        replica.state = ReplicaState::Gone;
        replica.cause = None;
        replica.drain = None;
        replica.trial.pending = None;
        self.prefixes.forget(replica.slot);
        self.rearm(index);
        if self.fleet[index].ledger.requests() == 0 {
            self.forget(index);
        }
    }

    fn probe_succeeded(&mut self, index: usize, mut models: Vec<ModelId>, now: Time) {
        models.sort_unstable();
        models.dedup();
        let replica = &mut self.fleet[index];
        let lists_more = models.iter().any(|model| !replica.lists(*model));
        replica.models = models;
        let recovered = replica.health.succeed();
        match replica.state {
            ReplicaState::Joining => {
                replica.state = ReplicaState::Warming;
                replica.trial = Trial::begin(now);
            }
            ReplicaState::Warming | ReplicaState::SetAside if recovered => {
                replica.trial.hasten(replica.cause, &self.settings, now);
            }
            ReplicaState::Ready if lists_more => self.serve_waiting(now),
            ReplicaState::Warming
            | ReplicaState::SetAside
            | ReplicaState::Ready
            | ReplicaState::Draining
            | ReplicaState::Gone => {}
        }
        self.try_if_due(index, now);
    }

    fn probe_failed(&mut self, index: usize, failure: ProbeFailure, now: Time) {
        let settings = &self.settings;
        let replica = &mut self.fleet[index];
        let alive = replica.last_life.is_some_and(|life| now.since(life) <= settings.silence.alive_within);
        if let Some(cause) = replica.health.fail(failure, alive, settings.unhealthy_after) {
            replica.set_aside(cause, settings, now);
            if failure == ProbeFailure::Refused {
                self.prefixes.forget(replica.slot);
            }
        }
        self.rearm(index);
    }

    fn trial_ended(&mut self, index: usize, answered: bool, now: Time) {
        let replica = &mut self.fleet[index];
        if replica.trial.pending.is_none() {
            return;
        }
        if answered {
            replica.last_life = Some(now);
            self.become_ready(index, now);
        } else {
            replica.trial.fail(replica.cause, &self.settings, now);
            self.rearm(index);
        }
    }

    /// Begins a trial of the replica at `index` if it is due.
    fn try_if_due(&mut self, index: usize, now: Time) {
        let replica = &mut self.fleet[index];
        let is_due = matches!(replica.deadline(), Some((at, Timer::Trial(_))) if at <= now);
        if is_due && self.settings.warm_up {
            replica.trial.start(&self.settings, now);
            self.outputs.push_back(Output::WarmUp { replica: replica.id });
        } else if is_due {
            self.become_ready(index, now);
        }
        self.rearm(index);
    }

    /// What a timer of a replica was set for is due.
    pub(super) fn replica_is_due(&mut self, replica: ReplicaId, timer: Timer, now: Time) {
        let Some(index) = self.index(replica) else { return };
        self.fleet[index].armed = None;
        match timer {
            Timer::Trial(_) => self.try_if_due(index, now),
            Timer::TrialEnd(_) => self.trial_ended(index, false, now),
            Timer::Drain(_) => {
                self.cut_requests(replica);
                self.answer_drain(index);
            }
            Timer::Silence(_) | Timer::Wait(_) => {}
        }
    }

    /// Puts the replica at `index` into rotation, on a ramp where others carry the load: a replica that has
    /// been ready for a whole ramp. So a pool that starts or comes back as a whole shares evenly from the start.
    fn become_ready(&mut self, index: usize, now: Time) {
        let ramp = self.settings.ramp;
        let ramps = self.fleet.iter().enumerate().any(|(other, replica)| {
            other != index && replica.state == ReplicaState::Ready && now.since(replica.ready_since) >= ramp
        });
        self.fleet[index].become_ready(ramps, now);
        self.rearm(index);
        self.serve_waiting(now);
    }

    /// Ends what runs on a replica whose drain has reached its limit.
    fn cut_requests(&mut self, replica: ReplicaId) {
        let is_there = |stage: &Stage| matches!(stage, Stage::Attempt(attempt) if attempt.replica == replica);
        let there = self.requests.iter().filter(|(_, entry)| is_there(&entry.stage)).map(|(id, _)| *id);
        self.outputs.extend(there.map(|id| Output::Cut { id, replica }));
    }

    /// Says that a drain is over, once.
    pub(super) fn answer_drain(&mut self, index: usize) {
        let replica = &mut self.fleet[index];
        if let Some(drain) = replica.drain.as_mut().filter(|drain| !drain.answered) {
            drain.answered = true;
            self.outputs.push_back(Output::Drained { replica: replica.id });
            self.rearm(index);
        }
    }

    /// Drops the replica at `index`. Indices behind it move.
    pub(super) fn forget(&mut self, index: usize) {
        let replica = self.fleet.remove(index);
        self.prefixes.leave(replica.slot);
        if let Some((at, timer)) = replica.armed {
            self.timers.cancel(at, timer);
        }
    }

    /// Makes the pending timer of the replica at `index` the one it needs. Call after every change to it.
    pub(super) fn rearm(&mut self, index: usize) {
        let replica = &mut self.fleet[index];
        let wanted = replica.deadline();
        if replica.armed == wanted {
            return;
        }
        if let Some((at, timer)) = replica.armed {
            self.timers.cancel(at, timer);
        }
        if let Some((at, timer)) = wanted {
            self.timers.set(at, timer);
        }
        replica.armed = wanted;
    }
}
