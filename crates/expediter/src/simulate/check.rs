//! From a scenario file as it is written to a plan that can be run.

mod faults;
mod pools;

use std::time::Duration;

use expediter_core::Policy;
use expediter_fleet_sim::presets::Preset;
use expediter_fleet_sim::{FaultAt, Scenario, Slo, Workload};
use expediter_gateway::settings::{KeyPath, Millis, Mistake};
use expediter_types::Tokens;

use super::plan::Plan;
use super::raw::{RawScenario, RawSlo};
use super::source::{self, Source};

/// Checks everything that a schema cannot: names, files, and what must fit together.
///
/// # Errors
/// All mistakes, not only the first.
pub(crate) fn plan(raw: &RawScenario, name: &str) -> Result<Plan, Vec<Mistake>> {
    let mut check = Check { mistakes: Vec::new() };
    let plan = check.plan(raw, name);
    match plan {
        Some(plan) if check.mistakes.is_empty() => Ok(plan),
        _ => Err(check.mistakes),
    }
}

/// A pass over a scenario file. What is wrong is noted and left out.
struct Check {
    mistakes: Vec<Mistake>,
}

impl Check {
    fn mistake(&mut self, path: KeyPath, message: impl Into<String>, remedy: impl Into<String>) {
        self.mistakes.push(Mistake::new(path, message, remedy));
    }

    fn plan(&mut self, raw: &RawScenario, name: &str) -> Option<Plan> {
        let policies = self.policies(&raw.policies);
        let preset = source::preset(&raw.workload).map_err(|mistake| self.mistakes.push(mistake)).ok()?;
        let fleet = self.fleet(raw, preset.fleet());
        let faults = self.faults(raw, &fleet.scenario);
        let scenario = self.scenario(raw, fleet.scenario, faults);
        self.rates(raw, preset, scenario.duration);
        if !self.mistakes.is_empty() {
            return None;
        }
        if let Err(error) = scenario.check() {
            self.mistake(KeyPath::ROOT, error.to_string(), "compare with the examples in config/simulate");
            return None;
        }
        let capacity = scenario.pools.iter().find(|pool| pool.models.contains(&fleet.models.base));
        let capacity = capacity.map_or(Tokens(u64::MAX), |pool| pool.engine.capacity());
        let source = Source::of(&raw.workload, preset, fleet.models, capacity);
        let source = source.map_err(|mistake| self.mistakes.push(mistake)).ok()?;
        let plan = Plan {
            name: name.to_owned(),
            description: described(raw, preset),
            scenario,
            source,
            policies,
            rates: if raw.rates.is_empty() {
                vec![None]
            } else {
                raw.rates.iter().map(|rate| Some(rate.get())).collect()
            },
            seeds: (raw.seed.get()..).take(u32_of(raw.seeds.get()) as usize).collect(),
        };
        self.starts(&plan);
        Some(plan)
    }

    /// The scenario of the file over the one that the workload is meant for.
    fn scenario(&mut self, raw: &RawScenario, fleet: Scenario, faults: Vec<FaultAt>) -> Scenario {
        let warm_up = raw.warm_up_ms.map_or(fleet.warm_up, Millis::duration);
        let duration = raw.duration_ms.map_or(fleet.duration, Millis::duration);
        if warm_up >= duration {
            let message = format!("a warm-up of {warm_up:?} leaves nothing of the {duration:?} to measure");
            self.mistake(
                KeyPath::ROOT.key("warm_up_ms"),
                message,
                "shorten it, or give a longer `duration_ms`",
            );
        }
        Scenario {
            gateways: u32_of(raw.gateways.get()),
            gateway_overhead: Duration::from_micros(raw.gateway_overhead_us.get()),
            network_delay: Duration::from_micros(raw.network_delay_us.get()),
            report_interval: raw.report_interval_ms.duration(),
            probe_interval: raw.probe_interval_ms.duration(),
            slo: slo(&raw.slo),
            faults,
            duration,
            warm_up,
            drain: raw.drain_ms.map_or(fleet.drain, Millis::duration),
            ..fleet
        }
    }

