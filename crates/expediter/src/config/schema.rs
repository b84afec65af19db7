//! The JSON Schema of the configuration file, and the check of a located tree against it.
//!
//! The check is ours: the schema comes from our own structs and uses a dozen keywords (a test holds it to them),
//! and a message of ours can say what an operator should write instead.

use expediter_gateway::settings::{KeyPath, RawSettings, closest, one_of};
use serde_json::{Map, Value};

use super::finding::Finding;
use super::hint::unit_hint;
use super::node::{Content, Entry, Node};

/// The schema as JSON.
pub(crate) fn schema() -> Value {
    schemars::schema_for!(RawSettings).to_value()
}

/// Checks `root` against `schema`. Returns the part of the tree that is right, for the checks that follow, and
/// everything that is wrong.
pub(super) fn check(schema: &Value, root: &Node) -> (Value, Vec<Finding>) {
    let mut walker = Walker { schema, findings: Vec::new() };
    let sound = walker.node(schema, root, &KeyPath::ROOT).unwrap_or_else(|| Map::new().into());
    (sound, walker.findings)
}

struct Walker<'s> {
    schema: &'s Value,
    findings: Vec<Finding>,
}

impl<'s> Walker<'s> {
    /// Checks one node, and returns its sound part; none where nothing of it can be used.
    fn node(&mut self, schema: &'s Value, node: &Node, path: &KeyPath) -> Option<Value> {
        if node.content == Content::Broken {
            return None;
        }
        let schema = self.resolve(schema);
        let choices = choices(schema);
        if !choices.is_empty() {
            return self.choice(&choices, schema, node, path);
        }
        let branches = self.branches(schema);
        let Some(branch) = branches.iter().copied().find(|branch| accepts(branch, &node.content)) else {
            self.wrong_type(&branches, node, path);
            return None;
        };
        match &node.content {
            Content::Scalar(value) => self.range(branch, value, node, path).then(|| value.clone()),
            Content::List(items) => Some(self.list(branch, items, path)),
            Content::Map(entries) => self.map(branch, node, entries, path),
            Content::Broken => None,
        }
    }

    /// Follows `$ref`. What stands beside it describes and does not constrain.
    fn resolve(&self, mut schema: &'s Value) -> &'s Value {
        while let Some(pointer) = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix('#')) {
            schema = self.schema.pointer(pointer).unwrap_or(&Value::Null);
        }
        schema
    }

