//! The lines that the user looks at.

use std::time::Duration;

use super::fleet::ALIASES;
use super::hints::{Doors, crash};
use super::history::History;
use super::line::{Line, Style};
use super::reading::{PoolCounts, Reading, Replica};
use super::traffic::Tally;

/// All that is known at one moment.
pub(crate) struct View<'a> {
    pub(crate) doors: &'a Doors,
    pub(crate) uptime: Duration,
    pub(crate) reading: &'a Reading,
    pub(crate) history: &'a History,
    /// None where the user is alone with the gateway.
    pub(crate) tally: Option<&'a Tally>,
    /// The oldest first.
    pub(crate) notices: &'a [String],
}

/// Cells of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) width: usize,
    pub(crate) height: usize,
}

impl View<'_> {
    /// All that fits on a terminal: first the tables, then what to try, then what was noticed.
    pub(crate) fn screen(&self, size: Size) -> Vec<Line> {
        let mut lines = vec![self.title(), Line::default()];
        lines.extend(self.tables(Shape::of_terminal(size.width)));
        let mut foot = self.foot();
        if let Some(last) = foot.last_mut() {
            last.push(Style::Dim, "  Ctrl-C stops.");
        }
        let fixed = lines.len() + 1 + foot.len();
        let mut hints = Vec::new();
        for hint in self.hints(size.width) {
            let room = size.height.saturating_sub(fixed + hints.len());
            hints.extend(hint.lines(size.width, room));
        }
        let room = size.height.saturating_sub(fixed + hints.len()) + 1;
        let hidden = self.notices.len().saturating_sub(room.min(NOTICES_MAX));
        let notices = self.notices[hidden..].iter();
        lines.extend(notices.map(|notice| Line::of(Style::Warn, notice)));
        if self.notices.len() < room {
            lines.push(Line::default());
        }
        lines.extend(hints);
        lines.extend(foot);
        lines.truncate(size.height);
        lines
    }

    /// Where to go and what to try, for an output that is not redrawn.
    pub(crate) fn introduction(&self) -> Vec<Line> {
        let hints = self.hints(PLAIN_WIDTH).into_iter().flat_map(|hint| hint.lines(PLAIN_WIDTH, usize::MAX));
        [self.title()].into_iter().chain(hints).collect()
    }

    /// The tables alone, for what stays: on a terminal of this width, or in a file.
    pub(crate) fn report(&self, terminal_width: Option<usize>) -> Vec<Line> {
        let title = Line::of(Style::Bold, format!("After {}", clock(self.uptime)));
        let mut lines = vec![Line::default(), title];
        lines.extend(self.tables(terminal_width.map_or(Shape::Plain, Shape::of_terminal)));
        lines.extend(self.foot());
        lines
    }

    fn title(&self) -> Line {
        let Doors { clients, operators, .. } = self.doors;
        let mut title = Line::of(Style::Bold, "Expediter demo");
        title.push(Style::Dim, format!(" {:<6}", clock(self.uptime)));
        title.push(Style::Plain, format!(" http://{clients}  admin http://{operators}"));
        title
    }

    /// What to try, the best first.
    fn hints(&self, width: usize) -> Vec<Hint> {
        let mut hints = vec![Hint { title: format!("Try ({ALIASES}):"), command: self.doors.chat(width) }];
        if let Some(replica) = self.reading.replicas.first() {
            let title = format!("Crash {}:", replica.id.as_deref().unwrap_or("one"));
            hints.push(Hint { title, command: crash(replica, width) });
        }
        hints.push(Hint { title: "Operate:".to_owned(), command: self.doors.replicas(width) });
        hints
    }

    fn foot(&self) -> Vec<Line> {
        let mut line = Line::default();
        match self.tally {
            None => line.push(Style::Dim, "No traffic but yours."),
            Some(tally) => {
                let Tally { sent, answered, left, failed, .. } = tally;
                let text = format!("Clients sent {sent} requests: {answered} answered, {left} left early, ");
                line.push(Style::Dim, text);
                line.push(if *failed > 0 { Style::Bad } else { Style::Dim }, format!("{failed} failed."));
            }
        }
        let last_failure = self.tally.and_then(|tally| tally.last_failure.as_deref());
        let failure = last_failure.map(|failure| Line::of(Style::Bad, format!("Last failure: {failure}")));
        failure.into_iter().chain([line]).collect()
    }

    fn tables(&self, shape: Shape) -> Vec<Line> {
        let replicas = &self.reading.replicas;
        let mut pools: Vec<&str> = Vec::new();
        for pool in replicas.iter().filter_map(|replica| replica.pool.as_deref()) {
            if !pools.contains(&pool) {
                pools.push(pool);
            }
        }
        let name_width = pools.iter().map(|pool| pool.chars().count()).max().unwrap_or(0).clamp(6, 16);
        let mut lines = vec![header(&pool_columns(name_width), 2)];
        lines.extend(pools.iter().map(|pool| row(&pool_columns(name_width), 2, self.pool(pool))));
        lines.push(Line::default());
        let (columns, gap) = (replica_columns(name_width, shape), shape.gap());
        lines.push(header(&columns, gap));
        for pool in pools.into_iter().map(Some).chain([None]) {
            let of_pool = replicas.iter().filter(|replica| replica.pool.as_deref() == pool);
            lines.extend(of_pool.map(|replica| row(&columns, gap, replica_cells(replica, shape))));
        }
        lines
    }

    fn pool(&self, name: &str) -> Vec<Cell> {
        let rates = self.history.rates(name);
        let none = PoolCounts::default();
        let counts = self.reading.pools.get(name).unwrap_or(&none);
        let errors = if counts.errors > 0.0 { Style::Bad } else { Style::Plain };
        vec![
            (Style::Bold, name.to_owned()),
            (Style::Plain, format!("{:.1}", rates.requests)),
            (Style::Plain, rates.ttft_p50.map_or_else(dash, time)),
            (Style::Plain, rates.ttft_p99.map_or_else(dash, time)),
            (Style::Plain, format!("{:.0}", rates.output_tokens)),
            (Style::Plain, rates.cached_ratio.map_or_else(dash, percent)),
            (Style::Plain, format!("{:.0}", counts.requests)),
            (Style::Plain, format!("{:.0}", counts.left)),
            (errors, format!("{:.0}", counts.errors)),
        ]
    }
}

