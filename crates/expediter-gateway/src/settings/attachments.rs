//! What a configuration names but does not hold: files, and the environment.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::raw::RawSettings;
use super::replica_url::{ReplicaUrl, ReplicaUrlError};
use super::secret::Secret;

/// The contents of the files that a configuration names, and what the environment adds. Read by the caller, so
/// that the conversion into [`Settings`](super::Settings) does no IO and two readings can be compared. It has no
/// `Debug`: most of it is secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Attachments {
    /// Each file's contents, or why it could not be read.
    pub files: BTreeMap<PathBuf, Result<Vec<u8>, String>>,
    /// The admin token of the environment, for a configuration that names none.
    pub admin_token: Option<Secret>,
}

impl RawSettings {
    /// All files whose contents are part of the settings.
    pub fn files(&self) -> BTreeSet<&Path> {
        let tls = self.tls.iter().flat_map(|tls| [&tls.certificate_file, &tls.key_file]);
        let keys = self.pools.values().filter_map(|pool| pool.engine_key_file.as_ref());
        let admin = self.admin.token_file.iter();
        tls.chain(keys).chain(admin).map(PathBuf::as_path).chain(self.replica_files()).collect()
    }

    /// The files that list replicas.
    pub fn replica_files(&self) -> BTreeSet<&Path> {
        self.pools.values().filter_map(|pool| pool.replica_file.as_deref()).collect()
    }

    /// Makes every relative path relative to `folder`.
    pub fn resolve_paths(&mut self, folder: &Path) {
        let tls = self.tls.iter_mut().flat_map(|tls| [&mut tls.certificate_file, &mut tls.key_file]);
        let pools = self.pools.values_mut();
        let of_pools = pools.flat_map(|pool| [&mut pool.replica_file, &mut pool.engine_key_file]).flatten();
        for path in tls.chain(of_pools).chain(self.admin.token_file.iter_mut()) {
            *path = folder.join(&path);
        }
        if let Some(file) = &mut self.usage.file
            && file != "-"
        {
            *file = folder.join(&file).to_string_lossy().into_owned();
        }
    }
}

/// What is wrong with a replica file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaFileError {
    /// Not UTF-8.
    #[error("the file is not text")]
    NotText,
    /// Nothing in it, not even a comment: as a file looks between its truncation and its writing.
    #[error("the file is empty")]
    Empty,
    /// A line that is no URL.
    #[error("line {line}: {error}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        error: ReplicaUrlError,
    },
}

impl ReplicaFileError {
    /// How to mend it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NotText => "write one URL a line, in UTF-8",
            Self::Empty => "write one URL a line; to list no replica on purpose, leave a `#` comment",
            Self::Line { error, .. } => error.remedy(),
        }
    }
}

/// Reads a replica file: one URL a line, `#` begins a comment, blank lines count for nothing, and a URL that
/// stands twice counts once.
///
/// # Errors
/// Everything that is wrong, in order of line.
pub fn parse_replica_file(contents: &[u8]) -> Result<Vec<ReplicaUrl>, Vec<ReplicaFileError>> {
    let text = str::from_utf8(contents).map_err(|_| vec![ReplicaFileError::NotText])?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim().is_empty() {
        return Err(vec![ReplicaFileError::Empty]);
    }
    let mut urls = Vec::new();
    let mut errors = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let entry = without_comment(line).trim();
        if entry.is_empty() {
            continue;
        }
        match entry.parse() {
            Ok(url) if urls.contains(&url) => {}
            Ok(url) => urls.push(url),
            Err(error) => errors.push(ReplicaFileError::Line { line: index + 1, error }),
        }
    }
    if errors.is_empty() { Ok(urls) } else { Err(errors) }
}

/// A `#` begins a comment at the start of a line or after a blank, so that one inside a URL is seen as wrong.
fn without_comment(line: &str) -> &str {
    let begins = |at: usize| at == 0 || line[..at].ends_with(char::is_whitespace);
    let comment = line.match_indices('#').map(|(at, _)| at).find(|&at| begins(at));
    &line[..comment.unwrap_or(line.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_file_is_read_whole_or_refused_whole() {
        use ReplicaFileError as E;
        let line = |line, error| E::Line { line, error };
        #[expect(clippy::type_complexity, reason = "a table, read as rows")]
        let cases: [(&[u8], Result<&[&str], Vec<ReplicaFileError>>); 8] = [
            (b"http://a:1\nhttp://b:2", Ok(&["http://a:1", "http://b:2"])),
            (b"\xef\xbb\xbf# fleet\r\n\r\n  http://a:1 # left\r\nHTTP://A:1/\r\n", Ok(&["http://a:1"])),
            (b"# none today\n", Ok(&[])),
            (b"", Err(vec![E::Empty])),
            (b" \n\n", Err(vec![E::Empty])),
            (b"\xff\xfe", Err(vec![E::NotText])),
            (
                b"a:1\nhttp://b:2\nftp://c",
                Err(vec![line(1, ReplicaUrlError::NoScheme), line(3, ReplicaUrlError::Scheme("ftp".into()))]),
            ),
            (b"http://a:1/#x", Err(vec![line(1, ReplicaUrlError::Query)])),
        ];
        for (contents, expected) in cases {
            let read = parse_replica_file(contents)
                .map(|urls| urls.iter().map(ReplicaUrl::to_string).collect::<Vec<_>>());
            let expected = expected.map(|urls| urls.iter().map(|url| (*url).to_owned()).collect::<Vec<_>>());
            assert_eq!(read, expected, "{:?}", String::from_utf8_lossy(contents));
        }
    }
}
