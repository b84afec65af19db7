//! What the samples add up to.

use std::collections::BTreeSet;

use expediter_types::EngineReport;

use super::MetricsReading;
use super::sample::Sample;
use crate::number::count;

/// What was read so far.
#[derive(Debug, Default)]
pub(super) struct Reading {
    running: Series,
    waiting: Series,
    kv_usage: Series,
    preemptions: Series,
    block_size: Series,
    blocks: Series,
    started_at: Option<f64>,
    engines: BTreeSet<String>,
}

impl Reading {
    /// Takes a sample. Returns whether its name is one of those looked for.
    pub(super) fn take(&mut self, sample: &Sample<'_>) -> bool {
        let (name, spelling) = sample.plain_name();
        // Of two names for one thing the first is the newer. An engine that exports both must not count twice.
        let (series, age) = match name {
            b"num_requests_running" => {
                self.engines.insert(sample.label("engine").unwrap_or_default());
                (&mut self.running, 0)
            }
            b"num_requests_waiting" => (&mut self.waiting, 0),
            b"kv_cache_usage_perc" => (&mut self.kv_usage, 0),
            b"gpu_cache_usage_perc" => (&mut self.kv_usage, 1),
            b"num_preemptions_total" => (&mut self.preemptions, 0),
            b"num_preemptions" => (&mut self.preemptions, 1),
            b"cache_config_info" => {
                let label = |name| sample.label(name).and_then(|text| text.parse().ok()).unwrap_or(f64::NAN);
                self.block_size.take(spelling, label("block_size"));
                self.blocks.take(spelling, label("num_gpu_blocks"));
                return true;
            }
            b"process_start_time_seconds" => {
                self.started_at = Some(sample.value).filter(|time| time.is_finite() && *time > 0.0);
                return false;
            }
            _ => return false,
        };
        series.take(spelling * 2 + age, sample.value);
        true
    }

    /// The report.
    pub(super) fn finish(self) -> MetricsReading {
        let report = EngineReport {
            running: self.running.sum(),
            waiting: self.waiting.sum(),
            kv_usage: self.kv_usage.largest_ratio(),
            preemptions: self.preemptions.sum(),
            block_size: self
                .block_size
                .agreed()
                .and_then(|size| u32::try_from(size).ok())
                .filter(|size| *size > 0),
            blocks: self.blocks.sum(),
            progress: 0,
            started_at: self.started_at,
        };
        let engines = u32::try_from(self.engines.len()).unwrap_or(u32::MAX);
        MetricsReading { report, engines, malformed_lines: 0 }
    }
}

/// The values of one thing, one an engine.
#[derive(Debug, Default)]
struct Series {
    /// How far the name's spelling is from the engine's newest: only the nearest counts.
    rank: u8,
    values: Vec<f64>,
}

impl Series {
    fn take(&mut self, rank: u8, value: f64) {
        if self.values.is_empty() || rank < self.rank {
            self.values.clear();
            self.rank = rank;
        }
        if rank == self.rank {
            self.values.push(value);
        }
    }

    fn sum(&self) -> Option<u64> {
        let counts = self.values.iter().copied().map(count);
        counts.reduce(|a, b| a?.checked_add(b?)).flatten()
    }

    fn agreed(&self) -> Option<u64> {
        let mut counts = self.values.iter().copied().map(count);
        let first = counts.next().flatten()?;
        counts.all(|other| other == Some(first)).then_some(first)
    }

    fn largest_ratio(&self) -> Option<f64> {
        let ratios = self.values.iter().copied().map(ratio);
        ratios.reduce(|a, b| Some(a?.max(b?))).flatten()
    }
}

/// A share of 1; a rounding error above it is 1.
fn ratio(value: f64) -> Option<f64> {
    (0.0..1.001).contains(&value).then(|| value.min(1.0))
}