/// A command to try, and what it does.
struct Hint {
    title: String,
    command: Vec<String>,
}

impl Hint {
    /// In at most `room` lines, where it can be; with its title in a line with it, above it, or not at all.
    fn lines(self, width: usize, room: usize) -> Vec<Line> {
        let Self { title, command } = self;
        let title = Line::of(Style::Dim, title);
        if let [only] = &command[..]
            && title.width() + only.len() < width
        {
            let mut line = title;
            line.push(Style::Plain, format!(" {only}"));
            return if room > 0 { vec![line] } else { Vec::new() };
        }
        let titled = command.len() < room;
        let lines = command.into_iter().map(|line| Line::of(Style::Plain, line));
        let lines: Vec<Line> = titled.then_some(title).into_iter().chain(lines).collect();
        if lines.len() <= room { lines } else { Vec::new() }
    }
}

/// Of the lines that are noticed, more would push the tables out of mind.
const NOTICES_MAX: usize = 6;

/// Cells of a line in an output that is not redrawn.
const PLAIN_WIDTH: usize = 110;

/// How much of a replica there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Narrow,
    Wide,
    /// For files and pipes: wide, but numbers instead of pictures.
    Plain,
}

impl Shape {
    const fn of_terminal(width: usize) -> Self {
        if width < WIDE { Self::Narrow } else { Self::Wide }
    }

    const fn gap(self) -> usize {
        match self {
            Self::Narrow => 1,
            Self::Wide | Self::Plain => 2,
        }
    }

    /// Cells of the bar beside the KV usage.
    const fn bar(self) -> usize {
        match self {
            Self::Narrow => 8,
            Self::Wide => 16,
            Self::Plain => 0,
        }
    }

    const fn shows_cause(self) -> bool {
        !matches!(self, Self::Narrow)
    }
}

/// The wide shape takes this many cells.
const WIDE: usize = 116;

