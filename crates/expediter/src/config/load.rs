//! One loading of the configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use expediter_gateway::settings::{
    Attachments, KeyPath, Mistake, RawSettings, ReplicaFileError, Secret, Settings, parse_replica_file,
};
use saphyr_parser::Marker;

use super::finding::{Finding, Place};
use super::node::Node;
use super::{overrides, schema, yaml};

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

/// A configuration that is wrong. Displayed, it is one line for each mistake.
pub(crate) struct Problems {
    file: String,
    pub(super) findings: Vec<Finding>,
}

impl Problems {
    /// One line for each mistake.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        self.findings.iter().map(|finding| finding.line(&self.file).to_string())
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for line in self.lines() {
            write!(f, "{separator}{line}")?;
            separator = "\n";
        }
        Ok(())
    }
}

impl fmt::Debug for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Problems {}

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
        Err(mut findings) => {
            findings.sort_by(|a, b| a.place.cmp(&b.place));
            let file = source.file.as_deref().unwrap_or_else(|| Path::new("no file")).display().to_string();
            Err(Box::new(Problems { file, findings }))
        }
    }
}

/// Reads a file whole.
pub(super) fn read(path: &Path) -> Contents {
    fs::read(path).map_err(|error| error.to_string())
}

fn check(
    source: &Source,
    inputs: &mut Inputs,
    contents_of: &mut dyn FnMut(FileRole, &Path) -> Contents,
) -> Result<Settings, Vec<Finding>> {
    let (mut root, mut findings) = tree(source, inputs.text.as_ref())?;
    overrides::apply(&mut root, &source.sets, &mut findings);
    overrides::add_urls(&mut root, &source.urls);

    let schema = schema::schema();
    let (sound, of_schema) = schema::check(&schema, &root);
    let wrong: BTreeSet<KeyPath> = of_schema.iter().map(|finding| finding.mistake.path.clone()).collect();
    findings.extend(of_schema);
    let mut raw: RawSettings = match serde_json::from_value(sound) {
        Ok(raw) => raw,
        Err(error) => {
            // The schema is made from the same structs, so that this shows an error of the program.
            let remedy = "please report this: the schema check should have found it";
            findings.push(Finding::new(root.place, KeyPath::ROOT, error.to_string(), remedy));
            return Err(findings);
        }
    };

    raw.resolve_paths(source.file.as_deref().and_then(Path::parent).unwrap_or(Path::new("")));
    let replica_files = raw.replica_files();
    for path in raw.files() {
        let role = if replica_files.contains(path) { FileRole::Replicas } else { FileRole::Other };
        inputs.files.insert(path.to_owned(), contents_of(role, path));
    }
    let attachments = Attachments { files: inputs.files.clone(), admin_token: source.admin_token.clone() };
    let settings = Settings::from_raw(raw, &attachments);
    let mistakes = settings.as_ref().err().into_iter().flatten();
    let new = mistakes.filter(|mistake| !follows_from(mistake, &wrong));
    findings
        .extend(new.map(|mistake| Finding { place: root.place_of(&mistake.path), mistake: mistake.clone() }));
    match settings {
        Ok(settings) if findings.is_empty() => Ok(settings),
        _ => Err(findings),
    }
}

/// The tree of the file, or an empty one; an error where there is nothing to go on with.
fn tree(source: &Source, text: Option<&Contents>) -> Result<(Node, Vec<Finding>), Vec<Finding>> {
    let start = Place::File { line: 1, column: 1 };
    let single =
        |message: String, remedy: &str| vec![Finding::new(start.clone(), KeyPath::ROOT, message, remedy)];
    let bytes = match (&source.file, text) {
        (Some(_), Some(Ok(bytes))) => bytes,
        (Some(_), Some(Err(why))) => {
            let remedy = "name a file that exists and that the program's user may read";
            return Err(single(format!("cannot read the file: {why}"), remedy));
        }
        (_, _) => return Ok((Node::empty(Place::Default), Vec::new())),
    };
    let text = str::from_utf8(bytes).map_err(|error| {
        let line = bytes[..error.valid_up_to()].split(|byte| *byte == b'\n').count();
        single(format!("line {line} is not UTF-8"), "save the file in UTF-8")
    })?;
    let (root, findings) =
        yaml::parse(text, &|mark: Marker| Place::File { line: mark.line(), column: mark.col() + 1 });
    match root {
        Some(root) => Ok((root, findings)),
        None => Err(findings),
    }
}

/// Whether a mistake may be there only because something around it, or within it, is wrong already.
fn follows_from(mistake: &Mistake, wrong: &BTreeSet<KeyPath>) -> bool {
    let pools = KeyPath::ROOT.key("pools");
    let aliases = KeyPath::ROOT.key("aliases");
    wrong.iter().any(|path| {
        path.is_within(&mistake.path)
            || mistake.path.is_within(path)
            || (*path == pools && mistake.path.is_within(&aliases))
    })
}

/// Whether the contents of a replica file can be used as they are.
pub(super) fn check_replica_file(contents: &Contents) -> Result<(), String> {
    let bytes = contents.as_ref().map_err(Clone::clone)?;
    parse_replica_file(bytes).map(|_| ()).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(ReplicaFileError::to_string).collect();
        lines.join("; ")
    })
}
