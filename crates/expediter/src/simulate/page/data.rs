//! The data of the page, in the shape in which its script reads them.

use std::collections::BTreeMap;

use expediter_fleet_sim::{Quantiles, Spread, Summary};
use serde::Serialize;

use super::super::outcome::{Group, Outcome, compare};
use super::super::picture::{LEVELS, Series};
use super::super::plan::Plan;

/// All of it.
#[derive(Serialize)]
pub(super) struct Data<'a> {
    name: &'a str,
    description: &'a str,
    command: &'a str,
    version: &'static str,
    fleet: String,
    faults: Vec<String>,
    pools: Vec<PoolData<'a>>,
    seeds: &'a [u64],
    /// Of every run, in order.
    digests: Vec<String>,
    duration_seconds: f64,
    warm_up_seconds: f64,
    slo: SloData,
    /// Thousandths at which curves are taken.
    levels: &'static [usize],
    policies: Vec<&'static str>,
    /// Places in `policies`, the best first.
    ranking: Vec<usize>,
    /// `rate`, or `clients`.
    load_unit: &'static str,
    /// What was offered; `null` is the workload's own pace.
    loads: Vec<Option<f64>>,
    /// The load shown first: where policies differ most.
    best_load: usize,
    /// Whether `groups` are those of a search.
    ceilings: bool,
    groups: Vec<GroupData>,
}

#[derive(Serialize)]
struct PoolData<'a> {
    name: &'a str,
    replicas: usize,
}

#[derive(Serialize)]
struct SloData {
    ttft_ms: f64,
    tpot_ms: f64,
    prompt_tokens_max: u64,
    ttft_share: f64,
    tpot_share: f64,
}

/// One policy at one load.
#[derive(Serialize)]
struct GroupData {
    policy: usize,
    load: usize,
    seeds: usize,
    /// Seeds that sustain it.
    sustained: usize,
    numbers: BTreeMap<&'static str, SpreadData>,
    /// Milliseconds at the levels: means over the seeds.
    ttft: Vec<f64>,
    tpot: Vec<f64>,
    answered: f64,
    series: Option<SeriesData>,
}

#[derive(Serialize)]
struct SpreadData {
    mean: f64,
    min: f64,
    max: f64,
    deviation: f64,
}

#[derive(Serialize)]
struct SeriesData {
    column_seconds: f64,
    in_use: Vec<String>,
    resident: Vec<String>,
    /// In gateways and engines together.
    waiting: Vec<f64>,
    refused_per_second: Vec<f64>,
}

impl<'a> Data<'a> {
    pub(super) fn of(plan: &'a Plan, outcomes: &'a [Outcome], command: &'a str) -> Self {
        let ceilings = outcomes.iter().any(|outcome| outcome.ceiling.is_some());
        let groups = Group::all(outcomes, plan.seeds.len());
        // A search has one group a policy, at a rate of its own.
        let loads = if ceilings { vec![None] } else { plan.rates.clone() };
        let best_load = most_telling(&groups, loads.len());
        let slo = &plan.scenario.slo;
        Self {
            name: &plan.name,
            description: &plan.description,
            command,
            version: env!("CARGO_PKG_VERSION"),
            fleet: fleet(plan),
            faults: plan.scenario.faults.iter().map(|fault| told(plan, fault)).collect(),
            pools: pools(plan, outcomes),
            seeds: &plan.seeds,
            digests: outcomes.iter().map(|outcome| format!("{:016x}", outcome.history)).collect(),
            duration_seconds: plan.scenario.duration.as_secs_f64(),
            warm_up_seconds: plan.scenario.warm_up.as_secs_f64(),
            slo: SloData {
                ttft_ms: slo.ttft.as_secs_f64() * 1e3,
                tpot_ms: slo.tpot.as_secs_f64() * 1e3,
                prompt_tokens_max: slo.prompt_max.0,
                ttft_share: slo.ttft_share,
                tpot_share: slo.tpot_share,
            },
            levels: &LEVELS,
            policies: plan.policies.iter().map(|policy| policy.as_str()).collect(),
            ranking: ranking(&groups, loads.len(), best_load, ceilings),
            load_unit: plan.source.load().unwrap_or("rate"),
            best_load,
            groups: groups
                .iter()
                .enumerate()
                .map(|(place, group)| data(plan, group, place, loads.len()))
                .collect(),
            loads,
            ceilings,
        }
    }
}

