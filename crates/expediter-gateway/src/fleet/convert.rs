//! The settings of a pool's dispatcher, out of those of the gateway.

use std::time::Duration;

use expediter_core::BreakerSettings;

use crate::settings::Settings;

/// What the dispatcher of `pool` is told. A pool that was found and not configured has the default policy.
pub(super) fn core_settings(settings: &Settings, pool: &str) -> expediter_core::Settings {
    let defaults = expediter_core::Settings::default();
    expediter_core::Settings {
        policy: settings.pools.get(pool).map_or(defaults.policy, |pool| pool.policy),
        attempts_max: settings.retry.attempts_max,
        retry_ratio: settings.retry.ratio,
        retry_per_second_min: settings.retry.per_second_min,
        breaker: BreakerSettings {
            failures_max: settings.breaker.failures_max,
            window: settings.breaker.window,
            window_failures_ratio: settings.breaker.window_failures_ratio,
            window_requests_min: settings.breaker.window_requests_min,
            trial: settings.breaker.trial,
            trial_max: settings.breaker.trial_max,
        },
        wait_max: settings.wait.limit,
        waiting_max: settings.wait.requests_max,
        ramp: settings.ramp,
        stale_after: settings.probe.stale,
        first_output_limit: settings.limits.first_output,
        drain_limit: settings.drain_limit,
        warm_up: settings.probe.warm_up,
        // The prober gives up first; the dispatcher's own limit is for a prober that never reports.
        warm_up_timeout: settings.probe.warm_up_timeout + Duration::from_secs(1),
        ..defaults
    }
}
