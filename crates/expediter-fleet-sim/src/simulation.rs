//! The run itself: one queue of events between workload, gateways and replicas.
//!
//! What a gateway does with sockets happens here by events with a delay: a request is decided on after the
//! gateway's overhead, comes to its replica after the network's delay, and what a step brought is heard after
//! it again. The parts: `decide` is the gateway's side, `serve` the replicas', `faults` what goes wrong.

mod agenda;
mod decide;
mod faults;
mod gateway;
mod replica;
mod requests;
mod serve;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use expediter_engine_sim::Progress;
use expediter_types::{Arrival, BlockHash, ModelId, Prng, ReplicaId, RequestId, Time, Tokens};

use self::agenda::{Agenda, Event};
use self::gateway::Gateway;
use self::replica::Replica;
use self::requests::Requests;
use crate::report::{PoolReport, Report, Sample};
use crate::scenario::{Scenario, ScenarioError};
use crate::workload::Workload;

/// A run under way. One scenario, one workload and one seed are one history.
///
/// ```
/// use std::time::Duration;
///
/// use expediter_core::Settings as DispatcherSettings;
/// use expediter_engine_sim::Settings as EngineSettings;
/// use expediter_fleet_sim::{Pool, Scenario, Simulation};
/// use expediter_types::{Arrival, ModelId, Prompt, Time, Tokens};
///
/// let pool = Pool {
///     name: "m-8b".to_owned(),
///     replicas: 2,
///     engine: EngineSettings::default(),
///     models: vec![ModelId(0)],
///     dispatcher: DispatcherSettings::default(),
/// };
/// let mut scenario = Scenario::of(vec![pool]);
/// (scenario.warm_up, scenario.duration) = (Duration::ZERO, Duration::from_secs(10));
/// let requests = (0..100).map(|number| Arrival {
///     at: Time::from_millis(50 * number),
///     model: ModelId(0),
///     tenant: 0,
///     prompt: Prompt::opaque(Tokens(500)),
///     output: Tokens(20),
///     output_cap: Tokens(100),
/// });
/// let mut simulation = Simulation::new(&scenario, Box::new(requests), 1)?;
/// while simulation.advance(Duration::from_secs(1)) {}
/// assert_eq!(simulation.report().requests.len(), 100);
/// # Ok::<(), expediter_fleet_sim::ScenarioError>(())
/// ```
pub struct Simulation {
    scenario: Scenario,
    now: Time,
    agenda: Agenda,
    workload: Box<dyn Workload>,
    /// The open loop has no more requests.
    exhausted: bool,
    gateways: Vec<Gateway>,
    /// By id.
    replicas: Vec<Replica>,
    /// The replicas of each pool, by their number there.
    numbers: Vec<Vec<ReplicaId>>,
    /// The pool of each model.
    models: BTreeMap<ModelId, usize>,
    requests: Requests,
    warm_ups: u64,
    /// Filled by each step anew.
    progress: Vec<Progress>,
    rng: Prng,
    samples: Vec<Sample>,
    tally: Tally,
    history: BlockHash,
}

/// What is counted between two samples.
#[derive(Debug, Default)]
struct Tally {
    arrived: u64,
    refused: u64,
    input_tokens: Tokens,
    output_tokens: Tokens,
}

/// Between two samples of the fleet.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

impl Simulation {
    /// A run that has not begun.
    ///
    /// # Errors
    /// A scenario that cannot be simulated, or a first request that no pool serves.
    pub fn new(scenario: &Scenario, workload: Box<dyn Workload>, seed: u64) -> Result<Self, ScenarioError> {
        scenario.check()?;
        let mut rng = Prng::new(seed);
        let gateways = (0..scenario.gateways).map(|_| Gateway::new(&scenario.pools, &mut rng)).collect();
        let pools = scenario.pools.iter().enumerate();
        let mut simulation = Self {
            now: Time::ZERO,
            agenda: Agenda::default(),
            workload,
            exhausted: false,
            gateways,
            replicas: Vec::new(),
            numbers: vec![Vec::new(); scenario.pools.len()],
            models: pools
                .flat_map(|(index, pool)| pool.models.iter().map(move |model| (*model, index)))
                .collect(),
            requests: Requests::new(scenario.pools.len()),
            warm_ups: 0,
            progress: Vec::new(),
            rng,
            samples: Vec::new(),
            tally: Tally::default(),
            history: BlockHash::root(seed),
            scenario: scenario.clone(),
        };
        for (pool, settings) in scenario.pools.iter().enumerate() {
            for _ in 0..settings.replicas {
                let replica = simulation.add_replica(pool);
                simulation.make_ready(pool, replica);
            }
        }
        for (index, fault) in scenario.faults.iter().enumerate() {
            simulation.agenda.set(fault.at, Event::Fault { index });
        }
        simulation.agenda.set(Time::ZERO + SAMPLE_INTERVAL, Event::Sample);
        simulation.take_next()?;
        Ok(simulation)
    }

