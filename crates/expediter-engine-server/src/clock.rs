//! The only place that reads a clock: real time for people and sockets, engine time for the engine.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use expediter_types::Time;
use tokio::time::Instant;

/// Engine time runs `speed` times as fast as the clock of the runtime, from the moment it was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    base: Instant,
    base_unix: Duration,
    speed: f64,
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "a shell: the one reading of the wall clock, at the start")]
    pub(crate) fn new(speed: f64) -> Self {
        let base_unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { base: Instant::now(), base_unix, speed }
    }

    /// Engine time.
    pub(crate) fn now(&self) -> Time {
        Time::ZERO + self.base.elapsed().mul_f64(self.speed)
    }

    /// When the runtime's clock reaches a point of engine time.
    pub(crate) fn instant(&self, time: Time) -> Instant {
        self.base + time.since(Time::ZERO).div_f64(self.speed)
    }

    /// How much engine time passes in `real` time.
    pub(crate) fn engine_time(&self, real: Duration) -> Duration {
        real.mul_f64(self.speed)
    }

    /// Real time since 1970.
    pub(crate) fn unix(&self) -> Duration {
        self.base_unix + self.base.elapsed()
    }
}
