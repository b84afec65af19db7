//! Brings the gauges up to date when somebody reads them.

use crate::fleet::Fleet;
use crate::metrics::PoolLabels;

/// All metrics as text.
pub(super) fn metrics(fleet: &Fleet) -> String {
    let metrics = &fleet.metrics;
    for pool in fleet.pools() {
        let labels = PoolLabels { pool: pool.label.clone() };
        metrics.waiting.get_or_create(&labels).set(i64::try_from(pool.waiting()).unwrap_or(i64::MAX));
        for (replica, view) in pool.views() {
            let labels = &replica.series.labels;
            let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
            metrics.replica_in_flight.get_or_create(labels).set(gauge(view.in_flight));
            metrics.replica_in_flight_tokens.get_or_create(labels).set(gauge(view.in_flight_tokens.0));
            if let Some(age) = view.report_age {
                metrics.replica_report_age.get_or_create(labels).set(age.as_secs_f64());
            }
            replica.show_state(metrics, view.state.as_str());
        }
    }
    metrics.encode()
}
