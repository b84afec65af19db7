//! What is kept of a run when its report is dropped.

use std::cmp::Ordering;
use std::time::Duration;

use expediter_fleet_sim::{Ceiling, Report, Slo, Spread, Summary, spread};

use super::picture::Picture;
use super::plan::Job;

/// One run, or one search for a ceiling, and what it came to.
pub(crate) struct Outcome {
    /// Which run. After a search, `rate` is the ceiling.
    pub(crate) job: Job,
    /// All pools together.
    pub(crate) summary: Summary,
    /// Each pool by its name; empty where there is but one.
    pub(crate) pools: Vec<(String, Summary)>,
    /// Replicas of each pool, those that joined among them.
    pub(crate) replicas: Vec<usize>,
    /// The digest of every event.
    pub(crate) history: u64,
    /// What the page draws; `None` where no page is asked for.
    pub(crate) picture: Option<Picture>,
    /// The search, where one was made.
    pub(crate) ceiling: Option<Ceiling>,
    /// Virtual time simulated, that of a search's other tries included.
    pub(crate) simulated: Duration,
}

impl Outcome {
    /// Sums a report up.
    pub(crate) fn of(job: Job, report: &Report, slo: &Slo, picture: Option<Picture>) -> Self {
        let pools = report
            .pools
            .iter()
            .zip(0..)
            .map(|(pool, place)| (pool.name.clone(), Summary::of_pool(report, place, slo)));
        Self {
            job,
            summary: Summary::of(report, slo),
            pools: if report.pools.len() > 1 { pools.collect() } else { Vec::new() },
            replicas: report.pools.iter().map(|pool| pool.replicas.len()).collect(),
            history: report.history,
            picture,
            ceiling: None,
            simulated: report.simulated,
        }
    }
}

/// The outcomes of all seeds of one policy at one rate.
pub(crate) struct Group<'a> {
    /// In order of their seeds; never empty.
    pub(crate) outcomes: Vec<&'a Outcome>,
}

impl<'a> Group<'a> {
    /// Splits outcomes, in the order of their jobs, into groups of `seeds`.
    pub(crate) fn all(outcomes: &'a [Outcome], seeds: usize) -> Vec<Self> {
        outcomes.chunks(seeds.max(1)).map(|chunk| Self { outcomes: chunk.iter().collect() }).collect()
    }

    /// The job of the first seed.
    pub(crate) fn job(&self) -> Job {
        self.outcomes[0].job
    }

    /// The spread over the seeds of a number that not every run need have.
    pub(crate) fn spread(&self, number: impl Fn(&Outcome) -> Option<f64>) -> Option<Spread> {
        let values: Vec<f64> = self.outcomes.iter().filter_map(|outcome| number(outcome)).collect();
        spread(&values)
    }

    /// The mean over the seeds; 0 where no run has the number.
    pub(crate) fn mean(&self, number: impl Fn(&Outcome) -> Option<f64>) -> f64 {
        self.spread(number).map_or(0.0, |spread| spread.mean)
    }
}

/// Which of the groups that were offered the same rate comes first: the one with the most goodput; of equal ones
/// that with the shortest TTFT at the 99th percentile. None where there is no goodput to compare.
pub(crate) fn best<'a>(groups: &'a [Group<'a>]) -> Vec<&'a Group<'a>> {
    let mut best: Vec<&Group<'_>> = Vec::new();
    let has_goodput = |group: &&Group<'_>| goodput(group) > 0.0;
    for group in groups.iter().filter(has_goodput) {
        let rival = best.iter_mut().find(|rival| rival.job().rate == group.job().rate);
        match rival {
            None => best.push(group),
            Some(rival) if compare(group, rival).is_gt() => *rival = group,
            Some(_) => {}
        }
    }
    best
}

/// Requests per second within the objectives.
fn goodput(group: &Group<'_>) -> f64 {
    group.mean(|outcome| Some(outcome.summary.goodput_per_second))
}

/// How two groups at one rate compare: greater is better.
pub(crate) fn compare(one: &Group<'_>, other: &Group<'_>) -> Ordering {
    let ttft =
        |group: &Group<'_>| group.mean(|outcome| outcome.summary.ttft.map(|ttft| ttft.p99.as_secs_f64()));
    goodput(one).total_cmp(&goodput(other)).then(ttft(other).total_cmp(&ttft(one)))
}
