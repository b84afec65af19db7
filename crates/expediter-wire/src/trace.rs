//! Traces of requests: public formats, read line by line into arrivals. A mistake names its line, its field and
//! what to do about it.
//!
//! | module | format |
//! | --- | --- |
//! | `azure` | Azure LLM inference traces: CSV of time and lengths |
//! | `bailian` | Qwen-Bailian usage traces: JSON lines with hashes of 16-token blocks |
//! | `mooncake` | Mooncake traces: JSON lines with hashes of 512-token blocks |
//! | `servegen` | ServeGen: the pace and the lengths of clients, not single requests |

pub mod azure;
pub mod bailian;
mod error;
mod field;
pub mod mooncake;
pub mod servegen;

use expediter_types::{Arrival, ModelId, Time, Tokens};

pub use error::{Mistake, TraceError};

/// A format that lists single requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JSON lines with hashes of 512-token blocks.
    Mooncake,
    /// JSON lines with hashes of 16-token blocks.
    Bailian,
    /// CSV with a header: time, prompt and answer.
    Azure,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 3] = [Self::Mooncake, Self::Bailian, Self::Azure];

    /// The name as settings spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mooncake => "mooncake",
            Self::Bailian => "bailian",
            Self::Azure => "azure",
        }
    }

    /// The format whose first line this may be.
    pub fn guess(first_line: &str) -> Option<Self> {
        let line = first_line.trim_start_matches(BYTE_ORDER_MARK);
        if line.starts_with("TIMESTAMP,") {
            Some(Self::Azure)
        } else if line.contains("\"chat_id\"") {
            Some(Self::Bailian)
        } else if line.contains("\"hash_ids\"") {
            Some(Self::Mooncake)
        } else {
            None
        }
    }
}

/// Reads the lines of one trace, in order.
#[derive(Clone, Debug)]
pub struct Reader {
    format: Format,
    model_length: Option<Tokens>,
    line: u64,
    previous: Time,
    /// Nanoseconds of the trace's own clock at the run's start, where that clock is the wall's.
    origin: Option<i128>,
}

impl Reader {
    /// Longer requests than `model_length`, prompt and answer together, are a mistake; `None` takes any.
    pub const fn new(format: Format, model_length: Option<Tokens>) -> Self {
        Self { format, model_length, line: 0, previous: Time::ZERO, origin: None }
    }

    /// Reads the next line. `None` for a header and for an empty line. The arrival asks for model 0 on behalf of
    /// tenant 0: a trace names neither.
    pub fn line(&mut self, text: &str) -> Result<Option<Arrival>, TraceError> {
        self.line += 1;
        self.parse(text.trim_end_matches(['\r', '\n']))
            .map_err(|mistake| TraceError { line: self.line, mistake })
    }

    fn parse(&mut self, text: &str) -> Result<Option<Arrival>, Mistake> {
        let text = if self.line == 1 { text.trim_start_matches(BYTE_ORDER_MARK) } else { text };
        if text.trim().is_empty() {
            return Ok(None);
        }
        let (at, prompt, output, field) = match self.format {
            Format::Mooncake => {
                let row = mooncake::Row::parse(text)?;
                (row.at, row.prompt(), row.output, mooncake::TIMESTAMP)
            }
            Format::Bailian => {
                let row = bailian::Row::parse(text)?;
                (row.at, row.prompt(), row.output, bailian::TIMESTAMP)
            }
            Format::Azure if self.line == 1 => return azure::check_header(text).map(|()| None),
            Format::Azure => {
                let row = azure::Row::parse(text)?;
                let origin = *self.origin.get_or_insert(row.wall);
                (to_time(row.wall, origin)?, row.prompt(), row.output, azure::TIMESTAMP)
            }
        };
        self.check_order(at, field)?;
        // An engine produces one token at least, even where a trace counts none.
        let output = output.max(Tokens(1));
        self.check_length(prompt.tokens() + output)?;
        Ok(Some(Arrival { at, model: ModelId(0), tenant: 0, prompt, output, output_cap: output }))
    }

    fn check_order(&mut self, at: Time, field: &'static str) -> Result<(), Mistake> {
        if at < self.previous {
            return Err(Mistake::Backwards { field, by: self.previous.since(at) });
        }
        self.previous = at;
        Ok(())
    }

    fn check_length(&self, tokens: Tokens) -> Result<(), Mistake> {
        match self.model_length {
            Some(limit) if tokens > limit => Err(Mistake::TooLong { tokens, limit }),
            Some(_) | None => Ok(()),
        }
    }
}

/// A moment of the wall clock as one of the run; earlier than the run's start is out of order.
fn to_time(wall: i128, origin: i128) -> Result<Time, Mistake> {
    let earlier = |_| {
        let nanos = u64::try_from(origin - wall).unwrap_or(u64::MAX);
        Mistake::Backwards { field: azure::TIMESTAMP, by: std::time::Duration::from_nanos(nanos) }
    };
    u64::try_from(wall - origin).map(Time).map_err(earlier)
}

/// What some programs write before UTF-8 text.
const BYTE_ORDER_MARK: char = '\u{feff}';

#[cfg(test)]
mod tests;