/// Title, width, and whether it is a number's, which stands at the right.
type Column = (&'static str, usize, bool);

type Cell = (Style, String);

fn pool_columns(name_width: usize) -> Vec<Column> {
    vec![
        ("pool", name_width, false),
        ("req/s", 5, true),
        ("TTFT p50", 8, true),
        ("TTFT p99", 8, true),
        ("tokens/s", 8, true),
        ("cached", 6, true),
        ("requests", 8, true),
        ("cancelled", 9, true),
        ("errors", 6, true),
    ]
}

fn replica_columns(name_width: usize, shape: Shape) -> Vec<Column> {
    let (state, kv) = (if shape.shows_cause() { 22 } else { 9 }, shape.bar() + 5);
    let mut columns = vec![
        ("pool", name_width, false),
        ("id", 9, false),
        ("port", 6, false),
        ("state", state, false),
        ("running", 7, true),
        ("waiting", 7, true),
        ("   KV", kv, false),
        ("TTFT", 7, true),
        ("requests", 8, true),
    ];
    if shape.shows_cause() {
        columns.push(("failed", 6, true));
    }
    columns
}

fn replica_cells(replica: &Replica, shape: Shape) -> Vec<Cell> {
    let number = |value: Option<u64>| value.map_or_else(dash, |value| value.to_string());
    let port = replica.url.trim_end_matches('/').rsplit_once(':').map_or("", |(_, port)| port);
    let (style, mut state) = match replica.state.as_str() {
        "ready" => (Style::Good, "ready".to_owned()),
        "set_aside" => (Style::Bad, "set aside".to_owned()),
        other => (Style::Warn, other.to_owned()),
    };
    if let Some(cause) = replica.cause.as_deref().filter(|_| shape.shows_cause()) {
        state = format!("{state}: {cause}");
    }
    let heard = replica.is_heard();
    let kv_usage = replica.kv_usage.filter(|_| heard);
    let kv = kv_usage.map_or_else(
        || format!("{:>5}", "-"),
        |usage| format!("{:>5} {}", percent(usage), bar(usage, shape.bar())),
    );
    let kv_style = match kv_usage {
        Some(usage) if usage >= 0.9 => Style::Bad,
        Some(usage) if usage >= 0.7 => Style::Warn,
        _ => Style::Plain,
    };
    let mut cells = vec![
        (Style::Plain, replica.pool.clone().unwrap_or_else(dash)),
        (Style::Plain, replica.id.clone().unwrap_or_else(dash)),
        (Style::Dim, format!(":{port}")),
        (style, state),
        (Style::Plain, number(replica.running.filter(|_| heard))),
        (Style::Plain, number(replica.waiting.filter(|_| heard))),
        (kv_style, kv),
        (Style::Plain, replica.first_token_ms.map_or_else(dash, |ms| time(Duration::from_millis(ms)))),
        (Style::Plain, replica.dispatched.to_string()),
    ];
    if shape.shows_cause() {
        let failed = if replica.failed > 0 { Style::Warn } else { Style::Plain };
        cells.push((failed, replica.failed.to_string()));
    }
    cells
}

fn header(columns: &[Column], gap: usize) -> Line {
    row(columns, gap, columns.iter().map(|(title, ..)| (Style::Dim, (*title).to_owned())).collect())
}

/// One cell a column, each padded or cut to its width.
fn row(columns: &[Column], gap: usize, cells: Vec<Cell>) -> Line {
    let mut line = Line::default();
    for (index, ((_, width, is_number), (style, text))) in columns.iter().zip(cells).enumerate() {
        if index > 0 {
            line.push(Style::Plain, " ".repeat(gap));
        }
        let width = *width;
        let padded = if *is_number { format!("{text:>width$}") } else { format!("{text:<width$.width$}") };
        line.push(style, padded);
    }
    line
}

/// A ratio as a bar of so many cells, in eighths of a cell.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a ratio of a few cells")]
fn bar(ratio: f64, cells: usize) -> String {
    let eighths = (ratio.clamp(0.0, 1.0) * (8 * cells) as f64).round() as usize;
    let full = "█".repeat(eighths / 8);
    let part = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    full + part
}

fn percent(ratio: f64) -> String {
    format!("{:.0} %", 100.0 * ratio)
}

/// A duration with three digits or so.
fn time(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        ..0.9995 => format!("{:.0} ms", 1_000.0 * seconds),
        ..9.995 => format!("{seconds:.2} s"),
        _ => format!("{seconds:.1} s"),
    }
}

fn clock(uptime: Duration) -> String {
    let seconds = uptime.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

fn dash() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests;
