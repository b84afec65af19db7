//! Times in order, and their exact quantiles.

use std::time::Duration;

/// Times of many requests, kept whole: quantiles are values that occurred, and nothing is binned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    /// In ascending order.
    values: Vec<Duration>,
}

impl FromIterator<Duration> for Distribution {
    fn from_iter<I: IntoIterator<Item = Duration>>(values: I) -> Self {
        let mut values: Vec<Duration> = values.into_iter().collect();
        values.sort_unstable();
        Self { values }
    }
}

impl Distribution {
    /// The values in ascending order.
    pub fn values(&self) -> &[Duration] {
        &self.values
    }

    /// By nearest rank: the least value that at least `per_mille` ÷ 1,000 of all values do not exceed. 0 gives the
    /// least of all, 1,000 and more the greatest. `None` where there are no values.
    pub fn quantile(&self, per_mille: usize) -> Option<Duration> {
        let rank = (self.values.len() * per_mille.min(1_000)).div_ceil(1_000);
        self.values.get(rank.saturating_sub(1)).copied()
    }

    /// The arithmetic mean; `None` where there are no values.
    pub fn mean(&self) -> Option<Duration> {
        let count = u32::try_from(self.values.len()).ok().filter(|count| *count > 0)?;
        Some(self.values.iter().sum::<Duration>() / count)
    }

    /// The usual ones; `None` where there are no values.
    pub fn quantiles(&self) -> Option<Quantiles> {
        Some(Quantiles {
            count: self.values.len() as u64,
            mean: self.mean()?,
            p50: self.quantile(500)?,
            p90: self.quantile(900)?,
            p95: self.quantile(950)?,
            p99: self.quantile(990)?,
            max: self.quantile(1_000)?,
        })
    }
}

/// Exact quantiles by nearest rank: see [`Distribution::quantile`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantiles {
    /// Values in all.
    pub count: u64,
    /// Their arithmetic mean.
    pub mean: Duration,
    /// The median.
    pub p50: Duration,
    /// Nine in ten are no greater.
    pub p90: Duration,
    /// 19 in 20 are no greater.
    pub p95: Duration,
    /// 99 in 100 are no greater.
    pub p99: Duration,
    /// The greatest.
    pub max: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_least_value_that_enough_do_not_exceed() {
        // (values in ms, per mille, the quantile in ms)
        let cases: [(&[u64], usize, Option<u64>); 12] = [
            (&[], 500, None),
            (&[7], 0, Some(7)),
            (&[7], 500, Some(7)),
            (&[7], 1_000, Some(7)),
            (&[4, 1, 3, 2], 0, Some(1)),
            (&[4, 1, 3, 2], 250, Some(1)),
            (&[4, 1, 3, 2], 251, Some(2)),
            (&[4, 1, 3, 2], 500, Some(2)),
            (&[4, 1, 3, 2], 501, Some(3)),
            (&[4, 1, 3, 2], 990, Some(4)),
            (&[4, 1, 3, 2], 2_000, Some(4)),
            (&[5, 5, 5, 9], 750, Some(5)),
        ];
        for (values, per_mille, expected) in cases {
            let distribution: Distribution = values.iter().copied().map(Duration::from_millis).collect();
            let found = distribution.quantile(per_mille);
            assert_eq!(found, expected.map(Duration::from_millis), "{values:?} {per_mille}");
        }
    }

    #[test]
    fn a_hundred_values_have_their_own_ranks_as_quantiles() {
        let distribution: Distribution = (1..=100).rev().map(Duration::from_millis).collect();
        let ms = Duration::from_millis;
        let expected = Quantiles {
            count: 100,
            mean: Duration::from_micros(50_500),
            p50: ms(50),
            p90: ms(90),
            p95: ms(95),
            p99: ms(99),
            max: ms(100),
        };
        assert_eq!(distribution.quantiles(), Some(expected));
        assert_eq!(Distribution::default().quantiles(), None);
    }
}
