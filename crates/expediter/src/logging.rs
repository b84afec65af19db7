//! The log on stderr.

use expediter_gateway::settings::{LogFormat, LogLevel, LogSettings};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, Registry, fmt, reload};

/// Changes the level of the log while it is written.
#[derive(Clone)]
pub(crate) struct LogLevelHandle(reload::Handle<Targets, Registry>);

impl LogLevelHandle {
    /// From the next line on.
    pub(crate) fn set(&self, level: LogLevel) {
        // The other end lives as long as the process.
        let _ = self.0.reload(filter(level));
    }
}

/// Starts the log. Call once.
pub(crate) fn start(settings: LogSettings) -> LogLevelHandle {
    let (filter, handle) = reload::Layer::new(filter(settings.level));
    let with_target = settings.level >= LogLevel::Debug;
    let lines = fmt::layer().with_writer(std::io::stderr).with_target(with_target);
    let lines = match settings.format {
        LogFormat::Human => lines.boxed(),
        LogFormat::Json => {
            lines.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed()
        }
    };
    tracing_subscriber::registry().with(filter).with(lines).init();
    LogLevelHandle(handle)
}

/// Libraries are heard only where they warn, and at `trace` with all they say.
fn filter(level: LogLevel) -> Targets {
    let ours = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let others = if ours == LevelFilter::TRACE { ours } else { ours.min(LevelFilter::WARN) };
    Targets::new().with_default(others).with_target("expediter", ours)
}
