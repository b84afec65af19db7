//! The breaker of one replica: adds up failures and says when they are too many.

use std::time::Duration;

use expediter_types::Time;

use crate::failure::Failure;
use crate::replica::SetAsideCause;
use crate::settings::BreakerSettings;

/// Failures in a row, and their share in a window of ten buckets. Only an answer that ends well breaks a row: a
/// replica that cuts every stream after its first token is not well.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    failures_in_row: u32,
    refused_in_row: u32,
    last_refused: Time,
    buckets: [Bucket; BUCKETS as usize],
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Which slice of the clock the bucket counts, in bucket widths since the run began.
    slice: u64,
    ended: u32,
    failed: u32,
}

impl Breaker {
    /// An answer to an attempt dispatched at `since` ended well.
    pub(crate) fn succeed(&mut self, since: Time, settings: &BreakerSettings, now: Time) {
        self.failures_in_row = 0;
        // Answers that were under way when the port closed do not show that it is open.
        if since >= self.last_refused {
            self.refused_in_row = 0;
        }
        let bucket = self.bucket(settings, now);
        bucket.ended = bucket.ended.saturating_add(1);
    }

    /// An attempt failed in a way that counts. Returns the cause if the replica is to be set aside for it.
    pub(crate) fn fail(
        &mut self,
        failure: Failure,
        settings: &BreakerSettings,
        now: Time,
    ) -> Option<SetAsideCause> {
        let bucket = self.bucket(settings, now);
        bucket.ended = bucket.ended.saturating_add(1);
        bucket.failed = bucket.failed.saturating_add(1);
        self.failures_in_row = self.failures_in_row.saturating_add(1);
        if failure == Failure::Connect {
            self.refused_in_row = self.refused_in_row.saturating_add(1);
            self.last_refused = now;
        } else {
            self.refused_in_row = 0;
        }
        if self.refused_in_row >= REFUSED_IN_ROW_MAX {
            return Some(SetAsideCause::Unreachable);
        }
        let too_many = self.failures_in_row >= settings.failures_max || self.share_is_too_high(settings, now);
        too_many.then_some(SetAsideCause::Failing)
    }

    fn share_is_too_high(&self, settings: &BreakerSettings, now: Time) -> bool {
        let slice = slice(settings, now);
        let recent = self.buckets.iter().filter(|bucket| slice - bucket.slice.min(slice) < BUCKETS);
        let (ended, failed) = recent.fold((0_u64, 0_u64), |(ended, failed), bucket| {
            (ended + u64::from(bucket.ended), failed + u64::from(bucket.failed))
        });
        ended >= u64::from(settings.window_requests_min)
            && failed as f64 >= settings.window_failures_ratio * ended as f64
    }

    fn bucket(&mut self, settings: &BreakerSettings, now: Time) -> &mut Bucket {
        let slice = slice(settings, now);
        let bucket = &mut self.buckets[usize::try_from(slice % BUCKETS).unwrap_or(0)];
        if bucket.slice != slice {
            *bucket = Bucket { slice, ended: 0, failed: 0 };
        }
        bucket
    }
}

/// Which slice of the clock `now` falls into.
fn slice(settings: &BreakerSettings, now: Time) -> u64 {
    let window = settings.window.max(WINDOW_MIN).as_nanos();
    now.0 / (u64::try_from(window).unwrap_or(u64::MAX) / BUCKETS)
}

/// Enough to forget in steps of a tenth, few enough to add up at every failure.
const BUCKETS: u64 = 10;

/// A port that refuses twice in a row is closed: unlike a 500, that does not depend on the request.
const REFUSED_IN_ROW_MAX: u32 = 2;

/// Keeps a bucket from having no width.
const WINDOW_MIN: Duration = Duration::from_millis(10);
