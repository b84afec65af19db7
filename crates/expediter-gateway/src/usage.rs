//! Usage records: one JSON line for every request that reached a pool.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, UNIX_EPOCH};

use prometheus_client::metrics::counter::Counter;
use serde::{Serialize, Serializer};

use crate::settings::UsageSink;

/// Tokens of a request, and who counted them. `None` is unknown, which is not zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    pub(crate) input_tokens: Option<u64>,
    pub(crate) output_tokens: Option<u64>,
    /// `engine`, `gateway` or `unknown`.
    pub(crate) by: &'static str,
}

/// One attempt of a request.
#[derive(Debug, Serialize)]
pub(crate) struct RecordedAttempt<'a> {
    pub(crate) replica: &'a str,
    pub(crate) outcome: &'static str,
}

/// A request that ended.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    pub(crate) unix_ms: u64,
    pub(crate) request_id: &'a str,
    pub(crate) trace_id: Option<&'a str>,
    pub(crate) pool: &'a str,
    pub(crate) model: Option<&'a str>,
    pub(crate) served_model: &'a str,
    pub(crate) replica: Option<&'a str>,
    pub(crate) attempts: Vec<RecordedAttempt<'a>>,
    pub(crate) stream: bool,
    pub(crate) status: u16,
    pub(crate) outcome: &'static str,
    pub(crate) counted: Counted,
    pub(crate) cached_tokens: Option<u64>,
    pub(crate) queue_ms: u64,
    pub(crate) first_token_ms: Option<u64>,
    pub(crate) total_ms: u64,
    pub(crate) error_code: Option<&'a str>,
}

/// The line as it is written: only this module knows its shape.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(serialize_with = "rfc3339")]
    time: u64,
    request_id: &'a str,
    trace_id: Option<&'a str>,
    pool: &'a str,
    model: Option<&'a str>,
    served_model: &'a str,
    replica: Option<&'a str>,
    attempts: &'a [RecordedAttempt<'a>],
    stream: bool,
    status: u16,
    outcome: &'a str,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    counted: &'a str,
    queue_ms: u64,
    first_token_ms: Option<u64>,
    total_ms: u64,
    error_code: Option<&'a str>,
}

/// Milliseconds of Unix time, as people and databases read them.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn rfc3339<S: Serializer>(unix_ms: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(*unix_ms)))
}

/// Hands records to a thread that writes them.
pub(crate) struct UsageWriter {
    lines: Option<SyncSender<Vec<u8>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    lost: Counter,
}

/// Lines that may wait for the disk: a second of the reference fleet's 5,000 requests/s, several times over.
const LINES_MAX: usize = 32 * 1024;

impl UsageWriter {
    /// Opens `sink`.
    pub(crate) fn open(sink: &UsageSink, lost: Counter) -> io::Result<Self> {
        let out: Box<dyn Write + Send> = match sink {
            UsageSink::Nowhere => return Ok(Self { lines: None, thread: Mutex::new(None), lost }),
            UsageSink::Stdout => Box::new(io::stdout()),
            UsageSink::File(path) => Box::new(OpenOptions::new().create(true).append(true).open(path)?),
        };
        let (lines, waiting) = sync_channel(LINES_MAX);
        let counter = lost.clone();
        let thread = std::thread::Builder::new()
            .name("usage".to_owned())
            .spawn(move || write_lines(&waiting, out, &counter))?;
        Ok(Self { lines: Some(lines), thread: Mutex::new(Some(thread)), lost })
    }

    /// Whether records go anywhere.
    pub(crate) fn is_on(&self) -> bool {
        self.lines.is_some()
    }

    /// Writes `record`, soon. One that finds no room is counted as lost: a full disk must not stop the serving.
    pub(crate) fn write(&self, record: &Record<'_>) {
        let Some(lines) = &self.lines else { return };
        let mut line = Vec::with_capacity(512);
        let encoded = serde_json::to_writer(&mut line, &Line::from(record));
        line.push(b'\n');
        if encoded.is_err() || lines.try_send(line).is_err() {
            self.lost.inc();
        }
    }

    /// Waits until everything is written. Call when no request is left.
    pub(crate) fn close(mut self) {
        self.lines = None;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic in it has been printed; there is nothing left to write with.
            let _ = thread.join();
        }
    }
}

fn write_lines(lines: &Receiver<Vec<u8>>, mut out: Box<dyn Write + Send>, lost: &Counter) {
    let mut batch = Vec::with_capacity(64 * 1024);
    while let Ok(line) = lines.recv() {
        let mut count = 1;
        batch.extend_from_slice(&line);
        while batch.len() < BATCH_BYTES
            && let Ok(line) = lines.try_recv()
        {
            batch.extend_from_slice(&line);
            count += 1;
        }
        if let Err(error) = out.write_all(&batch).and_then(|()| out.flush()) {
            lost.inc_by(count);
            tracing::error!(%error, records = count, "usage records could not be written");
        }
        batch.clear();
    }
}

/// What is written in one call where lines come faster than the disk takes them.
const BATCH_BYTES: usize = 60 * 1024;

impl<'a> From<&'a Record<'a>> for Line<'a> {
    fn from(record: &'a Record<'a>) -> Self {
        Self {
            time: record.unix_ms,
            request_id: record.request_id,
            trace_id: record.trace_id,
            pool: record.pool,
            model: record.model,
            served_model: record.served_model,
            replica: record.replica,
            attempts: &record.attempts,
            stream: record.stream,
            status: record.status,
            outcome: record.outcome,
            input_tokens: record.counted.input_tokens,
            output_tokens: record.counted.output_tokens,
            cached_tokens: record.cached_tokens,
            counted: record.counted.by,
            queue_ms: record.queue_ms,
            first_token_ms: record.first_token_ms,
            total_ms: record.total_ms,
            error_code: record.error_code,
        }
    }
}
