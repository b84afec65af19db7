//! What a group of simulated replicas is.

use std::net::{Ipv4Addr, SocketAddr};

use expediter_engine_sim::Settings as EngineSettings;
use expediter_types::Tokens;
use expediter_wire::kv_events::{Encoding, ReplayForm};

use crate::adapters::Adapter;
use crate::fault::FaultScript;

/// Replicas that serve one model alike. The defaults are one replica of an 8B model on an A100.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The name that `/v1/models` lists.
    pub model: String,
    /// How many replicas, each on its own port.
    pub replicas: u16,
    /// Where the first replica listens; the others take the ports after it. Port 0 gives each an ephemeral one.
    pub listen: SocketAddr,
    /// Prompt and output of a request together, at most.
    pub max_model_len: Tokens,
    /// The engine of each replica.
    pub engine: EngineSettings,
    /// Seconds of the engine's time in one second of ours.
    pub speed: f64,
    /// Mean length of an answer that ends by itself (`finish_reason` `stop`), drawn from a geometric
    /// distribution. `None`: every answer runs to its cap, as with a model of random weights.
    pub answer_tokens_mean: Option<u32>,
    /// Fixes every draw: step noise, and the words of requests that set no seed of their own.
    pub seed: u64,
    /// Publishes what happens to the prefix cache. `engine.kv_events` follows from it.
    pub kv_events: Option<KvEventsSettings>,
    /// Adapters, where `engine.lora` has room for them.
    pub adapters: AdapterSettings,
    /// `--api-key`: without one of them everything under `/v1/` is refused. Empty: nobody needs a key.
    pub api_keys: Vec<String>,
    /// `VLLM_SERVER_DEV_MODE`: the routes that put the engine to sleep and empty its prefix cache.
    pub dev_mode: bool,
    /// `--enable-request-id-headers`: every answer carries `x-request-id`.
    pub request_id_headers: bool,
    /// A stream that the queue has no room for begins with status 200 and then says so. Otherwise that happens only
    /// to whoever loses the race between the check and the queue, as in a real engine.
    pub late_refusals: bool,
    /// What goes wrong by itself.
    pub faults: FaultScript,
}

/// What is published of the prefix cache, and where. The defaults are those of vLLM 0.32.0, but for the ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEventsSettings {
    /// Where the first replica publishes (ZeroMQ PUB); the others take the ports after it. Port 0 gives each an
    /// ephemeral one.
    pub listen: SocketAddr,
    /// Where it answers for what was published before (ROUTER), by the same rule.
    pub replay: Option<SocketAddr>,
    /// What subscribers choose by.
    pub topic: String,
    /// Batches that can be asked for again.
    pub buffer_steps: usize,
    /// Batches that wait for a slow subscriber; what comes then is lost to it.
    pub hwm: usize,
    /// Which parts of a batch are maps.
    pub encoding: Encoding,
    /// How hashes are written.
    pub hashes: HashForm,
    /// Whether replayed batches name their topic.
    pub replay_form: ReplayForm,
}

impl Default for KvEventsSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            replay: None,
            topic: String::new(),
            buffer_steps: 10_000,
            hwm: 100_000,
            encoding: Encoding::Mixed,
            hashes: HashForm::Int,
            replay_form: ReplayForm::WithTopic,
        }
    }
}

/// How block hashes are published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HashForm {
    /// Their low 64 bits.
    #[default]
    Int,
    /// 32 bytes, `VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0`.
    Bytes32,
}

/// The adapters of a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdapterSettings {
    /// `--lora-modules`: served from the start.
    pub modules: Vec<Adapter>,
    /// `VLLM_ALLOW_RUNTIME_LORA_UPDATING`: the routes that load and unload adapters.
    pub runtime_updates: bool,
    /// The paths at which there is an adapter; `None`: at every path.
    pub paths: Option<Vec<String>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            model: "tiny".to_owned(),
            replicas: 1,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            max_model_len: Tokens(8_192),
            engine: EngineSettings::default(),
            speed: 1.0,
            answer_tokens_mean: None,
            seed: 0,
            kv_events: None,
            adapters: AdapterSettings::default(),
            api_keys: Vec::new(),
            dev_mode: false,
            request_id_headers: false,
            late_refusals: false,
            faults: FaultScript::default(),
        }
    }
}

