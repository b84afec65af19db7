//! The configuration file as it is written. The comments here are the descriptions in its JSON Schema.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bounded::{Millis, Ratio, Whole};
use super::raw_policy::{RawPolicy, RawPolicyParameters};
use super::secret::Secret;

/// Configuration of the Expediter gateway. Every key has a default; a file names what differs. Times are in whole
/// milliseconds, sizes in bytes. Paths are relative to the folder of this file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "Expediter configuration")]
pub struct RawSettings {
    /// Address and port that clients connect to: HTTP/1.1 and HTTP/2, TLS where `tls` is given. A change needs a
    /// restart.
    pub listen: String,
    /// Certificate for `listen`. Renewed files are picked up while running.
    pub tls: Option<RawTls>,
    /// Threads that move bytes; 0 is one for each core. A change needs a restart.
    pub shards: Whole<0, 1024>,
    /// The listener for operators: metrics, health, and the routes that change the fleet.
    pub admin: RawAdmin,
    /// URLs of replicas that belong to no pool by name, as those given to `expediter serve`. The gateway asks each
    /// for its model, and makes one pool of all that serve the same.
    pub replicas: Vec<String>,
    /// Pools by name. The name is the model that clients ask for.
    pub pools: BTreeMap<String, RawPool>,
    /// Other names that clients may ask for: each stands for a pool, for another alias, or for several by weight.
    pub aliases: BTreeMap<String, RawAlias>,
    /// Limits of each phase of a request.
    pub limits: RawLimits,
    /// How the gateway finds out what a replica is up to.
    pub probe: RawProbe,
    /// When a failed attempt is repeated on another replica. Only while nothing was sent to the client.
    pub retry: RawRetry,
    /// When a replica that fails requests is set aside.
    pub breaker: RawBreaker,
    /// Requests that wait for a replica to become ready.
    pub wait: RawWait,
    /// Time over which a replica that became ready is brought up to its full share, in milliseconds.
    pub ramp_ms: Millis<0>,
    /// Time that a drained replica has for its requests before they are cut, in milliseconds.
    pub drain_limit_ms: Millis<0>,
    /// The record of every request.
    pub usage: RawUsage,
    /// The gateway's own log, on stderr.
    pub log: RawLog,
    /// What answers tell clients about the fleet.
    pub expose: RawExpose,
}

/// Certificate and key in PEM files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Tls")]
pub struct RawTls {
    /// PEM file with the certificate and the chain that leads to its root.
    pub certificate_file: PathBuf,
    /// PEM file with the certificate's private key.
    pub key_file: PathBuf,
}

/// The listener for operators.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Admin")]
pub struct RawAdmin {
    /// Address and port. A change needs a restart.
    pub listen: String,
    /// Token for the routes that show or change the fleet (`Authorization: Bearer …`); better kept in `token_file`.
    /// Where neither is set, the environment variable `EXPEDITER_ADMIN_TOKEN` counts; without any of the three,
    /// only /metrics, /livez and /readyz answer.
    pub token: Option<Secret>,
    /// File that holds the token.
    pub token_file: Option<PathBuf>,
    /// Networks in which a replica may be registered through the admin listener, as address/prefix length.
    pub replica_networks: Vec<String>,
}

/// Replicas that serve the same model alike.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Pool")]
pub struct RawPool {
    /// The model's name at the engine; the pool's name where it is left out.
    pub model: Option<String>,
    /// How a replica is chosen.
    pub policy: RawPolicy,
    /// What the policies that have parameters are told. The defaults are those that their authors published.
    pub policy_parameters: RawPolicyParameters,
    /// URLs of the replicas, such as `http://gpu1:8000`.
    pub replicas: Vec<String>,
    /// File with more replicas, one URL a line; `#` begins a comment. Changes are picked up while running.
    pub replica_file: Option<PathBuf>,
    /// File with the key that the engines ask for. Without it, the client's own `Authorization` header is passed on.
    pub engine_key_file: Option<PathBuf>,
}

/// What an alias stands for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Alias")]
pub enum RawAlias {
    /// The name of a pool or of another alias.
    One(String),
    /// Several, each with its share.
    Split(Vec<RawShare>),
}

/// One target of an alias.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Share")]
pub struct RawShare {
    /// The name of a pool or of another alias.
    pub to: String,
    /// Its share, relative to the other weights; 0 takes it out.
    #[serde(default = "weight_of_one")]
    pub weight: Whole<0, 1_000_000>,
}

fn weight_of_one() -> Whole<0, 1_000_000> {
    Whole::new(1)
}

