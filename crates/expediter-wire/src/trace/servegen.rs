//! ServeGen's clients: github.com/alibaba/ServeGen, Apache-2.0. Not single requests, but the pace and the lengths
//! of each client over time.
//! Source: Xiang et al., "ServeGen: Workload Characterization and Generation of Large Language Model Serving in
//! Production", arXiv:2505.09999, 2025.

use std::time::Duration;

use expediter_types::Tokens;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::error::{Mistake, TraceError};
use super::field;

/// How often one client sent in one window of 600 s: a line of a `chunk-*-trace.csv`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// From the start of the trace.
    pub start: Duration,
    /// Requests per second.
    pub rate: f64,
    /// Coefficient of variation of the gaps between requests.
    pub cv: f64,
}

impl Window {
    /// Reads one line. Its distribution and the two parameters after it are not used: the second does not
    /// reproduce the rate, and the first says what the CV says.
    pub fn parse(line: &str) -> Result<Self, Mistake> {
        let columns: Vec<&str> = line.split(',').collect();
        let &[start, rate, cv, _, _, _] = columns.as_slice() else {
            return Err(Mistake::Columns { found: columns.len(), expected: 6, names: WINDOW });
        };
        let start = field::column("start", start, "a whole number of seconds from 0 on")?;
        Ok(Self { start: Duration::from_secs(start), rate: number("rate", rate)?, cv: number("cv", cv)? })
    }
}

const WINDOW: &str = "start,rate,cv,distribution,parameter,parameter without a header";

/// A column that is empty where a client was silent.
fn number(field: &'static str, text: &str) -> Result<f64, Mistake> {
    if text.trim().is_empty() {
        return Ok(0.0);
    }
    let value: f64 = field::column(field, text, NUMBER)?;
    if value >= 0.0 && value.is_finite() { Ok(value) } else { Err(Mistake::wrong(field, text, NUMBER)) }
}

const NUMBER: &str = "a number from 0 on";

/// Reads all windows of one client's file, in order of time.
pub fn read_windows(text: &str) -> Result<Vec<Window>, TraceError> {
    let mut windows: Vec<Window> = Vec::new();
    for (line, row) in (1..).zip(text.lines()).filter(|(_, row)| !row.trim().is_empty()) {
        let at = |mistake| TraceError { line, mistake };
        let window = Window::parse(row).map_err(at)?;
        if let Some(by) = earlier(&windows, window) {
            return Err(at(Mistake::Backwards { field: "start", by }));
        }
        windows.push(window);
    }
    Ok(windows)
}

/// How much earlier a window is than the last one, where it is.
fn earlier(windows: &[Window], next: Window) -> Option<Duration> {
    windows.last()?.start.checked_sub(next.start).filter(|by| !by.is_zero())
}

/// A client over the whole trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Client {
    /// Its number in ServeGen's files.
    pub client: u32,
    /// Requests per second, on average.
    pub rate: f64,
    /// Coefficient of variation of the gaps, the mean over its windows weighted by their rates.
    pub cv: f64,
    /// Mean tokens of its prompts, where they are known.
    pub input_mean: Option<Tokens>,
    /// Mean tokens of its answers, where they are known.
    pub output_mean: Option<Tokens>,
}

impl Client {
    /// A client from its windows; `None` where it sent nothing in any.
    pub fn of_windows(client: u32, windows: &[Window]) -> Option<Self> {
        let total: f64 = windows.iter().map(|window| window.rate).sum();
        let weighted: f64 = windows.iter().map(|window| window.rate * window.cv).sum();
        let (rate, cv) = (total / windows.len() as f64, weighted / total);
        (total > 0.0 && cv > 0.0).then_some(Self { client, rate, cv, input_mean: None, output_mean: None })
    }
}

