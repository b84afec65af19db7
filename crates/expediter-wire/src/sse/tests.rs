use super::*;

/// Splits one stream, given in pieces, and returns the events.
fn split(pieces: &[&str]) -> Vec<String> {
    let mut splitter = EventSplitter::new(1 << 20);
    let mut events = Vec::new();
    for piece in pieces {
        let pushed = splitter.push(piece.as_bytes(), |event| {
            events.push(String::from_utf8(event.raw.to_vec()).unwrap());
        });
        pushed.unwrap();
    }
    events
}

#[test]
fn an_event_ends_with_a_blank_line_in_any_spelling() {
    let cases: [(&[&str], &[&str]); 17] = [
        (&["data: a\n\ndata: b\n\n"], &["data: a\n\n", "data: b\n\n"]),
        (&["data: a\r\n\r\ndata: b\r\n\r\n"], &["data: a\r\n\r\n", "data: b\r\n\r\n"]),
        (&["data: a\r\rdata: b\r\r"], &["data: a\r\r", "data: b\r\r"]),
        (&["data: a\n\r\ndata: b\r\n\n"], &["data: a\n\r\n", "data: b\r\n\n"]),
        (&["data: a\ndata: b\n\n"], &["data: a\ndata: b\n\n"]),
        (&["data: a\r\ndata: b\r\n\r\n"], &["data: a\r\ndata: b\r\n\r\n"]),
        (&["data: a\n\n\ndata: b\n\n"], &["data: a\n\n", "\n", "data: b\n\n"]),
        (&["da", "ta: a", "\n", "\n", "data: b\n\n"], &["data: a\n\n", "data: b\n\n"]),
        (&["data: a\r", "\n\r", "\ndata: b\r\n\r\n"], &["data: a\r\n\r", "data: b\r\n\r\n"]),
        (&["data: a\r\r", "\ndata: b\r\r"], &["data: a\r\r", "data: b\r\r"]),
        (&["data: a\n\r", "\n", "data: b\n\n"], &["data: a\n\r", "data: b\n\n"]),
        (&["data: a\r\r", "data: b\n\n"], &["data: a\r\r", "data: b\n\n"]),
        (&["data: a\r", "\r", "", "\n", "\n"], &["data: a\r\r", "\n"]),
        (&["data: a\r", "data: b\n\n"], &["data: a\rdata: b\n\n"]),
        (&["\u{feff}data: a\n\n"], &["data: a\n\n"]),
        (&["data: a\n", "data: b"], &[]),
        (&[""], &[]),
    ];
    for (pieces, expected) in cases {
        assert_eq!(split(pieces), expected, "{pieces:?}");
    }
    let mut splitter = EventSplitter::new(100);
    let mut events = 0;
    for byte in "\u{feff}data: a\n\n".as_bytes() {
        splitter
            .push(&[*byte], |event| {
                assert_eq!(event.raw, b"data: a\n\n");
                events += 1;
            })
            .unwrap();
    }
    assert_eq!(events, 1, "a mark in three pieces");
}

#[test]
fn what_an_event_carries() {
    let data = |payload: &str| EventKind::Data(payload.as_bytes().to_vec().into());
    let cases = [
        ("data: {}\n\n", data("{}")),
        ("data:{}\r\n\r\n", data("{}")),
        ("data:  {}\r\r", data(" {}")),
        ("data: {} \n\n", data("{} ")),
        ("data: {}\r\n\r", data("{}")),
        ("data: a\ndata:b\r\ndata:  c\n\n", data("a\nb\n c")),
        ("data\ndata: a\n\n", data("\na")),
        (": ping\ndata: a\n\n", data("a")),
        ("id: 1\nevent: x\ndata: a\n\n", data("a")),
        ("retry: 5\ndata: a\n\n", data("a")),
        (": ping\n\n", EventKind::Comment),
        (":\n: x\r\n\r\n", EventKind::Comment),
        ("data:\n\n", EventKind::Empty),
        ("data: \n\n", EventKind::Empty),
        ("data\n\n", EventKind::Empty),
        ("data:\ndata:\n\n", EventKind::Empty),
        ("event: ping\n\n", EventKind::Empty),
        ("id: 7\n\n", EventKind::Empty),
        ("retry: 3000\n\n", EventKind::Empty),
        ("id\n: ping\n\n", EventKind::Empty),
        ("nonsense\n\n", EventKind::Empty),
        ("Data: a\n\n", EventKind::Empty),
        (" data: a\n\n", EventKind::Empty),
        ("\n", EventKind::Empty),
    ];
    for (raw, expected) in cases {
        let event = Event { raw: raw.as_bytes() };
        assert_eq!(event.kind(), expected, "{raw:?}");
        assert_eq!(event.has_id(), raw.starts_with("id"), "{raw:?}");
    }
}

