//! Times to first token of one replica.

use std::time::Duration;

use expediter_types::Time;

/// Two summaries of the times to first token: a mean that moves with every answer, and a peak that rises at once
/// and fades with time, so that a replica is feared for its recent worst and forgiven when nothing confirms it.
/// Source of the peak: finagle's `PeakEwma` load balancer, decay time 10 s.
#[derive(Debug, Default)]
pub(crate) struct Ttft {
    known: Option<Known>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    mean: f64,
    peak: f64,
    at: Time,
}

impl Ttft {
    /// An answer began `ttft` after its dispatch.
    pub(crate) fn observe(&mut self, ttft: Duration, now: Time) {
        let seconds = ttft.as_secs_f64();
        self.known = Some(match self.known {
            None => Known { mean: seconds, peak: seconds, at: now },
            Some(known) => {
                let kept = decay(now.since(known.at));
                Known {
                    mean: known.mean + (seconds - known.mean) * MEAN_WEIGHT,
                    peak: seconds.max(known.peak * kept + seconds * (1.0 - kept)),
                    at: now,
                }
            }
        });
    }

    /// The moving mean; `None` before the first answer.
    pub(crate) fn mean(&self) -> Option<Duration> {
        self.known.map(|known| Duration::from_secs_f64(known.mean))
    }

    /// The recent worst in seconds, fading to zero; `None` before the first answer.
    pub(crate) fn peak(&self, now: Time) -> Option<f64> {
        self.known.map(|known| known.peak * decay(now.since(known.at)))
    }
}

fn decay(elapsed: Duration) -> f64 {
    (-elapsed.as_secs_f64() / PEAK_DECAY.as_secs_f64()).exp()
}

/// finagle's default `decayTime`.
const PEAK_DECAY: Duration = Duration::from_secs(10);

/// The mean follows the last dozen answers or so.
const MEAN_WEIGHT: f64 = 0.125;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_rises_at_once_and_fades_while_the_mean_follows() {
        let mut ttft = Ttft::default();
        assert_eq!((ttft.mean(), ttft.peak(Time::ZERO)), (None, None));
        ttft.observe(Duration::from_millis(100), Time::ZERO);
        ttft.observe(Duration::from_secs(4), Time::ZERO);
        assert_eq!(ttft.mean(), Some(Duration::from_micros(587_500)), "an eighth of the way from 0.1 to 4");
        let peak = |ttft: &Ttft, seconds: u64| ttft.peak(Time::from_millis(1_000 * seconds)).unwrap();
        assert!((peak(&ttft, 0) - 4.0).abs() < 1e-9);
        assert!((peak(&ttft, 10) - 4.0 / std::f64::consts::E).abs() < 1e-9, "one decay time");
        ttft.observe(Duration::from_millis(100), Time::from_millis(1));
        assert!(peak(&ttft, 0) > 3.9, "one good answer does not excuse it");
        ttft.observe(Duration::from_millis(100), Time::from_millis(60_000));
        assert!(peak(&ttft, 60) < 0.2, "but time and a good answer do");
    }
}
