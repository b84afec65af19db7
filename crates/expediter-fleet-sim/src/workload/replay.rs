//! A recorded trace, at its own pace or another.

use std::sync::Arc;
use std::time::Duration;

use expediter_types::{Arrival, ModelId, Prng, Time, Tokens};

use super::arrivals::to_time;
use super::content::Stream;
use super::error::{WorkloadError, check, check_rate};

/// Requests of a trace. Those of which only the length is known get contents that nobody shares.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// The trace, in order of time.
    pub requests: Arc<[Arrival]>,
    /// How fast it is played.
    pub pace: Pace,
    /// Each request is moved on by a draw between nothing and this. It undoes the rounding of timestamps: those
    /// of Mooncake's conversation trace are rounded to 3 s, and without it ten requests come at each.
    pub spread: Duration,
    /// Where to begin, from the start of the trace.
    pub skip: Duration,
    /// How much of the trace to play, in its own time; `None` for all that follows.
    pub span: Option<Duration>,
    /// The longest prompt and answer, together, that the model takes; `None` for no limit.
    pub model_length: Option<Tokens>,
    /// What becomes of requests that are longer.
    pub longer: Longer,
    /// The model asked for.
    pub model: ModelId,
}

/// How fast a trace is played.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// So many times as fast as recorded.
    Speed(f64),
    /// So that so many requests per second come, on average over what is played.
    Rate(f64),
}

/// What becomes of requests that are too long for the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Longer {
    /// The first one is an error.
    Error,
    /// They are left out.
    Skip,
}

impl Replay {
    /// The whole trace, whatever its lengths.
    pub const fn new(requests: Arc<[Arrival]>, pace: Pace, model: ModelId) -> Self {
        let (spread, skip) = (Duration::ZERO, Duration::ZERO);
        Self { requests, pace, spread, skip, span: None, model_length: None, longer: Longer::Error, model }
    }

    /// The requests.
    pub fn start(&self, seed: u64) -> Result<impl Iterator<Item = Arrival> + use<>, WorkloadError> {
        match self.pace {
            Pace::Speed(factor) => {
                let remedy = "a factor above 0, at most 1,000,000";
                check(factor > 0.0 && factor <= 1e6, "speed", factor, remedy)?;
            }
            Pace::Rate(rate) => check_rate("rate", rate)?,
        }
        let mut played = self.played(seed)?;
        played.sort_by_key(|(at, _)| *at);
        let factor = match self.pace {
            Pace::Speed(factor) => factor,
            Pace::Rate(rate) => rate / recorded_rate(&played),
        };
        let (requests, model, start) = (Arc::clone(&self.requests), self.model, Time::ZERO + self.skip);
        Ok(played.into_iter().map(move |(at, index)| {
            let Arrival { tenant, prompt, output, output_cap, .. } = requests[index].clone();
            let unknown = prompt.hashes().is_empty();
            let prompt =
                if unknown { Stream::unique(index as u64).prompt(prompt.tokens(), output) } else { prompt };
            let at = to_time(at.since(start).as_secs_f64() / factor);
            Arrival { at, model, tenant, prompt, output, output_cap }
        }))
    }

    /// Times and places of the requests that are played, in the trace's own time.
    fn played(&self, seed: u64) -> Result<Vec<(Time, usize)>, WorkloadError> {
        let mut rng = Prng::new(seed);
        let start = Time::ZERO + self.skip;
        let end = self.span.map_or(Time(u64::MAX), |span| start + span);
        let mut played = Vec::new();
        for (index, request) in self.requests.iter().enumerate() {
            let at = request.at + self.spread.mul_f64(rng.unit());
            if (start..end).contains(&request.at) && self.fits(index, request)? {
                played.push((at, index));
            }
        }
        if played.is_empty() {
            let remedy = "a trace, or a part of one, that holds a request the model takes";
            return Err(WorkloadError::Empty { field: "trace", remedy });
        }
        Ok(played)
    }

