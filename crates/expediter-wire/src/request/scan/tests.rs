use super::*;

fn chat(body: &str) -> Result<RequestScan, ScanError> {
    scan(body.as_bytes(), Endpoint::Chat)
}

fn read(body: &str) -> RequestScan {
    chat(body).unwrap_or_else(|error| panic!("{body}: {error}"))
}

#[test]
fn the_model_is_the_last_one_named_however_it_is_spelled() {
    let cases = [
        (r#"{"model":"m-8b"}"#, Some("m-8b"), "\"m-8b\""),
        (r#" { "model" : "m-8b" } "#, Some("m-8b"), "\"m-8b\""),
        (r#"{"mod\u0065l":"m\u002d8b"}"#, Some("m-8b"), r#""m\u002d8b""#),
        (r#"{"model":"a","x":1,"model":"b"}"#, Some("b"), "\"b\""),
        (r#"{"model":"a","mod\u0065l":"b"}"#, Some("b"), "\"b\""),
        (r#"{"model":5,"model":"b"}"#, Some("b"), "\"b\""),
        (r#"{"model":"\ud83c\udf0d"}"#, Some("🌍"), r#""\ud83c\udf0d""#),
        (r#"{"model":""}"#, Some(""), "\"\""),
        (r#"{"model":null}"#, None, ""),
        (r#"{"model":"a","model":null}"#, None, ""),
        (r#"{"x":{"model":"inner"},"y":["model"]}"#, None, ""),
        (r#"{"Model":"a"}"#, None, ""),
        ("{}", None, ""),
        ("\u{feff}{}", None, ""),
    ];
    for (body, name, text) in cases {
        let scan = read(body);
        assert_eq!(scan.model.as_ref().map(|model| model.value.as_str()), name, "{body}");
        assert_eq!(scan.model.as_ref().map_or("", |model| &body[model.span.clone()]), text, "{body}");
        assert_eq!(scan.model_name(), name.filter(|name| !name.is_empty()), "{body}");
        assert_eq!(&body[scan.body_start..=scan.body_start], "{", "{body}");
        assert_eq!(&body[scan.body_end..=scan.body_end], "}", "{body}");
    }
}

#[test]
fn bodies_that_no_engine_serves() {
    let cases: [(&[u8], ScanError); 18] = [
        (b"", ScanError::Syntax { offset: 0 }),
        (b"{", ScanError::Syntax { offset: 1 }),
        (b"{} {}", ScanError::Syntax { offset: 3 }),
        (b"{\"model\":\"a\"}}", ScanError::Syntax { offset: 13 }),
        (b"{\"model\":\"a", ScanError::Syntax { offset: 11 }),
        (b"model=a", ScanError::Syntax { offset: 0 }),
        (b"[", ScanError::Syntax { offset: 1 }),
        (b"[]", ScanError::NotAnObject),
        (b"null", ScanError::NotAnObject),
        (b"\"{}\"", ScanError::NotAnObject),
        (b"{\"a\":\"\xFF\"}", ScanError::NotUtf8),
        (b"\xFF\xFE{\0}\0", ScanError::NotUtf8),
        (b"{\0}\0", ScanError::Syntax { offset: 1 }),
        (b"{\"model\":5}", ScanError::ModelNotString),
        (b"{\"model\":[\"a\"]}", ScanError::ModelNotString),
        (b"{\"model\":\"\\ud800\"}", ScanError::ModelNotString),
        (b"{\"stream\":\"maybe\"}", ScanError::StreamNotBoolean),
        (b"{\"stream\":{}}", ScanError::StreamNotBoolean),
    ];
    for (body, expected) in cases {
        assert_eq!(scan(body, Endpoint::Chat), Err(expected), "{}", body.escape_ascii());
    }
}

#[test]
fn a_member_may_nest_to_100_but_not_to_10_000() {
    for name in ["x", "tools", "messages", "prompt", "model", "stream_options"] {
        let body = |depth: usize| format!("{{\"{name}\":{}1{}}}", "[".repeat(depth), "]".repeat(depth));
        let shallow = chat(&body(100));
        assert_eq!(shallow.is_ok(), name != "model", "{name}: {shallow:?}");
        assert_eq!(chat(&body(10_000)), Err(ScanError::TooDeep), "{name}");
        let options = format!("{{\"stream_options\":{{\"include_usage\":{}", "{\"a\":".repeat(10_000));
        assert_eq!(chat(&options), Err(ScanError::TooDeep));
    }
}

#[test]
fn stream_reads_as_the_engine_reads_it() {
    let cases = [
        ("{}", false),
        (r#"{"stream":true}"#, true),
        (r#"{"stream":"yes"}"#, true),
        (r#"{"stream":1}"#, true),
        (r#"{"stream":null}"#, false),
        (r#"{"stream":true,"stream":false}"#, false),
        (r#"{"stream":[],"stream":true}"#, true),
    ];
    for (body, expected) in cases {
        assert_eq!(read(body).stream, expected, "{body}");
    }
}

#[test]
fn stream_options_in_every_spelling() {
    let object = |empty, include_usage| StreamOptions::Object { start: 18, empty, include_usage };
    let cases = [
        ("{\"x\":0}", StreamOptions::Absent, false),
        (r#"{"stream_options":null}"#, StreamOptions::Null { span: 18..22 }, false),
        (r#"{"stream_options":[]}"#, StreamOptions::Other, false),
        (r#"{"stream_options":{}}"#, object(true, IncludeUsage::Absent), false),
        (r#"{"stream_options":{"x":1}}"#, object(false, IncludeUsage::Absent), false),
        (r#"{"stream_options":{"include_usage":true}}"#, object(false, IncludeUsage::Yes), true),
        (r#"{"stream_options":{"include_usage":"on"}}"#, object(false, IncludeUsage::Yes), true),
        (
            r#"{"stream_options":{"include_usage":null}}"#,
            object(false, IncludeUsage::No { span: 35..39 }),
            false,
        ),
        (
            r#"{"stream_options":{"include_usage":false}}"#,
            object(false, IncludeUsage::No { span: 35..40 }),
            false,
        ),
        (r#"{"stream_options":{"include_usage":[]}}"#, object(false, IncludeUsage::Other), false),
        (
            r#"{"stream_options":{"include_usage":true,"include_usage":0}}"#,
            object(false, IncludeUsage::No { span: 56..57 }),
            false,
        ),
        (r#"{"stream_options":{"x":{"include_usage":true}}}"#, object(false, IncludeUsage::Absent), false),
        (r#"{"stream_options":{"\u0069nclude_usage":true}}"#, object(false, IncludeUsage::Yes), true),
    ];
    for (body, expected, asks) in cases {
        let scan = read(body);
        assert_eq!(scan.stream_options, expected, "{body}");
        assert_eq!(scan.asks_usage(), asks, "{body}");
    }
}

#[test]
fn the_cap_that_the_engine_applies() {
    let cases = [
        ("{}", Endpoint::Chat, Cap::Absent),
        (r#"{"max_tokens":8}"#, Endpoint::Chat, Cap::Tokens(8)),
        (r#"{"max_tokens":8,"max_completion_tokens":4}"#, Endpoint::Chat, Cap::Tokens(4)),
        (r#"{"max_completion_tokens":400,"max_tokens":8}"#, Endpoint::Chat, Cap::Tokens(400)),
        (r#"{"max_tokens":8,"max_completion_tokens":null}"#, Endpoint::Chat, Cap::Tokens(8)),
        (r#"{"max_tokens":8,"max_completion_tokens":5.5}"#, Endpoint::Chat, Cap::Other),
        (r#"{"max_tokens":8,"max_completion_tokens":4}"#, Endpoint::Completions, Cap::Tokens(8)),
        (r#"{"max_completion_tokens":4}"#, Endpoint::Completions, Cap::Absent),
        (r#"{"max_tokens":null}"#, Endpoint::Completions, Cap::Null),
        (r#"{"max_tokens":1e30}"#, Endpoint::Completions, Cap::Other),
        (r#"{"max_tokens":8,"max_tokens":9}"#, Endpoint::Chat, Cap::Tokens(9)),
    ];
    for (body, endpoint, expected) in cases {
        assert_eq!(scan(body.as_bytes(), endpoint).unwrap().output_cap(), expected, "{body} {endpoint:?}");
    }
}

#[test]
fn choices_for_each_prompt() {
    let cases = [
        ("{}", 1),
        (r#"{"n":null}"#, 1),
        (r#"{"n":3}"#, 3),
        (r#"{"n":"3"}"#, 3),
        (r#"{"n":-3}"#, 1),
        (r#"{"n":99999999999}"#, u32::MAX),
    ];
    for (body, expected) in cases {
        assert_eq!(read(body).n, expected, "{body}");
    }
}

#[test]
fn prompts_of_completions() {
    let cases = [
        ("", 0, 0, 1),
        (r#""prompt":"hello""#, 5, 0, 1),
        (r#""prompt":["hello","you"]"#, 8, 0, 2),
        (r#""prompt":[1,2,3]"#, 0, 3, 1),
        (r#""prompt":[[1,2,3],[4]]"#, 0, 4, 2),
        (r#""prompt":[]"#, 0, 0, 1),
        (r#""prompt":null"#, 0, 0, 1),
        (r#""prompt":"a","prompt":"abc""#, 3, 0, 1),
        (r#""messages":"not read","prompt":"abc""#, 3, 0, 1),
    ];
    for (member, bytes, token_ids, prompts) in cases {
        let scan = scan(format!("{{{member}}}").as_bytes(), Endpoint::Completions).unwrap();
        assert_eq!(scan.prompt, PromptShape { bytes, token_ids, prompts }, "{member}");
    }
    let estimate = PromptShape { bytes: 9, token_ids: 5, prompts: 1 };
    assert_eq!(estimate.tokens().0, 5 + 3);
}

#[test]
fn prompts_of_chats() {
    let image = format!("data:image/png;base64,{}", "A".repeat(500_000));
    let messages = |content: &str| format!(r#"[{{"role":"user","content":{content}}}]"#);
    let text = messages("\"hello\"");
    let url = messages(&format!(r#"[{{"type":"image_url","image_url":{{"url":"{image}"}}}}]"#));
    let short_url = messages(r#"[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}]"#);
    let pasted = messages(&format!("\"{image}\""));
    let cases = [
        ("text", format!(r#"{{"messages":{text}}}"#), text.len()),
        ("tools count too", format!(r#"{{"messages":{text},"tools":[{{}}]}}"#), text.len() + 4),
        ("an image counts flat", format!(r#"{{"messages":{url}}}"#), url.len() - image.len() + 1_000),
        ("a short link counts as text", format!(r#"{{"messages":{short_url}}}"#), short_url.len()),
        ("an image as text is text", format!(r#"{{"messages":{pasted}}}"#), pasted.len()),
        ("other members do not count", format!(r#"{{"x":"{image}","messages":[]}}"#), 2),
        ("nothing", "{}".to_owned(), 0),
    ];
    for (name, body, bytes) in cases {
        assert_eq!(read(&body).prompt, PromptShape { bytes, token_ids: 0, prompts: 1 }, "{name}");
    }
}

#[test]
fn tools_are_a_list_with_something_in_it() {
    let cases = [
        ("{}", false),
        (r#"{"tools":null}"#, false),
        (r#"{"tools":[ ]}"#, false),
        (r#"{"tools":[{}]}"#, true),
        (r#"{"tools":"x"}"#, false),
        (r#"{"tools":[{}],"tools":null}"#, false),
    ];
    for (body, expected) in cases {
        assert_eq!(read(body).has_tools, expected, "{body}");
    }
}
