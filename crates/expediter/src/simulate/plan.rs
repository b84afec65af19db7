//! What is run: a scenario that can be simulated, its workload, and everything that varies between the runs.

use expediter_core::Policy;
use expediter_fleet_sim::Scenario;

use super::source::Source;

/// A scenario file, checked.
pub(crate) struct Plan {
    /// What it is called: the name of its file or of what ships with the program.
    pub(crate) name: String,
    /// What it is about.
    pub(crate) description: String,
    /// The fleet. The policy in it is replaced in each run.
    pub(crate) scenario: Scenario,
    /// Where requests come from.
    pub(crate) source: Source,
    /// The policies to compare.
    pub(crate) policies: Vec<Policy>,
    /// Requests per second to offer; `None` is the workload's own rate.
    pub(crate) rates: Vec<Option<f64>>,
    /// One run for each.
    pub(crate) seeds: Vec<u64>,
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Job {
    /// The policy of every pool.
    pub(crate) policy: Policy,
    /// Requests per second; `None` is the workload's own rate.
    pub(crate) rate: Option<f64>,
    /// Fixes every draw.
    pub(crate) seed: u64,
}

impl Plan {
    /// Every run: policy by policy, each rate by rate, each seed by seed.
    pub(crate) fn jobs(&self) -> Vec<Job> {
        let mut jobs = Vec::new();
        for policy in &self.policies {
            for rate in &self.rates {
                jobs.extend(self.seeds.iter().map(|seed| Job { policy: *policy, rate: *rate, seed: *seed }));
            }
        }
        jobs
    }

    /// The scenario with this policy in every pool.
    pub(crate) fn scenario_of(&self, policy: Policy) -> Scenario {
        let mut scenario = self.scenario.clone();
        scenario.pools.iter_mut().for_each(|pool| pool.dispatcher.policy = policy);
        scenario
    }

    /// Replicas at the start.
    pub(crate) fn replicas(&self) -> u32 {
        self.scenario.pools.iter().map(|pool| pool.replicas).sum()
    }
}
