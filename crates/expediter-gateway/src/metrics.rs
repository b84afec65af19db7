//! What Prometheus can read of the gateway. Labels come only from configuration and from fixed lists, never
//! from a client's bytes: the number of series is bounded by the fleet.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::exchange::{Outcome, Stage};
use crate::problem::Problem;

/// Where requests for a model that nobody serves are counted.
pub(crate) const UNKNOWN_POOL: &str = "unknown";

/// A label value shared by many series.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Label(pub(crate) Arc<str>);

impl Label {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.into())
    }
}

impl EncodeLabelValue for Label {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(&self.0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct PoolLabels {
    pub(crate) pool: Label,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    pub(crate) pool: Label,
    pub(crate) outcome: &'static str,
    pub(crate) status_class: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct AttemptLabels {
    pub(crate) pool: Label,
    pub(crate) replica: Label,
    pub(crate) outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct CodeLabels {
    pub(crate) pool: Label,
    pub(crate) code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct StageLabels {
    pub(crate) pool: Label,
    pub(crate) stage: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ReplicaLabels {
    pub(crate) pool: Label,
    pub(crate) replica: Label,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct StateLabels {
    pub(crate) pool: Label,
    pub(crate) replica: Label,
    pub(crate) state: &'static str,
}

type SecondsGauge = Gauge<f64, AtomicU64>;
type SecondsFamily = Family<PoolLabels, Histogram, fn() -> Histogram>;

/// Every metric family of the gateway.
pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) requests: Family<RequestLabels, Counter>,
    pub(crate) refusals: Family<CodeLabels, Counter>,
    pub(crate) attempts: Family<AttemptLabels, Counter>,
    pub(crate) retries: Family<PoolLabels, Counter>,
    pub(crate) cancelled: Family<StageLabels, Counter>,
    pub(crate) in_flight: Family<PoolLabels, Gauge>,
    pub(crate) waiting: Family<PoolLabels, Gauge>,
    pub(crate) input_tokens: Family<PoolLabels, Counter>,
    pub(crate) output_tokens: Family<PoolLabels, Counter>,
    pub(crate) cached_tokens: Family<PoolLabels, Counter>,
    pub(crate) first_token: SecondsFamily,
    pub(crate) request_time: SecondsFamily,
    pub(crate) replica_in_flight: Family<ReplicaLabels, Gauge>,
    pub(crate) replica_in_flight_tokens: Family<ReplicaLabels, Gauge>,
    pub(crate) replica_report_age: Family<ReplicaLabels, SecondsGauge>,
    pub(crate) replica_state: Family<StateLabels, Gauge>,
    pub(crate) malformed_reports: Family<ReplicaLabels, Counter>,
    pub(crate) connections: Gauge,
    pub(crate) records_lost: Counter,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("expediter");
        let build_info = Family::<[(&'static str, &'static str); 1], Gauge>::default();
        build_info.get_or_create(&[("version", env!("CARGO_PKG_VERSION"))]).set(1);
        registry.register("build_info", "The version that runs", build_info);
        Self {
            requests: family(
                &mut registry,
                "requests",
                "Requests that ended, by outcome and class of status",
            ),
            refusals: family(
                &mut registry,
                "refusals",
                "Requests that the gateway itself answered with an error",
            ),
            attempts: family(
                &mut registry,
                "attempts",
                "Requests sent to replicas, by how each attempt ended",
            ),
            retries: family(&mut registry, "retries", "Attempts after the first one of a request"),
            cancelled: family(
                &mut registry,
                "cancelled",
                "Requests whose client left, by the stage it left in",
            ),
            in_flight: family(&mut registry, "in_flight", "Requests sent to replicas and not ended"),
            waiting: family(&mut registry, "waiting", "Requests that wait for a ready replica"),
            input_tokens: family(&mut registry, "input_tokens", "Prompt tokens, as the engines counted them"),
            output_tokens: family(
                &mut registry,
                "output_tokens",
                "Tokens of answers, as the engines counted them",
            ),
            cached_tokens: family(
                &mut registry,
                "cached_tokens",
                "Prompt tokens that the engines found cached",
            ),
            first_token: seconds(
                &mut registry,
                "first_token",
                "Request received to first output sent on",
                || Histogram::new(FIRST_TOKEN_BUCKETS),
            ),
            request_time: seconds(&mut registry, "request", "Request received to its end", || {
                Histogram::new(REQUEST_BUCKETS)
            }),
            replica_in_flight: family(
                &mut registry,
                "replica_in_flight",
                "Requests sent to the replica and not ended",
            ),
            replica_in_flight_tokens: family(
                &mut registry,
                "replica_in_flight_tokens",
                "Outstanding work of the replica in tokens, as the policy counts it",
            ),
            replica_report_age: {
                let ages = Family::<ReplicaLabels, SecondsGauge>::default();
                registry.register_with_unit(
                    "replica_report_age",
                    "Age of the replica's last good metrics reading",
                    Unit::Seconds,
                    ages.clone(),
                );
                ages
            },
            replica_state: family(&mut registry, "replica_state", "1 for the state that the replica is in"),
            malformed_reports: family(
                &mut registry,
                "malformed_reports",
                "Metrics readings that could not be used",
            ),
            connections: gauge(&mut registry, "connections", "Open connections of clients"),
            records_lost: counter(
                &mut registry,
                "usage_records_lost",
                "Usage records that could not be written",
            ),
            registry,
        }
    }

    /// Everything as text.
    pub(crate) fn encode(&self) -> String {
        let mut text = String::with_capacity(16 * 1024);
        // Writing to a string does not fail; a metric that cannot be encoded leaves the text short.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }

    /// Forgets the series of a pool that is gone. A request of it that ends later may bring back one or two.
    pub(crate) fn forget_pool(&self, pool: &Label) {
        let labels = PoolLabels { pool: pool.clone() };
        self.retries.remove(&labels);
        self.in_flight.remove(&labels);
        self.waiting.remove(&labels);
        self.input_tokens.remove(&labels);
        self.output_tokens.remove(&labels);
        self.cached_tokens.remove(&labels);
        self.first_token.remove(&labels);
        self.request_time.remove(&labels);
        for outcome in Outcome::ALL.map(Outcome::as_str) {
            for status_class in STATUS_CLASSES {
                self.requests.remove(&RequestLabels { pool: pool.clone(), outcome, status_class });
            }
        }
        for code in Problem::POOL_CODES {
            self.refusals.remove(&CodeLabels { pool: pool.clone(), code });
        }
        for stage in Stage::ALL.map(Stage::as_str) {
            self.cancelled.remove(&StageLabels { pool: pool.clone(), stage });
        }
    }

    /// Forgets the series of a replica that is gone.
    pub(crate) fn forget_replica(
        &self,
        labels: &ReplicaLabels,
        states: &[&'static str],
        outcomes: &[&'static str],
    ) {
        self.replica_in_flight.remove(labels);
        self.replica_in_flight_tokens.remove(labels);
        self.replica_report_age.remove(labels);
        self.malformed_reports.remove(labels);
        let (pool, replica) = (&labels.pool, &labels.replica);
        for state in states {
            self.replica_state.remove(&StateLabels { pool: pool.clone(), replica: replica.clone(), state });
        }
        for outcome in outcomes {
            self.attempts.remove(&AttemptLabels { pool: pool.clone(), replica: replica.clone(), outcome });
        }
    }
}

fn family<S, M>(registry: &mut Registry, name: &str, help: &str) -> Family<S, M>
where
    S: Clone + std::hash::Hash + Eq,
    M: Default,
    Family<S, M>: prometheus_client::registry::Metric + Clone,
{
    let family = Family::<S, M>::default();
    registry.register(name, help, family.clone());
    family
}

fn seconds(registry: &mut Registry, name: &str, help: &str, make: fn() -> Histogram) -> SecondsFamily {
    let family = SecondsFamily::new_with_constructor(make);
    registry.register_with_unit(name, help, Unit::Seconds, family.clone());
    family
}

fn gauge(registry: &mut Registry, name: &str, help: &str) -> Gauge {
    let gauge = Gauge::default();
    registry.register(name, help, gauge.clone());
    gauge
}

fn counter(registry: &mut Registry, name: &str, help: &str) -> Counter {
    let counter = Counter::default();
    registry.register(name, help, counter.clone());
    counter
}

/// Edges at the SLOs of the reference fleet (0.18 s and 0.4 s) and about evenly in the logarithm between.
const FIRST_TOKEN_BUCKETS: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.18, 0.25, 0.4, 0.6, 1.0, 2.5, 5.0, 10.0, 60.0];

/// From a cached short answer to the longest that a client waits for.
const REQUEST_BUCKETS: [f64; 13] =
    [0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0];

/// The classes of HTTP statuses, as labels.
const STATUS_CLASSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "other"];

/// The class of an HTTP status.
pub(crate) const fn status_class(status: u16) -> &'static str {
    match status {
        100..=599 => STATUS_CLASSES[status as usize / 100 - 1],
        _ => STATUS_CLASSES[5],
    }
}
