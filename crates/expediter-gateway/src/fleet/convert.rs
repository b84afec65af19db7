//! The settings of a pool's dispatcher, out of those of the gateway.

use std::time::Duration;

use expediter_core::{BreakerSettings, Policy};

use crate::settings::{RawPolicy, Settings};

/// How a replica of `pool` is chosen. A pool that was found and not configured has the default policy.
pub(super) fn policy(settings: &Settings, pool: &str) -> Policy {
    settings.pools.get(pool).map_or_else(|| RawPolicy::default().into(), |pool| pool.policy)
}

/// What the dispatcher of `pool` is told.
pub(super) fn core_settings(settings: &Settings, pool: &str) -> expediter_core::Settings {
    let defaults = expediter_core::Settings::default();
    let parameters = settings.pools.get(pool).map(|pool| pool.policy_parameters.clone());
    expediter_core::Settings {
        policy: policy(settings, pool),
        policy_parameters: parameters.unwrap_or_default(),
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
