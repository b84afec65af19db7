//! The parts of the configuration that need no check beyond their types.

use super::raw::{RawBreaker, RawExpose, RawLimits, RawLog, RawProbe, RawRetry, RawWait};
use super::{
    BreakerSettings, Expose, Limits, LogSettings, ProbeSettings, RetrySettings, WaitSettings, Whole,
};

impl From<RawLimits> for Limits {
    fn from(raw: RawLimits) -> Self {
        Self {
            body_bytes_max: raw.body_bytes_max.get(),
            head: raw.head_ms.duration(),
            body_bytes_per_second_min: raw.body_bytes_per_second_min.get(),
            connect: raw.connect_ms.duration(),
            first_output: raw.first_output_ms.duration(),
            gap: raw.gap_ms.duration(),
            answer: raw.answer_ms.map(super::Millis::duration),
            client_stall: raw.client_stall_ms.duration(),
            idle: raw.idle_ms.duration(),
            event_bytes_max: raw.event_bytes_max.get(),
            answer_bytes_max: raw.answer_bytes_max.get(),
            stop: raw.stop_ms.duration(),
            connections_max: raw.connections_max.get(),
        }
    }
}

impl From<RawProbe> for ProbeSettings {
    fn from(raw: RawProbe) -> Self {
        Self {
            interval: raw.interval_ms.duration(),
            timeout: raw.timeout_ms.duration(),
            report: raw.report_ms.duration(),
            stale: raw.stale_ms.duration(),
            warm_up: raw.warm_up,
            warm_up_timeout: raw.warm_up_timeout_ms.duration(),
        }
    }
}

impl From<RawRetry> for RetrySettings {
    fn from(raw: RawRetry) -> Self {
        Self {
            attempts_max: raw.attempts_max.to_u32(),
            ratio: raw.ratio.get(),
            per_second_min: raw.per_second_min.to_u32(),
        }
    }
}

impl From<RawBreaker> for BreakerSettings {
    fn from(raw: RawBreaker) -> Self {
        Self {
            failures_max: raw.failures_max.to_u32(),
            window: raw.window_ms.duration(),
            window_failures_ratio: raw.window_failures_ratio.get(),
            window_requests_min: raw.window_requests_min.to_u32(),
            trial: raw.trial_ms.duration(),
            trial_max: raw.trial_ms_max.duration(),
        }
    }
}

impl From<RawWait> for WaitSettings {
    fn from(raw: RawWait) -> Self {
        Self { limit: raw.limit_ms.duration(), requests_max: raw.requests_max.to_u32() as usize }
    }
}

impl From<RawLog> for LogSettings {
    fn from(raw: RawLog) -> Self {
        Self { format: raw.format, level: raw.level }
    }
}

impl From<RawExpose> for Expose {
    fn from(raw: RawExpose) -> Self {
        Self { replica_header: raw.replica_header, decision_header: raw.decision_header }
    }
}

impl<const MIN: u64, const MAX: u64> Whole<MIN, MAX> {
    /// Where the range lies within 32 bits, which is checked as the program compiles.
    pub(super) const fn to_u32(self) -> u32 {
        const { assert!(MAX <= u32::MAX as u64, "the range is beyond 32 bits") };
        #[expect(clippy::cast_possible_truncation, reason = "the assertion above")]
        let value = self.get() as u32;
        value
    }
}
