//! The settings of a gateway, in two layers: [`RawSettings`] is the configuration file as it is written, with its
//! JSON Schema; [`Settings`] is what the rest of the crate works with, and cannot be wrong.
//!
//! [`Settings::from_raw`] converts the one into the other and reports every mistake with its place and its remedy.
//! It does no IO: the caller reads the files that the configuration names and hands them in as [`Attachments`].

mod aliases;
mod attachments;
mod bounded;
mod convert;
mod defaults;
mod key_path;
mod mistake;
mod raw;
mod raw_policy;
mod replica_url;
mod secret;
mod tls;
mod validate;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use expediter_core::{Policy, PolicyParameters};
use ipnet::IpNet;

pub use self::aliases::{AliasTable, PoolShare};
pub use self::attachments::{Attachments, ReplicaFileError, parse_replica_file};
pub use self::bounded::{DAY_MS, Millis, Ratio, Real, Whole};
pub use self::key_path::{KeyPath, KeyPathError, Step};
pub use self::mistake::{Mistake, closest, one_of};
pub use self::raw::{
    LogFormat, LogLevel, RawAdmin, RawAlias, RawBreaker, RawExpose, RawLimits, RawLog, RawPool, RawProbe,
    RawRetry, RawSettings, RawShare, RawTls, RawUsage, RawWait,
};
pub use self::raw_policy::{RawBoundedHash, RawPolicy, RawPolicyParameters, RawSticky, RawTree, RawWeights};
pub use self::replica_url::{Host, ReplicaUrl, ReplicaUrlError, Scheme};
pub use self::secret::Secret;
pub use self::tls::{TlsIdentity, TlsIdentityError};
pub use self::validate::UNKNOWN_POOL;

/// All settings, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where clients connect; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// The certificate of that listener; none is plain HTTP.
    pub tls: Option<TlsIdentity>,
    /// IO threads; none is one for each core.
    pub shards: Option<NonZeroUsize>,
    /// The listener for operators.
    pub admin: AdminSettings,
    /// Replicas whose pool is found by asking them for their model.
    pub replicas: Vec<ReplicaUrl>,
    /// Pools by name. No replica is in two of them, nor in one and in `replicas`.
    pub pools: BTreeMap<String, PoolSettings>,
    /// Other names for pools.
    pub aliases: AliasTable,
    /// Limits of each phase of a request.
    pub limits: Limits,
    /// Health checks and reports.
    pub probe: ProbeSettings,
    /// Attempts after the first.
    pub retry: RetrySettings,
    /// When a replica is set aside.
    pub breaker: BreakerSettings,
    /// Requests without a ready replica.
    pub wait: WaitSettings,
    /// Time over which a replica that became ready is brought up to its full share.
    pub ramp: Duration,
    /// Time that a drained replica has for its requests.
    pub drain_limit: Duration,
    /// Where the record of every request goes.
    pub usage: UsageSink,
    /// The gateway's own log.
    pub log: LogSettings,
    /// What answers tell about the fleet.
    pub expose: Expose,
}

/// The listener for operators.
#[derive(Clone, Debug)]
pub struct AdminSettings {
    /// Where operators connect; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// What they present; without one only the open routes answer.
    pub token: Option<Secret>,
    /// Where replicas may be registered.
    pub replica_networks: Vec<IpNet>,
}

/// Replicas that serve the same model alike.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolSettings {
    /// The model's name at the engine.
    pub model: String,
    /// How a replica is chosen.
    pub policy: Policy,
    /// What it is told.
    pub policy_parameters: PolicyParameters,
    /// From the configuration, then from the replica file; each once.
    pub replicas: Vec<ReplicaUrl>,
    /// What the engines ask for; without one the client's own `Authorization` is passed on.
    pub engine_key: Option<Secret>,
}

/// Limits of each phase of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest request body.
    pub body_bytes_max: u64,
    /// For a client to send a whole head.
    pub head: Duration,
    /// Slowest pace of a request body; 0 is no limit.
    pub body_bytes_per_second_min: u64,
    /// To connect to a replica.
    pub connect: Duration,
    /// From dispatch to first output.
    pub first_output: Duration,
    /// Between two pieces of an answer.
    pub gap: Duration,
    /// For a whole answer.
    pub answer: Option<Duration>,
    /// In which a client takes nothing of what is ready for it.
    pub client_stall: Duration,
    /// In which a connection has no request.
    pub idle: Duration,
    /// Largest event of a streamed answer.
    pub event_bytes_max: u64,
    /// Largest answer that is not streamed.
    pub answer_bytes_max: u64,
    /// For requests in flight to end after the signal to stop.
    pub stop: Duration,
    /// Most connections of clients at a time.
    pub connections_max: u64,
}

/// Health checks and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeSettings {
    /// Between two health checks of a replica.
    pub interval: Duration,
    /// For one answer.
    pub timeout: Duration,
    /// Between two readings of a replica's metrics.
    pub report: Duration,
    /// Age at which a reading is no longer believed; at least `report`.
    pub stale: Duration,
    /// Whether a new replica first answers a request of the gateway.
    pub warm_up: bool,
    /// For the answer to it.
    pub warm_up_timeout: Duration,
}

/// Attempts after the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetrySettings {
    /// Most attempts of one request, the first included; at least 1.
    pub attempts_max: u32,
    /// Retries as a share of requests, 0 to 1.
    pub ratio: f64,
    /// Retries a second that are always allowed.
    pub per_second_min: u32,
}

/// When a replica is set aside.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BreakerSettings {
    /// Failures in a row.
    pub failures_max: u32,
    /// The window for the share of failures.
    pub window: Duration,
    /// That share, 0 to 1.
    pub window_failures_ratio: f64,
    /// Requests below which the share says nothing.
    pub window_requests_min: u32,
    /// First time until a trial.
    pub trial: Duration,
    /// Longest time until a trial; at least `trial`.
    pub trial_max: Duration,
}

/// Requests without a ready replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitSettings {
    /// Longest wait.
    pub limit: Duration,
    /// Most that wait at a time in a pool.
    pub requests_max: usize,
}

/// Where the record of every request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsageSink {
    /// No record.
    Nowhere,
    /// Standard output.
    Stdout,
    /// Appended to a file.
    File(PathBuf),
}

/// The gateway's own log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// For people or for programs.
    pub format: LogFormat,
    /// The least important lines written.
    pub level: LogLevel,
}

/// What answers tell about the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expose {
    /// `X-Expediter-Replica`
    pub replica_header: bool,
    /// `X-Expediter-Decision`
    pub decision_header: bool,
}

impl Settings {
    /// The settings that differ in `new` and take effect only when the program starts.
    pub fn needs_restart(&self, new: &Self) -> Vec<&'static str> {
        let changed = [
            ("listen", self.listen != new.listen),
            ("tls", self.tls.is_some() != new.tls.is_some()),
            ("shards", self.shards != new.shards),
            ("limits.connections_max", self.limits.connections_max != new.limits.connections_max),
            ("admin.listen", self.admin.listen != new.admin.listen),
            ("usage.file", self.usage != new.usage),
            ("log.format", self.log.format != new.log.format),
        ];
        changed.into_iter().filter_map(|(name, changed)| changed.then_some(name)).collect()
    }
}

#[cfg(test)]
mod tests;