/// The load at which the goodput of the policies lies furthest apart, as a share of what is offered.
fn most_telling(groups: &[Group<'_>], loads: usize) -> usize {
    let apart = |load: usize| {
        let at = groups.iter().skip(load).step_by(loads);
        let shares = at.map(|group| {
            let of = |number: fn(&Summary) -> f64| group.mean(|outcome| Some(number(&outcome.summary)));
            of(|run| run.goodput_per_second) / of(|run| run.offered_per_second).max(f64::MIN_POSITIVE)
        });
        let (least, most) =
            shares.fold((f64::MAX, 0.0_f64), |(least, most), share| (least.min(share), most.max(share)));
        most - least
    };
    (0..loads).max_by(|a, b| apart(*a).total_cmp(&apart(*b))).unwrap_or_default()
}

/// The policies, the best at this load first; those of a search by their ceilings.
fn ranking(groups: &[Group<'_>], loads: usize, load: usize, ceilings: bool) -> Vec<usize> {
    let at: Vec<&Group<'_>> = groups.iter().skip(load).step_by(loads).collect();
    let mut ranking: Vec<usize> = (0..at.len()).collect();
    ranking.sort_by(|a, b| {
        if ceilings {
            let ceiling =
                |place: usize| at[place].mean(|outcome| outcome.ceiling.as_ref().map(|found| found.rate));
            ceiling(*b).total_cmp(&ceiling(*a))
        } else {
            compare(at[*b], at[*a])
        }
    });
    ranking
}

fn fleet(plan: &Plan) -> String {
    let pools = plan.scenario.pools.iter().map(|pool| {
        let (blocks, size) = (pool.engine.blocks.0, pool.engine.block_size.0);
        format!("{}: {} replicas with {blocks} KV blocks of {size} tokens", pool.name, pool.replicas)
    });
    let gateways = plan.scenario.gateways;
    let suffix = if gateways == 1 { "" } else { "s" };
    format!("{}; {gateways} gateway{suffix}", pools.collect::<Vec<_>>().join(", "))
}

fn told(plan: &Plan, fault: &expediter_fleet_sim::FaultAt) -> String {
    let pool = plan.scenario.pools.get(fault.pool).map_or("", |pool| pool.name.as_str());
    let seconds = std::time::Duration::from_nanos(fault.at.0).as_secs_f64();
    let what = format!("{:?}", fault.fault).to_lowercase();
    format!("{what} at {seconds} s, {pool} replica {}", fault.replica)
}

/// Pools with the replicas that they have in the series, those that joined among them.
fn pools<'a>(plan: &'a Plan, outcomes: &[Outcome]) -> Vec<PoolData<'a>> {
    let replicas = |place: usize| outcomes.first().and_then(|outcome| outcome.replicas.get(place).copied());
    let pools = plan.scenario.pools.iter().enumerate();
    pools
        .map(|(place, pool)| PoolData {
            name: &pool.name,
            replicas: replicas(place).unwrap_or(pool.replicas as usize),
        })
        .collect()
}

