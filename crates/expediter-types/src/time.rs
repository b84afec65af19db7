//! The run's clock as a value.

use std::ops::{Add, AddAssign};
use std::time::Duration;

/// A point on the run's clock: nanoseconds since the run began. An integer, so that equal inputs
/// order alike on every machine, and so that a test can write it down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The start of the run.
    pub const ZERO: Self = Self(0);

    /// A point `millis` milliseconds into the run.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000_000)
    }

    /// How long after `earlier` this is; zero where `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    /// Saturates at the end of the clock, 584 years into the run.
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_saturate_instead_of_wrapping() {
        let cases = [
            ("forward", Time::from_millis(5), Time::from_millis(2), Duration::from_millis(3)),
            ("equal", Time::from_millis(5), Time::from_millis(5), Duration::ZERO),
            ("backward", Time::from_millis(2), Time::from_millis(5), Duration::ZERO),
        ];
        for (name, later, earlier, expected) in cases {
            assert_eq!(later.since(earlier), expected, "{name}");
        }
        assert_eq!(Time(u64::MAX) + Duration::MAX, Time(u64::MAX));
    }
}
