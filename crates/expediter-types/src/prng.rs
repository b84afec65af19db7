//! Random draws, always passed as an argument: one seed, one history.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// The generator of every draw. It names its algorithm, so that an update cannot change a history.
#[derive(Clone, Debug)]
pub struct Prng(Pcg64Mcg);

impl Prng {
    /// The generator that `seed` fixes.
    pub fn new(seed: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(seed))
    }

    /// A draw from `0..bound`, without the bias of a remainder.
    /// Source: Lemire, "Fast Random Integer Generation in an Interval", TOMACS 29(1), 2019.
    ///
    /// # Panics
    /// Where `bound` is 0: there is nothing to draw from.
    #[expect(clippy::cast_possible_truncation, reason = "the halves of a 128-bit product are taken apart")]
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "a draw needs something to draw from");
        let bound = bound as u64;
        let threshold = bound.wrapping_neg() % bound;
        loop {
            let wide = u128::from(self.0.next_u64()) * u128::from(bound);
            if wide as u64 >= threshold {
                return (wide >> 64) as usize;
            }
        }
    }

    /// A draw from the half-open interval `[0, 1)`, with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A draw from the standard normal distribution.
    /// Source: Box and Muller, "A Note on the Generation of Random Normal Deviates", 1958.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_one_history() {
        let (mut a, mut b, mut other) = (Prng::new(7), Prng::new(7), Prng::new(8));
        let first: Vec<u64> = (0..8).map(|_| a.bits()).collect();
        assert_eq!(first, (0..8).map(|_| b.bits()).collect::<Vec<_>>());
        assert_ne!(first, (0..8).map(|_| other.bits()).collect::<Vec<_>>());
    }

    #[test]
    fn draws_stay_in_range_and_reach_every_value() {
        let mut rng = Prng::new(1);
        let mut seen = [0_u32; 5];
        for _ in 0..5_000 {
            seen[rng.below(5)] += 1;
            assert!((0.0..1.0).contains(&rng.unit()));
        }
        assert!(seen.iter().all(|count| (800..1_200).contains(count)), "{seen:?}");
    }
}
