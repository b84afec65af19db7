//! One replica as the gateway's IO sees it.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use expediter_types::ReplicaId;
use expediter_wire::models::ServedModel;
use prometheus_client::metrics::counter::Counter;
use tokio_util::sync::CancellationToken;

use crate::metrics::{AttemptLabels, Label, Metrics, ReplicaLabels, StateLabels};
use crate::settings::Secret;
use crate::upstream::Target;

/// A replica in a pool. A replica that moves to another pool, or leaves and comes back, is a new one.
pub(crate) struct Replica {
    pub(crate) id: ReplicaId,
    /// Its URL, as logs, metrics and records name it.
    pub(crate) name: Arc<str>,
    pub(crate) target: Target,
    engine_key: ArcSwapOption<Secret>,
    pub(crate) series: ReplicaSeries,
    /// What its last good model list said.
    served: Mutex<Arc<[ServedModel]>>,
    /// Cancelled when the replica is gone: whatever still runs on it ends.
    pub(crate) gone: CancellationToken,
}

/// The replica's own series, looked up once.
pub(crate) struct ReplicaSeries {
    pub(crate) labels: ReplicaLabels,
    /// One counter for each of [`ATTEMPT_OUTCOMES`].
    attempts: [Counter; ATTEMPT_OUTCOMES.len()],
    pub(crate) malformed_reports: Counter,
}

/// How an attempt ends, in the order of [`AttemptOutcome`]'s members.
const ATTEMPT_OUTCOMES: [&str; 9] = [
    "answered",
    "rejected",
    "cancelled",
    "connect_failed",
    "died",
    "silent",
    "server_error",
    "overloaded",
    "malformed",
];

/// How an attempt at a replica ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptOutcome {
    /// In full.
    Answered,
    /// With a 4xx: the request's own fault.
    Rejected,
    /// The client left.
    Cancelled,
    /// No connection.
    ConnectFailed,
    /// The connection broke, or the engine ended the answer itself.
    Died,
    /// Nothing came within the limit.
    Silent,
    /// A 5xx, or an error as the answer's first event.
    ServerError,
    /// The engine had no room.
    Overloaded,
    /// The answer was no HTTP.
    Malformed,
}

impl AttemptOutcome {
    pub(crate) const fn as_str(self) -> &'static str {
        ATTEMPT_OUTCOMES[self as usize]
    }
}

const STATES: [&str; 6] = ["joining", "warming", "ready", "draining", "set_aside", "gone"];

impl Replica {
    pub(crate) fn new(id: ReplicaId, target: Target, pool: &Label, metrics: &Metrics) -> Self {
        let name: Arc<str> = target.url.to_string().into();
        let replica = Label(Arc::clone(&name));
        let labels = ReplicaLabels { pool: pool.clone(), replica };
        let attempts = ATTEMPT_OUTCOMES.map(|outcome| {
            let labels =
                AttemptLabels { pool: labels.pool.clone(), replica: labels.replica.clone(), outcome };
            metrics.attempts.get_or_create_owned(&labels)
        });
        let malformed_reports = metrics.malformed_reports.get_or_create_owned(&labels);
        Self {
            id,
            name,
            target,
            engine_key: ArcSwapOption::empty(),
            series: ReplicaSeries { labels, attempts, malformed_reports },
            served: Mutex::new(Arc::new([])),
            gone: CancellationToken::new(),
        }
    }

    /// Sent as `Authorization` instead of the client's.
    pub(crate) fn engine_key(&self) -> Option<Arc<Secret>> {
        self.engine_key.load_full()
    }

    /// From the next request on.
    pub(super) fn set_engine_key(&self, key: Option<Secret>) {
        self.engine_key.store(key.map(Arc::new));
    }

    /// Counts an attempt.
    pub(crate) fn count(&self, outcome: AttemptOutcome) {
        self.series.attempts[outcome as usize].inc();
    }

    /// What its last good model list said; empty before the first.
    pub(crate) fn served(&self) -> Arc<[ServedModel]> {
        Arc::clone(&self.served.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes over a model list; `true` where it differs from the last.
    pub(super) fn set_served(&self, models: &[ServedModel]) -> bool {
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = served.as_ref() != models;
        if changed {
            *served = models.into();
        }
        changed
    }

    /// Sets the gauge of the state it is in.
    pub(crate) fn show_state(&self, metrics: &Metrics, current: &str) {
        for state in STATES {
            let ReplicaLabels { pool, replica } = self.series.labels.clone();
            metrics
                .replica_state
                .get_or_create(&StateLabels { pool, replica, state })
                .set(i64::from(state == current));
        }
    }

    /// Takes its series out of the metrics.
    pub(super) fn forget_series(&self, metrics: &Metrics) {
        metrics.forget_replica(&self.series.labels, &STATES, &ATTEMPT_OUTCOMES);
    }
}
