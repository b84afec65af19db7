//! Runs over seeds, and the numbers that published results are given in.

use std::fmt;
use std::time::Duration;

use expediter_fleet_sim::{Distribution, Report, Sample, Scenario, Workload, spread};
use expediter_types::Time;

use super::{Router, support};

/// One number over the seeds.
#[derive(Clone, Debug)]
pub struct Number(Vec<f64>);

impl Number {
    pub fn mean(&self) -> f64 {
        spread(&self.0).map_or(f64::NAN, |spread| spread.mean)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(spread) = spread(&self.0) else { return f.write_str("-") };
        let digits = match spread.mean.abs() {
            mean if mean >= 100.0 => 0,
            mean if mean >= 10.0 => 1,
            _ => 2,
        };
        write!(f, "{:.digits$} [{:.digits$}, {:.digits$}]", spread.mean, spread.min, spread.max)
    }
}

/// The runs of one router under one load.
pub struct Runs {
    pub reports: Vec<Report>,
}

impl Runs {
    pub fn number(&self, of: impl Fn(&Report) -> f64) -> Number {
        Number(self.reports.iter().map(of).collect())
    }
}

/// Runs every router under every load with every seed. `make` gives the fleet and the traffic of a load.
pub fn run_all<L: Sync>(
    routers: &[Router],
    loads: &[L],
    seeds: u64,
    make: impl Fn(&L, u64) -> (Scenario, Box<dyn Workload>) + Sync,
) -> Vec<Vec<Runs>> {
    let mut jobs = Vec::new();
    for router in routers {
        for load in loads {
            jobs.extend((0..seeds).map(|seed| (router, load, seed)));
        }
    }
    let reports = support::parallel(&jobs, |(router, load, seed)| {
        let (mut scenario, workload) = make(load, *seed);
        for pool in &mut scenario.pools {
            pool.dispatcher.policy = router.policy;
            pool.dispatcher.policy_parameters = router.parameters.clone();
        }
        support::run(&scenario, workload, *seed)
    });
    let mut reports = reports.into_iter();
    let runs = |_: &L, reports: &mut std::vec::IntoIter<Report>| Runs {
        reports: reports.by_ref().take(usize::try_from(seeds).unwrap_or(usize::MAX)).collect(),
    };
    routers.iter().map(|_| loads.iter().map(|load| runs(load, &mut reports)).collect()).collect()
}

/// Tokens of answers per second of the measured time.
pub fn output_rate(report: &Report) -> f64 {
    rate(report, |sample| sample.output_tokens.0)
}

/// Tokens of prompts whose answer began, per second of the measured time.
pub fn input_rate(report: &Report) -> f64 {
    rate(report, |sample| sample.input_tokens.0)
}

fn rate(report: &Report, of: impl Fn(&Sample) -> u64) -> f64 {
    let until = Time::ZERO + report.warm_up + report.measured;
    let within =
        report.samples.iter().filter(|sample| Time::ZERO + report.warm_up < sample.at && sample.at <= until);
    within.map(of).sum::<u64>() as f64 / report.measured.as_secs_f64().max(1e-9)
}

/// Prompt and answer tokens of everything, per second from the first arrival to the last token.
pub fn total_rate_of_batch(report: &Report) -> f64 {
    let tokens: u64 = report.requests.iter().map(|request| request.prompt.0 + request.output.0).sum();
    let start = report.requests.iter().map(|request| request.arrived).min().unwrap_or(Time::ZERO);
    let end = report.requests.iter().map(|request| request.arrived + request.total).max();
    let taken = end.unwrap_or(Time::ZERO).since(start);
    tokens as f64 / taken.as_secs_f64().max(1e-9)
}

/// Cached ÷ prompt tokens of requests whose answer began, in per cent.
pub fn hit_percent(report: &Report) -> f64 {
    let began = || report.requests.iter().filter(|request| request.ttft.is_some());
    let prompt: u64 = began().map(|request| request.prompt.0).sum();
    100.0 * began().map(|request| request.cached.0).sum::<u64>() as f64 / prompt.max(1) as f64
}

/// Seconds to the first token. A request without one counts as the time that it waited.
pub fn ttft(report: &Report, from: Duration, until: Duration) -> Distribution {
    let (from, until) = (Time::ZERO + from, Time::ZERO + until);
    let within = report.requests.iter().filter(|request| from <= request.arrived && request.arrived < until);
    within.map(|request| request.ttft.unwrap_or(request.total)).collect()
}

pub fn ttft_mean(report: &Report) -> f64 {
    ttft(report, Duration::ZERO, Duration::MAX).mean().map_or(f64::NAN, |mean| mean.as_secs_f64())
}

pub fn ttft_p90(report: &Report) -> f64 {
    ttft(report, Duration::ZERO, Duration::MAX).quantile(900).map_or(f64::NAN, |p90| p90.as_secs_f64())
}

pub fn tpot_mean_ms(report: &Report) -> f64 {
    let times: Distribution =
        report.requests.iter().filter_map(expediter_fleet_sim::RequestRecord::tpot).collect();
    times.mean().map_or(f64::NAN, |mean| 1e3 * mean.as_secs_f64())
}