    /// Lets `by` of virtual time pass. Returns `false` when the run is over: everything that was sent has ended,
    /// or the time that the scenario leaves it has.
    ///
    /// # Panics
    /// Where the workload asks for a model that no pool serves: [`Scenario`] and workload belong together.
    pub fn advance(&mut self, by: Duration) -> bool {
        let until = self.now + by;
        let horizon = Time::ZERO + self.scenario.duration + self.scenario.drain;
        while let Some(at) = self.agenda.next_at().filter(|at| *at <= until.min(horizon)) {
            self.now = at;
            if let Some((_, event)) = self.agenda.pop() {
                self.happen(event);
            }
            if self.is_done() {
                return false;
            }
        }
        self.now = until.min(horizon);
        self.now < horizon
    }

    /// What the run has brought so far.
    pub fn report(&self) -> Report {
        let (from, until) = (Time::ZERO + self.scenario.warm_up, Time::ZERO + self.scenario.duration);
        let pools = self.scenario.pools.iter().zip(&self.numbers);
        Report {
            requests: self.requests.records(from, until, self.now),
            samples: self.samples.clone(),
            pools: pools
                .map(|(pool, numbers)| PoolReport {
                    name: pool.name.clone(),
                    replicas: numbers.iter().map(|id| self.replica(*id).totals()).collect(),
                })
                .collect(),
            warm_up: self.scenario.warm_up,
            measured: self.now.min(until).since(from),
            simulated: self.now.since(Time::ZERO),
            history: self.history.0,
        }
    }

    fn is_done(&self) -> bool {
        self.exhausted && self.requests.open() == 0
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive { request, open_loop } => self.arrive(request, open_loop),
            Event::Decide { request } => self.decide(request),
            Event::Reach { request, attempt } => self.reach(request, attempt),
            Event::ReachWarmUp { gateway, replica } => self.reach_warm_up(gateway, replica),
            Event::Abort { request, replica } => self.abort(request, replica),
            Event::EndStep { replica, epoch } => self.end_step(replica, epoch),
            Event::Hear { heard } => self.hear(&heard),
            Event::Fail { request, attempt, failure } => self.fail(request, attempt, failure),
            Event::Probe { gateway, replica } => self.probe(gateway, replica),
            Event::Report { gateway, replica } => self.send_report(gateway, replica),
            Event::Timeout { gateway, pool } => {
                self.gateways[gateway].timeout(pool, self.now);
                self.drain_outputs(gateway, pool);
            }
            Event::Fault { index } => self.break_down(index),
            Event::Sample => self.sample(),
        }
    }

    /// Takes the next request of the open loop, to arrive at its time.
    fn take_next(&mut self) -> Result<(), ScenarioError> {
        let end = Time::ZERO + self.scenario.duration;
        let next = self.workload.next().filter(|arrival| arrival.at <= end);
        self.exhausted = next.is_none();
        next.map_or(Ok(()), |arrival| self.take(arrival, true))
    }

    fn take(&mut self, arrival: Arrival, open_loop: bool) -> Result<(), ScenarioError> {
        let Some(&pool) = self.models.get(&arrival.model) else {
            return Err(ScenarioError::UnknownModel(arrival.model));
        };
        let at = arrival.at.max(self.now);
        // In turn; the remainder is a gateway's number.
        let gateway = usize::try_from(self.requests.count() % self.gateways.len() as u64).unwrap_or(0);
        let request = self.requests.take(arrival, at, gateway, pool);
        self.agenda.set(at, Event::Arrive { request, open_loop });
        Ok(())
    }

    fn sample(&mut self) {
        let tally = std::mem::take(&mut self.tally);
        let replicas = self.numbers.iter().flatten().map(|id| self.replica(*id).sample()).collect();
        self.samples.push(Sample {
            at: self.now,
            replicas,
            waiting: self.gateways.iter().map(Gateway::waiting).sum(),
            refused: tally.refused,
            arrived: tally.arrived,
            input_tokens: tally.input_tokens,
            output_tokens: tally.output_tokens,
        });
        self.agenda.set(self.now + SAMPLE_INTERVAL, Event::Sample);
    }

    fn replica(&self, id: ReplicaId) -> &Replica {
        &self.replicas[id.0 as usize]
    }

    fn replica_mut(&mut self, id: ReplicaId) -> &mut Replica {
        &mut self.replicas[id.0 as usize]
    }

    /// Writes what happened into the digest of the run.
    fn note(&mut self, what: Note, id: RequestId, detail: u64) {
        let number = (what as u64) << 56 ^ self.now.0;
        self.history = self.history.then_number(number).then_number(id.0 << 32 ^ detail);
    }
}

/// What the digest of a run is made of.
#[derive(Clone, Copy, Debug)]
enum Note {
    Arrived,
    Dispatched,
    Heard,
    Failed,
    Ended,
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Simulation");
        debug.field("now", &self.now).field("requests", &self.requests.count());
        debug.field("replicas", &self.replicas.len()).finish_non_exhaustive()
    }
}
