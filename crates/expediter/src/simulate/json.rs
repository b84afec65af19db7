//! The results for programs. Names carry their units; what has no value in a run is `null`. A change that takes a
//! field away or gives it another meaning raises `FORMAT`.

use std::collections::BTreeMap;

use expediter_fleet_sim::{Ceiling, Quantiles, Shares, Spread, Summary};
use serde::Serialize;

use super::outcome::{Group, Outcome};
use super::plan::Plan;

/// The version of the shape.
const FORMAT: u32 = 1;

/// Everything, as `--json` writes it. Nothing in it depends on when or how fast it was made: one command, one text.
#[derive(Serialize)]
pub(crate) struct Results<'a> {
    format: u32,
    version: &'static str,
    scenario: ScenarioJson<'a>,
    /// One for each policy, rate and seed, in this order of nesting.
    runs: Vec<RunJson<'a>>,
    /// One for each policy and rate: spreads over the seeds.
    comparison: Vec<ComparisonJson>,
}

#[derive(Serialize)]
struct ScenarioJson<'a> {
    name: &'a str,
    description: &'a str,
    workload: &'a str,
    pools: Vec<PoolJson<'a>>,
    gateways: u32,
    duration_seconds: f64,
    warm_up_seconds: f64,
    slo: SloJson,
}

#[derive(Serialize)]
struct PoolJson<'a> {
    name: &'a str,
    replicas: u32,
    kv_blocks: u64,
    block_size_tokens: u32,
}

#[derive(Serialize)]
struct SloJson {
    ttft_seconds: f64,
    tpot_seconds: f64,
    prompt_tokens_max: u64,
    ttft_share: f64,
    tpot_share: f64,
}

#[derive(Serialize)]
struct RunJson<'a> {
    policy: &'static str,
    /// `null` is the workload's own rate.
    rate_per_second: Option<f64>,
    seed: u64,
    /// Equal digests, equal histories.
    history: String,
    #[serde(flatten)]
    summary: SummaryJson,
    /// By name; empty where there is one pool.
    pools: BTreeMap<&'a str, SummaryJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ceiling: Option<CeilingJson>,
}

#[derive(Serialize)]
struct SummaryJson {
    requests: RequestsJson,
    offered_per_second: f64,
    answered_per_second: f64,
    goodput_per_second: f64,
    prompt_tokens_per_second: f64,
    output_tokens_per_second: f64,
    within_ttft_share: f64,
    within_tpot_share: f64,
    sustains: bool,
    ttft_seconds: Option<QuantilesJson>,
    ttft_seconds_of_prompts_with_objective: Option<QuantilesJson>,
    tpot_seconds: Option<QuantilesJson>,
    total_seconds: Option<QuantilesJson>,
    hit_ratio: f64,
    hit_ratio_ideal: f64,
    hit_ratio_expected: f64,
    preemptions: u64,
    kv_in_use_ratio: f64,
    kv_resident_ratio: f64,
    replica_shares: Option<SharesJson>,
}

#[derive(Serialize)]
struct RequestsJson {
    arrived: u64,
    answered: u64,
    refused: BTreeMap<&'static str, u64>,
    expired: u64,
    cut: u64,
    open: u64,
}

#[derive(Serialize)]
struct QuantilesJson {
    count: u64,
    mean: f64,
    p50: f64,
    p90: f64,
    p95: f64,
    p99: f64,
    max: f64,
}

#[derive(Serialize)]
struct SharesJson {
    min: f64,
    max: f64,
    coefficient_of_variation: f64,
}

#[derive(Serialize)]
struct CeilingJson {
    rate_per_second: f64,
    rate_per_second_per_replica: f64,
    /// `null` where the search went no higher.
    failed_rate_per_second: Option<f64>,
    tried: Vec<TryJson>,
}

#[derive(Serialize)]
struct TryJson {
    rate_per_second: f64,
    sustained: bool,
}

#[derive(Serialize)]
struct ComparisonJson {
    policy: &'static str,
    rate_per_second: Option<f64>,
    seeds: usize,
    sustained_by_seeds: usize,
    spreads: BTreeMap<&'static str, SpreadJson>,
}

#[derive(Serialize)]
struct SpreadJson {
    mean: f64,
    min: f64,
    max: f64,
    standard_deviation: f64,
}

impl<'a> Results<'a> {
    /// What the outcomes of a plan came to.
    pub(crate) fn of(plan: &'a Plan, outcomes: &'a [Outcome]) -> Self {
        let groups = Group::all(outcomes, plan.seeds.len());
        Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION"),
            scenario: scenario(plan),
            runs: outcomes.iter().map(|outcome| run(plan, outcome)).collect(),
            comparison: groups.iter().map(comparison).collect(),
        }
    }
}

fn scenario(plan: &Plan) -> ScenarioJson<'_> {
    let pools = plan.scenario.pools.iter().map(|pool| PoolJson {
        name: &pool.name,
        replicas: pool.replicas,
        kv_blocks: pool.engine.blocks.0,
        block_size_tokens: pool.engine.block_size.0.get(),
    });
    let slo = &plan.scenario.slo;
    ScenarioJson {
        name: &plan.name,
        description: &plan.description,
        workload: plan.source.name(),
        pools: pools.collect(),
        gateways: plan.scenario.gateways,
        duration_seconds: plan.scenario.duration.as_secs_f64(),
        warm_up_seconds: plan.scenario.warm_up.as_secs_f64(),
        slo: SloJson {
            ttft_seconds: slo.ttft.as_secs_f64(),
            tpot_seconds: slo.tpot.as_secs_f64(),
            prompt_tokens_max: slo.prompt_max.0,
            ttft_share: slo.ttft_share,
            tpot_share: slo.tpot_share,
        },
    }
}

