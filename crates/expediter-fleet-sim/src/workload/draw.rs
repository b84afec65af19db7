//! Draws from distributions that workloads need.

use expediter_types::Prng;

/// A draw from the exponential distribution with mean 1.
pub(super) fn exponential(rng: &mut Prng) -> f64 {
    -(1.0 - rng.unit()).ln()
}

/// A draw from the Gamma distribution with this shape and scale 1, so with mean `shape`.
/// Source: Marsaglia and Tsang, "A Simple Method for Generating Gamma Variables", ACM TOMS 26(3), 2000; for
/// shapes below 1 the boost of its section 6: a draw for `shape + 1` times `U^(1/shape)`.
pub(super) fn gamma(shape: f64, rng: &mut Prng) -> f64 {
    if shape < 1.0 {
        let boost = (1.0 - rng.unit()).powf(1.0 / shape);
        return gamma(shape + 1.0, rng) * boost;
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = rng.normal();
        let v = (1.0 + c * x).powi(3);
        if v <= 0.0 {
            continue;
        }
        if (1.0 - rng.unit()).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v;
        }
    }
}

/// Ranks from 0, the `n`th drawn in proportion to `(n + 1)^-exponent`.
#[derive(Clone, Debug)]
pub(super) struct Zipf {
    /// Weights added up to each rank.
    sums: Vec<f64>,
}

impl Zipf {
    /// `ranks` of them, at least one; an exponent of 0 makes all alike.
    pub(super) fn new(ranks: usize, exponent: f64) -> Self {
        Self::of_weights((1..=ranks.max(1)).map(|rank| (rank as f64).powf(-exponent)))
    }

    /// Ranks drawn in proportion to weights of one's own.
    pub(super) fn of_weights(weights: impl IntoIterator<Item = f64>) -> Self {
        let add = |sum: &mut f64, weight: f64| {
            *sum += weight;
            Some(*sum)
        };
        Self { sums: weights.into_iter().scan(0.0, add).collect() }
    }

    pub(super) fn draw(&self, rng: &mut Prng) -> usize {
        let mark = rng.unit() * self.sums.last().copied().unwrap_or(0.0);
        self.sums.partition_point(|sum| *sum <= mark).min(self.sums.len().saturating_sub(1))
    }
}

/// Puts a list in random order, each order as likely.
/// Source: Durstenfeld, "Algorithm 235: Random Permutation", CACM 7(7), 1964.
pub(super) fn shuffle<T>(list: &mut [T], rng: &mut Prng) {
    for end in (1..list.len()).rev() {
        list.swap(end, rng.below(end + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_and_cv(draws: &[f64]) -> (f64, f64) {
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64;
        (mean, variance.sqrt() / mean)
    }

    #[test]
    fn a_gamma_draw_has_mean_shape_and_cv_its_root() {
        for (shape, seed) in [(0.0625, 1), (0.25, 2), (1.0, 3), (4.0, 4)] {
            let mut rng = Prng::new(seed);
            let draws: Vec<f64> = (0..200_000).map(|_| gamma(shape, &mut rng)).collect();
            let (mean, cv) = mean_and_cv(&draws);
            assert!((mean / shape - 1.0).abs() < 0.03, "mean {mean} at shape {shape}");
            assert!((cv * shape.sqrt() - 1.0).abs() < 0.03, "CV {cv} at shape {shape}");
        }
    }

    #[test]
    fn an_exponential_draw_has_mean_and_cv_1() {
        let mut rng = Prng::new(5);
        let draws: Vec<f64> = (0..200_000).map(|_| exponential(&mut rng)).collect();
        let (mean, cv) = mean_and_cv(&draws);
        assert!((mean - 1.0).abs() < 0.01 && (cv - 1.0).abs() < 0.01, "mean {mean}, CV {cv}");
    }

    #[test]
    fn zipf_ranks_fall_off_as_they_should() {
        let (zipf, mut rng, mut counts) = (Zipf::new(3, 1.0), Prng::new(6), [0_u32; 3]);
        (0..110_000).for_each(|_| counts[zipf.draw(&mut rng)] += 1);
        for (count, expected) in counts.into_iter().zip([60_000.0, 30_000.0, 20_000.0]) {
            assert!((f64::from(count) / expected - 1.0).abs() < 0.03, "{counts:?}");
        }
    }

    #[test]
    fn a_shuffle_keeps_every_member() {
        let mut list: Vec<u32> = (0..100).collect();
        shuffle(&mut list, &mut Prng::new(7));
        assert_ne!(list[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        list.sort_unstable();
        assert_eq!(list, (0..100).collect::<Vec<_>>());
    }
}
