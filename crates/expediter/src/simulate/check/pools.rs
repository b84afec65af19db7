//! Pools: what their replicas are, and what they serve.

use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use expediter_core::Settings as DispatcherSettings;
use expediter_engine_sim::{Coefficients, ProfileSet, Settings as EngineSettings};
use expediter_fleet_sim::Pool;
use expediter_fleet_sim::presets::{Fleet, Models};
use expediter_gateway::settings::{BreakerSettings, KeyPath, RetrySettings, WaitSettings};
use expediter_types::{BlockSize, Blocks, ModelId, Tokens};

use super::{Check, u32_of};
use crate::simulate::raw::{RawCoefficients, RawDispatcher, RawEngine, RawPool, RawScenario};
use crate::simulate::source::unknown;
use crate::small_file;

impl Check {
    /// The fleet of the file, over the one that the workload is meant for.
    pub(super) fn fleet(&mut self, raw: &RawScenario, meant: Fleet) -> Fleet {
        if raw.pools.is_empty() {
            return Fleet { models: self.asked_for(raw, &meant), ..meant };
        }
        let (path, mut fleet) = (KeyPath::ROOT.key("pools"), Fleet { names: Vec::new(), ..meant.clone() });
        fleet.scenario.pools.clear();
        for (name, raw) in &raw.pools {
            let path = path.key(name);
            let base = meant.scenario.pools.iter().find(|pool| pool.name == *name);
            let names = model_names(name, raw, base, &meant.names);
            let models = self.models(&names, raw, &path, &mut fleet.names);
            let replicas =
                raw.replicas.map_or(base.map_or(1, |pool| pool.replicas), |count| u32_of(count.get()));
            if let Some(engine) = self.engine(raw, base.map(|pool| &pool.engine), &path) {
                let dispatcher = dispatcher(&raw.dispatcher);
                fleet.scenario.pools.push(Pool { name: name.clone(), replicas, engine, models, dispatcher });
            }
        }
        let models = Models { base: ModelId(0), adapters: adapters(&fleet.scenario.pools), large: None };
        fleet.models = self.asked_for(raw, &Fleet { models, ..fleet.clone() });
        fleet
    }

    /// What requests ask for: what the file says over what the fleet is meant for.
    fn asked_for(&mut self, raw: &RawScenario, fleet: &Fleet) -> Models {
        let mut models = fleet.models.clone();
        let mut named = |key: &str, name: Option<&String>| {
            let name = name?;
            let id = fleet.names.iter().zip(0..).find(|(known, _)| *known == name).map(|(_, id)| ModelId(id));
            if id.is_none() {
                let known: Vec<&str> = fleet.names.iter().map(String::as_str).take(NAMES_SHOWN).collect();
                self.mistakes.push(unknown(
                    KeyPath::ROOT.key("workload").key(key),
                    "model of the fleet",
                    name,
                    &known,
                ));
            }
            id
        };
        models.base = named("model", raw.workload.model.as_ref()).unwrap_or(models.base);
        models.large = named("large_model", raw.workload.large_model.as_ref()).or(models.large);
        models
    }

    fn models(
        &mut self,
        own: &[String],
        raw: &RawPool,
        path: &KeyPath,
        names: &mut Vec<String>,
    ) -> Vec<ModelId> {
        let mut ids = Vec::new();
        for (index, name) in own.iter().enumerate() {
            if names.contains(name) {
                self.mistake(
                    if raw.models.is_empty() { path.clone() } else { path.key("models").index(index) },
                    format!("the model `{name}` stands here already, or in an earlier pool"),
                    "name it once: a model has one pool",
                );
            } else if let Ok(id) = u32::try_from(names.len()) {
                names.push(name.clone());
                ids.push(ModelId(id));
            }
        }
        ids
    }

    fn engine(
        &mut self,
        raw: &RawPool,
        base: Option<&EngineSettings>,
        path: &KeyPath,
    ) -> Option<EngineSettings> {
        let mut engine = match (&raw.profile, base) {
            (None, base) => base.cloned().unwrap_or_default(),
            (Some(name), _) => self.profile(name, raw.profile_file.as_deref(), path)?,
        };
        if raw.profile.is_none() && raw.profile_file.is_some() {
            let remedy = "add `profile`, the name of a line of the file";
            self.mistake(path.key("profile_file"), "which of its profiles is not said", remedy);
        }
        if let Some(coefficients) = raw.coefficients {
            engine.coefficients = coefficients_of(coefficients);
        }
        overlay(&mut engine, &raw.engine);
        if raw.models.len() > 1 && engine.lora.is_none() {
            let remedy = "add `lora` to its `engine`, or list one model";
            self.mistake(path.key("models"), "an engine without adapters serves one model", remedy);
        }
        Some(engine)
    }