fn run<'a>(plan: &Plan, outcome: &'a Outcome) -> RunJson<'a> {
    RunJson {
        policy: outcome.job.policy.as_str(),
        rate_per_second: outcome.job.rate,
        seed: outcome.job.seed,
        history: format!("{:016x}", outcome.history),
        summary: (&outcome.summary).into(),
        pools: outcome.pools.iter().map(|(name, summary)| (name.as_str(), summary.into())).collect(),
        ceiling: outcome.ceiling.as_ref().map(|ceiling| self::ceiling(plan, ceiling)),
    }
}

fn ceiling(plan: &Plan, ceiling: &Ceiling) -> CeilingJson {
    let tried = ceiling.tried.iter();
    CeilingJson {
        rate_per_second: ceiling.rate,
        rate_per_second_per_replica: ceiling.rate / f64::from(plan.replicas()),
        failed_rate_per_second: ceiling.failed,
        tried: tried.map(|&(rate_per_second, sustained)| TryJson { rate_per_second, sustained }).collect(),
    }
}

type Number = fn(&Outcome) -> Option<f64>;

/// The numbers whose spread over the seeds is worth a look.
const COMPARED: [(&str, Number); 12] = [
    ("offered_per_second", |run| Some(run.summary.offered_per_second)),
    ("answered_per_second", |run| Some(run.summary.answered_per_second)),
    ("goodput_per_second", |run| Some(run.summary.goodput_per_second)),
    ("output_tokens_per_second", |run| Some(run.summary.output_tokens_per_second)),
    ("ttft_p50_seconds", |run| run.summary.ttft.map(|ttft| ttft.p50.as_secs_f64())),
    ("ttft_p90_seconds", |run| run.summary.ttft.map(|ttft| ttft.p90.as_secs_f64())),
    ("ttft_p99_seconds", |run| run.summary.ttft.map(|ttft| ttft.p99.as_secs_f64())),
    ("tpot_p50_seconds", |run| run.summary.tpot.map(|tpot| tpot.p50.as_secs_f64())),
    ("tpot_p95_seconds", |run| run.summary.tpot.map(|tpot| tpot.p95.as_secs_f64())),
    ("hit_ratio", |run| Some(run.summary.hit_ratio)),
    ("hit_ratio_ideal", |run| Some(run.summary.hit_ratio_ideal)),
    ("ceiling_per_second", |run| run.ceiling.as_ref().map(|ceiling| ceiling.rate)),
];

fn comparison(group: &Group<'_>) -> ComparisonJson {
    let spreads = COMPARED.iter().filter_map(|(name, number)| Some((*name, group.spread(number)?.into())));
    ComparisonJson {
        policy: group.job().policy.as_str(),
        rate_per_second: group.job().rate,
        seeds: group.outcomes.len(),
        sustained_by_seeds: group.outcomes.iter().filter(|outcome| outcome.summary.sustains).count(),
        spreads: spreads.collect(),
    }
}

impl From<&Summary> for SummaryJson {
    fn from(summary: &Summary) -> Self {
        let counts = &summary.counts;
        Self {
            requests: RequestsJson {
                arrived: counts.arrived,
                answered: counts.answered,
                refused: counts.refused.clone(),
                expired: counts.expired,
                cut: counts.cut,
                open: counts.open,
            },
            offered_per_second: summary.offered_per_second,
            answered_per_second: summary.answered_per_second,
            goodput_per_second: summary.goodput_per_second,
            prompt_tokens_per_second: summary.prompt_tokens_per_second,
            output_tokens_per_second: summary.output_tokens_per_second,
            within_ttft_share: summary.within_ttft,
            within_tpot_share: summary.within_tpot,
            sustains: summary.sustains,
            ttft_seconds: summary.ttft.map(Into::into),
            ttft_seconds_of_prompts_with_objective: summary.ttft_within_prompt_max.map(Into::into),
            tpot_seconds: summary.tpot.map(Into::into),
            total_seconds: summary.total.map(Into::into),
            hit_ratio: summary.hit_ratio,
            hit_ratio_ideal: summary.hit_ratio_ideal,
            hit_ratio_expected: summary.hit_ratio_expected,
            preemptions: summary.preemptions,
            kv_in_use_ratio: summary.kv_in_use,
            kv_resident_ratio: summary.kv_resident,
            replica_shares: summary.replica_shares.map(Into::into),
        }
    }
}

impl From<Quantiles> for QuantilesJson {
    fn from(quantiles: Quantiles) -> Self {
        Self {
            count: quantiles.count,
            mean: quantiles.mean.as_secs_f64(),
            p50: quantiles.p50.as_secs_f64(),
            p90: quantiles.p90.as_secs_f64(),
            p95: quantiles.p95.as_secs_f64(),
            p99: quantiles.p99.as_secs_f64(),
            max: quantiles.max.as_secs_f64(),
        }
    }
}

impl From<Shares> for SharesJson {
    fn from(shares: Shares) -> Self {
        Self { min: shares.min, max: shares.max, coefficient_of_variation: shares.variation }
    }
}

impl From<Spread> for SpreadJson {
    fn from(spread: Spread) -> Self {
        Self { mean: spread.mean, min: spread.min, max: spread.max, standard_deviation: spread.deviation }
    }
}
