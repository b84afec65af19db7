//! Rates and quantiles over the last half minute, from counters that only grow.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::reading::PoolCounts;

/// How far back rates and quantiles look.
pub(crate) const WINDOW: Duration = Duration::from_secs(30);

/// The counters of all pools at several times.
#[derive(Default)]
pub(crate) struct History(VecDeque<(Instant, BTreeMap<String, PoolCounts>)>);

/// What a pool did in the window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct PoolRates {
    /// Requests received, in a second.
    pub(crate) requests: f64,
    /// Tokens of answers that ended, in a second.
    pub(crate) output_tokens: f64,
    /// Of the prompt tokens, those that the engines found cached.
    pub(crate) cached_ratio: Option<f64>,
    /// Request received to first output sent on, of half the requests at most.
    pub(crate) ttft_p50: Option<Duration>,
    pub(crate) ttft_p99: Option<Duration>,
}

impl History {
    /// Adds a reading, and forgets what is older than the window needs.
    pub(crate) fn push(&mut self, now: Instant, pools: BTreeMap<String, PoolCounts>) {
        self.0.push_back((now, pools));
        while self.0.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= WINDOW) {
            self.0.pop_front();
        }
    }

    /// What `pool` did between the oldest reading and the newest.
    pub(crate) fn rates(&self, pool: &str) -> PoolRates {
        let (Some((from, old)), Some((to, new))) = (self.0.front(), self.0.back()) else {
            return PoolRates::default();
        };
        let Some(new) = new.get(pool) else { return PoolRates::default() };
        // A pool that is missing had counted nothing.
        let nothing = PoolCounts::default();
        let old = old.get(pool).unwrap_or(&nothing);
        let seconds = to.duration_since(*from).as_secs_f64();
        let rate = |old: f64, new: f64| if seconds > 0.0 { (new - old) / seconds } else { 0.0 };
        let prompts = new.input_tokens - old.input_tokens;
        let first_token = growth(&old.first_token, &new.first_token);
        PoolRates {
            requests: rate(old.requests, new.requests),
            output_tokens: rate(old.output_tokens, new.output_tokens),
            cached_ratio: (prompts > 0.0).then(|| (new.cached_tokens - old.cached_tokens) / prompts),
            ttft_p50: quantile(&first_token, 0.5),
            ttft_p99: quantile(&first_token, 0.99),
        }
    }
}

/// By how much each bucket of `new` has grown since `old`, where it may be missing.
fn growth(old: &[(f64, f64)], new: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let before = |index: usize| old.get(index).map_or(0.0, |(_, count)| *count);
    new.iter().enumerate().map(|(index, (edge, count))| (*edge, count - before(index))).collect()
}

/// A quantile of a histogram with cumulative counts, even within a bucket, as `histogram_quantile` of Prometheus
/// estimates it. What is beyond the last edge counts as on it. None where nothing was observed.
fn quantile(buckets: &[(f64, f64)], quantile: f64) -> Option<Duration> {
    let (_, total) = *buckets.last()?;
    let rank = quantile * total;
    let at = buckets.iter().position(|(_, count)| *count >= rank).filter(|_| total > 0.0)?;
    let (low, below) = at.checked_sub(1).map_or((0.0, 0.0), |before| buckets[before]);
    let (high, count) = buckets[at];
    let within = if high.is_finite() { (high - low) * (rank - below) / (count - below) } else { 0.0 };
    Some(Duration::from_secs_f64(low + within))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(requests: f64) -> BTreeMap<String, PoolCounts> {
        let first_token = vec![(0.1, requests / 2.0), (0.2, requests), (f64::INFINITY, requests)];
        let counts = PoolCounts { requests, first_token, ..PoolCounts::default() };
        BTreeMap::from([("m-8b".to_owned(), counts)])
    }

    #[test]
    fn rates_are_of_the_window() {
        let start = Instant::now();
        let mut history = History::default();
        assert_eq!(history.rates("m-8b"), PoolRates::default());
        history.push(start, BTreeMap::new());
        history.push(start + Duration::from_secs(10), counts(40.0));
        let rates = history.rates("m-8b");
        assert!((rates.requests - 4.0).abs() < 1e-9, "{rates:?}");
        assert_eq!(rates.ttft_p50, Some(Duration::from_millis(100)));
        assert_eq!(rates.ttft_p99, Some(Duration::from_millis(198)));
        // The reading at 10 s is the youngest that is 30 s old, so that the window begins there.
        history.push(start + Duration::from_secs(40), counts(40.0));
        assert_eq!(history.rates("m-8b"), PoolRates::default());
    }

    /// Name, buckets, quantile, milliseconds.
    type Case<'a> = (&'a str, &'a [(f64, f64)], f64, Option<u64>);

    #[test]
    fn quantiles_lie_within_their_bucket() {
        let inf = f64::INFINITY;
        let cases: [Case<'_>; 5] = [
            ("nothing there", &[], 0.5, None),
            ("nothing seen", &[(1.0, 0.0), (inf, 0.0)], 0.5, None),
            ("first bucket", &[(1.0, 4.0), (inf, 4.0)], 0.5, Some(500)),
            ("an empty bucket before", &[(1.0, 0.0), (2.0, 4.0), (inf, 4.0)], 0.25, Some(1_250)),
            ("beyond the last edge", &[(1.0, 0.0), (2.0, 1.0), (inf, 4.0)], 0.99, Some(2_000)),
        ];
        for (name, buckets, at, expected) in cases {
            assert_eq!(quantile(buckets, at), expected.map(Duration::from_millis), "{name}");
        }
    }
}
