//! Flags for the adapters that the replicas serve.

use clap::Args;
use expediter_engine_server::{Adapter, AdapterSettings};
use expediter_engine_sim::LoraSettings;

#[derive(Debug, Args)]
pub(crate) struct AdapterArgs {
    /// Serve adapters, so many in a step at most.
    #[arg(long, value_name = "N")]
    max_loras: Option<u32>,
    /// Adapters kept in the host's memory; as many as `--max-loras` where it is left out.
    #[arg(long, value_name = "N", requires = "max_loras")]
    max_cpu_loras: Option<u32>,
    /// An adapter that is served from the start. May be given several times.
    #[arg(long = "lora-module", value_name = "NAME=PATH", value_parser = module, requires = "max_loras")]
    lora_modules: Vec<Adapter>,
    /// Serve `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`.
    #[arg(long, requires = "max_loras")]
    runtime_lora: bool,
}

impl AdapterArgs {
    pub(crate) fn engine(&self) -> Option<LoraSettings> {
        let max_loras = self.max_loras?;
        Some(LoraSettings { max_loras, max_cpu_loras: self.max_cpu_loras, ..LoraSettings::default() })
    }

    pub(crate) fn settings(self) -> AdapterSettings {
        AdapterSettings { modules: self.lora_modules, runtime_updates: self.runtime_lora, paths: None }
    }
}

fn module(text: &str) -> Result<Adapter, String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            Ok(Adapter { name: name.to_owned(), path: path.to_owned() })
        }
        Some(_) | None => Err("an adapter is given as NAME=PATH".to_owned()),
    }
}
