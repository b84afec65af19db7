//! A mistake together with the place where an operator finds it.

use std::fmt;

use expediter_gateway::settings::{KeyPath, Mistake};

/// Where a value of the configuration was written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// In the file; both count from 1.
    File { line: usize, column: usize },
    /// In `--set PATH=VALUE`: the path.
    Set(String),
    /// In an argument with a flag of its own: the flag.
    Flag(&'static str),
    /// The nth URL on the command line, from 1.
    Url(usize),
    /// Nowhere: it is a default.
    Default,
}

/// A mistake and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) place: Place,
    pub(crate) mistake: Mistake,
}

impl Finding {
    pub(crate) fn new(
        place: Place,
        path: KeyPath,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { place, mistake: Mistake::new(path, message, remedy) }
    }

    /// As one line, with the name of the file.
    pub(crate) fn line<'a>(&'a self, file: &'a str) -> impl fmt::Display + 'a {
        Line { finding: self, file }
    }
}

struct Line<'a> {
    finding: &'a Finding,
    file: &'a str,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { place, mistake } = self.finding;
        match place {
            Place::File { line, column } => write!(f, "{}:{line}:{column}: {mistake}", self.file),
            Place::Set(path) if *path == mistake.path.to_string() => {
                write!(f, "--set {path}: {}; {}", mistake.message, mistake.remedy)
            }
            Place::Set(path) => write!(f, "--set {path}: {mistake}"),
            Place::Flag(flag) => write!(f, "{flag}: {}; {}", mistake.message, mistake.remedy),
            Place::Url(position) => {
                write!(f, "argument URL {position}: {}; {}", mistake.message, mistake.remedy)
            }
            Place::Default => mistake.fmt(f),
        }
    }
}
