//! Azure's traces of LLM inference: github.com/Azure/AzurePublicDataset, CC-BY-4.0. They hold no contents.
//! Source: Patel et al., "Splitwise", ISCA 2024.

use expediter_types::{Prompt, Tokens};

use super::error::Mistake;
use super::field::{self, OUTPUT, PROMPT};

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Nanoseconds of the wall clock since 1970, UTC. The file has digits down to 100 ns.
    pub wall: i128,
    /// Tokens of the prompt.
    pub input: Tokens,
    /// Tokens of the answer.
    pub output: Tokens,
}

pub(super) const TIMESTAMP: &str = "TIMESTAMP";

/// The first line. The file of 2023 puts a byte-order mark before it; the caller takes that away.
pub(super) fn check_header(text: &str) -> Result<(), Mistake> {
    if text == HEADER { Ok(()) } else { Err(Mistake::wrong("header", text, HEADER)) }
}

const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

impl Row {
    /// Reads one line after the header.
    pub fn parse(line: &str) -> Result<Self, Mistake> {
        let columns: Vec<&str> = line.split(',').collect();
        let &[timestamp, input, output] = columns.as_slice() else {
            return Err(Mistake::Columns { found: columns.len(), expected: 3, names: HEADER });
        };
        Ok(Self {
            wall: wall(timestamp).ok_or_else(|| Mistake::wrong(TIMESTAMP, timestamp, MOMENT))?,
            input: field::prompt("ContextTokens", field::column("ContextTokens", input, PROMPT)?)?,
            output: field::output("GeneratedTokens", field::column("GeneratedTokens", output, OUTPUT)?)?,
        })
    }

    /// The prompt, of which only the length is known.
    pub fn prompt(&self) -> Prompt {
        Prompt::opaque(self.input)
    }
}

const MOMENT: &str = "a moment such as 2023-11-16 18:15:46.6805900";

/// Nanoseconds since 1970 of `YYYY-MM-DD HH:MM:SS`, with up to nine digits after the point. The files of 2024
/// write `+00:00` behind it.
fn wall(text: &str) -> Option<i128> {
    let text = text.trim();
    let text = text.strip_suffix("+00:00").or_else(|| text.strip_suffix('Z')).unwrap_or(text);
    let (date, clock) = text.split_once([' ', 'T'])?;
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(clock, ':')?;
    let in_range = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61;
    if !in_range || fraction.is_empty() || fraction.len() > 9 {
        return None;
    }
    let digits = u32::try_from(fraction.len()).ok()?;
    let nanos = whole(fraction)? * 10_i64.pow(9 - digits);
    let seconds = ((days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    Some(i128::from(seconds) * 1_000_000_000 + i128::from(nanos))
}

fn numbers(text: &str, between: char) -> Option<[i64; 3]> {
    let parts: Vec<i64> = text.split(between).map(whole).collect::<Option<_>>()?;
    parts.try_into().ok()
}

/// A number without sign.
fn whole(text: &str) -> Option<i64> {
    let digits = (1..=9).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// Days from 1970-01-01 to a date of the Gregorian calendar.
/// Source: Hinnant, "chrono-Compatible Low-Level Date Algorithms", `days_from_civil`.
const fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}
