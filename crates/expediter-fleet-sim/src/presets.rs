//! Fleets and workloads that have a name: what `expediter simulate --workload NAME` runs.
//!
//! A [`Preset`] is data: its parameters with their defaults, the fleet it is meant for, and how its requests are
//! made. Every parameter is a number, so that a command line and a scenario file can set any of them.

mod fleets;
mod start;
mod values;

use std::sync::Arc;

use expediter_types::Arrival;

pub use fleets::{Fleet, Models, chat_fleet, large_prefix_fleet, pool, pool_of, qwen_fleet, reference_fleet};
pub use values::{Parameter, Values};

use crate::Workload;
use crate::workload::WorkloadError;

/// Recorded data that workloads draw from. The shell reads it: nothing here does IO.
pub trait Traces {
    /// The requests of a trace, in order of time.
    fn requests(&self, trace: Trace) -> Arc<[Arrival]>;

    /// The clients of `ServeGen`'s m-large.
    fn clients(&self) -> Vec<Client>;
}

/// A trace that presets replay or draw from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trace {
    /// Mooncake's conversation trace.
    MooncakeConversation,
    /// Mooncake's synthetic trace.
    MooncakeSynthetic,
    /// Azure's code trace of 2023.
    AzureCode,
    /// Azure's conversation trace of 2023.
    AzureConversation,
}

/// How one client sends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Client {
    /// Requests per second.
    pub rate: f64,
    /// Coefficient of variation of the gaps between them.
    pub cv: f64,
}

/// A workload with a name, and the fleet it is meant for.
#[derive(Debug)]
pub struct Preset {
    /// The name.
    pub name: &'static str,
    /// One line on what it is.
    pub about: &'static str,
    /// The parameter that says how much comes: `rate` in requests per second for an open loop, `clients` for a closed
    /// one; `None` where all comes at once.
    pub load: Option<&'static str>,
    parameters: &'static [&'static [Parameter]],
    fleet: fn() -> Fleet,
    start: Start,
}

type Start = fn(&Values, &Models, &dyn Traces, u64) -> Result<Box<dyn Workload>, WorkloadError>;

impl Preset {
    /// The preset of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.name == name)
    }

    /// Its parameters.
    pub fn parameters(&self) -> impl Iterator<Item = &'static Parameter> + use<> {
        self.parameters.iter().copied().flatten()
    }

    /// Its parameters at their defaults.
    pub fn values(&self) -> Values {
        Values::new(self.name, self.parameters())
    }

    /// The fleet it is meant for.
    pub fn fleet(&self) -> Fleet {
        (self.fleet)()
    }

    /// The requests that `seed` fixes, for a fleet that serves `models`.
    pub fn start(
        &self,
        values: &Values,
        models: &Models,
        traces: &dyn Traces,
        seed: u64,
    ) -> Result<Box<dyn Workload>, WorkloadError> {
        (self.start)(values, models, traces, seed)
    }
}

/// Every preset.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "reference",
        about: "64 replicas of 8B, 8B with 60 adapters, and 70B; 162 bursty tenants, each with a system prompt",
        load: Some("rate"),
        parameters: &[start::REFERENCE, start::SHAPE],
        fleet: reference_fleet,
        start: start::reference,
    },
    Preset {
        name: "capacity",
        about: "8 replicas of 8B; 1,840 tokens in, 300 out, of which a share begins with a resident system prompt",
        load: Some("rate"),
        parameters: &[start::CAPACITY, start::PREFIXES, start::CV, start::SHAPE],
        fleet: fleets::small,
        start: start::capacity,
    },
    Preset {
        name: "conversation",
        about: "as capacity, with lengths drawn from Azure's conversation trace",
        load: Some("rate"),
        parameters: &[start::CONVERSATION, start::PREFIXES, start::CV, start::SHAPE],
        fleet: fleets::small,
        start: start::conversation,
    },
    Preset {
        name: "b2b",
        about: "8 pods of Qwen3-32B; 150 customers with system prompts of 6,000 tokens, 5 users each (llm-d, 2025-09)",
        load: Some("rate"),
        parameters: &[start::B2B, start::CV, start::SHAPE],
        fleet: fleets::b2b,
        start: start::b2b,
    },
    Preset {
        name: "large-prefix",
        about: "4 pods of a 70B; 83 groups of 3 prompts that share 8,000 tokens, at equal gaps (llm-d, 37 % capacity)",
        load: Some("rate"),
        parameters: &[start::LARGE_PREFIX, start::SHAPE],
        fleet: large_prefix_fleet,
        start: start::large_prefix,
    },
    Preset {
        name: "shared-prefix",
        about: "8 replicas of 8B; 64 groups of 16 prompts that share 2,048 tokens, all at once (SGLang v0.4)",
        load: None,
        parameters: &[start::SHARED_PREFIX],
        fleet: fleets::at_once,
        start: start::shared_prefix,
    },
    Preset {
        name: "code-generation",
        about: "10 pods of Qwen3-32B; sessions of 2 to 20 turns over 3,000 to 100,000 tokens (llm-d, 2026-08)",
        load: Some("clients"),
        parameters: &[start::CODE_GENERATION],
        fleet: fleets::code_generation,
        start: start::code_generation,
    },
    Preset {
        name: "reasoning",
        about: "10 pods of Qwen3-32B; 1,250 tokens in, 8,000 out: nothing for a router to gain (llm-d, 2026-08)",
        load: Some("clients"),
        parameters: &[start::REASONING],
        fleet: fleets::reasoning,
        start: start::reasoning,
    },
    Preset {
        name: "chat-threads",
        about: "8 replicas of 8B with a small cache; 800 growing threads, 8,000 prompts (KubeAI, 2025-02)",
        load: Some("clients"),
        parameters: &[start::CHAT_THREADS],
        fleet: chat_fleet,
        start: start::chat_threads,
    },
    Preset {
        name: "mooncake-conversation",
        about: "8 replicas of 8B; Mooncake's conversation trace, its rounding of 3 s taken apart",
        load: Some("rate"),
        parameters: &[start::MOONCAKE_CONVERSATION, start::REPLAY],
        fleet: fleets::mooncake_conversation,
        start: start::mooncake_conversation,
    },
    Preset {
        name: "mooncake-synthetic",
        about: "8 replicas of 8B; Mooncake's synthetic trace",
        load: Some("rate"),
        parameters: &[start::MOONCAKE_SYNTHETIC, start::REPLAY],
        fleet: fleets::mooncake_synthetic,
        start: start::mooncake_synthetic,
    },
    Preset {
        name: "azure-conv",
        about: "8 replicas of 8B; Azure's conversation trace of 2023, sped up",
        load: Some("rate"),
        parameters: &[start::AZURE_CONVERSATION, start::REPLAY],
        fleet: fleets::azure_conversation,
        start: start::azure_conversation,
    },
    Preset {
        name: "azure-code",
        about: "8 replicas of 8B; Azure's code trace of 2023, sped up: bursts of 26 times the mean",
        load: Some("rate"),
        parameters: &[start::AZURE_CODE, start::REPLAY],
        fleet: fleets::azure_code,
        start: start::azure_code,
    },
    Preset {
        name: "fairness",
        about: "2 replicas of 8B; tenants that all want more than their share, the later ones less often and longer",
        load: Some("rate"),
        parameters: &[start::FAIRNESS],
        fleet: fleets::rivals,
        start: start::fairness,
    },
];

#[cfg(test)]
mod tests;
