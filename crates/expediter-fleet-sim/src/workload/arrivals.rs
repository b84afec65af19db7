//! When requests come.

use std::time::Duration;

use expediter_types::{Prng, Time};

use super::draw::{exponential, gamma};
use super::error::{WorkloadError, check};
use super::rate::{Rate, RateWalk};

/// An open loop's clock: how often requests come, and how evenly.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrivals {
    /// Requests per second over time.
    pub rate: Rate,
    /// How evenly they come.
    pub gaps: Gaps,
}

/// How evenly requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gaps {
    /// Independent of each other.
    Poisson,
    /// A renewal process with Gamma gaps.
    Gamma {
        /// Standard deviation of a gap over its mean: 1 is Poisson, more comes in clusters.
        cv: f64,
    },
    /// All alike.
    Constant,
    /// None: everything comes at the start, whatever the rate.
    AtOnce,
}

impl Arrivals {
    /// Poisson arrivals at a steady rate, per second.
    pub const fn poisson(rate: f64) -> Self {
        Self { rate: Rate::Constant(rate), gaps: Gaps::Poisson }
    }

    /// Gamma arrivals at a steady rate, per second.
    pub const fn gamma(rate: f64, cv: f64) -> Self {
        Self { rate: Rate::Constant(rate), gaps: Gaps::Gamma { cv } }
    }

    /// Equal gaps at a steady rate, per second.
    pub const fn constant(rate: f64) -> Self {
        Self { rate: Rate::Constant(rate), gaps: Gaps::Constant }
    }

    /// Everything at the start of the run.
    pub const fn at_once() -> Self {
        Self { rate: Rate::Constant(1.0), gaps: Gaps::AtOnce }
    }

    /// The times, in order. They end only where the rate does.
    pub fn start(&self, seed: u64) -> Result<impl Iterator<Item = Time> + use<>, WorkloadError> {
        self.rate.check()?;
        let mut renewal = Renewal::new(self.gaps)?;
        let (mut walk, mut rng) = (RateWalk::new(&self.rate), Prng::new(seed));
        Ok(std::iter::from_fn(move || walk.advance(renewal.gap(&mut rng)).map(to_time)))
    }
}

/// Gaps with mean 1. The process is stationary from its start: the first gap is what is left of one that is
/// under way, whose length, being hit by chance, is drawn in proportion to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Renewal {
    gaps: Gaps,
    started: bool,
}

impl Renewal {
    pub(super) fn new(gaps: Gaps) -> Result<Self, WorkloadError> {
        if let Gaps::Gamma { cv } = gaps {
            check((0.05..=100.0).contains(&cv), "cv", cv, "a coefficient of variation from 0.05 to 100")?;
        }
        Ok(Self { gaps, started: false })
    }

    pub(super) fn gap(&mut self, rng: &mut Prng) -> f64 {
        let first = !std::mem::replace(&mut self.started, true);
        match self.gaps {
            Gaps::Poisson => exponential(rng),
            Gaps::Gamma { cv } => {
                let shape = 1.0 / (cv * cv);
                // A Gamma gap drawn in proportion to its length is a Gamma gap of the next shape.
                let draw = if first { gamma(shape + 1.0, rng) * rng.unit() } else { gamma(shape, rng) };
                draw / shape
            }
            Gaps::Constant if first => rng.unit(),
            Gaps::Constant => 1.0,
            Gaps::AtOnce => 0.0,
        }
    }
}

/// Seconds from the start of the run as a point on its clock.
pub(super) fn to_time(seconds: f64) -> Time {
    Time::ZERO + Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(arrivals: &Arrivals, seed: u64, count: usize) -> Vec<f64> {
        let times = arrivals.start(seed).unwrap();
        times.take(count).map(|time| time.since(Time::ZERO).as_secs_f64()).collect()
    }

    #[test]
    fn rate_and_evenness_are_as_asked() {
        // (arrivals, CV of the gaps)
        let cases = [
            (Arrivals::poisson(50.0), 1.0),
            (Arrivals::gamma(50.0, 1.0), 1.0),
            (Arrivals::gamma(50.0, 2.0), 2.0),
            (Arrivals::gamma(50.0, 4.0), 4.0),
            (Arrivals::constant(50.0), 0.0),
        ];
        for (arrivals, cv) in cases {
            let times = seconds(&arrivals, 11, 200_000);
            let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            assert!((mean * 50.0 - 1.0).abs() < 0.04, "{arrivals:?}: mean gap {mean}");
            assert!((variance.sqrt() / mean - cv).abs() < 0.1, "{arrivals:?}: CV {}", variance.sqrt() / mean);
        }
    }

    #[test]
    fn the_start_is_like_the_rest() {
        let arrivals = Arrivals::gamma(10.0, 4.0);
        let count = |seed| seconds(&arrivals, seed, 500).iter().filter(|time| **time < 10.0).count();
        let mean = (0..2_000).map(count).sum::<usize>() as f64 / 2_000.0;
        assert!((mean - 100.0).abs() < 5.0, "{mean} requests in the first 10 s, 100 expected");
    }

    #[test]
    fn a_seed_is_one_history_in_order_of_time() {
        for gaps in [Gaps::Poisson, Gaps::Gamma { cv: 13.0 }, Gaps::Constant, Gaps::AtOnce] {
            let arrivals = Arrivals { rate: Rate::Constant(5.0), gaps };
            let times = seconds(&arrivals, 3, 1_000);
            assert!(times.is_sorted(), "{gaps:?}");
            assert_eq!(times, seconds(&arrivals, 3, 1_000), "{gaps:?}");
            assert_eq!(times == seconds(&arrivals, 4, 1_000), gaps == Gaps::AtOnce, "{gaps:?}");
        }
        assert_eq!(seconds(&Arrivals::at_once(), 0, 3), [0.0, 0.0, 0.0]);
    }

    #[test]
    fn what_is_no_coefficient_of_variation_is_named() {
        for cv in [0.0, -1.0, f64::NAN, 1e6] {
            let error = Arrivals::gamma(1.0, cv).start(0).map(|_| ()).unwrap_err().to_string();
            assert!(error.starts_with("`cv` is "), "{error}");
        }
    }
}
