//! The highest rate per replica inside the objectives, for every row of the published capacity table, as Markdown.
//!
//! `cargo run --release -p expediter-fleet-sim --example capacity [seeds] [part of a row's name]`

#![allow(clippy::print_stdout, unreachable_pub, reason = "an example talks to people")]
#![allow(clippy::approx_constant, reason = "3.14 requests per second are not pi")]

#[path = "support/mod.rs"]
mod support;
#[path = "support/traces.rs"]
mod traces;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use expediter_core::{Policy, Settings as DispatcherSettings};
use expediter_engine_sim::{Profile, Settings as EngineSettings};
use expediter_fleet_sim::workload::{Arrivals, Capacity, Lengths};
use expediter_fleet_sim::{CeilingSearch, Pool, Scenario, Slo, Summary, find_ceiling, spread};
use expediter_types::{Blocks, ModelId, Tokens};

/// One row of the table: what is simulated, and the published rate for each share of hits.
struct Row {
    name: &'static str,
    profile: Profile,
    blocks: u64,
    replicas: u32,
    ttft_ms: u64,
    tpot_ms: u64,
    step_factor: f64,
    lengths: Length,
    policy: Policy,
    cv: f64,
    budget: u64,
    published: &'static [(f64, f64)],
}

#[derive(Clone, Copy, PartialEq)]
enum Length {
    Fixed,
    Conversation,
}

const SLA_8B: Row = Row {
    name: "8B, SLA",
    profile: Profile::Llama3_8bTp1A100,
    blocks: 27_853,
    replicas: 8,
    ttft_ms: 400,
    tpot_ms: 50,
    step_factor: 1.0,
    lengths: Length::Fixed,
    policy: Policy::LeastPendingTokens,
    cv: 1.0,
    budget: 2_048,
    published: &[(0.0, 4.0), (0.5, 5.7), (0.8, 7.4), (0.95, 8.7), (1.0, 9.3)],
};

const CONVERSATION: Row = Row {
    name: "8B, SLA, conversation lengths",
    lengths: Length::Conversation,
    published: &[(0.0, 3.7), (0.5, 4.5), (0.8, 5.1), (0.95, 5.4), (1.0, 5.6)],
    ..SLA_8B
};

const TP2: Row = Row {
    name: "70B TP2 at 0.90, SLA",
    profile: Profile::Llama3_70bTp2A100,
    blocks: 1_550,
    published: &[(0.0, 0.0), (0.5, 0.0), (0.8, 0.0), (0.95, 0.03), (1.0, 0.14)],
    ..SLA_8B
};

const TP4: Row = Row {
    name: "70B TP4, SLA",
    profile: Profile::Llama3_70bTp4A100,
    blocks: 30_000,
    published: &[(0.0, 0.07), (0.5, 0.10), (0.8, 0.10), (0.95, 0.27), (1.0, 3.6)],
    ..SLA_8B
};

