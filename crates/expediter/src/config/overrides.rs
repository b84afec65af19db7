//! What the command line adds to the file: `--set PATH=VALUE`, and URLs of replicas.

use std::str::FromStr as _;

use expediter_gateway::settings::{KeyPath, Step};
use serde_json::Value;

use super::finding::{Finding, Place};
use super::node::{Content, Entry, Node};
use super::yaml;

/// Puts each `PATH=VALUE` of `sets` into the tree, later ones over earlier ones. VALUE is YAML.
pub(super) fn apply(root: &mut Node, sets: &[String], findings: &mut Vec<Finding>) {
    for set in sets {
        if let Err(found) = apply_one(root, set) {
            findings.extend(found);
        }
    }
}

/// Adds the URLs to `replicas`, after those of the file.
pub(super) fn add_urls(root: &mut Node, urls: &[String]) {
    if urls.is_empty() {
        return;
    }
    let nodes = urls.iter().enumerate().map(|(index, url)| Node {
        place: Place::Url(index + 1),
        content: Content::Scalar(Value::String(url.clone())),
    });
    let Content::Map(entries) = &mut root.content else { return };
    let position = entries.iter().position(|entry| entry.key == "replicas").unwrap_or_else(|| {
        let place = Place::Url(1);
        let node = Node { place: place.clone(), content: Content::List(Vec::new()) };
        entries.push(Entry { key: "replicas".to_owned(), key_place: place, node });
        entries.len() - 1
    });
    // Where the file has something else than a list there, the check says so.
    if let Content::List(items) = &mut entries[position].node.content {
        items.extend(nodes);
    }
}

/// Puts the value of each flag under its keys, apart by dots, in place of what the file has there.
pub(super) fn apply_flags(root: &mut Node, flags: Vec<(&'static str, &'static str, Value)>) {
    for (flag, key, value) in flags {
        let place = Place::Flag(flag);
        let node = located(value, &place);
        // It fails only where the file is no map, which the check says.
        let steps: Vec<Step> = key.split('.').map(|key| Step::Key(key.to_owned())).collect();
        let _ = put(root, &steps, node, &place);
    }
}

/// A value all of whose parts stand at one place.
fn located(value: Value, place: &Place) -> Node {
    let content = match value {
        Value::Array(items) => Content::List(items.into_iter().map(|item| located(item, place)).collect()),
        Value::Object(entries) => {
            let entry = |(key, value)| Entry { key, key_place: place.clone(), node: located(value, place) };
            Content::Map(entries.into_iter().map(entry).collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Content::Scalar(value),
    };
    Node { place: place.clone(), content }
}

fn apply_one(root: &mut Node, set: &str) -> Result<(), Vec<Finding>> {
    let (path, value) = split(set)?;
    let place = Place::Set(path.to_string());
    let (node, findings) = yaml::parse(value, &|_| place.clone());
    let node = match node {
        Some(node) if findings.is_empty() => node,
        _ => return Err(findings),
    };
    // An empty document is an empty map to a file; to a value it is null.
    let node = if is_blank(value) { Node { content: Content::Scalar(Value::Null), ..node } } else { node };
    put(root, path.steps(), node, &place).map_err(|message| {
        let remedy = "name a key of a map, or an index of a list that is there";
        vec![Finding::new(place.clone(), path.clone(), message, remedy)]
    })
}

/// Splits at the first `=` before which a whole path stands, so that a quoted key may hold one.
fn split(set: &str) -> Result<(KeyPath, &str), Vec<Finding>> {
    let mut error = "it has no `=`".to_owned();
    for (at, _) in set.match_indices('=') {
        match KeyPath::from_str(&set[..at]) {
            Ok(path) => return Ok((path, &set[at + 1..])),
            Err(wrong) => error = wrong.to_string(),
        }
    }
    let path = set.split('=').next().unwrap_or_default().to_owned();
    Err(vec![Finding::new(
        Place::Set(path),
        KeyPath::ROOT,
        error,
        "write PATH=VALUE, such as `limits.head_ms=5000` or `pools.\"llama 3\".replicas[0]=http://gpu1:8000`",
    )])
}

fn is_blank(value: &str) -> bool {
    matches!(value.trim(), "" | "~" | "null" | "Null" | "NULL")
}

/// Puts `node` at the end of `steps`, and makes the maps on the way that are not there.
fn put(target: &mut Node, steps: &[Step], node: Node, place: &Place) -> Result<(), String> {
    let Some((step, rest)) = steps.split_first() else {
        *target = node;
        return Ok(());
    };
    if target.content == Content::Scalar(Value::Null) {
        let content = match step {
            Step::Key(_) => Content::Map(Vec::new()),
            Step::Index(_) => Content::List(Vec::new()),
        };
        *target = Node { place: place.clone(), content };
    }
    let inner = match (step, &mut target.content) {
        (Step::Key(key), Content::Map(entries)) => {
            let position = entries.iter().position(|entry| entry.key == *key).unwrap_or_else(|| {
                entries.push(Entry { key: key.clone(), key_place: place.clone(), node: nothing(place) });
                entries.len() - 1
            });
            if rest.is_empty() {
                entries[position].key_place = place.clone();
            }
            &mut entries[position].node
        }
        (Step::Index(index), Content::List(items)) => {
            if *index == items.len() {
                items.push(nothing(place));
            }
            let length = items.len();
            items
                .get_mut(*index)
                .ok_or_else(|| format!("the list has {length} items, and no index {index}"))?
        }
        (Step::Key(key), _) => return Err(format!("what stands before `{key}` is no map")),
        (Step::Index(index), _) => return Err(format!("what stands before `[{index}]` is no list")),
    };
    put(inner, rest, node, place)
}

/// What stands in a place that was just made, until its value is put there.
fn nothing(place: &Place) -> Node {
    Node { place: place.clone(), content: Content::Scalar(Value::Null) }
}