/// Limits of each phase of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Limits")]
pub struct RawLimits {
    /// Largest request body, in bytes.
    pub body_bytes_max: Whole<1024, { 4 << 30 }>,
    /// Time for a client to send the whole head of a request, in milliseconds.
    pub head_ms: Millis<1>,
    /// Slowest pace at which a request body may come in, in bytes a second; 0 is no limit.
    pub body_bytes_per_second_min: Whole<0, { 1 << 30 }>,
    /// Time to connect to a replica, in milliseconds.
    pub connect_ms: Millis<1>,
    /// Time from the dispatch of a request to its first output, in milliseconds.
    pub first_output_ms: Millis<1>,
    /// Longest pause of a replica between two pieces of an answer, in milliseconds.
    pub gap_ms: Millis<1>,
    /// Longest time for a whole answer, in milliseconds; `null` is no limit.
    pub answer_ms: Option<Millis<1>>,
    /// How long a client may take nothing of what is ready for it, in milliseconds.
    pub client_stall_ms: Millis<1>,
    /// How long a connection without a request stays open, in milliseconds.
    pub idle_ms: Millis<1>,
    /// Largest event of a streamed answer, in bytes.
    pub event_bytes_max: Whole<1024, { 4 << 30 }>,
    /// Largest answer that is not streamed, in bytes.
    pub answer_bytes_max: Whole<1024, { 4 << 30 }>,
    /// Time for requests in flight to end after the signal to stop, in milliseconds.
    pub stop_ms: Millis<0>,
    /// Most connections of clients at a time. A change needs a restart.
    pub connections_max: Whole<1, 1_000_000>,
}

/// How the gateway finds out what a replica is up to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Probe")]
pub struct RawProbe {
    /// Time between two health checks of a replica, in milliseconds.
    pub interval_ms: Millis<10>,
    /// Time for a replica to answer a health check or a report, in milliseconds.
    pub timeout_ms: Millis<1>,
    /// Time between two readings of a replica's metrics, in milliseconds.
    pub report_ms: Millis<10>,
    /// Age at which a reading is no longer believed, in milliseconds. No less than `report_ms`.
    pub stale_ms: Millis<10>,
    /// Whether a new replica answers one tiny request of the gateway before it gets any of a client.
    pub warm_up: bool,
    /// Time for the answer to that request, in milliseconds.
    pub warm_up_timeout_ms: Millis<1>,
}

/// When a failed attempt is repeated on another replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Retry")]
pub struct RawRetry {
    /// Most attempts of one request, the first included.
    pub attempts_max: Whole<1, 100>,
    /// Retries allowed, as a share of the requests of a pool.
    pub ratio: Ratio,
    /// Retries a second that are allowed however few the requests are.
    pub per_second_min: Whole<0, 1_000_000>,
}

/// When a replica that fails requests is set aside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Breaker")]
pub struct RawBreaker {
    /// Failures in a row that set a replica aside.
    pub failures_max: Whole<1, 1_000_000>,
    /// The window over which failures are also counted as a share, in milliseconds.
    pub window_ms: Millis<100>,
    /// The share of failures within the window that sets a replica aside.
    pub window_failures_ratio: Ratio,
    /// Requests within the window below which the share says nothing.
    pub window_requests_min: Whole<1, 1_000_000>,
    /// Time after which one request is tried on a replica set aside, in milliseconds. It doubles with every trial
    /// that fails.
    pub trial_ms: Millis<10>,
    /// The longest that time becomes, in milliseconds. No less than `trial_ms`.
    pub trial_ms_max: Millis<10>,
}

/// Requests that wait for a replica to become ready.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Wait")]
pub struct RawWait {
    /// Longest wait, in milliseconds.
    pub limit_ms: Millis<0>,
    /// Most requests of a pool that wait at a time.
    pub requests_max: Whole<0, 1_000_000>,
}

/// The record of every request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Usage")]
pub struct RawUsage {
    /// File to append one JSON line a request to; `-` is stdout, `null` keeps no record. A change needs a restart.
    pub file: Option<String>,
}

/// The gateway's own log, on stderr.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Log")]
pub struct RawLog {
    /// For people or for programs. A change needs a restart.
    pub format: LogFormat,
    /// The least important lines that are written.
    pub level: LogLevel,
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Human,
    /// One JSON object a line.
    Json,
}

/// How important a log line is; the most important first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// What needs somebody.
    Error,
    /// What may need somebody.
    Warn,
    /// What changed.
    #[default]
    Info,
    /// Each request.
    Debug,
    /// Each step of a request.
    Trace,
}

/// What answers tell clients about the fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Expose")]
pub struct RawExpose {
    /// Name the replica in the header `X-Expediter-Replica`.
    pub replica_header: bool,
    /// Explain the choice in the header `X-Expediter-Decision`.
    pub decision_header: bool,
}
