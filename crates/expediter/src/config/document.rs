//! A YAML file read into a struct: with every mistake of form at its place, and all that is sound of it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use expediter_gateway::settings::{KeyPath, Mistake};
use saphyr_parser::Marker;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::finding::{Finding, Place};
use super::load::Contents;
use super::node::Node;
use super::{overrides, schema, yaml};

/// A document whose form was checked against a schema.
pub(crate) struct Document<T> {
    /// What is sound of it; what is wrong counts as left out.
    pub(crate) raw: T,
    pub(super) root: Node,
    pub(super) findings: Vec<Finding>,
    /// Where something is wrong already.
    pub(super) wrong: BTreeSet<KeyPath>,
}

/// What the command line puts over a file.
#[derive(Debug, Default)]
pub(crate) struct Overlay<'a> {
    /// `PATH=VALUE` of `--set`, over the flags, and later ones over earlier ones.
    pub(crate) sets: &'a [String],
    /// URLs for the key `replicas`.
    pub(crate) urls: &'a [String],
    /// The flag, the keys from the root (apart by dots) and the value of arguments that have a flag of their own.
    pub(crate) flags: Vec<(&'static str, &'static str, Value)>,
}

impl<T: DeserializeOwned> Document<T> {
    /// Checks the text of a file, or nothing at all, with the overlay on top. `schema` is that of `T`.
    ///
    /// # Errors
    /// The findings, where there is nothing to go on with.
    pub(super) fn read(
        text: Option<&Contents>,
        overlay: Overlay<'_>,
        schema: &Value,
    ) -> Result<Self, Vec<Finding>> {
        let (mut root, mut findings) = tree(text)?;
        overrides::apply_flags(&mut root, overlay.flags);
        overrides::apply(&mut root, overlay.sets, &mut findings);
        overrides::add_urls(&mut root, overlay.urls);
        let (sound, of_schema) = schema::check(schema, &root);
        let wrong = of_schema.iter().map(|finding| finding.mistake.path.clone()).collect();
        findings.extend(of_schema);
        match serde_json::from_value(sound) {
            Ok(raw) => Ok(Self { raw, root, findings, wrong }),
            Err(error) => {
                // The schema is made from the same structs, so that this shows an error of the program.
                let remedy = "please report this: the schema check should have found it";
                findings.push(Finding::new(root.place, KeyPath::ROOT, error.to_string(), remedy));
                Err(findings)
            }
        }
    }
}

impl<T: DeserializeOwned> Document<T> {
    /// As [`Document::read`], for the text of `file`.
    ///
    /// # Errors
    /// The problems, where there is nothing to go on with.
    pub(crate) fn load(
        file: Option<&Path>,
        text: Option<&Contents>,
        overlay: Overlay<'_>,
        schema: &Value,
    ) -> Result<Self, Box<Problems>> {
        Self::read(text, overlay, schema).map_err(|findings| Box::new(Problems::new(file, findings)))
    }
}

impl<T> Document<T> {
    /// Adds mistakes of meaning, but those that may only follow from what is wrong already.
    pub(crate) fn add(&mut self, mistakes: impl IntoIterator<Item = Mistake>) {
        for mistake in mistakes {
            if !follows_from(&mistake, &self.wrong) {
                self.findings.push(Finding { place: self.root.place_of(&mistake.path), mistake });
            }
        }
    }

    /// Everything that is wrong, in the order of the file; none where all is well.
    pub(crate) fn problems(self, file: Option<&Path>) -> Option<Box<Problems>> {
        (!self.findings.is_empty()).then(|| Box::new(Problems::new(file, self.findings)))
    }
}

/// A document that is wrong. Displayed, it is one line for each mistake.
pub(crate) struct Problems {
    file: String,
    pub(super) findings: Vec<Finding>,
}

impl Problems {
    /// Puts the findings in order.
    pub(super) fn new(file: Option<&Path>, mut findings: Vec<Finding>) -> Self {
        findings.sort_by(|a, b| a.place.cmp(&b.place));
        let file = file.unwrap_or_else(|| Path::new("no file")).display().to_string();
        Self { file, findings }
    }

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

/// The tree of the file, or an empty one where there is none; an error where there is nothing to go on with.
fn tree(text: Option<&Contents>) -> Result<(Node, Vec<Finding>), Vec<Finding>> {
    let start = Place::File { line: 1, column: 1 };
    let single =
        |message: String, remedy: &str| vec![Finding::new(start.clone(), KeyPath::ROOT, message, remedy)];
    let bytes = match text {
        Some(Ok(bytes)) => bytes,
        Some(Err(why)) => {
            let remedy = "name a file that exists and that the program's user may read";
            return Err(single(format!("cannot read the file: {why}"), remedy));
        }
        None => return Ok((Node::empty(Place::Default), Vec::new())),
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
    wrong.iter().any(|path| {
        path.is_within(&mistake.path)
            || mistake.path.is_within(path)
            || (*path == pools
                && REFER_TO_POOLS.iter().any(|key| mistake.path.is_within(&KeyPath::ROOT.key(*key))))
    })
}

/// Keys at the root under which names of pools stand.
const REFER_TO_POOLS: [&str; 2] = ["aliases", "faults"];
