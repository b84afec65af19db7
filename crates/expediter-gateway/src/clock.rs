//! The gateway's clock: the one place that reads the machine's time for decisions.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use expediter_types::Time;

/// Maps the machine's monotonic clock to the run's `Time`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
    start_unix_ms: u64,
}

impl Clock {
    /// A clock whose run begins here.
    #[expect(clippy::disallowed_methods, reason = "the gateway's clock")]
    pub(crate) fn start() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            start: Instant::now(),
            start_unix_ms: u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// The time of the run.
    #[expect(clippy::disallowed_methods, reason = "the gateway's clock")]
    pub(crate) fn now(&self) -> Time {
        let elapsed = Instant::now().saturating_duration_since(self.start);
        Time(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Unix time of a point of the run, in milliseconds. It follows the monotonic clock, so that a record's
    /// times never run backwards when the wall clock is set.
    pub(crate) fn unix_ms(&self, time: Time) -> u64 {
        self.start_unix_ms + time.0 / 1_000_000
    }

    /// The timer's instant of a point of the run.
    pub(crate) fn instant(&self, time: Time) -> tokio::time::Instant {
        tokio::time::Instant::from_std(self.start) + std::time::Duration::from_nanos(time.0)
    }
}
