//! A simulated replica one can curl: the HTTP face of vLLM 0.32.0 over engine-sim, with faults on demand.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use expediter_engine_server::{EngineServer, Fault, Settings};
//!
//! let server = EngineServer::start(Settings { replicas: 2, ..Settings::default() }).await?;
//! println!("{:?}", server.addresses());
//! server.replicas()[0].set_fault(Fault::Freeze).await;
//! server.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! The shapes of answers, errors, metrics and KV events are those of captures of the real engine; `tests/it` compares
//! them, and `DIFFERENCES.md` says where they differ. What goes wrong is set by [`Replica::set_fault`], by
//! `POST /fault` and `POST /faults` of a replica, or by a [`FaultScript`].

#![expect(clippy::doc_markdown, reason = "LoRA and ZeroMQ are names, not items")]

mod adapters;
mod answer;
mod clock;
mod connection;
mod driver;
mod error;
mod events;
mod fault;
mod generate;
mod kv_events;
mod listener;
mod metrics;
mod replica;
mod reply;
mod request;
mod routes;
mod server;
mod settings;
mod vocabulary;

pub use adapters::Adapter;
pub use expediter_wire::kv_events::{Encoding, ReplayForm};
pub use fault::{CutBy, Fault, FaultScript, ScriptError, Termination};
pub use replica::Replica;
pub use server::EngineServer;
pub use settings::{AdapterSettings, HashForm, KvEventsSettings, Settings, StartError};
