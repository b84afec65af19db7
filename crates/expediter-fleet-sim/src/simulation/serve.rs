//! The replicas' side of a run: requests enter engines, steps end, tokens go out.

use expediter_core::{Failure, Output, ProbeResult};
use expediter_engine_sim::{ArriveError, FinishReason, Progress, Request as EngineRequest};
use expediter_types::{ModelId, Prompt, ReplicaId, RequestId, Time, Tokens};

use super::Simulation;
use super::agenda::{Event, Heard};
use super::decide::PROGRESS_INTERVAL;
use super::replica::{Door, Replica};
use crate::report::End;

impl Simulation {
    /// Adds a replica to a pool. Every gateway begins to ask it.
    pub(super) fn add_replica(&mut self, pool: usize) -> ReplicaId {
        let id = ReplicaId(u32::try_from(self.replicas.len()).unwrap_or(u32::MAX));
        let settings = self.scenario.pools[pool].engine.clone();
        self.replicas.push(Replica::new(pool, settings, self.rng.bits(), self.now));
        self.numbers[pool].push(id);
        for gateway in 0..self.gateways.len() {
            self.gateways[gateway].dispatcher(pool).join(id, self.now);
            self.drain_outputs(gateway, pool);
            self.agenda.set(self.now, Event::Probe { gateway, replica: id });
            let phase = self.scenario.report_interval.mul_f64(self.rng.unit());
            self.agenda.set(self.now + phase, Event::Report { gateway, replica: id });
        }
        id
    }

    /// A run begins with a fleet that has been checked and warmed up: that is not what is measured.
    pub(super) fn make_ready(&mut self, pool: usize, id: ReplicaId) {
        let models = self.scenario.pools[pool].models.clone();
        let report = self.replica(id).engine_report();
        for gateway in 0..self.gateways.len() {
            let dispatcher = self.gateways[gateway].dispatcher(pool);
            dispatcher.report(id, &report, self.now);
            dispatcher.probe(id, ProbeResult::Healthy { models: models.clone() }, self.now);
            let warms = |output| matches!(output, Output::WarmUp { replica } if replica == id);
            if dispatcher.poll_output().is_some_and(warms) {
                dispatcher.probe(id, ProbeResult::WarmUp(true), self.now);
            }
            self.drain_outputs(gateway, pool);
        }
    }

    /// An attempt has come to its replica.
    pub(super) fn reach(&mut self, id: RequestId, number: u32) {
        let Some(attempt) = self.requests.attempt(id, number) else { return };
        let replica_id = attempt.replica;
        let Some(content) = self.requests.get(id).and_then(|request| request.content.clone()) else { return };
        let replica = &mut self.replicas[replica_id.0 as usize];
        if let Some(failure) = replica.refusal() {
            return self.fail_later(id, number, failure);
        }
        if replica.condition.door == Door::Mute {
            return replica.unheard.push((id, number));
        }
        if let Some(status) = replica.condition.status {
            return self.answer_status(id, number, status);
        }
        let base = self.scenario.pools[replica.pool].models.first() == Some(&content.model);
        let size = replica.engine.settings().block_size;
        let prompt =
            content.prompt.in_blocks_of(size).unwrap_or_else(|| Prompt::opaque(content.prompt.tokens()));
        let request = engine_request(id, prompt, content.output, (!base).then_some(content.model));
        match replica.engine.arrive(request, self.now) {
            Ok(()) => self.step(replica_id),
            Err(ArriveError::TooLong { .. } | ArriveError::Empty) => self.refuse_by_engine(id, "too_long"),
            Err(ArriveError::Adapter) => self.refuse_by_engine(id, "no_adapters"),
            Err(ArriveError::QueueFull { .. }) => {
                self.fail_later(id, number, Failure::Overloaded { retry_after: None });
            }
        }
    }

    /// An answer that blames the request: it is passed on, and the dispatcher is done with it.
    fn refuse_by_engine(&mut self, id: RequestId, code: &'static str) {
        let Some(request) = self.requests.get(id) else { return };
        let (gateway, pool) = (request.gateway, request.pool);
        self.gateways[gateway].dispatcher(pool).finish(id, self.now);
        self.end(id, End::Refused(code));
        self.drain_outputs(gateway, pool);
    }

    fn answer_status(&mut self, id: RequestId, number: u32, status: u16) {
        match status {
            429 => self.fail_later(id, number, Failure::Overloaded { retry_after: None }),
            400..500 => self.refuse_by_engine(id, "status"),
            _ => self.fail_later(id, number, Failure::ServerError { status }),
        }
    }

