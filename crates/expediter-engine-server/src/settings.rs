//! What a group of simulated replicas is.

use std::net::{Ipv4Addr, SocketAddr};

use expediter_engine_sim::Settings as EngineSettings;
use expediter_types::Tokens;

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
        }
    }
}

/// What cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A speed at which time stands still, or runs backwards.
    #[error("speed {0} must be a positive number")]
    Speed(f64),
    /// The last port would be beyond the highest.
    #[error("{replicas} replicas from port {first} on need ports above 65535: choose a lower first port")]
    Ports {
        /// How many were asked for.
        replicas: u16,
        /// The port of the first.
        first: u16,
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

impl Settings {
    /// Refuses what could not be served.
    pub(crate) fn validate(&self) -> Result<(), StartError> {
        if !(self.speed.is_finite() && self.speed > 0.0) {
            return Err(StartError::Speed(self.speed));
        }
        let first = self.listen.port();
        if first != 0 && u32::from(first) + u32::from(self.replicas) > 1 << 16 {
            return Err(StartError::Ports { replicas: self.replicas, first });
        }
        let (capacity, max_model_len) = (self.engine.capacity(), self.max_model_len);
        if capacity < max_model_len {
            return Err(StartError::Capacity { capacity, max_model_len });
        }
        Ok(())
    }

    /// Where the replica of this index listens.
    pub(crate) fn address(&self, index: u16) -> SocketAddr {
        let port = if self.listen.port() == 0 { 0 } else { self.listen.port() + index };
        SocketAddr::new(self.listen.ip(), port)
    }
}
