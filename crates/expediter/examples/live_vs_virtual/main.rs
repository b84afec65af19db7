//! One trace through a gateway in front of engine-server at speed 1, and through fleet-sim: the same policy must
//! give every replica the same share, and clients the same times.
//!
//! `cargo run --release -p expediter --example live_vs_virtual [-- REQUESTS RATE REPLICAS POLICY…]`

mod live;
mod trace;
mod virtually;

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use expediter_core::Policy;
use expediter_engine_sim::{Profile, Settings as EngineSettings};

/// What came of the trace.
struct Outcome {
    /// Requests that each replica got, most first: which replica is the first is chance.
    dispatched: Vec<u64>,
    /// Of every request.
    ttft: Vec<Duration>,
    /// Of every request with more than one token.
    tpot: Vec<Duration>,
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: &str| arguments.next().unwrap_or_else(|| default.to_owned());
    let (requests, rate, replicas) = (number("2400").parse()?, number("28").parse()?, number("4").parse()?);
    let policies: Vec<Policy> =
        arguments.map(|name| name.parse().with_context(|| name.clone())).collect::<Result<_>>()?;
    let policies = if policies.is_empty() { POLICIES.to_vec() } else { policies };

    let asks = trace::asks(TRACE_SEED, requests, rate);
    let engine = EngineSettings::of(Profile::Llama3_8bTp1A100);
    for policy in policies {
        let (overhead, live) = live::run(policy, &engine, replicas, &asks)?;
        let runs = VIRTUAL_SEEDS
            .map(|seed| virtually::run(policy, &engine, replicas.into(), &asks, overhead, seed))
            .collect::<Result<Vec<Outcome>>>()?;
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let out = &mut std::io::stdout();
        writeln!(
            out,
            "\n{policy}: {requests} requests, {rate}/s, {replicas} replicas; gateway and sockets {:.2} ms; load average {}",
            ms(overhead),
            load.split(' ').next().unwrap_or_default(),
        )?;
        compare(out, &live, &runs)?;
    }
    Ok(())
}

/// Policies that read nothing, load, and prefixes.
const POLICIES: [Policy; 4] =
    [Policy::RoundRobin, Policy::LeastTokens, Policy::LMetric, Policy::ApproximateTree];

const TRACE_SEED: u64 = 1;

/// The noise of steps differs from run to run; live runs cannot choose theirs alike.
const VIRTUAL_SEEDS: std::ops::Range<u64> = 0..5;

/// One line a measure: live, the median of the virtual runs with their range, and the difference.
fn compare(out: &mut impl std::io::Write, live: &Outcome, runs: &[Outcome]) -> Result<()> {
    for replica in 0..live.dispatched.len() {
        line(out, &format!("share {replica} (%)"), live, runs, |outcome| {
            100.0 * outcome.dispatched[replica] as f64 / outcome.dispatched.iter().sum::<u64>() as f64
        })?;
    }
    for share in [0.5, 0.9, 0.99] {
        let name = format!("TTFT p{:.0} (ms)", 100.0 * share);
        line(out, &name, live, runs, |outcome| ms(quantile(&outcome.ttft, share)))?;
    }
    for share in [0.5, 0.9] {
        let name = format!("TPOT p{:.0} (ms)", 100.0 * share);
        line(out, &name, live, runs, |outcome| ms(quantile(&outcome.tpot, share)))?;
    }
    Ok(())
}

fn line(
    out: &mut impl std::io::Write,
    name: &str,
    live: &Outcome,
    runs: &[Outcome],
    measure: impl Fn(&Outcome) -> f64,
) -> Result<()> {
    let live = measure(live);
    let mut values: Vec<f64> = runs.iter().map(measure).collect();
    values.sort_by(f64::total_cmp);
    let (low, middle, high) = (values[0], values[values.len() / 2], values[values.len() - 1]);
    let difference = 100.0 * (middle / live - 1.0);
    writeln!(
        out,
        "  {name:14} live {live:8.2}  virtual {middle:8.2} ({low:.2} to {high:.2})  {difference:+6.1} %"
    )?;
    Ok(())
}

/// By the nearest rank.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rank is small and not negative"
)]
fn quantile(values: &[Duration], share: f64) -> Duration {
    let mut ordered = values.to_vec();
    ordered.sort();
    let rank = (share * ordered.len() as f64).ceil() as usize;
    ordered.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

fn ms(duration: Duration) -> f64 {
    1e3 * duration.as_secs_f64()
}