    pub(super) fn fail_later(&mut self, request: RequestId, attempt: u32, failure: Failure) {
        self.agenda.set(self.after_network(), Event::Fail { request, attempt, failure });
    }

    /// A gateway's warm-up request has come to a replica: one token of prompt, one of answer.
    pub(super) fn reach_warm_up(&mut self, gateway: usize, id: ReplicaId) {
        self.warm_ups += 1;
        let request = RequestId(WARM_UP | (gateway as u64) << GATEWAY_SHIFT | self.warm_ups);
        let now = self.now;
        let replica = self.replica_mut(id);
        let listens = replica.answers() && replica.condition.status.is_none();
        let prompt = Prompt::opaque(Tokens(1));
        if listens && replica.engine.arrive(engine_request(request, prompt, Tokens(1), None), now).is_ok() {
            return self.step(id);
        }
        // One that hangs is given up by the dispatcher's own limit.
        if replica.condition.door != Door::Mute {
            let heard = vec![Heard::WarmUp { gateway, replica: id, answered: false }];
            self.agenda.set(self.after_network(), Event::Hear { heard });
        }
    }

    /// The connection of an attempt was closed.
    pub(super) fn abort(&mut self, id: RequestId, replica: ReplicaId) {
        let replica = self.replica_mut(replica);
        replica.engine.abort(id);
        replica.unheard.retain(|(unheard, _)| *unheard != id);
    }

    /// Begins the next step of a replica where there is one to begin.
    pub(super) fn step(&mut self, id: ReplicaId) {
        let now = self.now;
        let replica = self.replica_mut(id);
        if let Some(end) = replica.begin_step(now) {
            let epoch = replica.epoch;
            self.agenda.set(end, Event::EndStep { replica: id, epoch });
        }
    }

    /// A step has ended: its tokens go out, and the next begins.
    pub(super) fn end_step(&mut self, id: ReplicaId, epoch: u32) {
        let now = self.now;
        let replica = self.replica_mut(id);
        if replica.epoch != epoch {
            return;
        }
        replica.step_ends = None;
        let cut = replica.condition.cut;
        let mut progress = std::mem::take(&mut self.progress);
        self.replica_mut(id).engine.end_step_into(now, &mut progress);
        let mut heard = Vec::new();
        for progress in progress.drain(..) {
            if let Some(news) = self.news(id, &progress, now) {
                heard.push(news);
            }
            if cut.is_some_and(|after| progress.produced.0 >= after) && progress.end.is_none() {
                self.break_off(id, progress.id);
            }
        }
        self.progress = progress;
        if !heard.is_empty() {
            self.agenda.set(self.after_network(), Event::Hear { heard });
        }
        self.step(id);
    }

    /// What a gateway hears of a request's progress; `None` where it is not told of it now.
    fn news(&mut self, replica: ReplicaId, progress: &Progress, now: Time) -> Option<Heard> {
        if progress.id.0 & WARM_UP != 0 {
            let gateway = usize::try_from((progress.id.0 & !WARM_UP) >> GATEWAY_SHIFT).unwrap_or(usize::MAX);
            return Some(Heard::WarmUp { gateway, replica, answered: true });
        }
        let attempt = self.requests.get_mut(progress.id)?.attempt.as_mut()?;
        if attempt.replica != replica {
            return None;
        }
        let end = progress.end.is_some();
        let due = attempt.told.is_none_or(|told| now.since(told) >= PROGRESS_INTERVAL);
        if !(end || due) {
            return None;
        }
        attempt.told = Some(now);
        attempt.cached = progress.life.cached;
        let (request, attempt) = (progress.id, attempt.number);
        Some(Heard::Output { request, attempt, produced: progress.produced.0, end })
    }

    /// A replica breaks an answer off.
    fn break_off(&mut self, replica: ReplicaId, id: RequestId) {
        self.replica_mut(replica).engine.abort(id);
        let attempt = self.requests.get(id).and_then(|request| request.attempt);
        if let Some(attempt) = attempt.filter(|attempt| attempt.replica == replica) {
            self.fail_later(id, attempt.number, Failure::Death);
        }
    }
}

fn engine_request(id: RequestId, prompt: Prompt, output: Tokens, adapter: Option<ModelId>) -> EngineRequest {
    EngineRequest { id, prompt, output, ends_with: FinishReason::Stop, adapter, priority: 0 }
}

/// Marks the ids of warm-up requests; the gateway's number stands in the bits below.
const WARM_UP: u64 = 1 << 63;
const GATEWAY_SHIFT: u32 = 40;
