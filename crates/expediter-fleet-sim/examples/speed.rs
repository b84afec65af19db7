//! How fast fleets are simulated, as Markdown: 64 replicas of an 8B at their ceiling, and far above it, on one core.
//!
//! `cargo run --release -p expediter-fleet-sim --example speed [part of a policy's name]`
//!
//! Wall time, so that a busy machine shows: run it on a quiet one. Memory is the most that the process had so far.

#![allow(clippy::print_stdout, unreachable_pub, reason = "an example talks to people")]

#[path = "support/traces.rs"]
mod traces;

use std::time::Duration;

use expediter_core::{Policy, Settings as DispatcherSettings};
use expediter_engine_sim::{Profile, Settings as EngineSettings};
use expediter_fleet_sim::workload::{Capacity, Lengths};
use expediter_fleet_sim::{Pool, Scenario, Simulation};
use expediter_types::ModelId;

/// 64 × 5.1 requests per second, the ceiling of conversation lengths where 80 % begin with a resident prefix; and
/// what the requirements offer.
const RATES: [f64; 2] = [326.0, 5_000.0];

fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let lengths = Lengths::conversation(traces::conversation_pairs());
    println!("| policy | requests/s | × real time | requests | peak memory, MiB |");
    println!("| --- | --- | --- | --- | --- |");
    for policy in Policy::ALL.into_iter().filter(|policy| policy.as_str().contains(&wanted)) {
        for rate in RATES {
            measure(policy, rate, lengths.clone());
        }
    }
}

#[expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "an example measures real time")]
fn measure(policy: Policy, rate: f64, lengths: Lengths) {
    let pool = Pool {
        name: "m-8b".to_owned(),
        replicas: 64,
        engine: EngineSettings::of(Profile::Llama3_8bTp1A100),
        models: vec![ModelId(0)],
        dispatcher: DispatcherSettings { policy, ..DispatcherSettings::default() },
    };
    let scenario =
        Scenario { duration: Duration::from_secs(60), drain: Duration::ZERO, ..Scenario::of(vec![pool]) };
    // As many prefixes as the reference mix has tenants.
    let traffic = Capacity { prefixes: 222, ..Capacity::new(rate, lengths, 0.8, ModelId(0)) };
    let requests = traffic.start(1).expect("the traffic is sound");
    let start = std::time::Instant::now();
    let mut simulation = Simulation::new(&scenario, Box::new(requests), 1).expect("the scenario is sound");
    while simulation.advance(Duration::from_secs(1)) {}
    let taken = start.elapsed();
    let report = simulation.report();
    println!(
        "| {policy} | {rate} | {:.1} | {} | {} |",
        report.simulated.as_secs_f64() / taken.as_secs_f64(),
        report.pools[0].replicas.iter().map(|replica| replica.dispatched).sum::<u64>(),
        peak_memory_mib()
    );
}

#[expect(clippy::disallowed_methods, reason = "an example reads its own process")]
fn peak_memory_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.and_then(|peak| peak.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0) / 1_024
}
