//! A configuration as a tree in which every value knows where it was written.

use expediter_gateway::settings::{KeyPath, Step};
use serde_json::Value;

use super::finding::Place;

/// A value and its place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) place: Place,
    pub(crate) content: Content,
}

/// What stands in a node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Content {
    /// Text, a number, a boolean, or null.
    Scalar(Value),
    /// In order.
    List(Vec<Node>),
    /// In order; no key twice.
    Map(Vec<Entry>),
    /// Something that could not be read and was reported. Nothing more is said about it.
    Broken,
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_place: Place,
    pub(crate) node: Node,
}

impl Node {
    /// An empty configuration: nothing but defaults.
    pub(crate) fn empty(place: Place) -> Self {
        Self { place, content: Content::Map(Vec::new()) }
    }

    /// Where to send somebody who is to mend what stands at `path`: a scalar to itself, a map or a list to its
    /// key; and where there is nothing at `path`, to the closest thing around it.
    pub(crate) fn place_of(&self, path: &KeyPath) -> Place {
        let mut node = self;
        let mut place = &self.place;
        for step in path.steps() {
            match (step, &node.content) {
                (Step::Key(key), Content::Map(entries)) => {
                    let Some(entry) = entries.iter().find(|entry| entry.key == *key) else { break };
                    node = &entry.node;
                    place = entry.place();
                }
                (Step::Index(index), Content::List(items)) => {
                    let Some(item) = items.get(*index) else { break };
                    node = item;
                    place = &item.place;
                }
                (_, _) => break,
            }
        }
        place.clone()
    }
}

impl Entry {
    /// The value's place where it is a scalar, else the key's: a map begins at its first key, which says little.
    pub(crate) fn place(&self) -> &Place {
        match self.node.content {
            Content::Scalar(_) => &self.node.place,
            Content::List(_) | Content::Map(_) | Content::Broken => &self.key_place,
        }
    }
}
