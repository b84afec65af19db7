//! Runs the jobs of a plan on every core. A run shares nothing with the others and takes its seed as its only
//! source of chance, so that neither the number of threads nor their order shows in what comes out.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use expediter_fleet_sim::{CeilingSearch, Report, Simulation, find_ceiling};
use tokio::sync::mpsc;

use super::outcome::Outcome;
use super::picture::Picture;
use super::plan::{Job, Plan};

/// What is asked of the runs beside their numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wishes {
    /// Search for the ceiling of each policy and seed instead of running each rate.
    pub(crate) ceiling: bool,
    /// Keep what the page draws.
    pub(crate) pictures: bool,
}

/// How far the runs are, and the wish that they stop. Shared by all threads.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    stop: AtomicBool,
    next: AtomicUsize,
    ended: AtomicUsize,
    /// Virtual milliseconds that have passed in all runs together.
    virtual_ms: AtomicU64,
}

impl Shared {
    /// No run goes on after this.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Runs that have ended.
    pub(crate) fn ended(&self) -> usize {
        self.ended.load(Ordering::Relaxed)
    }

    /// Virtual time that has passed, in all runs together.
    pub(crate) fn simulated(&self) -> Duration {
        Duration::from_millis(self.virtual_ms.load(Ordering::Relaxed))
    }
}

/// The runs under way.
pub(crate) struct Runs {
    /// How far they are.
    pub(crate) shared: Arc<Shared>,
    /// How many there are.
    pub(crate) jobs: usize,
    /// Threads that run them.
    pub(crate) threads: usize,
    results: mpsc::UnboundedReceiver<(usize, Result<Outcome>)>,
}

impl Runs {
    /// Starts them.
    pub(crate) fn start(plan: &Arc<Plan>, wishes: Wishes) -> Self {
        let jobs = Arc::new(jobs(plan, wishes));
        let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(jobs.len());
        let (sender, results) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared::default());
        for _ in 0..threads {
            let (plan, jobs, shared, sender) = (plan.clone(), jobs.clone(), shared.clone(), sender.clone());
            thread::spawn(move || {
                let worker = Worker { plan: &plan, jobs: &jobs, shared: &shared, wishes };
                while let Some((place, outcome)) = worker.work() {
                    if sender.send((place, outcome)).is_err() {
                        break;
                    }
                }
            });
        }
        Self { shared, jobs: jobs.len(), threads, results }
    }

    /// The outcomes in order of their jobs, when all have ended.
    ///
    /// # Errors
    /// The first run that could not go on.
    pub(crate) async fn outcomes(&mut self) -> Result<Vec<Outcome>> {
        let mut outcomes: Vec<Option<Outcome>> = (0..self.jobs).map(|_| None).collect();
        while let Some((place, outcome)) = self.results.recv().await {
            match outcome {
                Ok(outcome) => outcomes[place] = Some(outcome),
                Err(error) => {
                    self.shared.stop();
                    return Err(error);
                }
            }
        }
        let Some(outcomes) = outcomes.into_iter().collect() else {
            bail!("a run broke off; please report this with the command and what stands above");
        };
        Ok(outcomes)
    }
}

/// Every run; of a search, one for each policy and seed.
fn jobs(plan: &Plan, wishes: Wishes) -> Vec<Job> {
    let first = plan.rates.first().copied().flatten();
    plan.jobs().into_iter().filter(|job| !wishes.ceiling || job.rate == first).collect()
}

struct Worker<'a> {
    plan: &'a Plan,
    jobs: &'a [Job],
    shared: &'a Shared,
    wishes: Wishes,
}

impl Worker<'_> {
    /// Does the next job; `None` where there is none, or where all shall stop.
    fn work(&self) -> Option<(usize, Result<Outcome>)> {
        let place = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let job = *self.jobs.get(place)?;
        let outcome = if self.wishes.ceiling { self.search(job) } else { self.run(job) };
        self.shared.ended.fetch_add(1, Ordering::Relaxed);
        match outcome {
            Ok(outcome) => outcome.map(|outcome| (place, Ok(outcome))),
            Err(error) => Some((place, Err(error))),
        }
    }

    /// One run; `None` where it was told to stop.
    fn run(&self, job: Job) -> Result<Option<Outcome>> {
        Ok(self.simulate(job)?.map(|report| self.outcome(job, &report)))
    }

    fn outcome(&self, job: Job, report: &Report) -> Outcome {
        let slo = &self.plan.scenario.slo;
        let drawn = self.jobs.len().div_ceil(self.plan.seeds.len());
        let columns = columns(drawn, self.plan.replicas() as usize);
        // Time is drawn of the first seed only: it cannot be averaged without hiding what happens.
        let columns = (job.seed == self.plan.seeds[0]).then_some(columns);
        let picture = self.wishes.pictures.then(|| Picture::of(report, slo, columns));
        Outcome::of(job, report, slo, picture)
    }

    fn simulate(&self, job: Job) -> Result<Option<Report>> {
        let what = || format!("{} with seed {}", job.policy, job.seed);
        let workload = self.plan.source.start(job.rate, job.seed).with_context(what)?;
        let scenario = self.plan.scenario_of(job.policy);
        let mut simulation = Simulation::new(&scenario, workload, job.seed).with_context(what)?;
        let mut goes_on = true;
        while goes_on {
            if self.shared.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            goes_on = simulation.advance(STRIDE);
            self.shared.virtual_ms.fetch_add(STRIDE_MS, Ordering::Relaxed);
        }
        Ok(Some(simulation.report()))
    }

    /// Looks for the highest rate that is sustained. The outcome is that of the run there, or of the lowest rate
    /// tried where none is sustained.
    fn search(&self, job: Job) -> Result<Option<Outcome>> {
        let start = job.rate.or_else(|| self.plan.source.own_load()).unwrap_or(1.0);
        let search = CeilingSearch { start, max: RATE_MAX, min: RATE_MIN, ..CeilingSearch::default() };
        let mut best: Option<Outcome> = None;
        let mut simulated = Duration::ZERO;
        let found = find_ceiling(&search, |rate| {
            let job = Job { rate: Some(rate), ..job };
            let report = self.simulate(job).map_err(Some)?.ok_or(None)?;
            simulated += report.simulated;
            let outcome = self.outcome(job, &report);
            // So few come that none was measured: the ceiling lies higher.
            let sustains = outcome.summary.sustains || outcome.summary.counts.arrived == 0;
            if sustains || best.as_ref().is_none_or(|best| !best.summary.sustains) {
                best = Some(outcome);
            }
            Ok::<bool, Option<anyhow::Error>>(sustains)
        });
        match found {
            Ok(ceiling) => Ok(best.map(|best| Outcome { ceiling: Some(ceiling), simulated, ..best })),
            Err(Some(error)) => Err(error),
            Err(None) => Ok(None),
        }
    }
}

/// Virtual time between two looks at whether to stop.
const STRIDE: Duration = Duration::from_millis(STRIDE_MS);
const STRIDE_MS: u64 = 500;

/// A search goes no higher: no fleet here comes near.
const RATE_MAX: f64 = 1e5;

/// A search goes no lower: a run of minutes has no requests to judge by.
const RATE_MIN: f64 = 0.01;

/// Columns of a heat map, so that those of all runs together take about a megabyte.
fn columns(runs: usize, replicas: usize) -> usize {
    (1_000_000 / (2 * runs * replicas).max(1)).clamp(24, 150)
}
