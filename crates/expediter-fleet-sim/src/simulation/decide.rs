//! The gateway's side of a run: requests are told to a dispatcher, and what it says is done.

use std::time::Duration;

use expediter_core::{Failure, Output, ProbeResult, Request as CoreRequest};
use expediter_types::{ReplicaId, RequestId, Time, Tokens};

use super::agenda::{Event, Heard};
use super::requests::Attempt;
use super::{Note, Simulation};
use crate::report::End;

impl Simulation {
    /// A request has come to its gateway.
    pub(super) fn arrive(&mut self, id: RequestId, open_loop: bool) {
        self.requests.arrived(id);
        self.tally.arrived += 1;
        self.note(Note::Arrived, id, 0);
        self.agenda.set(self.now + self.scenario.gateway_overhead, Event::Decide { request: id });
        if open_loop {
            self.take_next().expect("a workload keeps to the models of its scenario");
        }
    }

    /// The gateway has read the request.
    pub(super) fn decide(&mut self, id: RequestId) {
        let Some(request) = self.requests.get(id) else { return };
        let Some(content) = &request.content else { return };
        let (gateway, pool) = (request.gateway, request.pool);
        let told = CoreRequest {
            model: content.model,
            prompt: content.prompt.clone(),
            output_cap: content.output_cap,
            stream: true,
            wait_limit: None,
        };
        self.gateways[gateway].dispatcher(pool).arrive(id, told, self.now);
        self.drain_outputs(gateway, pool);
    }

    /// Does what a dispatcher says until it says no more.
    pub(super) fn drain_outputs(&mut self, gateway: usize, pool: usize) {
        while let Some(output) = self.gateways[gateway].poll_output(pool) {
            self.act(gateway, pool, output);
        }
        if let Some(at) = self.gateways[gateway].arm(pool) {
            self.agenda.set(at.max(self.now), Event::Timeout { gateway, pool });
        }
    }

    fn act(&mut self, gateway: usize, pool: usize, output: Output) {
        match output {
            Output::Dispatch { id, replica, decision } => {
                self.dispatch(id, replica, decision.expected_cached);
            }
            Output::Refuse { id, refusal } => self.end(id, End::Refused(refusal.code())),
            Output::Expire { id } => self.end(id, End::Expired),
            Output::Abandon { id, replica } | Output::Cut { id, replica } => self.close(id, replica),
            Output::WarmUp { replica } => {
                self.agenda.set(self.after_network(), Event::ReachWarmUp { gateway, replica });
            }
            Output::Drained { replica } => self.drained(gateway, pool, replica),
        }
    }

    fn dispatch(&mut self, id: RequestId, replica: ReplicaId, expected: Tokens) {
        let Some(request) = self.requests.get_mut(id) else { return };
        request.record.attempts += 1;
        request.record.expected = expected;
        let number = request.record.attempts;
        request.attempt = Some(Attempt { number, replica, told: None, cached: Tokens::ZERO });
        self.replica_mut(replica).report.dispatched += 1;
        self.note(Note::Dispatched, id, u64::from(replica.0));
        self.agenda.set(self.after_network(), Event::Reach { request: id, attempt: number });
    }

    /// The dispatcher wants an attempt closed: its replica sees that, and the dispatcher is told.
    fn close(&mut self, id: RequestId, replica: ReplicaId) {
        let attempt = self.requests.get(id).and_then(|request| request.attempt);
        if attempt.is_some_and(|attempt| attempt.replica == replica) {
            self.agenda.set(self.after_network(), Event::Abort { request: id, replica });
            self.lose(id, Failure::Silent);
        }
    }

    /// The attempt of a request is over, without an answer: its dispatcher is told. With output sent on, nothing is
    /// repeated.
    fn lose(&mut self, id: RequestId, failure: Failure) {
        let Some(request) = self.requests.get_mut(id) else { return };
        request.attempt = None;
        let (gateway, pool, began) = (request.gateway, request.pool, request.record.ttft.is_some());
        self.gateways[gateway].dispatcher(pool).fail(id, failure, self.now);
        if began {
            self.end(id, End::Cut);
        }
    }

    /// A drain is over for one gateway; when it is for all, the replica goes.
    fn drained(&mut self, gateway: usize, pool: usize, replica: ReplicaId) {
        self.gateways[gateway].dispatcher(pool).remove(replica, self.now);
        let now = self.now;
        let known = |gateway: &mut super::gateway::Gateway| {
            gateway.dispatcher(pool).replicas(now).iter().any(|known| known.id == replica)
        };
        if !self.gateways.iter_mut().any(known) {
            self.replica_mut(replica).present = false;
        }
    }