    fn profile(&mut self, name: &str, file: Option<&Path>, path: &KeyPath) -> Option<EngineSettings> {
        let read;
        let profiles = match file {
            None => ProfileSet::shipped(),
            Some(file) => {
                let text = small_file::read(file).map_err(|error| error.to_string());
                match text.and_then(|text| ProfileSet::parse(&text).map_err(|error| error.to_string())) {
                    Ok(set) => read = set,
                    Err(error) => {
                        let message = format!("{}: {error}", file.display());
                        self.mistake(path.key("profile_file"), message, "mend the file, or name another");
                        return None;
                    }
                }
                &read
            }
        };
        if let Some(calibration) = profiles.get(name) {
            return Some(EngineSettings::calibrated(calibration));
        }
        let known: Vec<&str> = profiles.iter().map(|calibration| calibration.name.as_str()).collect();
        self.mistakes.push(unknown(path.key("profile"), "profile", name, &known));
        None
    }
}

/// The names of the models of a pool: those of the file, else those of the fleet that it begins from.
fn model_names(pool: &str, raw: &RawPool, base: Option<&Pool>, meant: &[String]) -> Vec<String> {
    match base {
        _ if !raw.models.is_empty() => raw.models.clone(),
        Some(base) => base.models.iter().filter_map(|model| meant.get(model.0 as usize).cloned()).collect(),
        None => vec![pool.to_owned()],
    }
}

/// Every model that is not the first of its pool.
fn adapters(pools: &[Pool]) -> Vec<ModelId> {
    pools.iter().flat_map(|pool| pool.models.iter().skip(1).copied()).collect()
}

/// A fleet may have many adapters: a message shows the first of their names.
const NAMES_SHOWN: usize = 8;

fn coefficients_of(raw: RawCoefficients) -> Coefficients {
    Coefficients {
        c0: raw.c0.get(),
        w1: raw.w1.get(),
        g: raw.g.get(),
        g0: raw.g0.get(),
        a: raw.a.get(),
        k: raw.k.get(),
        b: raw.b.get(),
        pp: raw.pp.get(),
    }
}

/// Puts what the file says over what the profile says.
fn overlay(engine: &mut EngineSettings, raw: &RawEngine) {
    if let Some(size) = raw.block_size.and_then(|size| NonZeroU32::new(u32_of(size.get()))) {
        engine.block_size = BlockSize(size);
    }
    if let Some(blocks) = raw.blocks {
        engine.blocks = Blocks(blocks.get());
    }
    if let Some(sequences) = raw.max_num_seqs {
        engine.max_num_seqs = u32_of(sequences.get());
    }
    if let Some(tokens) = raw.max_num_batched_tokens {
        engine.max_num_batched_tokens = Tokens(tokens.get());
    }
    if let Some(overhead) = raw.host_overhead_us {
        engine.host_overhead = Duration::from_micros(overhead.get());
    }
    if let Some(sigma) = raw.noise_sigma {
        engine.noise_sigma = sigma.get();
    }
    if let Some(caching) = raw.enable_prefix_caching {
        engine.enable_prefix_caching = caching;
    }
    engine.max_num_queued_reqs =
        raw.max_num_queued_reqs.map(|requests| u32_of(requests.get())).or(engine.max_num_queued_reqs);
    engine.max_num_queued_tokens =
        raw.max_num_queued_tokens.map(|tokens| Tokens(tokens.get())).or(engine.max_num_queued_tokens);
    engine.long_prefill_token_threshold = raw
        .long_prefill_token_threshold
        .map(|tokens| Tokens(tokens.get()))
        .or(engine.long_prefill_token_threshold);
    if let Some(raw) = raw.lora {
        let lora = engine.lora.get_or_insert_default();
        lora.max_loras = raw.max_loras.map_or(lora.max_loras, |adapters| u32_of(adapters.get()));
        lora.max_cpu_loras = raw.max_cpu_loras.map(|adapters| u32_of(adapters.get())).or(lora.max_cpu_loras);
        lora.rank = raw.rank.map_or(lora.rank, |rank| u32_of(rank.get()));
        lora.step_factor = raw.step_factor.map_or(lora.step_factor, super::super::decimal::Decimal::get);
    }
}

fn dispatcher(raw: &RawDispatcher) -> DispatcherSettings {
    let retry = RetrySettings::from(raw.retry.clone());
    let breaker = BreakerSettings::from(raw.breaker.clone());
    let wait = WaitSettings::from(raw.wait.clone());
    DispatcherSettings {
        policy_parameters: raw.policy_parameters.clone().into(),
        attempts_max: retry.attempts_max,
        retry_ratio: retry.ratio,
        retry_per_second_min: retry.per_second_min,
        breaker: expediter_core::BreakerSettings {
            failures_max: breaker.failures_max,
            window: breaker.window,
            window_failures_ratio: breaker.window_failures_ratio,
            window_requests_min: breaker.window_requests_min,
            trial: breaker.trial,
            trial_max: breaker.trial_max,
        },
        wait_max: wait.limit,
        waiting_max: wait.requests_max,
        ramp: raw.ramp_ms.duration(),
        stale_after: raw.stale_ms.duration(),
        warm_up: raw.warm_up,
        ..DispatcherSettings::default()
    }
}
