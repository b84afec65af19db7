//! The last lines of the log, for a terminal on which the log itself would destroy the table.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing_subscriber::filter::LevelFilter;

/// What somebody who looks at the table should know. Clones share their lines.
#[derive(Clone, Default)]
pub(crate) struct Notices(Arc<Mutex<VecDeque<(Instant, String)>>>);

/// More than the tallest table shows.
const KEPT: usize = 16;

/// Long enough to be read by somebody who looks now and then.
const RECENT: Duration = Duration::from_secs(30);

impl Notices {
    /// Takes over the log of the process, from warnings on. Call once.
    pub(crate) fn take_log(&self) {
        let notices = self.clone();
        tracing_subscriber::fmt()
            .with_max_level(LevelFilter::WARN)
            .with_ansi(false)
            .with_target(false)
            .with_level(false)
            .without_time()
            .with_writer(move || Writer { notices: notices.clone(), line: Vec::new() })
            .init();
    }

    /// Adds one, in place of the last where that says the same.
    pub(crate) fn push(&self, notice: impl Into<String>) {
        let mut lines = self.lines();
        let notice = notice.into();
        if lines.back().is_some_and(|(_, last)| *last == notice) {
            lines.pop_back();
        }
        lines.push_back((Instant::now(), notice));
        if lines.len() > KEPT {
            lines.pop_front();
        }
    }

    /// Those of the last half minute, the oldest first.
    pub(crate) fn recent(&self, now: Instant) -> Vec<String> {
        let lines = self.lines();
        let recent = lines.iter().filter(|(at, _)| now.duration_since(*at) <= RECENT);
        recent.map(|(_, notice)| notice.clone()).collect()
    }

    fn lines(&self) -> MutexGuard<'_, VecDeque<(Instant, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gathers one line of the log, however many writes it takes.
struct Writer {
    notices: Notices,
    line: Vec<u8>,
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let line = String::from_utf8_lossy(&self.line);
        if !line.trim().is_empty() {
            self.notices.push(line.trim());
        }
    }
}