#[test]
fn an_ordinary_event_is_not_copied() {
    let stream = b"data: {\"a\":1}\n\n";
    let mut splitter = EventSplitter::new(100);
    splitter
        .push(stream, |event| {
            assert_eq!(event.raw.as_ptr(), stream.as_ptr());
            assert!(matches!(event.kind(), EventKind::Data(std::borrow::Cow::Borrowed(_))));
        })
        .unwrap();
}

#[test]
fn an_event_beyond_the_limit_is_refused_even_before_its_end() {
    // (pieces, events handed on, whether all fits into 10 bytes)
    let cases: [(&[&str], u32, bool); 6] = [
        (&["data: 12\n\n", "data: 12\n\n"], 2, true),
        (&["data: 12\n", "\n"], 1, true),
        (&["data: 123\n\n"], 0, false),
        (&["data: 12\n\ndata: 123\n\n"], 1, false),
        (&["data: 1234", "5"], 0, false),
        (&["data: 1", "23\n\n"], 0, false),
    ];
    for (pieces, count, fits) in cases {
        let mut splitter = EventSplitter::new(10);
        let mut events = 0;
        let mut push = |piece: &&str| splitter.push(piece.as_bytes(), |_| events += 1);
        assert_eq!(pieces.iter().try_for_each(&mut push).is_ok(), fits, "{pieces:?}");
        assert_eq!(events, count, "{pieces:?}");
    }
}

#[test]
fn a_done_without_its_blank_line_is_told_from_half_an_event() {
    let cases = [
        ("data: [DONE]", true),
        ("data: [DONE]\n", true),
        ("data:[DONE]\r\n", true),
        ("data: [DON", false),
        ("data: [DONE]\n\n", false),
        ("data: {}\n", false),
        ("", false),
    ];
    for (stream, expected) in cases {
        let mut splitter = EventSplitter::new(100);
        splitter.push(stream.as_bytes(), |_| {}).unwrap();
        assert_eq!(splitter.tail_is_done(), expected, "{stream:?}");
    }
}

#[test]
fn frames_are_parsed_only_where_they_say_something() {
    let choices = |choices| Inspection { choices, ..Inspection::default() };
    let token =
        r#"{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}],"usage":null,"error":null}"#;
    let quoting =
        r#"{"choices":[{"index":0,"delta":{"content":"\"usage\": 5, \"error\""},"finish_reason": null}]}"#;
    let last = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}"#;
    let finished =
        Inspection { finishes: [(0, Finish::Other)].into_iter().collect(), ..choices(Choices::Some) };
    let usage = Usage { prompt_tokens: Some(1), ..Usage::default() };
    let cases = [
        ("an ordinary token", token, Inspection::default(), choices(Choices::Some)),
        ("a token that quotes", quoting, Inspection::default(), choices(Choices::Some)),
        ("the last token", last, finished.clone(), finished),
        (
            "done",
            " [DONE] ",
            Inspection { done: true, ..Inspection::default() },
            Inspection { done: true, ..Inspection::default() },
        ),
        (
            "usage alone",
            r#"{"choices":[],"usage":{"prompt_tokens":1}}"#,
            Inspection { usage: Some(usage), ..choices(Choices::Empty) },
            Inspection { usage: Some(usage), ..choices(Choices::Empty) },
        ),
        ("no JSON", "hello", Inspection::default(), Inspection { unparsed: true, ..Inspection::default() }),
        (
            "half a JSON",
            r#"{"usage":{"#,
            Inspection { unparsed: true, ..Inspection::default() },
            Inspection { unparsed: true, ..Inspection::default() },
        ),
    ];
    for (name, payload, quick, full) in cases {
        assert_eq!(inspect(payload.as_bytes(), false), quick, "{name}");
        assert_eq!(inspect(payload.as_bytes(), true), full, "{name}, in full");
    }
    let deep = format!("{{\"usage\":{}", "[".repeat(100_000));
    assert!(inspect(deep.as_bytes(), false).unparsed);
}
