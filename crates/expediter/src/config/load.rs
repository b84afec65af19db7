//! One loading of the configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use expediter_gateway::settings::{
    Attachments, RawSettings, ReplicaFileError, Secret, Settings, parse_replica_file,
};

use super::document::{Document, Overlay, Problems};
use super::finding::Finding;
use super::schema;
use crate::small_file;

/// Where a configuration comes from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Source {
    /// The file; none is nothing but defaults.
    pub(crate) file: Option<PathBuf>,
    /// `PATH=VALUE`, each put over the file.
    pub(crate) sets: Vec<String>,
    /// URLs of replicas, added to those of the file.
    pub(crate) urls: Vec<String>,
    /// The admin token of the environment.
    pub(crate) admin_token: Option<Secret>,
}

/// Everything that was read: the configuration file and the files that it names.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Inputs {
    /// The configuration file; none where the source has none.
    pub(super) text: Option<Contents>,
    /// The files that it names.
    pub(super) files: BTreeMap<PathBuf, Contents>,
}

/// What is in a file, or why it could not be read.
pub(super) type Contents = Result<Vec<u8>, String>;

/// A configuration that is right, and what it was read from.
pub(crate) struct Loaded {
    pub(crate) source: Source,
    pub(crate) settings: Settings,
    pub(super) inputs: Inputs,
}

/// Reads everything and checks it.
///
/// # Errors
/// All mistakes, those of the file first and in its order.
pub(crate) fn load(source: Source) -> Result<Loaded, Box<Problems>> {
    let text = source.file.as_deref().map(read);
    load_from(source, text, &mut |_, path| read(path))
}

/// What kind of file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileRole {
    /// It lists replicas.
    Replicas,
    /// It holds a key, a token or a certificate.
    Other,
}

/// As [`load`], with the contents of the files given.
pub(super) fn load_from(
    source: Source,
    text: Option<Contents>,
    contents_of: &mut dyn FnMut(FileRole, &Path) -> Contents,
) -> Result<Loaded, Box<Problems>> {
    let mut inputs = Inputs { text, files: BTreeMap::new() };
    match check(&source, &mut inputs, contents_of) {
        Ok(settings) => Ok(Loaded { source, settings, inputs }),
        Err(findings) => Err(Box::new(Problems::new(source.file.as_deref(), findings))),
    }
}

/// Reads a file whole.
pub(super) fn read(path: &Path) -> Contents {
    small_file::bytes(path).map_err(|error| error.to_string())
}

fn check(
    source: &Source,
    inputs: &mut Inputs,
    contents_of: &mut dyn FnMut(FileRole, &Path) -> Contents,
) -> Result<Settings, Vec<Finding>> {
    let overlay = Overlay { sets: &source.sets, urls: &source.urls, flags: Vec::new() };
    let text = inputs.text.as_ref().filter(|_| source.file.is_some());
    let mut document: Document<RawSettings> = Document::read(text, overlay, &schema::schema())?;
    let mut raw = std::mem::take(&mut document.raw);

    raw.resolve_paths(source.file.as_deref().and_then(Path::parent).unwrap_or(Path::new("")));
    let replica_files = raw.replica_files();
    for path in raw.files() {
        let role = if replica_files.contains(path) { FileRole::Replicas } else { FileRole::Other };
        inputs.files.insert(path.to_owned(), contents_of(role, path));
    }
    let attachments = Attachments { files: inputs.files.clone(), admin_token: source.admin_token.clone() };
    let settings = Settings::from_raw(raw, &attachments);
    document.add(settings.as_ref().err().into_iter().flatten().cloned());
    match settings {
        Ok(settings) if document.findings.is_empty() => Ok(settings),
        _ => Err(document.findings),
    }
}

/// Whether the contents of a replica file can be used as they are.
pub(super) fn check_replica_file(contents: &Contents) -> Result<(), String> {
    let bytes = contents.as_ref().map_err(Clone::clone)?;
    parse_replica_file(bytes).map(|_| ()).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(ReplicaFileError::to_string).collect();
        lines.join("; ")
    })
}
