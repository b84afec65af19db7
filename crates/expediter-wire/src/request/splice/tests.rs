use super::*;
use crate::request::{Endpoint, scan};

fn spliced(body: &str, edit: &Edit<'_>) -> String {
    let bytes = Bytes::copy_from_slice(body.as_bytes());
    let pieces = splice(&bytes, &scan(&bytes, Endpoint::Chat).unwrap(), edit);
    String::from_utf8(pieces.concat()).unwrap()
}

#[test]
fn the_model_is_replaced_or_added() {
    let cases = [
        (r#"{"model":"gpt-fast","n":1}"#, r#"{"model":"m-8b","n":1}"#),
        (r#" { "model" : "gpt-fast" } "#, r#" { "model" : "m-8b" } "#),
        (r#"{"model":"m-8b"}"#, r#"{"model":"m-8b"}"#),
        (r#"{"model":"m\u002d8b"}"#, r#"{"model":"m\u002d8b"}"#),
        (r#"{"model":"m-8b","model":"gpt-fast"}"#, r#"{"model":"m-8b","model":"m-8b"}"#),
        (r#"{"model":"","n":1}"#, r#"{"model":"m-8b","n":1}"#),
        (r#"{"model":null}"#, r#"{"model":"m-8b"}"#),
        (r#"{ "n":1}"#, r#"{"model":"m-8b", "n":1}"#),
        ("{ }", r#"{"model":"m-8b" }"#),
        ("\u{feff}{}", "\u{feff}{\"model\":\"m-8b\"}"),
    ];
    for (body, expected) in cases {
        let edit = Edit { model: Some("m-8b"), include_usage: false };
        assert_eq!(spliced(body, &edit), expected, "{body}");
        assert_eq!(spliced(body, &Edit::default()), body, "no edit");
    }
}

#[test]
fn a_model_name_is_escaped() {
    let edit = Edit { model: Some("a\"b\\\n🌍"), include_usage: false };
    assert_eq!(spliced(r#"{"model":"x"}"#, &edit), r#"{"model":"a\"b\\\n🌍"}"#);
}

#[test]
fn usage_is_switched_on_and_the_other_options_stay() {
    let on = r#""stream_options":{"include_usage":true}"#;
    let cases = [
        (r#"{"stream":true}"#, format!(r#"{{{on},"stream":true}}"#)),
        (r#"{"stream":true,"stream_options":null}"#, format!(r#"{{"stream":true,{on}}}"#)),
        (r#"{"stream":true,"stream_options":{}}"#, format!(r#"{{"stream":true,{on}}}"#)),
        (r#"{"stream":true,"stream_options":{"include_usage":false}}"#, format!(r#"{{"stream":true,{on}}}"#)),
        (r#"{"stream":true,"stream_options":{"include_usage":null}}"#, format!(r#"{{"stream":true,{on}}}"#)),
        (r#"{"stream":true,"stream_options":{"include_usage":true}}"#, format!(r#"{{"stream":true,{on}}}"#)),
        (
            r#"{"stream":true,"stream_options":{"x":1}}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true,"x":1}}"#.to_owned(),
        ),
        (
            r#"{"stream":true,"stream_options":{"x":1,"include_usage":false,"y":2}}"#,
            r#"{"stream":true,"stream_options":{"x":1,"include_usage":true,"y":2}}"#.to_owned(),
        ),
    ];
    for (body, expected) in cases {
        assert_eq!(spliced(body, &Edit { model: None, include_usage: true }), expected, "{body}");
    }
    let untouched = [
        r#"{"stream":false}"#,
        r#"{"stream":null,"stream_options":{"include_usage":false}}"#,
        r#"{"stream_options":null}"#,
        "{}",
        r#"{"stream":true,"stream_options":"odd"}"#,
        r#"{"stream":true,"stream_options":{"include_usage":[]}}"#,
    ];
    for body in untouched {
        assert_eq!(spliced(body, &Edit { model: None, include_usage: true }), body);
    }
}

#[test]
fn two_edits_in_either_order_share_the_rest_of_the_body() {
    let edit = Edit { model: Some("m-8b"), include_usage: true };
    let cases = [
        (r#"{"model":"a","stream":true,"stream_options":null,"n":1}"#, 5),
        (r#"{"stream_options":{"x":1},"stream":true,"model":"a","n":1}"#, 5),
        (r#"{"stream":true,"model":"a","n":1}"#, 5),
        (r#"{"stream":true,"n":1}"#, 4),
        (r#"{"stream":true,"stream_options":{"include_usage":true},"model":"m-8b"}"#, 1),
    ];
    for (body, count) in cases {
        let bytes = Bytes::copy_from_slice(body.as_bytes());
        let pieces = splice(&bytes, &scan(&bytes, Endpoint::Chat).unwrap(), &edit);
        assert_eq!(pieces.len(), count, "{body}");
        let whole = bytes.as_ptr_range();
        let shared = pieces.iter().filter(|piece| whole.contains(&piece.as_ptr())).count();
        assert_eq!(shared, count.div_ceil(2), "{body}");
    }
}
