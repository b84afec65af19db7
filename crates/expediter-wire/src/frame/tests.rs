use super::*;

fn read(text: &str) -> Frame {
    Frame::read(text.as_bytes()).unwrap_or_else(|fault| panic!("{text}: {fault:?}"))
}

fn usage(prompt: Option<u64>, completion: Option<u64>, cached: Option<u64>) -> Usage {
    Usage { prompt_tokens: prompt, completion_tokens: completion, cached_tokens: cached }
}

#[test]
fn usage_as_engines_write_it() {
    let cases = [
        (r#"{"usage":null}"#, None),
        (r#"{"usage":5}"#, None),
        (r#"{"x":{"usage":{"prompt_tokens":1}}}"#, None),
        (r#"{"usage":{}}"#, Some(usage(None, None, None))),
        (r#"{"usage":{"prompt_tokens":9,"completion_tokens":2}}"#, Some(usage(Some(9), Some(2), None))),
        (r#"{"usage":{"prompt_tokens":9.0,"completion_tokens":"2"}}"#, Some(usage(Some(9), None, None))),
        (r#"{"usage":{"prompt_tokens":-1,"completion_tokens":2.5}}"#, Some(usage(None, None, None))),
        (r#"{"usage":{"prompt_tokens_details":null}}"#, Some(usage(None, None, None))),
        (r#"{"usage":{"prompt_tokens_details":{"cached_tokens":null}}}"#, Some(usage(None, None, None))),
        (r#"{"usage":{"prompt_tokens_details":{"cached_tokens":0}}}"#, Some(usage(None, None, Some(0)))),
        (r#"{"usage":{"prompt_tokens":1},"usage":{"prompt_tokens":2}}"#, Some(usage(Some(2), None, None))),
    ];
    for (text, expected) in cases {
        assert_eq!(read(text).usage, expected, "{text}");
    }
}

#[test]
fn an_unknown_count_never_wipes_a_known_one() {
    let cases = [
        (usage(None, None, None), usage(Some(1), Some(2), Some(3)), usage(Some(1), Some(2), Some(3))),
        (usage(Some(1), Some(2), Some(3)), usage(None, None, None), usage(Some(1), Some(2), Some(3))),
        (usage(Some(1), Some(2), Some(3)), usage(Some(4), Some(0), None), usage(Some(4), Some(0), Some(3))),
    ];
    for (mut earlier, later, expected) in cases {
        earlier.merge(later);
        assert_eq!(earlier, expected);
    }
}

type FinishCase = (&'static str, Choices, &'static [(u32, Finish)]);

#[test]
fn finishes_as_engines_write_them() {
    let cases: [FinishCase; 10] = [
        ("{}", Choices::Unknown, &[]),
        (r#"{"choices":null}"#, Choices::Unknown, &[]),
        (r#"{"choices":[]}"#, Choices::Empty, &[]),
        (r#"{"choices":[{"index":0,"finish_reason":null}]}"#, Choices::Some, &[]),
        (r#"{"choices":[{"index":0}]}"#, Choices::Some, &[]),
        (r#"{"choices":[{"index":1,"finish_reason":"stop"}]}"#, Choices::Some, &[(1, Finish::Other)]),
        (r#"{"choices":[{"finish_reason":"abort","index":2}]}"#, Choices::Some, &[(2, Finish::Abort)]),
        (r#"{"choices":[{"delta":{"finish_reason":"abort"},"index":0}]}"#, Choices::Some, &[]),
        (
            r#"{"choices":[{"index":0,"finish_reason":"length"},{"index":1,"finish_reason":"abort"}]}"#,
            Choices::Some,
            &[(0, Finish::Other), (1, Finish::Abort)],
        ),
        (r#"{"choices":[7,{"index":"x","finish_reason":5}]}"#, Choices::Some, &[(0, Finish::Other)]),
    ];
    for (text, choices, finishes) in cases {
        let frame = read(text);
        assert_eq!((frame.choices, frame.finishes.as_slice()), (choices, finishes), "{text}");
    }
}

#[test]
fn errors_in_every_shape() {
    let error = |code, message: &str| Some(ErrorFrame { code, message: message.into() });
    let cases = [
        // vLLM 0.32.0 when its core dies, and when its queue is full.
        (
            r#"{"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "param": null, "code": 500}}"#,
            error(Some(500), "EngineCore encountered an issue."),
        ),
        (
            r#"{"error": {"message": "The engine is currently busy", "type": "Service Unavailable", "param": null, "code": 503}}"#,
            error(Some(503), "The engine is currently busy"),
        ),
        (r#"{"error":{"message":"a\n\"b\"","code":"404"}}"#, error(Some(404), "a\n\"b\"")),
        (r#"{"error":{"message":null,"code":"model_not_found"}}"#, error(None, "null")),
        (r#"{"error":{"code":70000}}"#, error(None, "")),
        (r#"{"error":{}}"#, error(None, "")),
        (r#"{"error":"Unauthorized"}"#, error(None, "Unauthorized")),
        (r#"{"error":["x"]}"#, error(None, "[\"x\"]")),
        (r#"{"error":null}"#, None),
        (r#"{"error":false}"#, None),
        (
            r#"{"object":"error","message":"bad","type":"BadRequestError","param":null,"code":400}"#,
            error(Some(400), "bad"),
        ),
        (r#"{"object":"list","message":"fine","code":400}"#, None),
        (r#"{"detail":"Not Found"}"#, None),
    ];
    for (text, expected) in cases {
        assert_eq!(read(text).error, expected, "{text}");
    }
}

#[test]
fn what_is_no_object_says_nothing_and_what_is_no_json_is_a_fault() {
    for text in ["[]", "null", "\"usage\"", "5", "[{\"usage\":{}}]"] {
        assert_eq!(read(text), Frame::default(), "{text}");
    }
    let deep = "[".repeat(100_000);
    for text in ["", "{", "{\"usage\":{}", "[DONE]", "{}{}", "<html>", &deep] {
        assert!(Frame::read(text.as_bytes()).is_err(), "{}", &text[..text.len().min(20)]);
    }
}
