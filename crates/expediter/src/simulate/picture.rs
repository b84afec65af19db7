//! What the page draws of one run, small enough to be written into it.

use std::time::Duration;

use expediter_fleet_sim::{Distribution, End, Report, Sample, Slo};

/// Curves and series of one run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Picture {
    /// Milliseconds to the first token at each of [`LEVELS`], for prompts that have the objective; empty where no
    /// request got one. The levels count every such request: what was not answered lies beyond the end.
    pub(crate) ttft_ms: Vec<f64>,
    /// Milliseconds per output token at each of [`LEVELS`].
    pub(crate) tpot_ms: Vec<f64>,
    /// The share of the requests behind `ttft_ms` that got a first token, 0 to 1.
    pub(crate) ttft_answered: f64,
    /// The fleet over time, where it is wanted.
    pub(crate) series: Option<Series>,
}

/// The fleet over time, in columns of equal width.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Series {
    /// The width of a column.
    pub(crate) column: Duration,
    /// KV in use of each replica: one text a replica, one letter a column.
    pub(crate) in_use: Vec<String>,
    /// KV with content, alike.
    pub(crate) resident: Vec<String>,
    /// Requests that wait in gateways: mean over the column.
    pub(crate) waiting_gateway: Vec<f64>,
    /// Requests that wait in engines: mean over the column.
    pub(crate) waiting_engine: Vec<f64>,
    /// Requests in batches: mean over the column.
    pub(crate) running: Vec<f64>,
    /// Requests refused or expired per second.
    pub(crate) refused_per_second: Vec<f64>,
    /// Requests that arrived per second.
    pub(crate) arrived_per_second: Vec<f64>,
}

/// Where the curves are taken, in thousandths: finer towards the end, where objectives are decided.
pub(crate) const LEVELS: [usize; 47] = [
    0, 10, 25, 50, 75, 100, 125, 150, 175, 200, 225, 250, 275, 300, 325, 350, 375, 400, 425, 450, 475, 500,
    525, 550, 575, 600, 625, 650, 675, 700, 725, 750, 775, 800, 825, 850, 875, 900, 925, 940, 950, 960, 970,
    980, 990, 995, 999,
];

/// Letters for a share from 0 to 1 in 64 steps; `~` is a replica that is not there.
pub(crate) const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

impl Picture {
    /// Draws a report, and the fleet over time where a number of columns is given, in so many at most.
    pub(crate) fn of(report: &Report, slo: &Slo, columns: Option<usize>) -> Self {
        let in_scope = || report.requests.iter().filter(|request| request.prompt <= slo.prompt_max);
        let ttft: Distribution = in_scope().filter_map(|request| request.ttft).collect();
        let answered = report.requests.iter().filter(|request| request.end == End::Answered);
        let tpot: Distribution = answered.filter_map(expediter_fleet_sim::RequestRecord::tpot).collect();
        let total = in_scope().count();
        Self {
            ttft_answered: if total == 0 { 1.0 } else { ttft.values().len() as f64 / total as f64 },
            ttft_ms: curve(&ttft),
            tpot_ms: curve(&tpot),
            series: columns.map(|columns| Series::of(&report.samples, columns)),
        }
    }
}

fn curve(distribution: &Distribution) -> Vec<f64> {
    LEVELS.iter().filter_map(|level| distribution.quantile(*level)).map(rounded_ms).collect()
}

/// Milliseconds with three decimals at most.
fn rounded_ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

