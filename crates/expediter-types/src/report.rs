//! What an engine says of itself.

/// One reading of an engine's metrics. A field is `None` where the engine did not say, or said something
/// that is no number: unknown is not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineReport {
    /// Requests in the engine's batch.
    pub running: Option<u64>,
    /// Requests in the engine's queue.
    pub waiting: Option<u64>,
    /// Share of KV blocks held by live requests, 0 to 1. Cached blocks that nobody uses count as free.
    pub kv_usage: Option<f64>,
    /// Preemptions since the engine started.
    pub preemptions: Option<u64>,
    /// Tokens in one KV block.
    pub block_size: Option<u32>,
    /// KV blocks in all.
    pub blocks: Option<u64>,
    /// A digest of everything the engine counts: it differs from the last one where the engine did any work.
    pub progress: u64,
    /// When the engine's process started, in seconds of Unix time as it says: a change means a restart.
    pub started_at: Option<f64>,
}
