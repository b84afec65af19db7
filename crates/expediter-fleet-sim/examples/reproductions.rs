//! Published routing results, run again in the fleet simulator: writes `docs/reproductions.md` to stdout.
//!
//! `cargo run --release -p expediter-fleet-sim --example reproductions [seeds] [part of a case's name]`
//!
//! Rules: no coefficient is changed after a published ratio was seen; misses are printed; round robin, least
//! requests, power of two choices and random stand beside every policy; decode-bound traffic is among the cases.

#![allow(clippy::print_stdout, unreachable_pub, reason = "an example talks to people")]

#[path = "reproductions/cases.rs"]
mod cases;
#[path = "reproductions/measure.rs"]
mod measure;
#[path = "support/mod.rs"]
mod support;

use expediter_core::{Policy, PolicyParameters};

/// A way to place requests, as a published result names it.
#[derive(Clone)]
pub struct Router {
    /// As the table calls it.
    pub name: &'static str,
    /// The policy behind it.
    pub policy: Policy,
    /// How that is set.
    pub parameters: PolicyParameters,
}

impl Router {
    fn plain(policy: Policy) -> Self {
        Self { name: policy.as_str(), policy, parameters: PolicyParameters::default() }
    }
}

/// What every case is compared with.
fn baselines() -> Vec<Router> {
    let policies = [
        Policy::RoundRobin,
        Policy::Random,
        Policy::LeastRequests,
        Policy::PowerOfTwo,
        Policy::LeastTokens,
        Policy::LMetric,
    ];
    policies.map(Router::plain).to_vec()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seeds =
        arguments.next().map_or(3, |seeds| seeds.parse().expect("the first argument is a number of seeds"));
    let wanted = arguments.next().unwrap_or_default();
    if wanted.is_empty() {
        println!("{INTRODUCTION}");
    }
    for (name, case) in cases::CASES {
        if name.contains(&wanted) {
            println!("{}", case(seeds));
        }
    }
}

const INTRODUCTION: &str = "# Reproductions

Published routing results, run again in the fleet simulator. This page is written by

    cargo run --release -p expediter-fleet-sim --example reproductions > docs/reproductions.md

Numbers are means over the seeds, with the least and the greatest in brackets. The parameters of each case are in
`crates/expediter-fleet-sim/src/presets/fleets.rs` (fleets), `src/workload/` (traffic) and
`examples/reproductions/cases.rs` (policies and what was published). Ratios are the target: absolute times depend on the
GPU, and client and tokenizer of the published runs are not modelled. No coefficient was changed after a published
ratio was seen. `least_tokens` is Expediter's default and knows nothing of prefixes.
";