/// What cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Nothing to serve with.
    #[error("there must be one replica at least")]
    Replicas,
    /// A speed at which time stands still, runs backwards, or beyond what a clock can count.
    #[error("speed {0} must be a positive number, from 0.000001 to 1000000")]
    Speed(f64),
    /// More memory than a test machine has.
    #[error(
        "{0} KV blocks in all are more than the {BLOCKS_MAX} that can be simulated: lower blocks or replicas"
    )]
    Blocks(u64),
    /// No place in the queue of a subscriber, or more than memory has.
    #[error("hwm {0} must be 1 to 10000000 batches")]
    Hwm(usize),
    /// The last port would be beyond the highest.
    #[error("{replicas} replicas from port {first} on need ports above 65535: choose a lower first port")]
    Ports {
        /// How many were asked for.
        replicas: u16,
        /// The port of the first.
        first: u16,
    },
    /// Two sockets of this group on one port.
    #[error(
        "{replicas} replicas from port {first} and from port {second} on overlap: choose ports further apart"
    )]
    Overlap {
        /// How many were asked for.
        replicas: u16,
        /// A first port.
        first: u16,
        /// Another first port.
        second: u16,
    },
    /// Adapters without an engine that takes any.
    #[error("adapters are served only where the engine has room for them: set `engine.lora`")]
    Adapters,
    /// An adapter that could not be told from another model.
    #[error("adapter `{0}` has no name of its own, or no path: give it both")]
    Adapter(String),
    /// A fault for nobody.
    #[error("fault {entry} of the script is for replica {replica}, but there are {replicas}, counted from 0")]
    Script {
        /// Its place in the script, from 0.
        entry: usize,
        /// Whose it is to be.
        replica: u16,
        /// How many there are.
        replicas: u16,
    },
    /// As a real engine says at its start: one request of full length must fit.
    #[error("the KV cache holds {} tokens, less than max_model_len {}: raise blocks or lower max_model_len", capacity.0, max_model_len.0)]
    Capacity {
        /// What the blocks hold.
        capacity: Tokens,
        /// What a request may need.
        max_model_len: Tokens,
    },
    /// A port that cannot be had.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address of the replica.
        address: SocketAddr,
        /// What the system says.
        error: std::io::Error,
    },
}

/// Each takes about 60 bytes; a replica of an 8B on an A100 has 28,000.
const BLOCKS_MAX: u64 = 20_000_000;

impl Settings {
    /// Refuses what could not be served.
    pub(crate) fn validate(&self) -> Result<(), StartError> {
        if self.replicas == 0 {
            return Err(StartError::Replicas);
        }
        if !(1e-6..=1e6).contains(&self.speed) {
            return Err(StartError::Speed(self.speed));
        }
        if let Some(events) = self.kv_events.as_ref().filter(|events| !(1..=10_000_000).contains(&events.hwm))
        {
            return Err(StartError::Hwm(events.hwm));
        }
        let blocks = self.engine.blocks.0.saturating_mul(u64::from(self.replicas));
        if blocks > BLOCKS_MAX {
            return Err(StartError::Blocks(blocks));
        }
        self.validate_ports()?;
        self.validate_adapters()?;
        let stranger = |(entry, replica): (usize, u16)| {
            let replicas = self.replicas;
            (replica >= replicas).then_some(StartError::Script { entry, replica, replicas })
        };
        if let Some(error) = self.faults.replicas().find_map(stranger) {
            return Err(error);
        }
        let (capacity, max_model_len) = (self.engine.capacity(), self.max_model_len);
        if capacity < max_model_len {
            return Err(StartError::Capacity { capacity, max_model_len });
        }
        Ok(())
    }

    fn validate_ports(&self) -> Result<(), StartError> {
        let replicas = self.replicas;
        let events = self.kv_events.as_ref();
        let sockets =
            [Some(self.listen), events.map(|events| events.listen), events.and_then(|events| events.replay)];
        let firsts: Vec<u16> =
            sockets.into_iter().flatten().map(|address| address.port()).filter(|port| *port != 0).collect();
        for (index, &first) in firsts.iter().enumerate() {
            if u32::from(first) + u32::from(replicas) > 1 << 16 {
                return Err(StartError::Ports { replicas, first });
            }
            if let Some(&second) = firsts[..index].iter().find(|other| other.abs_diff(first) < replicas) {
                return Err(StartError::Overlap { replicas, first: second, second: first });
            }
        }
        Ok(())
    }

    fn validate_adapters(&self) -> Result<(), StartError> {
        let modules = &self.adapters.modules;
        if self.engine.lora.is_none() && (self.adapters.runtime_updates || !modules.is_empty()) {
            return Err(StartError::Adapters);
        }
        for (index, Adapter { name, path }) in modules.iter().enumerate() {
            let is_taken = *name == self.model || modules[..index].iter().any(|other| other.name == *name);
            if is_taken || name.is_empty() || path.is_empty() {
                return Err(StartError::Adapter(name.clone()));
            }
        }
        Ok(())
    }

    /// Where the replica of this index listens, when the first listens at `first`.
    pub(crate) fn address(first: SocketAddr, index: u16) -> SocketAddr {
        let port = if first.port() == 0 { 0 } else { first.port() + index };
        SocketAddr::new(first.ip(), port)
    }
}
