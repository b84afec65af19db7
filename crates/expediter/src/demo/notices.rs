//! The last lines of the log, for a terminal on which the log itself would destroy the table.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing_subscriber::filter::LevelFilter;

/// What somebody who looks at the table should know. Clones share their lines.
#[derive(Clone, Default)]
pub(crate) struct Notices(Arc<Mutex<VecDeque<String>>>);

/// More than the tallest table shows.
const KEPT: usize = 16;

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

    /// Adds one, unless it says what the last one says.
    pub(crate) fn push(&self, notice: impl Into<String>) {
        let mut lines = self.lines();
        let notice = notice.into();
        if lines.back() == Some(&notice) {
            return;
        }
        lines.push_back(notice);
        if lines.len() > KEPT {
            lines.pop_front();
        }
    }

    /// Those kept, the oldest first.
    pub(crate) fn all(&self) -> Vec<String> {
        self.lines().iter().cloned().collect()
    }

    fn lines(&self) -> MutexGuard<'_, VecDeque<String>> {
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
