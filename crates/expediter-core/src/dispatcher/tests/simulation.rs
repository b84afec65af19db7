//! Inputs drawn at random, good and bad and late, against an oracle that only counts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use expediter_types::{BlockSize, EngineReport, ModelId, Prng, Prompt, ReplicaId, RequestId, Time, Tokens};

use crate::{
    Dispatcher, Failure, Output, Policy, ProbeFailure, ProbeResult, ReplicaState, Request, Settings, Verdict,
};

#[test]
fn no_request_is_lost_or_leaves_twice_and_a_seed_is_one_history() {
    for seed in 0..300 {
        let history = simulate(seed);
        assert_eq!(history, simulate(seed), "seed {seed} gave two histories");
    }
}

/// Draws inputs, drains and checks after each, heals, and checks that everything ends.
fn simulate(seed: u64) -> Vec<Output> {
    let mut run = Run::new(seed);
    for _ in 0..400 {
        run.step();
    }
    run.heal();
    run.history
}

const MODELS: [ModelId; 2] = [ModelId(1), ModelId(2)];

/// What the oracle knows of a request that has not ended.
#[derive(Debug, Default)]
struct Known {
    at: Option<ReplicaId>,
    tried: BTreeSet<ReplicaId>,
    output: bool,
}

struct Run {
    seed: u64,
    dispatcher: Dispatcher,
    rng: Prng,
    now: Time,
    requests: BTreeMap<RequestId, Known>,
    ended: BTreeSet<RequestId>,
    /// Replicas in the pool, and whether each is drained.
    fleet: BTreeMap<ReplicaId, bool>,
    warming: BTreeSet<ReplicaId>,
    next_replica: u32,
    next_request: u64,
    /// Kinds of input left out of this run.
    without: u64,
    history: Vec<Output>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = Prng::new(seed);
        let settings = Settings {
            policy: Policy::ALL[rng.below(Policy::ALL.len())],
            attempts_max: 1 + rng.below(4) as u32,
            retry_per_second_min: rng.below(20) as u32,
            waiting_max: rng.below(6),
            warm_up: rng.below(4) > 0,
            first_output_limit: Duration::from_secs(1 + rng.below(60) as u64),
            ..Settings::default()
        };
        let without = rng.bits() & rng.bits();
        // Shown with the failure, since nextest captures it.
        #[expect(clippy::print_stdout, reason = "a failed seed is to be repeated with what it drew")]
        {
            println!("seed {seed} without {without:#x}: {settings:?}");
        }
        Self {
            seed,
            dispatcher: Dispatcher::new(settings, Prng::new(seed ^ 0xd15)),
            rng,
            now: Time::ZERO,
            requests: BTreeMap::new(),
            ended: BTreeSet::new(),
            fleet: BTreeMap::new(),
            warming: BTreeSet::new(),
            next_replica: 0,
            next_request: 0,
            without,
            history: Vec::new(),
        }
    }

    fn step(&mut self) {
        let kind = self.rng.below(24);
        if kind > 8 && self.without >> kind & 1 == 1 {
            return;
        }
        match kind {
            0..4 => self.arrive(),
            4..6 => self.pass(),
            6 if self.fleet.len() < 6 => self.join(),
            7 | 8 => self.probe_healthy(),
            9 => self.probe_unhealthy(),
            10 | 11 => self.answer_warm_up(),
            12 => self.report(),
            13 => self.drain_or_undrain(),
            14 => self.remove(),
            15 => self.leave(),
            16 | 17 => self.fail(),
            18 => self.change_settings(),
            19 | 20 => self.first_output(),
            _ => self.finish(),
        }
        self.drain();
        self.check();
    }

    fn pass(&mut self) {
        let most = [10, 1_000, 20_000][self.rng.below(3)];
        let end = self.now + Duration::from_millis(self.rng.below(most) as u64);
        while let Some((at, _)) = self.dispatcher.poll_timeout().filter(|(at, _)| *at <= end) {
            self.now = self.now.max(at);
            self.dispatcher.handle_timeout(self.now);
            assert!(self.dispatcher.poll_timeout().is_none_or(|(next, _)| next > self.now));
            self.drain();
            self.check();
        }
        self.now = end;
    }

    fn arrive(&mut self) {
        self.next_request += 1;
        let id = RequestId(self.next_request);
        let request = Request {
            model: MODELS[self.rng.below(20) / 19],
            prompt: self.prompt(),
            output_cap: Tokens(if self.rng.below(50) == 0 { u64::MAX } else { self.rng.below(1_000) as u64 }),
            stream: self.rng.below(2) == 0,
            wait_limit: (self.rng.below(3) == 0).then(|| Duration::from_millis(self.rng.below(5_000) as u64)),
        };
        self.requests.insert(id, Known::default());
        self.dispatcher.arrive(id, request.clone(), self.now);
        self.drain();
        if self.requests.contains_key(&id) {
            self.dispatcher.arrive(id, request, self.now);
        }
    }

    /// Now and then one of which only the length is known, otherwise one whose beginning recurs.
    fn prompt(&mut self) -> Prompt {
        match self.rng.below(50) {
            0 => Prompt::opaque(Tokens(u64::MAX)),
            1..10 => Prompt::opaque(Tokens(self.rng.below(10_000) as u64)),
            _ => {
                let ids: Vec<u32> = (0..self.rng.below(100) as u32).collect();
                Prompt::from_token_ids(&ids, BlockSize::DEFAULT, self.rng.below(3) as u64)
            }
        }
    }

    fn join(&mut self) {
        let id = ReplicaId(self.next_replica);
        self.next_replica += 1;
        self.fleet.insert(id, false);
        self.dispatcher.join(id, self.now);
    }

    fn probe_healthy(&mut self) {
        let models = match self.rng.below(10) {
            0 => vec![],
            1 => MODELS.to_vec(),
            _ => vec![MODELS[0]],
        };
        if let Some(replica) = self.any_replica() {
            self.dispatcher.probe(replica, ProbeResult::Healthy { models }, self.now);
        }
    }

    fn probe_unhealthy(&mut self) {
        let failures = [
            ProbeFailure::Refused,
            ProbeFailure::Status(503),
            ProbeFailure::Silent,
            ProbeFailure::NoModel,
            ProbeFailure::Malformed,
        ];
        let failure = failures[self.rng.below(5)];
        if let Some(replica) = self.any_replica() {
            for _ in 0..=self.rng.below(3) {
                self.dispatcher.probe(replica, ProbeResult::Unhealthy(failure), self.now);
            }
        }
    }

    fn answer_warm_up(&mut self) {
        // Mostly one that was asked for, now and then one that was not.
        let asked = self.warming.pop_first().filter(|_| self.rng.below(10) > 0);
        if let Some(replica) = asked.or_else(|| self.any_replica()) {
            let answered = self.rng.below(4) > 0;
            self.dispatcher.probe(replica, ProbeResult::WarmUp(answered), self.now);
        }
    }

    fn report(&mut self) {
        let report = EngineReport {
            running: (self.rng.below(4) > 0).then(|| self.rng.below(20) as u64),
            waiting: (self.rng.below(4) > 0).then(|| self.rng.bits() >> self.rng.below(64)),
            kv_usage: (self.rng.below(4) > 0).then(|| self.rng.unit()),
            blocks: (self.rng.below(2) == 0).then(|| self.rng.below(20) as u64),
            block_size: (self.rng.below(2) == 0).then(|| 1 << self.rng.below(6)),
            progress: self.rng.below(3) as u64,
            started_at: (self.rng.below(2) == 0).then(|| self.rng.below(5) as f64),
            ..EngineReport::default()
        };
        if let Some(replica) = self.any_replica() {
            self.dispatcher.report(replica, &report, self.now);
        }
    }

    fn drain_or_undrain(&mut self) {
        let Some(replica) = self.any_replica() else { return };
        let drain = self.rng.below(2) == 0;
        if let Some(drained) = self.fleet.get_mut(&replica) {
            *drained = drain;
        }
        if drain {
            let limit = (self.rng.below(2) == 0).then(|| Duration::from_millis(self.rng.below(5_000) as u64));
            self.dispatcher.drain(replica, limit, self.now);
        } else {
            self.dispatcher.undrain(replica, self.now);
        }
    }

    fn remove(&mut self) {
        if self.rng.below(3) == 0
            && let Some(replica) = self.any_replica()
        {
            self.fleet.remove(&replica);
            self.dispatcher.remove(replica, self.now);
        }
    }

    fn leave(&mut self) {
        let Some(id) = self.any_request() else { return };
        self.dispatcher.leave(id, self.now);
        if self.requests.remove(&id).is_some() {
            self.end(id);
        }
    }

    fn fail(&mut self) {
        let failures = [
            Failure::Connect,
            Failure::Death,
            Failure::Silent,
            Failure::ServerError { status: 500 },
            Failure::ServerError { status: 501 },
            Failure::Overloaded { retry_after: None },
            Failure::Overloaded { retry_after: Some(Duration::MAX) },
            Failure::Lost,
            Failure::Malformed,
        ];
        let failure = failures[self.rng.below(failures.len())];
        if let Some(id) = self.any_request() {
            self.fail_with(id, failure);
        }
    }

    fn fail_with(&mut self, id: RequestId, failure: Failure) {
        self.dispatcher.fail(id, failure, self.now);
        let Some(known) = self.requests.get_mut(&id) else { return };
        if let Some(replica) = known.at.take() {
            known.tried.insert(replica);
            if known.output {
                self.requests.remove(&id);
                self.end(id);
            }
        }
    }

    fn first_output(&mut self) {
        let Some(id) = self.any_request() else { return };
        self.dispatcher.first_output(id, self.now);
        if self.rng.below(2) == 0 {
            self.dispatcher.progress(id, Tokens(self.rng.below(500) as u64), self.now);
        }
        if let Some(known) = self.requests.get_mut(&id).filter(|known| known.at.is_some()) {
            known.output = true;
        }
    }

    fn finish(&mut self) {
        let Some(id) = self.any_request() else { return };
        self.dispatcher.finish(id, self.now);
        if self.requests.get(&id).is_some_and(|known| known.at.is_some()) {
            self.requests.remove(&id);
            self.end(id);
        }
    }

    fn change_settings(&mut self) {
        let policy = Policy::ALL[self.rng.below(Policy::ALL.len())];
        let settings = Settings { policy, waiting_max: 6, ..Settings::default() };
        self.dispatcher.set_settings(settings, self.now);
    }

    /// A replica of the pool, or now and then one that is gone.
    fn any_replica(&mut self) -> Option<ReplicaId> {
        if self.rng.below(20) == 0 && self.next_replica > 0 {
            return Some(ReplicaId(self.rng.below(self.next_replica as usize) as u32));
        }
        let count = self.fleet.len();
        (count > 0).then(|| self.fleet.keys().nth(self.rng.below(count)).copied())?
    }

    /// A request that has not ended, or now and then one that has, or never was.
    fn any_request(&mut self) -> Option<RequestId> {
        if self.rng.below(10) == 0 {
            return Some(RequestId(self.rng.below(self.next_request as usize + 2) as u64));
        }
        let count = self.requests.len();
        (count > 0).then(|| self.requests.keys().nth(self.rng.below(count)).copied())?
    }

    fn end(&mut self, id: RequestId) {
        assert!(self.ended.insert(id), "seed {}: {id} ended twice", self.seed);
    }

    fn drain(&mut self) {
        let seed = self.seed;
        while let Some(output) = self.dispatcher.poll_output() {
            match &output {
                Output::Dispatch { id, replica, decision } => {
                    let known =
                        self.requests.get_mut(id).expect("a request that has not ended is dispatched");
                    assert_eq!(known.at, None, "seed {seed}: {id} is at two replicas");
                    assert!(!known.tried.contains(replica), "seed {seed}: {id} to {replica} again");
                    assert_eq!(self.fleet.get(replica), Some(&false), "seed {seed}: {replica} takes nothing");
                    assert_eq!(decision.attempt as usize, known.tried.len() + 1);
                    let chosen = decision.candidates.iter().filter(|c| c.verdict == Verdict::Chosen);
                    assert_eq!(chosen.map(|c| c.replica).collect::<Vec<_>>(), [*replica]);
                    assert!(decision.candidates.is_sorted_by_key(|c| c.replica));
                    assert!(decision.candidates.iter().all(|c| c.load.is_finite() && c.load >= 0.0));
                    assert!(decision.candidates.iter().all(|c| (0.0..=1.0).contains(&c.prefix_share)));
                    let at = decision.candidates.iter().find(|c| c.replica == *replica);
                    assert_eq!(at.map(|c| c.cached), Some(decision.expected_cached));
                    known.at = Some(*replica);
                }
                Output::Refuse { id, .. } | Output::Expire { id } => {
                    let known = self.requests.remove(id).expect("a request that has not ended is refused");
                    assert_eq!(known.at, None, "seed {seed}: {id} is refused while it is at a replica");
                    self.end(*id);
                }
                Output::Abandon { id, replica } => {
                    let known = &self.requests[id];
                    assert!(known.at == Some(*replica) && !known.output, "seed {seed}: {id} is not silent");
                }
                Output::Cut { id, replica } => {
                    assert_eq!(self.requests[id].at, Some(*replica), "seed {seed}: {id} is not there");
                    assert_eq!(self.fleet.get(replica), Some(&true), "seed {seed}: {replica} is not drained");
                }
                Output::WarmUp { replica } => {
                    assert_eq!(
                        self.fleet.get(replica),
                        Some(&false),
                        "seed {seed}: {replica} needs no trial"
                    );
                    self.warming.insert(*replica);
                }
                Output::Drained { replica } => {
                    assert_eq!(
                        self.fleet.get(replica),
                        Some(&true),
                        "seed {seed}: {replica} was not drained"
                    );
                }
            }
            self.history.push(output);
        }
    }

    fn check(&self) {
        let seed = self.seed;
        let views = self.dispatcher.replicas(self.now);
        assert!(views.is_sorted_by_key(|view| view.id));
        for view in &views {
            let here = self.requests.values().filter(|known| known.at == Some(view.id)).count();
            assert_eq!(view.in_flight, here as u64, "seed {seed}: requests at {}", view.id);
            assert_eq!(view.cause.is_some(), view.state == ReplicaState::SetAside);
            match self.fleet.get(&view.id) {
                None => assert_eq!(view.state, ReplicaState::Gone),
                Some(drained) => assert_eq!(*drained, view.state == ReplicaState::Draining),
            }
            assert!(view.state != ReplicaState::Gone || here > 0, "seed {seed}: {} is kept", view.id);
            let silent =
                self.requests.values().filter(|known| known.at == Some(view.id) && !known.output).count();
            assert!(
                silent > 0 || view.pending_prefill == Tokens::ZERO,
                "seed {seed}: pending prompts leak at {}",
                view.id
            );
            assert!(
                here > 0 || view.in_flight_tokens == Tokens::ZERO,
                "seed {seed}: tokens leak at {}",
                view.id
            );
        }
        assert!(self.fleet.keys().all(|id| views.iter().any(|view| view.id == *id)));
        let waiting = self.requests.values().filter(|known| known.at.is_none()).count();
        assert_eq!(self.dispatcher.waiting(), waiting, "seed {seed}: requests waiting");
    }

    /// Everything works from here on: every request must come to an end.
    fn heal(&mut self) {
        self.join();
        let replicas: Vec<ReplicaId> = self.fleet.keys().copied().collect();
        for replica in &replicas {
            self.fleet.insert(*replica, false);
            self.dispatcher.undrain(*replica, self.now);
        }
        for _ in 0..120 {
            for replica in &replicas {
                let models = MODELS.to_vec();
                self.dispatcher.probe(*replica, ProbeResult::Healthy { models }, self.now);
            }
            self.drain();
            while let Some(replica) = self.warming.pop_first() {
                self.dispatcher.probe(replica, ProbeResult::WarmUp(true), self.now);
                self.drain();
            }
            let at: Vec<RequestId> =
                self.requests.iter().filter(|(_, known)| known.at.is_some()).map(|(id, _)| *id).collect();
            for id in at {
                self.dispatcher.finish(id, self.now);
                self.requests.remove(&id);
                self.end(id);
            }
            self.check();
            let end = self.now + Duration::from_secs(1);
            while let Some((at, _)) = self.dispatcher.poll_timeout().filter(|(at, _)| *at <= end) {
                self.now = self.now.max(at);
                self.dispatcher.handle_timeout(self.now);
                self.drain();
            }
            self.now = end;
        }
        let seed = self.seed;
        assert!(self.requests.is_empty(), "seed {seed}: {:?} never ended", self.requests);
        assert_eq!(self.ended.len() as u64, self.next_request, "seed {seed}: a request was lost");
        for view in self.dispatcher.replicas(self.now) {
            assert_eq!(view.state, ReplicaState::Ready, "seed {seed}: {} stays away", view.id);
            assert_eq!((view.in_flight, view.in_flight_tokens), (0, Tokens::ZERO), "seed {seed}");
        }
        assert_eq!(self.dispatcher.poll_timeout(), None, "seed {seed}: a deadline is left behind");
    }
}