impl Series {
    fn of(samples: &[Sample], columns: usize) -> Self {
        let per_column = samples.len().div_ceil(columns.max(1)).max(1);
        let interval = match samples {
            [first, second, ..] => second.at.since(first.at),
            _ => Duration::ZERO,
        };
        let chunks: Vec<&[Sample]> = samples.chunks(per_column).collect();
        let replicas = samples.iter().map(|sample| sample.replicas.len()).max().unwrap_or_default();
        let mean = |number: &dyn Fn(&Sample) -> f64| {
            chunks
                .iter()
                .map(|chunk| rounded(chunk.iter().map(number).sum::<f64>() / chunk.len() as f64))
                .collect()
        };
        let per_second = |number: &dyn Fn(&Sample) -> u64| {
            let seconds = interval.as_secs_f64();
            mean(&|sample| if seconds > 0.0 { number(sample) as f64 / seconds } else { 0.0 })
        };
        let of_replicas = |number: &dyn Fn(&expediter_fleet_sim::ReplicaSample) -> u32| {
            mean(&|sample| sample.replicas.iter().map(|replica| f64::from(number(replica))).sum())
        };
        let rows = |number: &dyn Fn(&expediter_fleet_sim::ReplicaSample) -> f32| {
            (0..replicas)
                .map(|replica| chunks.iter().map(|chunk| letter(chunk, replica, number)).collect())
                .collect()
        };
        Self {
            column: interval * u32::try_from(per_column).unwrap_or(u32::MAX),
            in_use: rows(&|replica| replica.in_use),
            resident: rows(&|replica| replica.resident),
            waiting_gateway: mean(&|sample| sample.waiting as f64),
            waiting_engine: of_replicas(&|replica| replica.waiting),
            running: of_replicas(&|replica| replica.running),
            refused_per_second: per_second(&|sample| sample.refused),
            arrived_per_second: per_second(&|sample| sample.arrived),
        }
    }
}

/// Two decimals say enough in a chart.
fn rounded(value: f64) -> f64 {
    (value * 1e2).round() / 1e2
}

/// The mean of one replica over some samples.
fn letter(
    samples: &[Sample],
    replica: usize,
    number: &dyn Fn(&expediter_fleet_sim::ReplicaSample) -> f32,
) -> char {
    let present: Vec<f32> = samples
        .iter()
        .filter_map(|sample| sample.replicas.get(replica))
        .filter(|replica| replica.present)
        .map(number)
        .collect();
    if present.is_empty() {
        return '~';
    }
    let mean = present.iter().sum::<f32>() / present.len() as f32;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it lies between 0 and 63")]
    let step = (mean.clamp(0.0, 1.0) * 63.0).round() as usize;
    char::from(LETTERS[step])
}

#[cfg(test)]
mod tests {
    use expediter_fleet_sim::ReplicaSample;
    use expediter_types::{Time, Tokens};

    use super::*;

    fn sample(second: u64, in_use: &[f32]) -> Sample {
        let replica = |in_use: &f32| ReplicaSample {
            present: *in_use >= 0.0,
            running: 2,
            waiting: 1,
            in_use: *in_use,
            resident: 1.0,
        };
        Sample {
            at: Time::from_millis(1_000 * second),
            replicas: in_use.iter().map(replica).collect(),
            waiting: second,
            refused: 3,
            arrived: 10,
            input_tokens: Tokens::ZERO,
            output_tokens: Tokens::ZERO,
        }
    }

    #[test]
    fn samples_are_drawn_together_to_fit_the_columns() {
        let samples = [sample(1, &[0.0, -1.0]), sample(2, &[1.0, -1.0]), sample(3, &[1.0, 0.0])];
        let expected = Series {
            column: Duration::from_secs(2),
            in_use: vec!["g/".to_owned(), "~A".to_owned()],
            resident: vec!["//".to_owned(), "~/".to_owned()],
            waiting_gateway: vec![1.5, 3.0],
            waiting_engine: vec![2.0, 2.0],
            running: vec![4.0, 4.0],
            refused_per_second: vec![3.0, 3.0],
            arrived_per_second: vec![10.0, 10.0],
        };
        assert_eq!(Series::of(&samples, 2), expected);
        assert_eq!(Series::of(&samples, 100).in_use, ["A//", "~~A"]);
        assert_eq!(Series::of(&[], 100), Series::default());
    }

    #[test]
    fn levels_rise_to_where_objectives_are_decided() {
        assert!(LEVELS.is_sorted() && LEVELS.contains(&950) && LEVELS.contains(&990));
    }
}
