//! A body that is read, and one that is edited, against `serde_json`.

use std::collections::BTreeMap;

use bytes::Bytes;
use expediter_wire::request::{self, Edit, Endpoint, Pieces, RequestScan, ScanError};
use serde_json::value::RawValue;

/// An object's members with their values' text. Of duplicates the last one counts.
type Members = BTreeMap<String, Box<RawValue>>;

/// Scans and splices a body in every way.
pub(crate) fn check(body: &[u8]) {
    for endpoint in [Endpoint::Chat, Endpoint::Completions] {
        for model in [None, Some("m-8b"), Some("a\"b\\c\u{1}ü")] {
            for include_usage in [false, true] {
                check_edit(body, endpoint, &Edit { model, include_usage });
            }
        }
    }
}

fn check_edit(body: &[u8], endpoint: Endpoint, edit: &Edit<'_>) {
    let members: Option<Members> = serde_json::from_slice(body).ok();
    let scan = match request::scan(body, endpoint) {
        Ok(scan) => scan,
        Err(ScanError::NotUtf8 | ScanError::Syntax { .. } | ScanError::NotAnObject) => {
            return assert!(members.is_none(), "refused what serde_json reads");
        }
        Err(ScanError::TooDeep | ScanError::ModelNotString | ScanError::StreamNotBoolean) => return,
    };
    assert_eq!(body[scan.body_start], b'{');
    assert_eq!(body[scan.body_end], b'}');
    assert!(scan.prompt.prompts >= 1 && scan.prompt.bytes <= body.len() + 1_000);

    let shared = Bytes::copy_from_slice(body);
    let pieces = request::splice(&shared, &scan, edit);
    assert!(pieces.len() <= 5 && pieces.iter().all(|piece| !piece.is_empty()));
    assert!(!pieces.spilled(), "the pieces fit in place");
    let spliced = concat(&pieces);

    let again = request::scan(&spliced, endpoint).expect("an edited body is still one");
    let name = |scan: &RequestScan| scan.model.as_ref().map(|member| member.value.clone());
    assert_eq!(name(&again), edit.model.map(str::to_owned).or_else(|| name(&scan)));
    let facts = |scan: &RequestScan| {
        (scan.stream, scan.max_tokens, scan.max_completion_tokens, scan.n, scan.prompt, scan.has_tools)
    };
    assert_eq!(facts(&again), facts(&scan), "an edit changes nothing else");

    let Some(members) = members else {
        return assert!(only_python_reads(body), "read what serde_json refuses: {}", body.escape_ascii());
    };
    let mut expected = flat(&members);
    edit_flat(&mut expected, scan.stream, edit);
    let found: Members = serde_json::from_slice(&spliced).expect("an edited body is JSON");
    assert_eq!(flat(&found), expected);
}

/// The text of each member, and of each member of `stream_options`, which itself is `{}` then. Numbers stay as they
/// are spelled.
type Flat = BTreeMap<(String, Option<String>), String>;

fn flat(members: &Members) -> Flat {
    let mut flat = Flat::new();
    for (key, value) in members {
        let mut text = value.get();
        if key == "stream_options" && text.starts_with('{') {
            let options: Members = serde_json::from_str(text).expect("part of a JSON text");
            let options = options.into_iter();
            flat.extend(options.map(|(option, value)| ((key.clone(), Some(option)), value.get().to_owned())));
            text = "{}";
        }
        flat.insert((key.clone(), None), text.to_owned());
    }
    flat
}

/// Applies the edit by the book.
fn edit_flat(members: &mut Flat, stream: bool, edit: &Edit<'_>) {
    if let Some(model) = edit.model {
        let place = members.entry(("model".into(), None)).or_default();
        if serde_json::from_str(place).ok() != Some(model.to_owned()) {
            *place = serde_json::to_string(model).expect("a string");
        }
    }
    if !edit.include_usage || !stream {
        return;
    }
    let options = ("stream_options".to_owned(), None);
    let text = members.get(&options).map_or("null", String::as_str);
    if text != "null" && text != "{}" {
        return;
    }
    members.insert(options, "{}".into());
    let include_usage = members.entry(("stream_options".into(), Some("include_usage".into()))).or_default();
    if include_usage.is_empty() || reads_false(include_usage) {
        *include_usage = "true".into();
    }
}

fn reads_false(value: &str) -> bool {
    let words = ["null", "false", "\"0\"", "\"f\"", "\"n\"", "\"no\"", "\"off\"", "\"false\""];
    words.contains(&value.to_ascii_lowercase().as_str()) || value.parse() == Ok(0.0)
}

/// Whether the body holds what Python reads and `serde_json` does not.
fn only_python_reads(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(body).to_ascii_lowercase();
    body.starts_with(b"\xEF\xBB\xBF") || ["nan", "infinity", "\\ud"].iter().any(|word| text.contains(word))
}

fn concat(pieces: &Pieces) -> Vec<u8> {
    pieces.iter().flat_map(|piece| piece.iter().copied()).collect()
}