    fn fits(&self, index: usize, request: &Arrival) -> Result<bool, WorkloadError> {
        let tokens = request.prompt.tokens() + request.output;
        match self.model_length.filter(|limit| tokens > *limit) {
            None => Ok(true),
            Some(_) if self.longer == Longer::Skip => Ok(false),
            Some(limit) => {
                Err(WorkloadError::TooLong { number: index + 1, tokens: tokens.0, limit: limit.0 })
            }
        }
    }
}

/// Requests per second from the first to the last; one where there is but one moment.
fn recorded_rate(played: &[(Time, usize)]) -> f64 {
    let moment = |at: Option<&(Time, usize)>| at.map_or(Time::ZERO, |(at, _)| *at);
    let seconds = moment(played.last()).since(moment(played.first())).as_secs_f64();
    if seconds > 0.0 { (played.len() - 1) as f64 / seconds } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use expediter_types::Prompt;

    use super::*;

    /// Two requests at each of 0, 3, …, 27 s; the last is long.
    fn trace() -> Replay {
        let request = |index: u64| Arrival {
            at: Time::from_millis(3_000 * (index / 2)),
            model: ModelId(0),
            tenant: 0,
            prompt: Prompt::opaque(Tokens(if index == 19 { 9_000 } else { 160 })),
            output: Tokens(16),
            output_cap: Tokens(16),
        };
        Replay::new((0..20).map(request).collect(), Pace::Speed(1.0), ModelId(5))
    }

    fn seconds(replay: &Replay) -> Vec<f64> {
        replay.start(1).unwrap().map(|arrival| arrival.at.since(Time::ZERO).as_secs_f64()).collect()
    }

    #[test]
    fn pace_and_span_are_as_asked() {
        let (second, all) = (Duration::from_secs, trace());
        // (replay, requests, time of the last)
        let cases = [
            (all.clone(), 20, 27.0),
            (Replay { pace: Pace::Speed(3.0), ..all.clone() }, 20, 9.0),
            (Replay { pace: Pace::Rate(19.0), ..all.clone() }, 20, 1.0),
            (Replay { skip: second(6), ..all.clone() }, 16, 21.0),
            (Replay { skip: second(6), span: Some(second(6)), ..all.clone() }, 4, 3.0),
            (Replay { model_length: Some(Tokens(8_000)), longer: Longer::Skip, ..all }, 19, 27.0),
        ];
        for (replay, count, last) in cases {
            let times = seconds(&replay);
            assert_eq!(times.len(), count, "{replay:?}");
            assert!((times[count - 1] - last).abs() < 1e-6, "{replay:?}: {times:?}");
        }
    }

    #[test]
    fn a_spread_takes_batches_apart_within_their_span() {
        let replay = Replay { spread: Duration::from_secs(3), ..trace() };
        let times = seconds(&replay);
        assert!(times.is_sorted() && times.windows(2).all(|pair| pair[0] < pair[1]), "{times:?}");
        assert!(times.chunks(2).zip(0_u32..).all(|(batch, index)| {
            batch.iter().all(|time| (f64::from(index) * 3.0..f64::from(index + 1) * 3.0).contains(time))
        }));
    }

    #[test]
    fn requests_without_contents_share_nothing() {
        let arrivals: Vec<Arrival> = trace().start(1).unwrap().collect();
        assert_eq!(arrivals[0].prompt.hashes().len(), 11);
        assert_ne!(arrivals[0].prompt.hashes()[0], arrivals[1].prompt.hashes()[0]);
        assert_eq!(arrivals[0].model, ModelId(5));
    }

    #[test]
    fn mistakes_name_their_field() {
        let cases = [
            (Replay { pace: Pace::Speed(0.0), ..trace() }, "`speed` is 0"),
            (Replay { pace: Pace::Rate(1e9), ..trace() }, "`rate` is 1000000000"),
            (Replay { skip: Duration::from_mins(1), ..trace() }, "`trace` is empty"),
            (
                Replay { model_length: Some(Tokens(8_000)), ..trace() },
                "request 20 of the trace needs 9016 tokens",
            ),
        ];
        for (replay, expected) in cases {
            let error = replay.start(0).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
