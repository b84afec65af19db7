//! How the rate of arrivals changes over time.

use std::time::Duration;

use super::error::{WorkloadError, check, check_rate};

/// Requests per second over time.
#[derive(Clone, Debug, PartialEq)]
pub enum Rate {
    /// The same all the time, per second.
    Constant(f64),
    /// From one rate to another in a straight line, then on at the second.
    Ramp {
        /// Per second at the start; may be 0.
        from: f64,
        /// Per second at the end and ever after.
        to: f64,
        /// How long the ramp is.
        over: Duration,
    },
    /// A steady rate, and `factor` times as much for the first `length` of every `period`.
    Bursts {
        /// Per second between bursts.
        base: f64,
        /// How many times as much in a burst.
        factor: f64,
        /// How long a burst is.
        length: Duration,
        /// From the start of one burst to that of the next.
        period: Duration,
    },
    /// One rate after the other; after the last one, nothing more.
    Stages(Vec<Stage>),
}

/// A steady rate for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stage {
    /// Requests per second.
    pub rate: f64,
    /// For how long.
    pub length: Duration,
}

impl Rate {
    /// Stages of (requests per second, seconds), as published tables give them.
    pub fn stages(stages: &[(f64, u64)]) -> Self {
        let stage =
            |(rate, seconds): &(f64, u64)| Stage { rate: *rate, length: Duration::from_secs(*seconds) };
        Self::Stages(stages.iter().map(stage).collect())
    }

    pub(super) fn check(&self) -> Result<(), WorkloadError> {
        match self {
            Self::Constant(rate) => check_rate("rate", *rate),
            Self::Ramp { from, to, over } => {
                check(*from >= 0.0 && *from <= 1e6, "ramp.from", *from, "a rate from 0 to 1,000,000")?;
                check_rate("ramp.to", *to)?;
                check_length("ramp.over", *over)
            }
            Self::Bursts { base, factor, length, period } => {
                check_rate("bursts.base", *base)?;
                check_rate("bursts.factor", *factor)?;
                check_rate("bursts.base × bursts.factor", base * factor)?;
                check_length("bursts.length", *length)?;
                let seconds = period.as_secs_f64();
                check(period > length, "bursts.period", seconds, "more seconds than `bursts.length`")
            }
            Self::Stages(stages) => {
                if stages.is_empty() {
                    return Err(WorkloadError::Empty { field: "stages", remedy: "at least one stage" });
                }
                stages.iter().try_for_each(|stage| {
                    check_rate("stages.rate", stage.rate)?;
                    check_length("stages.length", stage.length)
                })
            }
        }
    }

    /// Straight pieces, and whether they begin anew after the last.
    fn pieces(&self) -> (Vec<Piece>, bool) {
        let steady = |rate: f64, seconds: f64| Piece { from: rate, to: rate, seconds };
        match self {
            Self::Constant(rate) => (vec![steady(*rate, f64::INFINITY)], false),
            Self::Ramp { from, to, over } => {
                let ramp = Piece { from: *from, to: *to, seconds: over.as_secs_f64() };
                (vec![ramp, steady(*to, f64::INFINITY)], false)
            }
            Self::Bursts { base, factor, length, period } => {
                let rest = period.saturating_sub(*length).as_secs_f64();
                (vec![steady(base * factor, length.as_secs_f64()), steady(*base, rest)], true)
            }
            Self::Stages(stages) => {
                (stages.iter().map(|stage| steady(stage.rate, stage.length.as_secs_f64())).collect(), false)
            }
        }
    }
}

fn check_length(field: &'static str, length: Duration) -> Result<(), WorkloadError> {
    check(!length.is_zero(), field, length.as_secs_f64(), "a number of seconds above 0")
}

/// A piece of a rate over time: a straight line.
#[derive(Clone, Copy, Debug)]
struct Piece {
    from: f64,
    to: f64,
    seconds: f64,
}

impl Piece {
    fn slope(&self) -> f64 {
        if self.seconds.is_finite() { (self.to - self.from) / self.seconds } else { 0.0 }
    }

    /// Requests expected from `offset` seconds into the piece to its end.
    fn rest(&self, offset: f64) -> f64 {
        let left = self.seconds - offset;
        if left.is_infinite() {
            return f64::INFINITY;
        }
        left * (self.from + self.slope() * (offset + left / 2.0))
    }