    /// Starts the workload of every rate, and asks whether its first requests fit the replicas.
    fn starts(&mut self, plan: &Plan) {
        for rate in &plan.rates {
            let checked = plan.source.start(*rate, plan.seeds[0]).map_err(|error| error.to_string());
            if let Err(message) = checked.and_then(|workload| fits(workload, &plan.scenario)) {
                self.mistake(
                    KeyPath::ROOT.key("workload"),
                    message,
                    "`expediter simulate --list` shows its parameters",
                );
                return;
            }
        }
    }

    fn policies(&mut self, names: &[String]) -> Vec<Policy> {
        let path = KeyPath::ROOT.key("policies");
        let mut policies: Vec<Policy> = Vec::new();
        if names.is_empty() {
            self.mistake(path.clone(), "no policy is named", "name one, or `all`");
        }
        for (index, name) in names.iter().enumerate() {
            let found = if name == "all" {
                Policy::ALL.to_vec()
            } else if let Ok(policy) = name.parse() {
                vec![policy]
            } else {
                let known: Vec<&str> =
                    Policy::ALL.iter().map(|policy| policy.as_str()).chain(["all"]).collect();
                self.mistakes.push(source::unknown(path.index(index), "policy", name, &known));
                Vec::new()
            };
            let new: Vec<Policy> = found.into_iter().filter(|policy| !policies.contains(policy)).collect();
            policies.extend(new);
        }
        policies
    }

    /// The most requests of one run must fit into memory; and what comes all at once has no rate.
    fn rates(&mut self, raw: &RawScenario, preset: &Preset, duration: Duration) {
        let path = KeyPath::ROOT.key("rates");
        if preset.load.is_none() && !raw.rates.is_empty() && raw.workload.trace.is_none() {
            let message = format!("the requests of `{}` come all at once", preset.name);
            self.mistake(path, message, "leave the rates out");
            return;
        }
        for (index, rate) in raw.rates.iter().enumerate() {
            if rate.get() * duration.as_secs_f64() > REQUESTS_MAX {
                let rate = rate.get();
                self.mistake(
                    path.index(index),
                    format!(
                        "{rate} requests per second over {duration:?} are more than {REQUESTS_MAX} in one run"
                    ),
                    "lower the rate, or shorten `duration_ms`",
                );
            }
        }
    }
}

/// Whether the first requests fit the replicas of their model.
fn fits(mut workload: Box<dyn Workload>, scenario: &Scenario) -> Result<(), String> {
    for number in 1..=FIRST_REQUESTS {
        let Some(request) = workload.next() else { break };
        let Some(pool) = scenario.pools.iter().find(|pool| pool.models.contains(&request.model)) else {
            return Err(format!("request {number} asks for {}, which no pool serves", request.model));
        };
        let (tokens, capacity) = (request.prompt.tokens() + request.output, pool.engine.capacity());
        if tokens > capacity {
            return Err(format!(
                "request {number} needs {} tokens, and a replica of `{}` holds {}",
                tokens.0, pool.name, capacity.0
            ));
        }
    }
    Ok(())
}

/// Requests that are looked at before a run: enough to find a parameter that makes all of them too long.
const FIRST_REQUESTS: usize = 500;

/// What a preset says of itself begins with its fleet, which may have been replaced.
fn described(raw: &RawScenario, preset: &Preset) -> String {
    match (raw.description.trim(), raw.workload.trace.as_ref()) {
        ("", None) if raw.pools.is_empty() => preset.about.to_owned(),
        ("", None) => preset.about.split_once("; ").map_or(preset.about, |(_, traffic)| traffic).to_owned(),
        (description, _) => description.to_owned(),
    }
}

/// Requests of one run, each kept until its end: some gigabytes.
const REQUESTS_MAX: f64 = 2e7;

fn slo(raw: &RawSlo) -> Slo {
    Slo {
        ttft: raw.ttft_ms.duration(),
        tpot: raw.tpot_ms.duration(),
        prompt_max: Tokens(raw.prompt_tokens_max.get()),
        ttft_share: raw.ttft_share.get(),
        tpot_share: raw.tpot_share.get(),
    }
}

/// What a schema has bounded already.
fn u32_of(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
