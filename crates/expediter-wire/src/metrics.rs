//! An engine's metrics page -> an [`EngineReport`].
//!
//! The page is Prometheus text. Names differ between engine versions and after a pass through some collectors;
//! values can be `NaN`; a page can be cut. What cannot be read is unknown, never zero. Names: vLLM 0.16.0 and
//! 0.32.0, `vllm/v1/metrics/loggers.py`.

mod digest;
mod reading;
mod sample;

use expediter_types::EngineReport;
use memchr::memchr_iter;

use digest::Digest;
use reading::Reading;
use sample::Sample;

/// What a metrics page says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MetricsReading {
    /// The report, over all engines of the replica.
    pub report: EngineReport,
    /// Engines (data-parallel ranks) that report requests.
    pub engines: u32,
    /// Lines that are no sample and no comment.
    pub malformed_lines: u32,
}

/// Reads a metrics page. A last line without its line end may be cut and is left out.
///
/// Requests and preemptions are summed over the engines, KV usage is that of the fullest one; one engine's value
/// that is no count makes the whole unknown.
pub fn parse_metrics(text: &[u8]) -> MetricsReading {
    let mut reading = Reading::default();
    let mut digest = Digest::default();
    let mut malformed_lines = 0;
    let mut start = 0;
    for end in memchr_iter(b'\n', text) {
        let line = text[start..end].trim_ascii();
        start = end + 1;
        if line.is_empty() || line[0] == b'#' {
            continue;
        }
        let Some(sample) = Sample::read(line) else {
            malformed_lines += 1;
            continue;
        };
        let known = reading.take(&sample);
        if (known || sample.is_the_engines()) && !sample.name.ends_with(b"_created") {
            digest.add(line);
        }
    }
    let mut reading = reading.finish();
    reading.report.progress = digest.value();
    reading.malformed_lines = malformed_lines;
    reading
}

#[cfg(test)]
mod tests;
