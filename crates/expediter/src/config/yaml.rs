//! Reads YAML into a tree of located [`Node`]s.
//!
//! Of YAML 1.2 a configuration needs maps, lists and scalars of the core schema. Anchors, aliases, merge keys and
//! tags are refused: they hide from the reader of a file what stands in it. So are keys that stand twice.

use std::borrow::Cow;

use expediter_gateway::settings::KeyPath;
use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, Tag};

use super::finding::{Finding, Place};
use super::node::{Content, Entry, Node};
use super::scalar::resolve_plain;

/// Reads the one document in `text`. `None` where the syntax breaks: the tree would be cut. `locate` says where
/// a position of the text is for the operator.
pub(super) fn parse(text: &str, locate: &dyn Fn(Marker) -> Place) -> (Option<Node>, Vec<Finding>) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut builder = Builder { locate, open: Vec::new(), root: None, documents: 0, findings: Vec::new() };
    for event in Parser::new_from_str(text) {
        match event {
            Ok((event, span)) => {
                if !builder.take(event, span) {
                    return (None, builder.findings);
                }
            }
            Err(error) => {
                builder.syntax(&error);
                return (None, builder.findings);
            }
        }
    }
    let start = locate(Marker::new(0, 1, 0));
    let root = match builder.root {
        Some(Node { content: Content::Scalar(serde_json::Value::Null), .. }) | None => Node::empty(start),
        Some(root) => root,
    };
    (Some(root), builder.findings)
}

/// No setting lies deeper than four levels; the limit keeps what walks the tree from running out of stack.
const DEPTH_MAX: usize = 32;

/// What the events have built so far.
struct Builder<'a> {
    locate: &'a dyn Fn(Marker) -> Place,
    /// Collections that have begun and not ended, the outermost first.
    open: Vec<Open>,
    root: Option<Node>,
    documents: usize,
    findings: Vec<Finding>,
}

enum Open {
    List { place: Place, items: Vec<Node> },
    Map { place: Place, entries: Vec<Entry>, key: Option<(String, Place)> },
}

impl Builder<'_> {
    /// Takes one event. `false` ends the reading: what follows would make no sense.
    fn take(&mut self, event: Event<'_>, span: Span) -> bool {
        let place = (self.locate)(span.start);
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents == 2 {
                    self.report(place, "a second document begins here", "keep one document in the file");
                    return false;
                }
            }
            Event::Alias(_) => {
                self.report(
                    place.clone(),
                    "a YAML alias (`*name`) stands for a value that is written elsewhere",
                    "write the value out: aliases and anchors are not read",
                );
                if self.expects_key() {
                    return false;
                }
                self.value(Node { place, content: Content::Broken });
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.plain(&place, anchor, tag.as_ref());
                self.scalar(text, style, place);
            }
            Event::SequenceStart(anchor, tag) => {
                self.plain(&place, anchor, tag.as_ref());
                return self.begin(Open::List { place, items: Vec::new() });
            }
            Event::MappingStart(anchor, tag) => {
                self.plain(&place, anchor, tag.as_ref());
                return self.begin(Open::Map { place, entries: Vec::new(), key: None });
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let node = match self.open.pop() {
                    Some(Open::List { place, items }) => Node { place, content: Content::List(items) },
                    Some(Open::Map { place, entries, .. }) => Node { place, content: Content::Map(entries) },
                    None => return true,
                };
                self.value(node);
            }
        }
        true
    }

    fn report(&mut self, place: Place, message: impl Into<String>, remedy: impl Into<String>) {
        self.findings.push(Finding::new(place, self.path(), message, remedy));
    }

    /// The way to the value that is read at present.
    fn path(&self) -> KeyPath {
        self.open.iter().fold(KeyPath::ROOT, |path, open| match open {
            Open::List { items, .. } => path.index(items.len()),
            Open::Map { key: Some((key, _)), .. } => path.key(key),
            Open::Map { key: None, .. } => path,
        })
    }

    fn syntax(&mut self, error: &ScanError) {
        // Where the syntax breaks, what the path would be is a guess.
        self.findings.push(Finding::new(
            (self.locate)(*error.marker()),
            KeyPath::ROOT,
            format!("this is not YAML: {}", error.info()),
            "mend the syntax here first; nothing else was checked yet",
        ));
    }

    /// Refuses anchors and tags.
    fn plain(&mut self, place: &Place, anchor: usize, tag: Option<&Cow<'_, Tag>>) {
        if anchor != 0 {
            self.report(place.clone(), "a YAML anchor (`&name`) names this value", "take the anchor away");
        }
        if let Some(tag) = tag {
            self.report(
                place.clone(),
                format!("a YAML tag (`{}{}`) stands before this value", tag.handle, tag.suffix),
                "take the tag away; a value in quotes is text",
            );
        }
    }

    /// Whether the innermost collection is a map that has no key pending.
    fn expects_key(&self) -> bool {
        matches!(self.open.last(), Some(Open::Map { key: None, .. }))
    }

    fn begin(&mut self, open: Open) -> bool {
        if self.expects_key() {
            let (Open::List { place, .. } | Open::Map { place, .. }) = open;
            self.report(place, "a map or a list stands where a key is expected", "write a name");
            return false;
        }
        if self.open.len() >= DEPTH_MAX {
            let (Open::List { place, .. } | Open::Map { place, .. }) = open;
            self.report(place, format!("nested more than {DEPTH_MAX} deep"), "no setting lies that deep");
            return false;
        }
        self.open.push(open);
        true
    }

    /// A scalar is a key where the map around it has none pending. A key is text however it looks, so that a
    /// pool may be called `70` or `on`.
    fn scalar(&mut self, text: Cow<'_, str>, style: ScalarStyle, place: Place) {
        if let Some(Open::Map { key: key @ None, .. }) = self.open.last_mut() {
            *key = Some((text.into_owned(), place));
            return;
        }
        let value = match style {
            ScalarStyle::Plain => resolve_plain(&text),
            ScalarStyle::SingleQuoted
            | ScalarStyle::DoubleQuoted
            | ScalarStyle::Literal
            | ScalarStyle::Folded => text.into_owned().into(),
        };
        self.value(Node { place, content: Content::Scalar(value) });
    }

    /// Puts a finished value where it belongs.
    fn value(&mut self, node: Node) {
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open::List { items, .. }) => items.push(node),
            Some(Open::Map { entries, key, .. }) => {
                let earlier =
                    entries.iter().find(|entry| key.as_ref().is_some_and(|(key, _)| *key == entry.key));
                if let Some(first) = earlier.map(|entry| entry.key_place.clone()) {
                    self.duplicate(&first);
                } else if let Some((key, key_place)) = key.take() {
                    entries.push(Entry { key, key_place, node });
                }
            }
        }
    }

    /// Drops the pending key, which stands at `first` already, and its value.
    fn duplicate(&mut self, first: &Place) {
        let at = match first {
            Place::File { line, .. } => format!(" at line {line}"),
            Place::Set(_) | Place::Flag(_) | Place::Url(_) | Place::Default => String::new(),
        };
        let path = self.path();
        if let Some(Open::Map { key, .. }) = self.open.last_mut()
            && let Some((_, place)) = key.take()
        {
            let message = format!("the key stands in this map already{at}");
            self.findings.push(Finding::new(place, path, message, "keep one of the two"));
        }
    }
}
