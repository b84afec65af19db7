//! The breaker of one replica: adds up failures and says when they are too many.

use std::time::Duration;

use expediter_types::Time;

use crate::failure::Failure;
use crate::replica::SetAsideCause;
use crate::settings::BreakerSettings;

/// Failures in a row, and their share in a window of ten buckets. Only an answer that ends well breaks a row: a
/// replica that cuts every stream after its first token is not well.
///
/// Failures are quick and answers are slow, so a row is told by the order of dispatch, not of the ends. A replica
/// that breaks while good answers are still under way is not saved by them; one that fails a tenth of its
/// requests at once is not condemned before its good answers have had time to come.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    row: Option<Row>,
    refused_in_row: u32,
    /// The last attempt whose connection was refused.
    last_refused: u64,
    buckets: [Bucket; BUCKETS],
}

/// Failures since the last good answer to an attempt made after the first of them.
#[derive(Clone, Copy, Debug)]
struct Row {
    /// The earliest attempt among them.
    first: u64,
    failures: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Which slice of the clock the bucket counts, in bucket widths since the run began.
    slice: u64,
    ended: u32,
    failed: u32,
}

impl Breaker {
    /// The answer to the replica's `nth` attempt ended well.
    pub(crate) fn succeed(&mut self, nth: u64, settings: &BreakerSettings, now: Time) {
        if self.row.is_some_and(|row| row.first < nth) {
            self.row = None;
        }
        // Answers that were under way when the port closed do not show that it is open.
        if self.last_refused < nth {
            self.refused_in_row = 0;
        }
        let bucket = self.bucket(settings, now);
        bucket.ended = bucket.ended.saturating_add(1);
    }

    /// The replica's `nth` attempt, of `made` so far, failed in a way that counts. Returns the cause if the
    /// replica is to be set aside for it.
    pub(crate) fn fail(
        &mut self,
        failure: Failure,
        nth: u64,
        made: u64,
        settings: &BreakerSettings,
        now: Time,
    ) -> Option<SetAsideCause> {
        let bucket = self.bucket(settings, now);
        bucket.ended = bucket.ended.saturating_add(1);
        bucket.failed = bucket.failed.saturating_add(1);
        let row = self.row.get_or_insert(Row { first: nth, failures: 0 });
        row.first = row.first.min(nth);
        row.failures = row.failures.saturating_add(1);
        let since_first = made.saturating_sub(row.first).saturating_add(1);
        let row_is_too_long = row.failures >= settings.failures_max
            && f64::from(row.failures) >= settings.window_failures_ratio * since_first as f64;
        if failure == Failure::Connect {
            self.refused_in_row = self.refused_in_row.saturating_add(1);
            self.last_refused = nth;
        } else {
            self.refused_in_row = 0;
        }
        if self.refused_in_row >= REFUSED_IN_ROW_MAX {
            return Some(SetAsideCause::Unreachable);
        }
        (row_is_too_long || self.share_is_too_high(settings, now)).then_some(SetAsideCause::Failing)
    }

    fn share_is_too_high(&self, settings: &BreakerSettings, now: Time) -> bool {
        let slice = slice(settings, now);
        let recent = self.buckets.iter().filter(|bucket| slice - bucket.slice.min(slice) < BUCKETS as u64);
        let (ended, failed) = recent.fold((0_u64, 0_u64), |(ended, failed), bucket| {
            (ended + u64::from(bucket.ended), failed + u64::from(bucket.failed))
        });
        ended >= u64::from(settings.window_requests_min)
            && failed as f64 >= settings.window_failures_ratio * ended as f64
    }

    fn bucket(&mut self, settings: &BreakerSettings, now: Time) -> &mut Bucket {
        let slice = slice(settings, now);
        let bucket = &mut self.buckets[usize::try_from(slice % BUCKETS as u64).unwrap_or(0)];
        if bucket.slice != slice {
            *bucket = Bucket { slice, ended: 0, failed: 0 };
        }
        bucket
    }
}

/// Which slice of the clock `now` falls into.
fn slice(settings: &BreakerSettings, now: Time) -> u64 {
    let window = settings.window.max(WINDOW_MIN).as_nanos();
    now.0 / (u64::try_from(window).unwrap_or(u64::MAX) / BUCKETS as u64)
}

/// Enough to forget in steps of a tenth, few enough to add up at every failure.
const BUCKETS: usize = 10;

/// A port that refuses twice in a row is closed: unlike a 500, that does not depend on the request.
const REFUSED_IN_ROW_MAX: u32 = 2;

/// Keeps a bucket from having no width.
const WINDOW_MIN: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: Failure = Failure::ServerError { status: 500 };

    /// Each step is an attempt by its number: `Ok` ended well, `Err` failed. `made` attempts were made in all.
    fn run(
        made: u64,
        steps: impl IntoIterator<Item = Result<u64, u64>>,
        failure: Failure,
    ) -> Option<SetAsideCause> {
        let (settings, mut breaker) = (BreakerSettings::default(), Breaker::default());
        steps.into_iter().fold(None, |tripped, step| match step {
            Ok(nth) => {
                breaker.succeed(nth, &settings, Time::ZERO);
                tripped
            }
            Err(nth) => tripped.or(breaker.fail(failure, nth, made, &settings, Time::ZERO)),
        })
    }

    #[test]
    fn a_row_is_told_by_the_order_of_dispatch() {
        let failing = Some(SetAsideCause::Failing);
        assert_eq!(run(5, (1..=4).map(Err), FAILED), None, "four in a row");
        assert_eq!(run(5, (1..=5).map(Err), FAILED), failing, "five in a row");
        let broken = [Err(1), Err(2), Err(3), Err(4), Ok(5), Err(6), Err(7), Err(8), Err(9)];
        assert_eq!(run(9, broken, FAILED), None, "a good answer between them");
        let under_way = [Err(11), Ok(1), Err(12), Ok(2), Err(13), Ok(3), Err(14), Ok(4), Err(15)];
        assert_eq!(run(15, under_way, FAILED), failing, "good answers from before it broke");
        assert_eq!(
            run(100, (1..=100).step_by(10).map(Err), FAILED),
            None,
            "a tenth fails at once, the rest is slow"
        );
    }

    #[test]
    fn a_port_that_refuses_twice_is_closed_though_old_answers_still_come() {
        let unreachable = Some(SetAsideCause::Unreachable);
        assert_eq!(run(20, [Err(11), Ok(1), Ok(2), Err(12)], Failure::Connect), unreachable);
        assert_eq!(run(20, [Err(11), Ok(12), Err(13)], Failure::Connect), None, "it was open in between");
    }
}