fn data(plan: &Plan, group: &Group<'_>, place: usize, loads: usize) -> GroupData {
    let curve = |which: fn(&super::super::picture::Picture) -> &[f64]| {
        let curves = group.outcomes.iter().filter_map(|outcome| outcome.picture.as_ref()).map(which);
        mean_curve(&curves.filter(|curve| !curve.is_empty()).collect::<Vec<_>>())
    };
    let first = group.outcomes[0].picture.as_ref();
    GroupData {
        policy: place / loads,
        load: place % loads,
        seeds: group.outcomes.len(),
        sustained: group.outcomes.iter().filter(|outcome| outcome.summary.sustains).count(),
        numbers: numbers(plan, group),
        ttft: curve(|picture| &picture.ttft_ms),
        tpot: curve(|picture| &picture.tpot_ms),
        answered: group.mean(|outcome| outcome.picture.as_ref().map(|picture| picture.ttft_answered)),
        series: first.and_then(|picture| picture.series.as_ref()).map(series),
    }
}

fn mean_curve(curves: &[&[f64]]) -> Vec<f64> {
    let points = curves.first().map_or(0, |curve| curve.len());
    let mean = |point: usize| curves.iter().map(|curve| curve[point]).sum::<f64>() / curves.len() as f64;
    (0..points).map(mean).map(|value| (value * 1e3).round() / 1e3).collect()
}

type Number = (&'static str, fn(&Summary) -> Option<f64>);

const NUMBERS: [Number; 17] = [
    ("offered", |run| Some(run.offered_per_second)),
    ("answered", |run| Some(run.answered_per_second)),
    ("goodput", |run| Some(run.goodput_per_second)),
    ("output_tokens", |run| Some(run.output_tokens_per_second)),
    ("ttft_p50", |run| ms(run.ttft, |ttft| ttft.p50)),
    ("ttft_p90", |run| ms(run.ttft, |ttft| ttft.p90)),
    ("ttft_p99", |run| ms(run.ttft, |ttft| ttft.p99)),
    ("tpot_p50", |run| ms(run.tpot, |tpot| tpot.p50)),
    ("tpot_p95", |run| ms(run.tpot, |tpot| tpot.p95)),
    ("hit", |run| Some(run.hit_ratio)),
    ("ideal", |run| Some(run.hit_ratio_ideal)),
    ("refused", |run| Some(run.counts.refused() as f64)),
    ("lost", |run| Some((run.counts.unanswered() - run.counts.refused()) as f64)),
    ("preemptions", |run| Some(run.preemptions as f64)),
    ("within_ttft", |run| Some(run.within_ttft)),
    ("within_tpot", |run| Some(run.within_tpot)),
    ("kv_in_use", |run| Some(run.kv_in_use)),
];

fn ms(quantiles: Option<Quantiles>, which: fn(Quantiles) -> std::time::Duration) -> Option<f64> {
    quantiles.map(|quantiles| which(quantiles).as_secs_f64() * 1e3)
}

fn numbers(plan: &Plan, group: &Group<'_>) -> BTreeMap<&'static str, SpreadData> {
    let mut numbers = BTreeMap::new();
    for (name, number) in NUMBERS {
        let spread = group.spread(|outcome| number(&outcome.summary));
        numbers.extend(spread.map(|spread| (name, spread.into())));
    }
    let ceiling =
        |share: f64| group.spread(|outcome| outcome.ceiling.as_ref().map(|found| found.rate * share));
    numbers.extend(ceiling(1.0).map(|spread| ("ceiling", spread.into())));
    let replica = 1.0 / f64::from(plan.replicas());
    numbers.extend(ceiling(replica).map(|spread| ("ceiling_per_replica", spread.into())));
    numbers
}

impl From<Spread> for SpreadData {
    fn from(spread: Spread) -> Self {
        Self { mean: spread.mean, min: spread.min, max: spread.max, deviation: spread.deviation }
    }
}

fn series(series: &Series) -> SeriesData {
    let waiting = series.waiting_gateway.iter().zip(&series.waiting_engine);
    SeriesData {
        column_seconds: series.column.as_secs_f64(),
        in_use: series.in_use.clone(),
        resident: series.resident.clone(),
        waiting: waiting.map(|(gateway, engine)| gateway + engine).collect(),
        refused_per_second: series.refused_per_second.clone(),
    }
}
