//! IO shell of the core: server, upstream client, probing, discovery, metrics, admin.
//!
//! [`Gateway::start`] is the way in. A request's way: `server` accepts its connection and hands it to a shard,
//! `exchange` reads it, asks the pool's dispatcher (`fleet`) where it goes, makes attempts over `upstream` and
//! relays the answer. The decisions are all in `expediter-core`; here are sockets, tasks and the clock.

mod admin;
mod client_io;
mod clock;
mod exchange;
mod fleet;
mod gateway;
mod lazy_timer;
mod metrics;
mod problem;
mod server;
pub mod settings;
mod upstream;
mod usage;

pub use gateway::{Gateway, StartError};
