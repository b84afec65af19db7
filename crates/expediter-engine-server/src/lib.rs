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
//! The shapes of answers, errors and metrics are those of captures of the real engine; `tests/it` compares them.

mod answer;
mod clock;
mod connection;
mod driver;
mod error;
mod events;
mod fault;
mod generate;
mod listener;
mod metrics;
mod replica;
mod reply;
mod request;
mod routes;
mod server;
mod settings;
mod vocabulary;

pub use fault::{CutBy, Fault};
pub use replica::Replica;
pub use server::EngineServer;
pub use settings::{Settings, StartError};
