//! A file that results go to.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// A file that can be written: that was tried before the runs, which may take long. A file that was made for the
/// trial is taken away again if nothing is written.
pub(crate) struct Output {
    /// `None` is stdout.
    path: Option<PathBuf>,
    is_new: std::cell::Cell<bool>,
}

impl Output {
    /// Tries whether `path` can be written, and leaves what is in it; `-` is stdout.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Self { path: None, is_new: false.into() });
        }
        let is_new = !path.exists();
        OpenOptions::new().append(true).create(true).open(path).with_context(|| {
            format!("cannot write {}: name a file in a folder that exists", path.display())
        })?;
        Ok(Self { path: Some(path.to_owned()), is_new: is_new.into() })
    }

    /// Whether it is stdout.
    pub(crate) const fn is_stdout(&self) -> bool {
        self.path.is_none()
    }

    /// Writes it whole, in place of what was there.
    pub(crate) fn write(&self, text: &str) -> Result<()> {
        match &self.path {
            None => io::stdout().write_all(text.as_bytes()).context("cannot write to stdout"),
            Some(path) => {
                replace(path, text).with_context(|| format!("cannot write {}", path.display()))?;
                self.is_new.set(false);
                Ok(())
            }
        }
    }
}

/// Writes a file beside `path` and puts it in its place: whatever fails, nothing is lost and nothing is half there.
/// What is no regular file, such as a pipe, is written to.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let whole = fs::canonicalize(path)?;
    if !fs::metadata(&whole)?.is_file() {
        return fs::write(&whole, text);
    }
    let mut name = whole.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let beside = whole.with_file_name(name);
    fs::write(&beside, text).and_then(|()| fs::rename(&beside, &whole)).inspect_err(|_| {
        // It may not have been made at all.
        let _ = fs::remove_file(&beside);
    })
}

impl Drop for Output {
    fn drop(&mut self) {
        if let (Some(path), true) = (&self.path, self.is_new.get()) {
            // It is empty: nothing is lost where it stays.
            let _ = fs::remove_file(path);
        }
    }
}
