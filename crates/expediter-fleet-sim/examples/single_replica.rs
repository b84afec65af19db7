//! One replica against published measurements of real servers, as Markdown.
//!
//! `cargo run --release -p expediter-fleet-sim --example single_replica`
//!
//! Sources: vLLM v0.6.0 blog (2024-09-05), appendix, read off its plots to 5 %; johnmusgrave.com, vLLM 0.23 on an
//! A100-40GB. The lengths are the means of those workloads, 462 tokens in.

#![allow(clippy::print_stdout, unreachable_pub, reason = "an example talks to people")]

#[path = "support/mod.rs"]
mod support;

use std::time::Duration;

use expediter_core::Settings as DispatcherSettings;
use expediter_engine_sim::{Profile, Settings as EngineSettings};
use expediter_fleet_sim::workload::Arrivals;
use expediter_fleet_sim::{Distribution, Pool, Report, RequestRecord, Scenario, spread};
use expediter_types::{Arrival, ModelId, Prompt, Time, Tokens};

const SEEDS: u64 = 3;

/// A measurement: what is sent, what was published, and how far the calibration's own sketch was off, in per cent.
struct Case {
    name: &'static str,
    engine: EngineSettings,
    arrivals: Arrivals,
    requests: u64,
    prompt: u64,
    output: u64,
    measure: fn(&Report) -> f64,
    unit: &'static str,
    published: f64,
    sketch: &'static str,
}

fn main() {
    println!("| case | published | simulated | least to most | difference | the calibration's sketch |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for case in cases() {
        let seeds: Vec<u64> = (0..SEEDS).collect();
        let found = support::parallel(&seeds, |seed| (case.measure)(&run(&case, *seed)));
        let found = spread(&found).expect("there is a seed");
        println!(
            "| {} | {} {} | {:.1} | {:.1} to {:.1} | {:+.0} % | {} |",
            case.name,
            case.published,
            case.unit,
            found.mean,
            found.min,
            found.max,
            100.0 * (found.mean / case.published - 1.0),
            case.sketch
        );
    }
}

fn cases() -> Vec<Case> {
    let small = || EngineSettings::of(Profile::Llama3_8bTp1A100);
    let large = || EngineSettings::of(Profile::Llama3_70bTp4A100);
    let at_once = |name, engine, output, published, sketch| Case {
        name,
        engine,
        arrivals: Arrivals::at_once(),
        requests: 500,
        prompt: 462,
        output,
        measure: rate,
        unit: "req/s",
        published,
        sketch,
    };
    let paced = |name, per_second, published, sketch| Case {
        name,
        engine: small(),
        arrivals: Arrivals::poisson(per_second),
        requests: 500,
        prompt: 462,
        output: 256,
        measure: tpot_ms,
        unit: "ms",
        published,
        sketch,
    };
    vec![
        at_once("8B, 500 prompts 462/16 at once", small(), 16, 28.5, "-1 to +3 %"),
        at_once("8B, 500 prompts 462/256 at once", small(), 256, 14.7, "-3 to -4 %"),
        paced("8B 462/256, TPOT at 2 QPS", 2.0, 13.0, "-2 %"),
        paced("8B 462/256, TPOT at 4 QPS", 4.0, 16.0, "-11 %"),
        paced("8B 462/256, TPOT at 8 QPS", 8.0, 23.0, "-18 %"),
        paced("8B 462/256, TPOT at 16 QPS", 16.0, 63.0, "-18 %"),
        at_once("70B TP4, 462/16 at once", large(), 16, 11.4, "-9 %"),
        at_once("70B TP4, 462/256 at once", large(), 256, 6.75, "-11 %"),
        Case {
            name: "8B decode alone, A100-40GB",
            engine: on_a100_40g(small()),
            arrivals: Arrivals::at_once(),
            requests: 1,
            prompt: 16,
            output: 256,
            measure: |report| 1e3 / tpot_ms(report),
            unit: "tok/s",
            published: 75.0,
            sketch: "-4 %",
        },
    ]
}

/// Reading the weights (16.1 GB) takes longer at 1.555 TB/s than at 2.039; that is part of every step.
fn on_a100_40g(engine: EngineSettings) -> EngineSettings {
    let mut coefficients = engine.coefficients;
    coefficients.c0 += 16.1 / 1.555 - 16.1 / 2.039;
    EngineSettings { coefficients, ..engine }
}

fn run(case: &Case, seed: u64) -> Report {
    let pool = Pool {
        name: "replica".to_owned(),
        replicas: 1,
        engine: case.engine.clone(),
        models: vec![ModelId(0)],
        dispatcher: DispatcherSettings::default(),
    };
    let scenario = Scenario {
        gateway_overhead: Duration::ZERO,
        warm_up: Duration::ZERO,
        duration: Duration::from_secs(3_600),
        ..Scenario::of(vec![pool])
    };
    let times = case.arrivals.start(seed).expect("the arrivals are sound");
    let (prompt, output) = (Tokens(case.prompt), Tokens(case.output));
    let requests = times.take(usize::try_from(case.requests).unwrap_or(usize::MAX)).map(move |at| Arrival {
        at,
        model: ModelId(0),
        tenant: 0,
        prompt: Prompt::opaque(prompt),
        output,
        output_cap: output,
    });
    support::run(&scenario, Box::new(requests), seed)
}

/// Requests per second, from the first arrival to the last token.
fn rate(report: &Report) -> f64 {
    let end = report.requests.iter().map(|request| request.arrived + request.total).max();
    report.requests.len() as f64 / end.unwrap_or(Time::ZERO).since(Time::ZERO).as_secs_f64()
}

fn tpot_ms(report: &Report) -> f64 {
    let times: Distribution = report.requests.iter().filter_map(RequestRecord::tpot).collect();
    times.mean().map_or(f64::NAN, |mean| 1e3 * mean.as_secs_f64())
}
