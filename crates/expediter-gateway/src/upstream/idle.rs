//! Connections that wait for their next request, one pool a shard.

use std::collections::HashMap;
use std::time::Duration;

use expediter_types::{ReplicaId, Time};

use super::Connection;

/// Idle connections of one shard. Nothing here is shared between shards, so no lock is contended.
#[derive(Default)]
pub(crate) struct IdlePool {
    by_replica: HashMap<ReplicaId, Vec<(Time, Connection)>>,
}

impl IdlePool {
    /// The connection to `replica` that was used last, if one is fresh and quiet. The latest first: the older
    /// ones run out and the pool shrinks to what is needed.
    pub(crate) fn take(&mut self, replica: ReplicaId, now: Time) -> Option<Connection> {
        let idle = self.by_replica.get_mut(&replica)?;
        while let Some((since, connection)) = idle.pop() {
            if now.since(since) < IDLE_MAX && connection.is_quiet() {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps `connection` for the next request; drops it where enough wait already.
    pub(crate) fn put(&mut self, replica: ReplicaId, connection: Connection, now: Time) {
        let idle = self.by_replica.entry(replica).or_default();
        if idle.len() < PER_REPLICA_MAX {
            idle.push((now, connection));
        }
    }

    /// Closes what waited too long. Call about once a second.
    pub(crate) fn sweep(&mut self, now: Time) {
        self.by_replica.retain(|_, idle| {
            idle.retain(|(since, _)| now.since(*since) < IDLE_MAX);
            !idle.is_empty()
        });
    }
}

/// vLLM closes a connection that was idle for 5.0 s (uvicorn's `timeout_keep_alive`; measured on 0.32.0). Ours
/// are gone a second earlier, so that a request and the engine's close seldom cross.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// More idle connections to one replica than an engine runs requests (`max_num_seqs` 256) are of no use.
const PER_REPLICA_MAX: usize = 256;
