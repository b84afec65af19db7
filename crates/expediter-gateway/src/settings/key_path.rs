//! Where in the configuration something stands: `pools.m-8b.replicas[1]`.

use std::fmt;
use std::str::FromStr;

/// The way from the root of the configuration to one value.
///
/// Written with dots between keys and brackets around an index. A key that is not made of letters, digits, `_`,
/// `-`, `/` and `:` alone stands in double quotes: `pools."llama-3.1-8b".policy`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyPath(Vec<Step>);

/// One step of a [`KeyPath`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// Into a mapping.
    Key(String),
    /// Into a list, from 0.
    Index(usize),
}

impl KeyPath {
    /// The configuration as a whole.
    pub const ROOT: Self = Self(Vec::new());

    /// This path and one key more.
    #[must_use]
    pub fn key(&self, key: impl Into<String>) -> Self {
        self.with(Step::Key(key.into()))
    }

    /// This path and one index more.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        self.with(Step::Index(index))
    }

    /// Whether what stands here is, or lies within, what stands at `other`.
    pub fn is_within(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }

    /// The steps from the root down.
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    fn with(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Key(key) => {
                    let dot = if position == 0 { "" } else { "." };
                    if is_plain(key) { write!(f, "{dot}{key}")? } else { write!(f, "{dot}{key:?}")? }
                }
            }
        }
        Ok(())
    }
}

/// What is wrong with the text of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyPathError {
    /// Nothing between two dots, or nothing at all.
    #[error("a key is empty")]
    EmptyKey,
    /// A quote without its partner.
    #[error("a `\"` is not closed")]
    OpenQuote,
    /// Brackets that hold no number.
    #[error("`[` and `]` hold an index, from 0")]
    Index,
    /// A key outside quotes with characters that need them.
    #[error(
        "a key with other characters than letters, digits, `_`, `-`, `/` and `:` stands in double quotes"
    )]
    NeedsQuotes,
}

impl FromStr for KeyPath {
    type Err = KeyPathError;

    fn from_str(text: &str) -> Result<Self, KeyPathError> {
        let mut steps = Vec::new();
        let mut rest = text;
        loop {
            rest = read_key(rest, &mut steps)?;
            while let Some(inside) = rest.strip_prefix('[') {
                let (index, after) = inside.split_once(']').ok_or(KeyPathError::Index)?;
                steps.push(Step::Index(index.parse().map_err(|_| KeyPathError::Index)?));
                rest = after;
            }
            if rest.is_empty() {
                return Ok(Self(steps));
            }
            rest = rest.strip_prefix('.').ok_or(KeyPathError::NeedsQuotes)?;
        }
    }
}

/// Takes one key off the front of `text` and returns what follows it.
fn read_key<'a>(text: &'a str, steps: &mut Vec<Step>) -> Result<&'a str, KeyPathError> {
    if let Some(quoted) = text.strip_prefix('"') {
        let mut key = String::new();
        let mut characters = quoted.char_indices();
        while let Some((at, character)) = characters.next() {
            match character {
                '"' => {
                    steps.push(Step::Key(key));
                    return Ok(&quoted[at + 1..]);
                }
                '\\' => key.push(characters.next().ok_or(KeyPathError::OpenQuote)?.1),
                other => key.push(other),
            }
        }
        return Err(KeyPathError::OpenQuote);
    }
    let end = text.find(['.', '[']).unwrap_or(text.len());
    let (key, rest) = text.split_at(end);
    match key {
        "" => Err(KeyPathError::EmptyKey),
        key if !is_plain(key) => Err(KeyPathError::NeedsQuotes),
        key => {
            steps.push(Step::Key(key.to_owned()));
            Ok(rest)
        }
    }
}

fn is_plain(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '/' | ':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_reads_as_it_is_written() {
        for text in
            ["listen", "pools.m-8b.replicas[1]", r#"pools."llama-3.1 8b".policy"#, r#"aliases."a\"b""#]
        {
            assert_eq!(text.parse::<KeyPath>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_path_that_cannot_be_read_says_why() {
        let cases = [
            ("", KeyPathError::EmptyKey),
            ("a..b", KeyPathError::EmptyKey),
            ("a.\"b", KeyPathError::OpenQuote),
            ("a[x]", KeyPathError::Index),
            ("a[1", KeyPathError::Index),
            ("a b", KeyPathError::NeedsQuotes),
            ("a[1]b", KeyPathError::NeedsQuotes),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse::<KeyPath>(), Err(expected), "{text}");
        }
    }
}
