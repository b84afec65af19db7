//! JSON texts with duplicates, escapes, odd spellings and space in every place where it may stand.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// A body as a client could send it.
pub(crate) fn request() -> impl Strategy<Value = String> {
    let value = prop_oneof![4 => likely_value(), 1 => any_value()];
    let member = prop_oneof![3 => (key(REQUEST_KEYS), value), 1 => (key(REQUEST_KEYS), any_value())];
    (space(), object(vec(member, 0..8)), space())
        .prop_map(|(before, body, after)| format!("{before}{body}{after}"))
}

/// A frame of a stream, or something like one.
pub(crate) fn frame() -> impl Strategy<Value = String> {
    let choice = object(vec((key(CHOICE_KEYS), scalar()), 0..4));
    let inner = prop_oneof![
        object(vec((key(USAGE_KEYS), prop_oneof![scalar(), any_value()]), 0..4)),
        array(vec(prop_oneof![4 => choice, 1 => scalar()], 0..4)),
        any_value(),
    ];
    object(vec((key(FRAME_KEYS), inner), 0..5))
}

const REQUEST_KEYS: &[&str] = &[
    "model",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "messages",
    "tools",
    "prompt",
    "seed",
    "",
    "modél",
    "models",
    "Model",
];

const FRAME_KEYS: &[&str] = &["usage", "choices", "error", "object", "message", "code", "id"];

const CHOICE_KEYS: &[&str] = &["index", "finish_reason", "delta"];

const USAGE_KEYS: &[&str] =
    &["prompt_tokens", "completion_tokens", "prompt_tokens_details", "cached_tokens", "message", "code"];

/// A key, with some of its letters escaped.
fn key(names: &'static [&'static str]) -> impl Strategy<Value = String> {
    (select(names), prop_oneof![3 => Just(0), 1 => any::<u32>()]).prop_map(|(name, escapes)| {
        let letters = name.chars().enumerate().map(|(at, letter)| {
            if escapes & (1 << (at % 32)) == 0 {
                letter.to_string()
            } else {
                format!("\\u{:04x}", letter as u32)
            }
        });
        format!("\"{}\"", letters.collect::<String>())
    })
}

/// A value of the kind that one of the keys expects.
fn likely_value() -> impl Strategy<Value = String> {
    let options = ["include_usage", "continuous_usage_stats", "x"].as_slice();
    prop_oneof![
        Just("true".to_owned()),
        scalar(),
        object(vec((key(options), prop_oneof![2 => scalar(), 1 => any_value()]), 0..4)),
        array(vec(scalar(), 0..5)),
    ]
}

fn scalar() -> impl Strategy<Value = String> {
    let spelled = [
        "null",
        "true",
        "false",
        "0",
        "-0",
        "-0.0",
        "1",
        "16",
        "1e3",
        "5.5",
        "-7",
        "1e400",
        "9007199254740993",
        "18446744073709551616",
        "1E-2",
        "\"\"",
        "\"true\"",
        "\"no\"",
        "\"100\"",
        "\"error\"",
        "\"abort\"",
        "\"usage\"",
        "\"a\\\"b\"",
        "\"\\u0061\\n\\/\"",
        "\"\\ud83c\\udf0d\"",
        "\"\\ud83c\"",
        "\"ünï\"",
        "\"data:image/png\"",
        "\"\\\\\"",
        "NaN",
        "-Infinity",
    ];
    prop_oneof![9 => select(spelled.to_vec()).prop_map(str::to_owned), 1 => "\"[ -~]{0,9}\""]
}

fn any_value() -> impl Strategy<Value = String> {
    scalar().prop_recursive(4, 24, 4, |inner| {
        prop_oneof![array(vec(inner.clone(), 0..4)), object(vec((key(REQUEST_KEYS), inner), 0..4))]
    })
}

fn array(elements: impl Strategy<Value = Vec<String>>) -> impl Strategy<Value = String> {
    (elements, space()).prop_map(|(elements, space)| {
        format!("[{space}{}{space}]", elements.join(&format!("{space},{space}")))
    })
}

fn object(members: impl Strategy<Value = Vec<(String, String)>>) -> impl Strategy<Value = String> {
    (members, space()).prop_map(|(members, space)| {
        let members: Vec<String> =
            members.into_iter().map(|(key, value)| format!("{key}{space}:{space}{value}")).collect();
        format!("{{{space}{}{space}}}", members.join(&format!("{space},{space}")))
    })
}

fn space() -> impl Strategy<Value = &'static str> {
    select(vec!["", "", " ", "\n\t", "\r\n "])
}