fn rows() -> Vec<Row> {
    let router = |name, policy, published| Row { name, policy, published, replicas: 16, ..CONVERSATION };
    let bursts = |name, cv, published| Row { name, cv, published, replicas: 16, ..CONVERSATION };
    let budget = |name, budget, published| Row { name, budget, published, ..CONVERSATION };
    vec![
        SLA_8B,
        CONVERSATION,
        Row {
            name: "8B + LoRA (x1.2), SLA",
            step_factor: 1.2,
            published: &[(0.0, 3.2), (0.5, 4.4), (0.8, 5.8)],
            ..SLA_8B
        },
        TP2,
        Row {
            name: "70B TP2 at 0.90, 1 s / 75 ms",
            ttft_ms: 1_000,
            tpot_ms: 75,
            published: &[(0.0, 0.35), (0.8, 0.85), (0.95, 1.31), (1.0, 1.62)],
            ..TP2
        },
        Row {
            name: "70B TP2 at 0.95, 1 s / 75 ms",
            blocks: 3_130,
            ttft_ms: 1_000,
            tpot_ms: 75,
            published: &[(0.0, 0.42), (0.8, 0.99), (0.95, 1.37), (1.0, 1.62)],
            ..TP2
        },
        Row {
            name: "70B TP2 at 0.95, 1 s / 100 ms",
            blocks: 3_130,
            ttft_ms: 1_000,
            tpot_ms: 100,
            published: &[(0.0, 0.56), (0.8, 1.48), (0.95, 2.08), (1.0, 2.40)],
            ..TP2
        },
        TP4,
        Row {
            name: "70B TP4, 1 s / 50 ms",
            ttft_ms: 1_000,
            published: &[(0.0, 0.99), (0.8, 2.25), (0.95, 3.14), (1.0, 3.64)],
            ..TP4
        },
        router("router: least_pending_tokens", Policy::LeastPendingTokens, &[(0.0, 3.7), (0.8, 5.1)]),
        router("router: power_of_two_tokens", Policy::PowerOfTwoTokens, &[(0.0, 2.0), (0.8, 3.8)]),
        router("router: power_of_two", Policy::PowerOfTwo, &[(0.0, 2.0), (0.8, 3.8)]),
        router("router: round_robin", Policy::RoundRobin, &[(0.0, 2.1), (0.8, 3.0)]),
        router("router: least_requests", Policy::LeastRequests, &[(0.0, 0.95), (0.8, 1.4)]),
        router("router: random", Policy::Random, &[(0.0, 0.3), (0.8, 0.6)]),
        bursts("arrival CV 1", 1.0, &[(0.8, 5.1)]),
        bursts("arrival CV 2", 2.0, &[(0.8, 5.1)]),
        bursts("arrival CV 4", 4.0, &[(0.8, 4.4)]),
        budget("token budget 512", 512, &[(0.8, 5.2)]),
        budget("token budget 1,024", 1_024, &[(0.8, 5.1)]),
        budget("token budget 2,048", 2_048, &[(0.8, 5.1)]),
        budget("token budget 4,096", 4_096, &[(0.8, 5.0)]),
        budget("token budget 8,192", 8_192, &[(0.8, 5.0)]),
    ]
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seeds: usize =
        arguments.next().map_or(3, |seeds| seeds.parse().expect("the first argument is a number of seeds"));
    let wanted = arguments.next().unwrap_or_default();
    let pairs = traces::conversation_pairs();
    let rows: Vec<Row> = rows().into_iter().filter(|row| row.name.contains(&wanted)).collect();
    let cells: Vec<(usize, f64, f64, u64)> = (0..rows.len())
        .flat_map(|row| rows[row].published.iter().map(move |(hit, published)| (row, *hit, *published)))
        .flat_map(|(row, hit, published)| (0..seeds as u64).map(move |seed| (row, hit, published, seed)))
        .collect();
    let rates = support::parallel(&cells, |(row, hit, published, seed)| {
        ceiling(&rows[*row], *hit, *published, *seed, &pairs)
    });
    println!("| pool, objective | hit | published | simulated | least to most | difference |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for (cells, rates) in cells.chunks(seeds).zip(rates.chunks(seeds)) {
        let (row, hit, published, _) = cells[0];
        let found = spread(rates).expect("there is a seed");
        let difference = if published == 0.0 {
            String::new()
        } else {
            format!("{:+.0} %", 100.0 * (found.mean / published - 1.0))
        };
        println!(
            "| {} | {hit} | {published} | {:.2} | {:.2} to {:.2} | {difference} |",
            rows[row].name, found.mean, found.min, found.max
        );
    }
}

/// The highest rate per replica that meets the row's objectives.
fn ceiling(row: &Row, hit: f64, published: f64, seed: u64, pairs: &Arc<[(Tokens, Tokens)]>) -> f64 {
    let start = if published == 0.0 { 0.05 } else { published };
    let search = CeilingSearch { start, min: 0.01, tolerance: 0.01, ..CeilingSearch::default() };
    let found = find_ceiling(&search, |rate| Ok::<_, Infallible>(sustains(row, rate, hit, seed, pairs)));
    found.map_or(0.0, |ceiling| ceiling.rate)
}

fn sustains(row: &Row, rate: f64, hit: f64, seed: u64, pairs: &Arc<[(Tokens, Tokens)]>) -> bool {
    let mut coefficients = row.profile.coefficients();
    for cost in [
        &mut coefficients.c0,
        &mut coefficients.w1,
        &mut coefficients.g,
        &mut coefficients.g0,
        &mut coefficients.a,
        &mut coefficients.k,
        &mut coefficients.b,
        &mut coefficients.pp,
    ] {
        *cost *= row.step_factor;
    }
    let pool = Pool {
        name: row.name.to_owned(),
        replicas: row.replicas,
        engine: EngineSettings {
            blocks: Blocks(row.blocks),
            coefficients,
            max_num_batched_tokens: Tokens(row.budget),
            ..EngineSettings::of(row.profile)
        },
        models: vec![ModelId(0)],
        dispatcher: DispatcherSettings { policy: row.policy, ..DispatcherSettings::default() },
    };
    let slo = Slo {
        ttft: Duration::from_millis(row.ttft_ms),
        tpot: Duration::from_millis(row.tpot_ms),
        ..Slo::default()
    };
    let scenario = Scenario { slo, ..Scenario::of(vec![pool]) };
    let lengths = match row.lengths {
        Length::Fixed => Lengths::Fixed { prompt: Tokens(1_840), output: Tokens(300) },
        Length::Conversation => Lengths::conversation(Arc::clone(pairs)),
    };
    let fleet_rate = rate * f64::from(row.replicas);
    let arrivals = Arrivals::gamma(fleet_rate, row.cv);
    let capacity = Capacity { arrivals, ..Capacity::new(fleet_rate, lengths, hit, ModelId(0)) };
    let requests = capacity.start(seed).expect("the table's traffic is sound");
    let report = support::run(&scenario, Box::new(requests), seed);
    Summary::of(&report, &scenario.slo).sustains
}