    /// News from a replica has come to the gateways.
    pub(super) fn hear(&mut self, heard: &[Heard]) {
        for news in heard {
            match *news {
                Heard::Output { request, attempt, produced, end } => {
                    self.hear_output(request, attempt, produced, end);
                }
                Heard::WarmUp { gateway, replica, answered } => {
                    let pool = self.replica(replica).pool;
                    let dispatcher = self.gateways[gateway].dispatcher(pool);
                    dispatcher.probe(replica, ProbeResult::WarmUp(answered), self.now);
                    self.drain_outputs(gateway, pool);
                }
            }
        }
    }

    fn hear_output(&mut self, id: RequestId, number: u32, produced: u64, end: bool) {
        let now = self.now;
        let Some(cached) = self.requests.attempt(id, number).map(|attempt| attempt.cached) else { return };
        let Some(request) = self.requests.get_mut(id) else { return };
        let (gateway, pool) = (request.gateway, request.pool);
        let record = &mut request.record;
        let first = record.ttft.is_none();
        self.tally.output_tokens += produced_since(record.output.0, produced);
        record.output.0 = produced;
        if first {
            record.ttft = Some(now.since(record.arrived));
            record.cached = cached;
            self.tally.input_tokens += record.prompt;
        }
        let dispatcher = self.gateways[gateway].dispatcher(pool);
        if first {
            dispatcher.first_output(id, now);
        }
        dispatcher.progress(id, Tokens(produced), now);
        if end {
            dispatcher.finish(id, now);
            self.end(id, End::Answered);
        }
        self.note(Note::Heard, id, produced);
        self.drain_outputs(gateway, pool);
    }

    /// An attempt has failed, as its gateway sees by now.
    pub(super) fn fail(&mut self, id: RequestId, number: u32, failure: Failure) {
        if self.requests.attempt(id, number).is_none() {
            return;
        }
        let Some(request) = self.requests.get(id) else { return };
        let (gateway, pool) = (request.gateway, request.pool);
        self.note(Note::Failed, id, u64::from(number));
        self.lose(id, failure);
        self.drain_outputs(gateway, pool);
    }

    /// A request is settled; its client may send another.
    pub(super) fn end(&mut self, id: RequestId, end: End) {
        if !self.requests.end(id, end, self.now) {
            return;
        }
        self.tally.refused += u64::from(matches!(end, End::Refused(_) | End::Expired));
        self.note(Note::Ended, id, 0);
        let last = Time::ZERO + self.scenario.duration;
        if let Some(arrival) =
            self.workload.follow_up(id.0, self.now).filter(|next| next.at.max(self.now) <= last)
        {
            self.take(arrival, false).expect("a workload keeps to the models of its scenario");
        }
    }

    /// A health check comes to its end. The next is due after the interval.
    pub(super) fn probe(&mut self, gateway: usize, id: ReplicaId) {
        let replica = self.replica(id);
        if !replica.present {
            return;
        }
        let pool = replica.pool;
        let result = replica.health(&self.scenario.pools[pool].models);
        self.gateways[gateway].dispatcher(pool).probe(id, result, self.now);
        self.drain_outputs(gateway, pool);
        self.agenda.set(self.now + self.scenario.probe_interval, Event::Probe { gateway, replica: id });
    }

    /// A report comes to a gateway. The next is due after the interval.
    pub(super) fn send_report(&mut self, gateway: usize, id: ReplicaId) {
        let replica = self.replica(id);
        if !replica.present {
            return;
        }
        if replica.answers() {
            let (pool, report) = (replica.pool, replica.engine_report());
            self.gateways[gateway].dispatcher(pool).report(id, &report, self.now);
            self.drain_outputs(gateway, pool);
        }
        self.agenda.set(self.now + self.scenario.report_interval, Event::Report { gateway, replica: id });
    }

    pub(super) fn after_network(&self) -> Time {
        self.now + self.scenario.network_delay
    }
}

fn produced_since(before: u64, produced: u64) -> Tokens {
    Tokens(produced.saturating_sub(before))
}

/// How often a dispatcher is told how far an answer is: four times a second, as the gateway does.
pub(super) const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);
