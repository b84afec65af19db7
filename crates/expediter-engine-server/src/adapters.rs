//! Which adapters a replica serves, and the two orders that change it at run time, with the answers of vLLM 0.32.0.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use expediter_types::ModelId;
use hyper::StatusCode;
use serde_json::{Map, Value};

use crate::error::ErrorAnswer;
use crate::settings::{AdapterSettings, Settings};

/// A LoRA adapter as it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// Its name in requests.
    pub name: String,
    /// Where its weights lie. Nothing is read there; `/v1/models` shows it.
    pub path: String,
}

/// An adapter that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) adapter: Adapter,
    /// The engine's number. Loaded again it is another: nothing is found that the earlier one cached.
    pub(crate) id: ModelId,
}

/// The adapters of a replica, in order of loading. The engine moves them between slots as it needs them; here they
/// are only known.
#[derive(Debug)]
pub(crate) struct Adapters(Mutex<State>);

#[derive(Debug)]
struct State {
    served: Vec<Arc<Served>>,
    last_id: u32,
}

impl Adapters {
    pub(crate) fn new(modules: &[Adapter]) -> Self {
        let adapters = Self(Mutex::new(State { served: Vec::new(), last_id: 0 }));
        adapters.reset(modules);
        adapters
    }

    /// As a process that starts.
    pub(crate) fn reset(&self, modules: &[Adapter]) {
        let mut state = self.state();
        *state = State { served: Vec::new(), last_id: 0 };
        for adapter in modules {
            state.put(adapter.clone());
        }
    }

    pub(crate) fn list(&self) -> Vec<Arc<Served>> {
        self.state().served.clone()
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<Served>> {
        self.state().served.iter().find(|served| served.adapter.name == name).cloned()
    }

    /// The name of the adapter with this number, while it is served.
    pub(crate) fn name(&self, id: ModelId) -> Option<String> {
        self.state().served.iter().find(|served| served.id == id).map(|served| served.adapter.name.clone())
    }

    /// `POST /v1/load_lora_adapter`: what is said of it.
    pub(crate) fn load(&self, body: &[u8], settings: &Settings) -> Result<String, ErrorAnswer> {
        let fields = object(body)?;
        let adapter =
            Adapter { name: required(&fields, "lora_name")?, path: required(&fields, "lora_path")? };
        let Adapter { name, path } = &adapter;
        if name.is_empty() || path.is_empty() {
            return Err(invalid("Both 'lora_name' and 'lora_path' must be provided."));
        }
        let in_place = fields.get("load_inplace") == Some(&Value::Bool(true));
        let mut state = self.state();
        if !in_place && state.served.iter().any(|served| served.adapter.name == *name) {
            return Err(invalid(&format!(
                "The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True."
            )));
        }
        if *name == settings.model {
            return Err(invalid(&format!("The lora adapter '{name}' conflicts with a served base model.")));
        }
        if !is_there(path, &settings.adapters) {
            return Err(not_found(&format!("Loading lora {name} failed: No adapter found for {path}")));
        }
        let answer = format!("Success: LoRA adapter '{name}' added successfully.");
        state.put(adapter);
        Ok(answer)
    }

    /// `POST /v1/unload_lora_adapter`. Requests that it has continue.
    pub(crate) fn unload(&self, body: &[u8]) -> Result<String, ErrorAnswer> {
        let fields = object(body)?;
        let name = required(&fields, "lora_name")?;
        if name.is_empty() {
            return Err(invalid("'lora_name' needs to be provided to unload a LoRA adapter."));
        }
        let mut state = self.state();
        let Some(place) = state.served.iter().position(|served| served.adapter.name == name) else {
            return Err(not_found(&format!("The lora adapter '{name}' cannot be found.")));
        };
        state.served.remove(place);
        Ok(format!("Success: LoRA adapter '{name}' removed successfully."))
    }

    /// Held for a moment, never across an `.await`.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Adds an adapter, in the place of one of its name.
    fn put(&mut self, adapter: Adapter) {
        self.last_id += 1;
        let served = Arc::new(Served { adapter, id: ModelId(self.last_id) });
        match self.served.iter_mut().find(|other| other.adapter.name == served.adapter.name) {
            Some(other) => *other = served,
            None => self.served.push(served),
        }
    }
}

fn is_there(path: &str, settings: &AdapterSettings) -> bool {
    settings.paths.as_ref().is_none_or(|paths| paths.iter().any(|there| there == path))
}

fn object(body: &[u8]) -> Result<Map<String, Value>, ErrorAnswer> {
    serde_json::from_slice(body).map_err(|error| ErrorAnswer::json_invalid(error.column(), "Expecting value"))
}

fn required(fields: &Map<String, Value>, name: &str) -> Result<String, ErrorAnswer> {
    let location = format!("body.{name}");
    match fields.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        None => {
            let input = format!("<dict of {} items>", fields.len());
            Err(ErrorAnswer::validation("missing", &location, "Field required", &input))
        }
        Some(other) => {
            let message = "Input should be a valid string";
            Err(ErrorAnswer::validation("string_type", &location, message, &other.to_string()))
        }
    }
}

fn invalid(message: &str) -> ErrorAnswer {
    ErrorAnswer::new(StatusCode::BAD_REQUEST, "InvalidUserInput", None, message)
}

fn not_found(message: &str) -> ErrorAnswer {
    ErrorAnswer::new(StatusCode::NOT_FOUND, "NotFoundError", None, message)
}