    /// The alternatives of `anyOf`, or the schema itself.
    fn branches(&self, schema: &'s Value) -> Vec<&'s Value> {
        match schema["anyOf"].as_array() {
            Some(branches) => branches.iter().map(|branch| self.resolve(branch)).collect(),
            None => vec![schema],
        }
    }

    /// A list is sound only as a whole: without one of its items, the others would stand at wrong indices.
    fn list(&mut self, schema: &'s Value, items: &[Node], path: &KeyPath) -> Value {
        let item_schema = &schema["items"];
        let mut sound = Vec::new();
        for (index, item) in items.iter().enumerate() {
            sound.extend(self.node(item_schema, item, &path.index(index)));
        }
        if sound.len() == items.len() { sound.into() } else { Vec::<Value>::new().into() }
    }

    /// A wrong value of a known key counts as left out. An entry under a name of the operator's choice stays with
    /// nothing in it, so that what refers to the name finds it.
    fn map(&mut self, schema: &'s Value, node: &Node, entries: &[Entry], path: &KeyPath) -> Option<Value> {
        let mut sound = Map::new();
        for entry in entries {
            let path = path.key(&entry.key);
            if let Some(known) = schema["properties"].get(&entry.key) {
                let value = self.entry(known, entry, &path);
                sound.extend(value.map(|value| (entry.key.clone(), value)));
            } else if schema["additionalProperties"].is_object() {
                let known = &schema["additionalProperties"];
                let value = self.entry(known, entry, &path).or_else(|| self.empty(known));
                sound.extend(value.map(|value| (entry.key.clone(), value)));
            } else {
                self.unknown_key(schema, entry, path);
            }
        }
        let required = || schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        for key in required().filter(|key| !entries.iter().any(|entry| entry.key == *key)) {
            self.findings.push(Finding::new(
                node.place.clone(),
                path.clone(),
                format!("the key `{key}` is missing"),
                format!("add `{key}`: {}", first_sentence(&schema["properties"][key])),
            ));
        }
        required().all(|key| sound.contains_key(key)).then(|| sound.into())
    }

    /// As `node`, but a collection is found at its key.
    fn entry(&mut self, schema: &'s Value, entry: &Entry, path: &KeyPath) -> Option<Value> {
        let before = self.findings.len();
        let value = self.node(schema, &entry.node, path);
        for finding in &mut self.findings[before..] {
            if finding.mistake.path == *path {
                finding.place = entry.place().clone();
            }
        }
        value
    }

    /// The emptiest collection that `schema` takes.
    fn empty(&self, schema: &'s Value) -> Option<Value> {
        let branches = self.branches(self.resolve(schema));
        let empty = [Content::Map(Vec::new()), Content::List(Vec::new())];
        empty.iter().find(|content| branches.iter().any(|branch| accepts(branch, content))).map(|content| {
            match content {
                Content::Map(_) => Map::new().into(),
                Content::List(_) | Content::Scalar(_) | Content::Broken => Vec::<Value>::new().into(),
            }
        })
    }

    fn unknown_key(&mut self, schema: &Value, entry: &Entry, path: KeyPath) {
        let known = || schema["properties"].as_object().into_iter().flatten().map(|(key, _)| key.as_str());
        let remedy = match closest(&entry.key, known()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("take it out; the keys here are {}", known().collect::<Vec<_>>().join(", ")),
        };
        let message = format!("there is no setting `{}`", entry.key);
        self.findings.push(Finding::new(entry.key_place.clone(), path, message, remedy));
    }

    fn choice(&mut self, choices: &[&str], schema: &Value, node: &Node, path: &KeyPath) -> Option<Value> {
        let Content::Scalar(value) = &node.content else {
            self.wrong_type(&[schema], node, path);
            return None;
        };
        if value.as_str().is_some_and(|text| choices.contains(&text)) {
            return Some(value.clone());
        }
        let near = value.as_str().and_then(|text| closest(text, choices.iter().copied()));
        let choose = format!("choose {}", one_of(choices.iter().copied()));
        let remedy =
            near.map_or_else(|| choose.clone(), |near| format!("did you mean `{near}`? Else {choose}"));
        let message = format!("{} is not one of the choices", describe(node));
        self.findings.push(Finding::new(node.place.clone(), path.clone(), message, remedy));
        None
    }

    /// Whether a number lies between `minimum` and `maximum`. Other scalars have no range.
    fn range(&mut self, schema: &Value, value: &Value, node: &Node, path: &KeyPath) -> bool {
        let Some(number) = value.as_f64() else { return true };
        let (low, high) = (&schema["minimum"], &schema["maximum"]);
        let inside =
            low.as_f64().is_none_or(|low| low <= number) && high.as_f64().is_none_or(|high| number <= high);
        if !inside {
            self.findings.push(Finding::new(
                node.place.clone(),
                path.clone(),
                format!("{value} is out of range"),
                format!(
                    "write {} from {low} to {high}",
                    kind_name(schema["type"].as_str().unwrap_or("number"))
                ),
            ));
        }
        inside
    }

    fn wrong_type(&mut self, branches: &[&Value], node: &Node, path: &KeyPath) {
        let kinds: Vec<&str> =
            branches.iter().flat_map(|branch| kinds(branch)).filter(|kind| *kind != "null").collect();
        let wanted: Vec<&str> = kinds.iter().map(|kind| kind_name(kind)).collect();
        let wanted = wanted.join(" or ");
        let is_secret = branches.iter().any(|branch| branch["writeOnly"] == true);
        let (message, remedy) = if node.content == Content::Scalar(Value::Null) {
            let message = format!("{wanted} is expected, and nothing stands here");
            (message, "write a value, or take the key out".to_owned())
        } else {
            let found = if is_secret { "something else".to_owned() } else { describe(node) };
            let remedy = match &node.content {
                Content::Scalar(Value::String(text)) => unit_hint(text, path),
                Content::Scalar(_) | Content::List(_) | Content::Map(_) | Content::Broken => None,
            };
            let kind = kinds.first().copied().unwrap_or("string");
            let remedy = remedy.unwrap_or_else(|| how_to_write(kind, &node.content));
            (format!("{wanted} is expected, not {found}"), remedy)
        };
        self.findings.push(Finding::new(node.place.clone(), path.clone(), message, remedy));
    }
}

/// The closed set of words that `schema` allows, if it is one: `enum`, or `oneOf` of `const` and `enum`.
fn choices(schema: &Value) -> Vec<&str> {
    let alternatives = schema["oneOf"].as_array().map_or(std::slice::from_ref(schema), Vec::as_slice);
    alternatives
        .iter()
        .flat_map(|one| one["enum"].as_array().into_iter().flatten().chain(one.get("const")))
        .filter_map(Value::as_str)
        .collect()
}

/// The types that `schema` allows.
fn kinds(schema: &Value) -> Vec<&str> {
    let kinds = &schema["type"];
    kinds
        .as_array()
        .map_or(std::slice::from_ref(kinds), Vec::as_slice)
        .iter()
        .filter_map(Value::as_str)
        .collect()
}

fn accepts(schema: &Value, content: &Content) -> bool {
    kinds(schema).into_iter().any(|kind| match content {
        Content::Map(_) => kind == "object",
        Content::List(_) => kind == "array",
        Content::Broken => false,
        Content::Scalar(value) => match value {
            Value::Null => kind == "null",
            Value::Bool(_) => kind == "boolean",
            Value::String(_) => kind == "string",
            Value::Number(number) => kind == "number" || (kind == "integer" && !number.is_f64()),
            Value::Array(_) | Value::Object(_) => false,
        },
    })
}

fn kind_name(kind: &str) -> &str {
    match kind {
        "object" => "a map",
        "array" => "a list",
        "string" => "text",
        "boolean" => "`true` or `false`",
        "integer" => "a whole number",
        "number" => "a number",
        other => other,
    }
}

/// How a value of a kind looks in the file.
fn how_to_write(kind: &str, found: &Content) -> String {
    match kind {
        "string" if matches!(found, Content::Scalar(_)) => "put it in quotes".to_owned(),
        "object" => "write `KEY: VALUE` on lines of its own, indented".to_owned(),
        "array" => "write `[…]`, or `- …` on lines of its own".to_owned(),
        other => format!("write {}", kind_name(other)),
    }
}

/// What was found, for a message.
fn describe(node: &Node) -> String {
    match &node.content {
        Content::Map(_) => "a map".to_owned(),
        Content::List(_) => "a list".to_owned(),
        Content::Broken => "something unreadable".to_owned(),
        Content::Scalar(Value::Null) => "nothing".to_owned(),
        // A URL with a password in it must not reach a log.
        Content::Scalar(Value::String(text)) if text.contains('@') => "this text".to_owned(),
        Content::Scalar(Value::String(text)) => format!("the text `{text}`"),
        Content::Scalar(value) => format!("`{value}`"),
    }
}

/// The start of a schema's description, to tell what a key is for.
fn first_sentence(schema: &Value) -> String {
    let description = schema["description"].as_str().unwrap_or("it has no default");
    let end = description.find(['.', ';']).unwrap_or(description.len());
    description[..end].replace('\n', " ")
}
