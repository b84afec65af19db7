//! The trace through fleet-sim.

use std::time::Duration;

use anyhow::{Result, ensure};
use expediter_core::{Policy, Settings as DispatcherSettings};
use expediter_engine_sim::Settings as EngineSettings;
use expediter_fleet_sim::{End, Pool, RequestRecord, Scenario, Simulation};
use expediter_types::{Arrival, BlockSize, ModelId, Prompt, Time, Tokens};

use crate::Outcome;
use crate::live::PREPARATION;
use crate::trace::Ask;

/// Every request, the first included, comes to a fleet that is ready.
pub(crate) fn run(
    policy: Policy,
    engine: &EngineSettings,
    replicas: u32,
    asks: &[Ask],
    overhead: Duration,
    seed: u64,
) -> Result<Outcome> {
    let pool = Pool {
        name: "m".to_owned(),
        replicas,
        engine: engine.clone(),
        models: vec![ModelId(0)],
        dispatcher: DispatcherSettings { policy, ..DispatcherSettings::default() },
    };
    let last = asks.last().map(|ask| ask.at).unwrap_or_default();
    let scenario = Scenario {
        gateway_overhead: overhead,
        warm_up: Duration::ZERO,
        duration: PREPARATION + last + Duration::from_secs(1),
        ..Scenario::of(vec![pool])
    };
    let arrivals: Vec<Arrival> = asks.iter().map(arrival).collect();
    let mut simulation = Simulation::new(&scenario, Box::new(arrivals.into_iter()), seed)?;
    while simulation.advance(Duration::from_secs(10)) {}
    let report = simulation.report();
    let answered = report.requests.iter().filter(|record| record.end == End::Answered).count();
    ensure!(answered == asks.len(), "{answered} of {} requests were answered", asks.len());
    Ok(Outcome {
        dispatched: sorted(report.pools[0].replicas.iter().map(|replica| replica.dispatched).collect()),
        ttft: report.requests.iter().filter_map(|record| record.ttft).collect(),
        tpot: report.requests.iter().filter_map(RequestRecord::tpot).collect(),
    })
}

fn arrival(ask: &Ask) -> Arrival {
    Arrival {
        at: Time::ZERO + PREPARATION + ask.at,
        model: ModelId(0),
        tenant: 0,
        prompt: Prompt::from_token_ids(&ask.prompt, BlockSize::DEFAULT, 0),
        output: Tokens(ask.output.into()),
        output_cap: Tokens(ask.output.into()),
    }
}

/// Most first.
pub(crate) fn sorted(mut counts: Vec<u64>) -> Vec<u64> {
    counts.sort_unstable_by(|a, b| b.cmp(a));
    counts
}
