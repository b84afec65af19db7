//! Where the requests of a run come from: a workload by name with its parameters, or a trace.

use std::sync::Arc;

use expediter_fleet_sim::Workload;
use expediter_fleet_sim::presets::{Models, PRESETS, Preset, Values};
use expediter_fleet_sim::workload::{Longer, Pace, Replay, WorkloadError};
use expediter_gateway::settings::{KeyPath, Mistake, closest, one_of};
use expediter_types::{ModelId, Tokens};
use expediter_wire::trace::Format;

use super::raw::{RawTrace, RawTraceFormat, RawWorkload};
use super::traces::{ShippedTraces, clients_from_path, requests_from_path};

/// Where the requests of a run come from.
pub(crate) enum Source {
    /// A workload that has a name.
    Named { preset: &'static Preset, values: Values, models: Models, traces: ShippedTraces },
    /// A trace.
    Trace(Replay),
}

/// The workload where a scenario names neither one nor a trace.
pub(crate) const DEFAULT: &str = "reference";

/// The preset that a scenario is about: it gives the fleet where the scenario has none.
///
/// # Errors
/// There is none of this name.
pub(crate) fn preset(raw: &RawWorkload) -> Result<&'static Preset, Mistake> {
    // A trace of single requests is replayed on the smallest fleet there is.
    let tenants = raw.trace.as_ref().is_none_or(|trace| trace.format == RawTraceFormat::Servegen);
    let name = raw.name.as_deref().unwrap_or(if tenants { DEFAULT } else { "capacity" });
    Preset::find(name).ok_or_else(|| {
        let path = KeyPath::ROOT.key("workload").key("name");
        unknown(path, "workload", name, &PRESETS.iter().map(|preset| preset.name).collect::<Vec<_>>())
    })
}

impl Source {
    /// The source that a scenario names, for a fleet with these models, of which the base model's replicas hold
    /// `capacity` tokens. A trace is read whole.
    ///
    /// # Errors
    /// The first mistake.
    pub(crate) fn of(
        raw: &RawWorkload,
        preset: &'static Preset,
        models: Models,
        capacity: Tokens,
    ) -> Result<Self, Mistake> {
        let path = KeyPath::ROOT.key("workload");
        let traces = match &raw.trace {
            None => ShippedTraces::default(),
            Some(trace) if trace.format == RawTraceFormat::Servegen => {
                let clients = clients_from_path(&trace.file).map_err(|error| wrong_trace(&path, &error))?;
                ShippedTraces::with_clients(clients)
            }
            Some(trace) => return replay(trace, models.base, capacity, &path).map(Self::Trace),
        };
        let mut values = preset.values();
        for (key, value) in &raw.parameters {
            if values.set(key, value.get()).is_err() {
                let known: Vec<&str> = preset.parameters().map(|parameter| parameter.name).collect();
                let what = format!("parameter of `{}`", preset.name);
                return Err(unknown(path.key("parameters").key(key), &what, key, &known));
            }
        }
        Ok(Self::Named { preset, values, models, traces })
    }

    /// The name of the workload, or the word for a trace.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Named { preset, .. } => preset.name,
            Self::Trace(_) => "trace",
        }
    }

    /// What a scenario's `rates` are: `rate` in requests per second, or the `clients` of a closed loop. `None`
    /// where all requests come at once.
    pub(crate) fn load(&self) -> Option<&'static str> {
        match self {
            Self::Named { preset, .. } => preset.load,
            Self::Trace(_) => Some("rate"),
        }
    }

    /// The load where a scenario names no rates; `None` where there is no such number.
    pub(crate) fn own_load(&self) -> Option<f64> {
        match self {
            Self::Named { preset, values, .. } => values.get(preset.load?),
            Self::Trace(_) => None,
        }
    }

    /// The requests of one run.
    pub(crate) fn start(&self, load: Option<f64>, seed: u64) -> Result<Box<dyn Workload>, WorkloadError> {
        match self {
            Self::Named { preset, values, models, traces } => {
                let mut values = values.clone();
                if let (Some(name), Some(load)) = (preset.load, load) {
                    values.set(name, load)?;
                }
                preset.start(&values, models, traces, seed)
            }
            Self::Trace(replay) => {
                let pace = load.map_or(replay.pace, Pace::Rate);
                Ok(Box::new(Replay { pace, ..replay.clone() }.start(seed)?))
            }
        }
    }
}

fn replay(raw: &RawTrace, model: ModelId, capacity: Tokens, path: &KeyPath) -> Result<Replay, Mistake> {
    let format = match raw.format {
        RawTraceFormat::Mooncake => Format::Mooncake,
        RawTraceFormat::Bailian => Format::Bailian,
        RawTraceFormat::Azure | RawTraceFormat::Servegen => Format::Azure,
    };
    let longest = raw.model_tokens_max.map_or(capacity, |tokens| Tokens(tokens.get()));
    // What is left out must not stop the reading.
    let limit = (!raw.leave_out_longer).then_some(longest);
    let requests =
        requests_from_path(&raw.file, Some(format), limit).map_err(|error| wrong_trace(path, &error))?;
    Ok(Replay {
        spread: raw.spread_ms.duration(),
        skip: raw.skip_ms.duration(),
        model_length: Some(longest),
        longer: if raw.leave_out_longer { Longer::Skip } else { Longer::Error },
        ..Replay::new(Arc::from(requests), Pace::Speed(1.0), model)
    })
}

fn wrong_trace(path: &KeyPath, error: &anyhow::Error) -> Mistake {
    let remedy = "mend the file, or name another in `workload.trace.file`";
    Mistake::new(path.key("trace").key("file"), format!("{error:#}"), remedy)
}

/// A name that means nothing, with those that do.
pub(super) fn unknown(path: KeyPath, what: &str, name: &str, known: &[&str]) -> Mistake {
    let choose = format!("choose {}", one_of(known.iter().copied()));
    let remedy = closest(name, known.iter().copied())
        .map_or_else(|| choose.clone(), |near| format!("did you mean `{near}`? Else {choose}"));
    Mistake::new(path, format!("`{name}` is no {what}"), remedy)
}
