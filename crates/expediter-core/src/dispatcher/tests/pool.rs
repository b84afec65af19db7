//! A dispatcher with a clock that tests move by hand.

use std::collections::VecDeque;
use std::time::Duration;

use expediter_types::{EngineReport, ModelId, Prng, Prompt, ReplicaId, RequestId, Time, Tokens};

use crate::{
    Decision, Dispatcher, Failure, Output, ProbeFailure, ProbeResult, Refusal, ReplicaState, ReplicaView,
    Request, SetAsideCause, Settings,
};

/// The model that every replica lists unless a test says otherwise.
pub(super) const MODEL: ModelId = ModelId(7);

/// One request that says nothing special: 100 tokens in, at most 100 out, streamed.
pub(super) fn request() -> Request {
    Request {
        model: MODEL,
        prompt: Prompt::opaque(Tokens(100)),
        output_cap: Tokens(100),
        stream: true,
        wait_limit: None,
    }
}

pub(super) struct Pool {
    pub(super) dispatcher: Dispatcher,
    pub(super) now: Time,
    outputs: VecDeque<Output>,
    next_id: u64,
}

impl Pool {
    /// A pool of `replicas` that are ready since so long that no ramp is left, or comes for those that join.
    pub(super) fn ready(replicas: u32, settings: Settings) -> Self {
        let mut pool = Self::empty(settings);
        for id in 0..replicas {
            pool.join_ready(id);
        }
        pool.pass(60_000);
        pool
    }

    pub(super) fn empty(settings: Settings) -> Self {
        Self {
            dispatcher: Dispatcher::new(settings, Prng::new(1)),
            now: Time::from_millis(1),
            outputs: VecDeque::new(),
            next_id: 0,
        }
    }

    pub(super) fn join_ready(&mut self, id: u32) {
        let id = ReplicaId(id);
        self.dispatcher.join(id, self.now);
        self.healthy(id);
        if self.state(id).0 == ReplicaState::Warming {
            self.warm_up(id, true);
        }
    }

    pub(super) fn healthy(&mut self, replica: ReplicaId) {
        self.dispatcher.probe(replica, ProbeResult::Healthy { models: vec![MODEL] }, self.now);
    }

    pub(super) fn unhealthy(&mut self, replica: ReplicaId, failure: ProbeFailure) {
        self.dispatcher.probe(replica, ProbeResult::Unhealthy(failure), self.now);
    }

    /// Answers the warm-up request that must have been asked for.
    pub(super) fn warm_up(&mut self, replica: ReplicaId, answered: bool) {
        assert_eq!(self.output(), Some(Output::WarmUp { replica }));
        self.dispatcher.probe(replica, ProbeResult::WarmUp(answered), self.now);
    }

    pub(super) fn report(&mut self, replica: u32, running: u64, waiting: u64, progress: u64) {
        let report = EngineReport {
            running: Some(running),
            waiting: Some(waiting),
            progress,
            ..EngineReport::default()
        };
        self.dispatcher.report(ReplicaId(replica), &report, self.now);
    }

    /// Lets time pass, stopping at every deadline on the way.
    pub(super) fn pass(&mut self, millis: u64) {
        let end = self.now + Duration::from_millis(millis);
        while let Some((at, _)) = self.dispatcher.poll_timeout().filter(|(at, _)| *at <= end) {
            self.now = self.now.max(at);
            self.dispatcher.handle_timeout(self.now);
        }
        self.now = end;
    }

    pub(super) fn output(&mut self) -> Option<Output> {
        while let Some(output) = self.dispatcher.poll_output() {
            self.outputs.push_back(output);
        }
        self.outputs.pop_front()
    }

    pub(super) fn send(&mut self, request: Request) -> RequestId {
        self.next_id += 1;
        let id = RequestId(self.next_id);
        self.dispatcher.arrive(id, request, self.now);
        id
    }

    /// Sends an ordinary request, which must be dispatched at once.
    pub(super) fn arrive(&mut self) -> (RequestId, ReplicaId) {
        self.arrive_with(request())
    }

    pub(super) fn arrive_with(&mut self, request: Request) -> (RequestId, ReplicaId) {
        let id = self.send(request);
        let decision = self.decision(id);
        (id, decision.replica)
    }

    /// The next output, which must dispatch `id`.
    pub(super) fn decision(&mut self, id: RequestId) -> Decision {
        match self.output() {
            Some(Output::Dispatch { id: dispatched, replica, decision }) => {
                assert_eq!(dispatched, id);
                assert_eq!(replica, decision.replica);
                decision
            }
            other => panic!("{id} should be dispatched, not {other:?}"),
        }
    }

    /// The next output, which must refuse `id`.
    pub(super) fn refusal(&mut self, id: RequestId) -> Refusal {
        match self.output() {
            Some(Output::Refuse { id: refused, refusal }) => {
                assert_eq!(refused, id);
                refusal
            }
            other => panic!("{id} should be refused, not {other:?}"),
        }
    }

    pub(super) fn fail(&mut self, id: RequestId, failure: Failure) {
        self.dispatcher.fail(id, failure, self.now);
    }

    /// Answers a request well, with first token and end at once.
    pub(super) fn answer(&mut self, id: RequestId) {
        self.dispatcher.first_output(id, self.now);
        self.dispatcher.finish(id, self.now);
    }

    pub(super) fn view(&self, replica: ReplicaId) -> ReplicaView {
        let views = self.dispatcher.replicas(self.now);
        views.into_iter().find(|view| view.id == replica).expect("the replica is known")
    }

    pub(super) fn state(&self, replica: ReplicaId) -> (ReplicaState, Option<SetAsideCause>) {
        let view = self.view(replica);
        (view.state, view.cause)
    }

    /// Fails requests until one lands on `replica` with `failure`; those that land elsewhere are answered.
    pub(super) fn fail_at(&mut self, replica: ReplicaId, failure: Failure) -> RequestId {
        loop {
            let (id, at) = self.arrive();
            if at == replica {
                self.fail(id, failure);
                return id;
            }
            self.answer(id);
        }
    }
}
