//! What is wrong with a configuration, said so that an operator can mend it.

use std::fmt;

use super::key_path::KeyPath;

/// One thing wrong with the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Where it stands.
    pub path: KeyPath,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub remedy: String,
}

impl Mistake {
    /// A mistake at `path`.
    pub fn new(path: KeyPath, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { path, message: message.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path != KeyPath::ROOT {
            write!(f, "{}: ", self.path)?;
        }
        write!(f, "{}; {}", self.message, self.remedy)
    }
}

/// The candidate that `word` is probably a slip of, if any is close enough.
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|&(distance, candidate)| distance <= candidate.chars().count().div_ceil(3))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Names for a message: `` `a`, `b` or `c` ``.
pub fn one_of<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    match quoted.as_slice() {
        [] => String::new(),
        [only] => only.clone(),
        [before @ .., last] => format!("{} or {last}", before.join(", ")),
    }
}