/// Reads a table of clients as this repository ships it: a header, then a line a client.
pub fn read_clients(text: &str) -> Result<Vec<Client>, TraceError> {
    let mut lines = (1..).zip(text.lines()).filter(|(_, row)| !row.trim().is_empty());
    let header = lines.next().map_or("", |(_, header)| header);
    if header != CLIENTS {
        return Err(TraceError { line: 1, mistake: Mistake::wrong("header", header, CLIENTS) });
    }
    lines.map(|(line, row)| parse_client(row).map_err(|mistake| TraceError { line, mistake })).collect()
}

const CLIENTS: &str = "client,rate_per_second,cv,input_tokens_mean,output_tokens_mean";

fn parse_client(row: &str) -> Result<Client, Mistake> {
    let columns: Vec<&str> = row.split(',').collect();
    let &[client, rate, cv, input, output] = columns.as_slice() else {
        return Err(Mistake::Columns { found: columns.len(), expected: 5, names: CLIENTS });
    };
    let mean = |field, text: &str| {
        let known = !text.trim().is_empty();
        known.then(|| field::column(field, text, field::PROMPT).map(Tokens)).transpose()
    };
    Ok(Client {
        client: field::column("client", client, "a whole number from 0 on")?,
        rate: positive("rate_per_second", rate)?,
        cv: positive("cv", cv)?,
        input_mean: mean("input_tokens_mean", input)?,
        output_mean: mean("output_tokens_mean", output)?,
    })
}

fn positive(field: &'static str, text: &str) -> Result<f64, Mistake> {
    let value = number(field, text)?;
    if value > 0.0 { Ok(value) } else { Err(Mistake::wrong(field, text, "a number above 0")) }
}

/// How long one client's requests were in one window of six hours.
#[derive(Clone, Debug, PartialEq)]
pub struct Lengths {
    /// The client.
    pub client: u32,
    /// The window's start, from the start of the trace.
    pub window: Duration,
    /// Lengths of prompts, each with its probability.
    pub input: Vec<(Tokens, f64)>,
    /// Lengths of answers, each with its probability.
    pub output: Vec<(Tokens, f64)>,
}

#[derive(Deserialize)]
struct RawLengths<'a> {
    #[serde(borrow)]
    client: Option<&'a RawValue>,
    #[serde(borrow)]
    window: Option<&'a RawValue>,
    #[serde(borrow)]
    input_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    output_tokens: Option<&'a RawValue>,
}

impl Lengths {
    /// Reads one JSON line. The two distributions are texts that hold Python dictionaries, as in the source.
    pub fn parse(line: &str) -> Result<Self, Mistake> {
        let raw: RawLengths<'_> = serde_json::from_str(line).map_err(|_| Mistake::NotJson)?;
        let distribution = |field, raw: Option<&RawValue>| {
            let text: String = field::json(field, raw, DICTIONARY)?;
            dictionary(&text).ok_or_else(|| Mistake::wrong(field, &text, DICTIONARY))
        };
        let seconds = field::json("window", raw.window, "a whole number of seconds from 0 on")?;
        Ok(Self {
            client: field::json("client", raw.client, "a whole number from 0 on")?,
            window: Duration::from_secs(seconds),
            input: distribution("input_tokens", raw.input_tokens)?,
            output: distribution("output_tokens", raw.output_tokens)?,
        })
    }
}

const DICTIONARY: &str = "a text such as \"{221: 0.25, 222: 0.75}\", lengths and their probabilities";

/// Reads `{length: probability, …}`.
fn dictionary(text: &str) -> Option<Vec<(Tokens, f64)>> {
    let inner = text.trim().strip_prefix('{')?.strip_suffix('}')?;
    let pair = |pair: &str| {
        let (length, probability) = pair.split_once(':')?;
        let probability: f64 = probability.trim().parse().ok()?;
        let holds = (0.0..=1.0).contains(&probability);
        holds.then_some((Tokens(length.trim().parse().ok()?), probability))
    };
    inner.split(',').filter(|part| !part.trim().is_empty()).map(pair).collect()
}
