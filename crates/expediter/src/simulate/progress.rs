//! One line on stderr that says how far the runs are, while somebody watches.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use super::run::Shared;

/// The line. It draws nothing where stderr is no terminal.
pub(crate) struct Progress {
    started: Instant,
    jobs: usize,
    /// Virtual time of all runs; `None` where it cannot be known.
    expected: Option<Duration>,
    shows: bool,
}

impl Progress {
    /// Begins to count the time.
    pub(crate) fn new(jobs: usize, expected: Option<Duration>) -> Self {
        #[expect(clippy::disallowed_methods, reason = "how long the program takes, which no run depends on")]
        let started = Instant::now();
        Self { started, jobs, expected, shows: io::stderr().is_terminal() }
    }

    /// Draws it anew.
    pub(crate) fn draw(&self, shared: &Shared) {
        if self.shows {
            let line =
                line(self.jobs, shared.ended(), shared.simulated(), self.expected, self.started.elapsed());
            // Whoever closed stderr misses nothing that matters.
            let _ = write!(io::stderr(), "\r\x1b[K{line}");
        }
    }

    /// Takes the line away.
    pub(crate) fn clear(&self) {
        if self.shows {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    /// Since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

/// Between two drawings.
pub(crate) const REDRAW: Duration = Duration::from_millis(200);

fn line(
    jobs: usize,
    ended: usize,
    simulated: Duration,
    expected: Option<Duration>,
    elapsed: Duration,
) -> String {
    let mut line = String::new();
    let share = expected.filter(|expected| !expected.is_zero()).map(|expected| {
        // The time that requests take after the last arrival is not known beforehand.
        (simulated.as_secs_f64() / expected.as_secs_f64()).min(if ended == jobs { 1.0 } else { 0.99 })
    });
    if let Some(share) = share {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it lies between 0 and the width"
        )]
        let filled = (share * BAR_WIDTH as f64) as usize;
        let _ = write!(
            line,
            "[{}{}] {:>3.0} %  ",
            "#".repeat(filled),
            "·".repeat(BAR_WIDTH - filled),
            share * 100.0
        );
    }
    let _ = write!(
        line,
        "{ended} of {jobs} runs  {:.0} × real time",
        simulated.as_secs_f64() / elapsed.as_secs_f64().max(1e-3)
    );
    if let Some(share) = share.filter(|share| *share > 0.02) {
        let _ = write!(line, "  {:.0} s left", elapsed.as_secs_f64() * (1.0 - share) / share);
    }
    line
}

const BAR_WIDTH: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_far_the_runs_are() {
        let seconds = Duration::from_secs;
        let cases = [
            (0, 0, Some(400), 1, "[························]   0 %  0 of 4 runs  0 × real time"),
            (
                1,
                100,
                Some(400),
                5,
                "[######··················]  25 %  1 of 4 runs  20 × real time  15 s left",
            ),
            (
                3,
                900,
                Some(400),
                9,
                "[#######################·]  99 %  3 of 4 runs  100 × real time  0 s left",
            ),
            (
                4,
                400,
                Some(400),
                4,
                "[########################] 100 %  4 of 4 runs  100 × real time  0 s left",
            ),
            (2, 100, None, 10, "2 of 4 runs  10 × real time"),
        ];
        for (ended, simulated, expected, elapsed, shown) in cases {
            let expected = expected.map(seconds);
            assert_eq!(line(4, ended, seconds(simulated), expected, seconds(elapsed)), shown);
        }
    }
}
