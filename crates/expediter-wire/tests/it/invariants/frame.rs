//! What a frame says, against `serde_json`'s tree.

use expediter_wire::completion::inspect_answer;
use expediter_wire::sse::{Choices, ErrorFrame, Finish, Inspection, Usage, inspect};
use serde_json::Value;

/// Inspects a payload in both ways, and as a whole answer.
pub(crate) fn check(payload: &[u8]) {
    let full = inspect(payload, true);
    let quick = inspect(payload, false);
    let says_something =
        full.done || full.error.is_some() || full.usage.is_some() || !full.finishes.is_empty();
    if quick != Inspection::default() {
        assert_eq!(quick, full, "what is parsed is parsed alike");
    } else if !payload.contains(&b'\\') {
        assert!(!says_something, "the search missed a key in {}", payload.escape_ascii());
    }
    if full.done {
        return;
    }
    let whole = inspect_answer(payload);
    assert_eq!(whole.complete_json, !full.unparsed);
    assert_eq!((&whole.usage, &whole.finishes, &whole.error), (&full.usage, &full.finishes, &full.error));

    let Ok(tree) = serde_json::from_slice::<Value>(payload) else {
        return; // Python reads more, and so does the frame's reader
    };
    assert!(!full.unparsed, "serde_json reads {}", payload.escape_ascii());
    assert_eq!(full.usage, usage(&tree["usage"]));
    assert_eq!(
        full.choices,
        match tree["choices"].as_array().map(Vec::as_slice) {
            None => Choices::Unknown,
            Some([]) => Choices::Empty,
            Some(_) => Choices::Some,
        }
    );
    let choices = tree["choices"].as_array().into_iter().flatten();
    let finishes: Vec<(u32, Finish)> = choices.filter_map(finish).collect();
    assert_eq!(full.finishes.as_slice(), finishes);
    let error = &tree["error"];
    if error.is_null() || error == false {
        assert_eq!(full.error.is_some(), tree["object"] == "error");
    } else {
        check_error(full.error.as_ref().expect("an error"), error);
    }
}

fn check_error(found: &ErrorFrame, error: &Value) {
    if let Some(message) = error.as_str() {
        assert_eq!(found.message, message);
    }
    if let Some(members) = error.as_object() {
        let code = members.get("code").and_then(|code| {
            let number = code.as_u64().and_then(|code| u16::try_from(code).ok());
            number.or_else(|| code.as_str()?.parse().ok())
        });
        assert_eq!(found.code, code);
    }
}

fn usage(value: &Value) -> Option<Usage> {
    value.as_object().map(|_| Usage {
        prompt_tokens: count(&value["prompt_tokens"]),
        completion_tokens: count(&value["completion_tokens"]),
        cached_tokens: count(&value["prompt_tokens_details"]["cached_tokens"]),
    })
}

fn count(value: &Value) -> Option<u64> {
    let double = value
        .as_f64()
        .filter(|double| double.fract() == 0.0 && (0.0..9_007_199_254_740_992.0).contains(double));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked in the line above")]
    value.as_u64().or(double.map(|double| double as u64))
}

fn finish(choice: &Value) -> Option<(u32, Finish)> {
    let reason = choice.as_object()?.get("finish_reason").filter(|reason| !reason.is_null())?;
    let finish = if reason == "abort" { Finish::Abort } else { Finish::Other };
    Some((count(&choice["index"]).and_then(|index| u32::try_from(index).ok()).unwrap_or(0), finish))
}
