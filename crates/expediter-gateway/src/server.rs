//! The side towards clients: the listener, and the shards that serve its connections.

mod listener;
mod shard;
mod tls;

pub(crate) use listener::{Listening, bind, listen};
pub(crate) use shard::{ShardHandle, StopSignals, start_shard};
pub(crate) use tls::acceptor;