    /// Seconds from `offset` until `work` more requests are expected; `work` is at most `rest`.
    fn until(&self, offset: f64, work: f64) -> f64 {
        let rate = self.from + self.slope() * offset;
        // The root of rate·t + slope·t²/2 = work in the form that does not cancel.
        let root = (rate * rate + 2.0 * self.slope() * work).max(0.0).sqrt();
        if work > 0.0 { 2.0 * work / (rate + root) } else { 0.0 }
    }
}

/// Walks along a rate. Gaps of mean 1 that are laid over the expected number of requests become arrivals at that
/// rate, whatever process the gaps come from.
#[derive(Clone, Debug)]
pub(super) struct RateWalk {
    pieces: Vec<Piece>,
    repeats: bool,
    at: usize,
    offset: f64,
    /// Seconds from the start of the run to the start of the piece.
    start: f64,
}

impl RateWalk {
    pub(super) fn new(rate: &Rate) -> Self {
        let (pieces, repeats) = rate.pieces();
        Self { pieces, repeats, at: 0, offset: 0.0, start: 0.0 }
    }

    /// Goes on until `work` more requests are expected: seconds from the start of the run, or `None` where the
    /// rate has ended by then.
    pub(super) fn advance(&mut self, mut work: f64) -> Option<f64> {
        loop {
            let piece = self.pieces.get(self.at)?;
            let rest = piece.rest(self.offset);
            if work <= rest {
                self.offset += piece.until(self.offset, work);
                return Some(self.start + self.offset);
            }
            work -= rest;
            self.start += piece.seconds;
            self.offset = 0.0;
            self.at += 1;
            if self.repeats && self.at == self.pieces.len() {
                self.at = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(rate: &Rate, until: f64) -> Vec<f64> {
        let mut walk = RateWalk::new(rate);
        std::iter::from_fn(|| walk.advance(1.0)).take_while(|time| *time <= until).collect()
    }

    fn between(times: &[f64], from: f64, to: f64) -> usize {
        times.iter().filter(|time| (from..to).contains(*time)).count()
    }

    #[test]
    fn each_rate_gives_the_requests_it_says() {
        let second = Duration::from_secs;
        let ramp = Rate::Ramp { from: 0.0, to: 10.0, over: second(10) };
        let bursts = Rate::Bursts { base: 10.0, factor: 5.0, length: second(2), period: second(10) };
        let stages = Rate::stages(&[(3.0, 10), (20.0, 5)]);
        // (rate, from, to, requests expected)
        let cases = [
            (&Rate::Constant(7.0), 0.0, 100.0, 700),
            (&ramp, 0.0, 10.0, 50),
            (&ramp, 0.0, 5.0, 12),
            (&ramp, 10.0, 20.0, 100),
            (&bursts, 0.0, 2.0, 100),
            (&bursts, 2.0, 10.0, 80),
            (&bursts, 30.0, 40.0, 180),
            (&stages, 0.0, 10.0, 30),
            (&stages, 10.0, 15.0, 100),
            (&stages, 15.0, 100.0, 0),
        ];
        for (rate, from, to, expected) in cases {
            let counted = between(&times(rate, 200.0), from, to);
            assert!(counted.abs_diff(expected) <= 1, "{rate:?} from {from} to {to}: {counted}");
        }
    }

    #[test]
    fn what_is_no_rate_is_named() {
        let second = Duration::from_secs;
        let cases = [
            (Rate::Constant(0.0), "`rate` is 0"),
            (Rate::Constant(f64::NAN), "`rate` is NaN"),
            (Rate::Constant(-1.0), "`rate` is -1"),
            (Rate::Constant(1e9), "`rate` is 1000000000"),
            (Rate::Ramp { from: -1.0, to: 1.0, over: second(1) }, "`ramp.from`"),
            (Rate::Ramp { from: 1.0, to: 1.0, over: second(0) }, "`ramp.over`"),
            (
                Rate::Bursts { base: 1.0, factor: 2.0, length: second(2), period: second(1) },
                "`bursts.period` is 1",
            ),
            (Rate::Stages(vec![]), "`stages` is empty"),
            (Rate::stages(&[(1.0, 1), (0.0, 1)]), "`stages.rate` is 0"),
        ];
        for (rate, expected) in cases {
            let error = rate.check().unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("give "), "{rate:?}: {error}");
        }
    }
}
