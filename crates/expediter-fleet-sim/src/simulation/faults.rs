//! What goes wrong with replicas, and right again.

use expediter_core::{Failure, ProbeFailure, ProbeResult};
use expediter_types::{ModelId, ReplicaId};

use super::Simulation;
use super::agenda::Event;
use super::replica::{Condition, Door, Replica};
use crate::scenario::Fault;

impl Simulation {
    /// The fault of this number happens.
    pub(super) fn break_down(&mut self, index: usize) {
        let fault = self.scenario.faults[index];
        if fault.fault == Fault::Join {
            self.add_replica(fault.pool);
            return;
        }
        let Some(&id) = self.numbers[fault.pool].get(fault.replica as usize) else { return };
        let now = self.now;
        match fault.fault {
            Fault::Join => {}
            Fault::Heal => self.heal(id),
            Fault::Refuse => self.replica_mut(id).condition.door = Door::Closed,
            Fault::Crash => {
                self.lose_engine(id);
                self.replica_mut(id).condition.door = Door::Gone;
            }
            Fault::Hang => {
                self.replica_mut(id).freeze(now);
                self.replica_mut(id).condition.door = Door::Mute;
            }
            Fault::Freeze => self.replica_mut(id).freeze(now),
            Fault::Slow(factor) => self.replica_mut(id).condition.slow = Some(factor),
            Fault::Status(status) => self.replica_mut(id).condition.status = Some(status),
            Fault::StaleReports => {
                let replica = self.replica_mut(id);
                replica.stale = Some(replica.engine_report());
            }
            Fault::Cut(after) => self.replica_mut(id).condition.cut = Some(after),
            Fault::Drain => self.tell_all(id, |dispatcher, now| dispatcher.drain(id, None, now)),
            Fault::Lose => {
                self.lose_engine(id);
                let replica = self.replica_mut(id);
                replica.condition.door = Door::Gone;
                replica.present = false;
                self.tell_all(id, |dispatcher, now| dispatcher.remove(id, now));
            }
        }
    }

    fn tell_all(
        &mut self,
        id: ReplicaId,
        tell: impl Fn(&mut expediter_core::Dispatcher, expediter_types::Time),
    ) {
        let pool = self.replica(id).pool;
        for gateway in 0..self.gateways.len() {
            tell(self.gateways[gateway].dispatcher(pool), self.now);
            self.drain_outputs(gateway, pool);
        }
    }

    /// The process dies: its connections are cut, its cache is gone.
    fn lose_engine(&mut self, id: ReplicaId) {
        let now = self.now;
        let replica = self.replica_mut(id);
        let mut lost: Vec<_> = replica.engine.abort_all().into_iter().map(|progress| progress.id).collect();
        lost.extend(std::mem::take(&mut replica.unheard).into_iter().map(|(request, _)| request));
        replica.lose_engine(now);
        for request in lost {
            let attempt = self.requests.get(request).and_then(|request| request.attempt);
            if let Some(attempt) = attempt.filter(|attempt| attempt.replica == id) {
                self.fail_later(request, attempt.number, Failure::Death);
            }
        }
    }

    /// All is well again: what came meanwhile is heard, and a step that stood still goes on.
    fn heal(&mut self, id: ReplicaId) {
        let now = self.now;
        let replica = self.replica_mut(id);
        if replica.condition.door == Door::Gone {
            replica.lose_engine(now);
        }
        replica.condition = Condition::default();
        replica.stale = None;
        if let Some(left) = replica.frozen_step.take() {
            let (end, epoch) = (now + left, replica.epoch);
            replica.step_ends = Some(end);
            self.agenda.set(end, Event::EndStep { replica: id, epoch });
        }
        for (request, attempt) in std::mem::take(&mut self.replica_mut(id).unheard) {
            self.reach(request, attempt);
        }
        self.step(id);
    }
}

impl Replica {
    /// How a connection to it fails; `None` where it is taken.
    pub(super) fn refusal(&self) -> Option<Failure> {
        let closed = !self.present || matches!(self.condition.door, Door::Closed | Door::Gone);
        closed.then_some(Failure::Connect)
    }

    /// Whether it says anything at all.
    pub(super) fn answers(&self) -> bool {
        self.refusal().is_none() && self.condition.door != Door::Mute
    }

    /// What a health check finds.
    pub(super) fn health(&self, models: &[ModelId]) -> ProbeResult {
        if self.refusal().is_some() {
            ProbeResult::Unhealthy(ProbeFailure::Refused)
        } else if self.condition.door == Door::Mute {
            ProbeResult::Unhealthy(ProbeFailure::Silent)
        } else {
            ProbeResult::Healthy { models: models.to_vec() }
        }
    }

    /// Stops the step under way where it is.
    fn freeze(&mut self, now: expediter_types::Time) {
        if self.condition.frozen {
            return;
        }
        let left = self.step_ends.map(|end| end.since(now));
        self.void_step();
        self.frozen_step = left;
        self.condition.frozen = true;
    }
}
