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

/// A draw from `min` to `max` with this mean: the range times a power of a uniform draw, so that a mean below the
/// middle means many small draws and few large ones.
pub(super) fn between(min: u64, max: u64, mean: u64, rng: &mut Prng) -> u64 {
    let width = max.saturating_sub(min) as f64;
    // The mean of U^p is 1 / (p + 1).
    let power = width / (mean.saturating_sub(min) as f64).max(f64::MIN_POSITIVE) - 1.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from 0 to the width of the range"
    )]
    let above = (width * rng.unit().powf(power)).round() as u64;
    (min + above).min(max)
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
    fn a_draw_between_two_bounds_has_the_mean_asked_for() {
        for (min, max, mean) in [(3_000, 100_000, 55_000), (2, 20, 6), (1, 32_000, 8_000), (5, 5, 5)] {
            let mut rng = Prng::new(6);
            let draws: Vec<u64> = (0..100_000).map(|_| between(min, max, mean, &mut rng)).collect();
            assert!(draws.iter().all(|draw| (min..=max).contains(draw)));
            let got = draws.iter().sum::<u64>() as f64 / draws.len() as f64;
            assert!((got / mean as f64 - 1.0).abs() < 0.02, "{got} instead of {mean}");
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
