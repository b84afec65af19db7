use super::*;

/// Walks over a whole text.
fn read(text: &[u8]) -> Result<(), Fault> {
    let mut cursor = Cursor::new(text);
    cursor.value()?;
    cursor.finish()
}

#[test]
fn texts_that_python_reads() {
    let texts: [&[u8]; 34] = [
        b"{}",
        b"[]",
        b"null",
        b"true",
        b"false",
        b"\"\"",
        b"0",
        b"-0",
        b"10",
        b"1.5",
        b"1e5",
        b"1E+5",
        b"0e-5",
        b"-0.0e0",
        b"123456789012345678901234567890",
        b"1e999999",
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b" \t\r\n[ \t\r\n1 \t\r\n, \t\r\n2 \t\r\n] \t\r\n",
        b"{ \"a\" : 1 , \"b\" : [ ] }",
        b"\xEF\xBB\xBF{}",
        b"\xEF\xBB\xBF \n{}",
        b"[[[[]]],{\"a\":{\"b\":[{}]}}]",
        b"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\"",
        b"\"\\ud83c\\udf0d\"",
        b"\"\\ud800\"",
        b"\"\\uDC00 x\"",
        b"\"\\u0000\"",
        b"\"\x7F\"",
        b"{\"\":0}",
        b"{\"a\":1,\"a\":2}",
        "\"ünï 🌍\"".as_bytes(),
        b"[1,\"a\",null,true,false,{},[],-1.5]",
    ];
    for text in texts {
        assert_eq!(read(text), Ok(()), "{}", text.escape_ascii());
    }
}

#[test]
fn texts_that_python_refuses_and_where() {
    let texts: [(&[u8], usize); 47] = [
        (b"", 0),
        (b" ", 1),
        (b"{", 1),
        (b"[", 1),
        (b"}", 0),
        (b"]", 0),
        (b"{]", 1),
        (b"[}", 1),
        (b"[1}", 2),
        (b"{\"a\":1]", 6),
        (b"[1,]", 3),
        (b"[,1]", 1),
        (b"[1 2]", 3),
        (b"{\"a\":1,}", 7),
        (b"{\"a\" 1}", 5),
        (b"{\"a\":}", 5),
        (b"{\"a\"}", 4),
        (b"{a:1}", 1),
        (b"{'a':1}", 1),
        (b"{1:1}", 1),
        (b"{}{}", 2),
        (b"{}x", 2),
        (b"{} \0", 3),
        (b"01", 1),
        (b"1.", 2),
        (b".5", 0),
        (b"+1", 0),
        (b"-", 1),
        (b"--1", 1),
        (b"1e", 2),
        (b"1e+", 3),
        (b"0x10", 1),
        (b"-NaN", 1),
        (b"nan", 0),
        (b"nul", 0),
        (b"True", 0),
        (b"nullx", 4),
        (b"\"", 1),
        (b"\"a", 2),
        (b"\"\\\"", 3),
        (b"\"\\x41\"", 1),
        (b"\"\\u00g0\"", 1),
        (b"\"\\u12\"", 1),
        (b"\"a\nb\"", 2),
        (b"\"\\n\0\"", 3),
        (b" \xEF\xBB\xBF{}", 1),
        (b"[/**/]", 1),
    ];
    for (text, at) in texts {
        assert_eq!(read(text), Err(Fault::Syntax(at)), "{}", text.escape_ascii());
    }
}

#[test]
fn nesting_has_a_limit_and_no_stack() {
    let nested = |depth: usize, (open, close): (&str, &str)| {
        format!("{}1{}", open.repeat(depth), close.repeat(depth)).into_bytes()
    };
    for brackets in [("[", "]"), ("{\"a\":", "}"), ("[{\"a\":[", "]}]"), ("[0,", "]")] {
        let levels = brackets.1.len();
        assert_eq!(read(&nested(DEPTH_MAX / levels, brackets)), Ok(()), "{brackets:?}");
        assert_eq!(read(&nested(DEPTH_MAX / levels + 1, brackets)), Err(Fault::TooDeep), "{brackets:?}");
        assert_eq!(read(&nested(1_000_000, brackets)), Err(Fault::TooDeep), "{brackets:?}");
    }
    assert_eq!(read("[".repeat(1_000_000).as_bytes()), Err(Fault::TooDeep), "never closed");
    let wide = format!("[{}[]]", "[],".repeat(10_000));
    assert_eq!(read(wide.as_bytes()), Ok(()), "many brackets, but few at once");
}

#[test]
fn a_value_ends_where_it_ends() {
    // (text, what stands before the value, the value's length)
    let cases =
        [("[1, 2]", 1, 1), ("{\"a\": [1,{\"b\":2}] }", 6, 11), ("[\"a]b\" ]", 1, 5), ("[ -1.5e3 ]", 2, 6)];
    for (text, start, length) in cases {
        let mut cursor = Cursor::new(text.as_bytes());
        let mut found = None;
        let walked = match text.as_bytes()[0] {
            b'[' => cursor.elements(|cursor| {
                let span = cursor.value()?;
                found.get_or_insert(span);
                Ok(())
            }),
            _ => cursor.members(|cursor, _| {
                found = Some(cursor.value()?);
                Ok(())
            }),
        };
        assert_eq!(walked, Ok(()), "{text}");
        assert_eq!(found, Some(start..start + length), "{text}");
    }
}

#[test]
fn plain_text_ends_at_the_first_special_byte() {
    for filler in [b'a', b' ', b'!', b'#', b'[', b']', 0x7F, 0x80, 0xA2, 0xDC, 0xFF] {
        for length in 0..48 {
            for special in 0..=u8::MAX {
                let mut text = vec![filler; 48];
                text[length] = special;
                let is_special = special < b' ' || special == b'"' || special == b'\\';
                let expected = if is_special { length } else { text.len() };
                assert_eq!(plain_length(&text), expected, "{special:#x} after {length} of {filler:#x}");
            }
        }
    }
}

#[test]
fn strings_decode() {
    let cases = [
        ("plain", Some("plain")),
        ("", Some("")),
        ("\\\"\\\\\\/\\b\\f\\n\\r\\t", Some("\"\\/\u{8}\u{c}\n\r\t")),
        ("m\\u006fdel", Some("model")),
        ("\\u006D\\u006d", Some("mm")),
        ("\\ud83c\\udf0d", Some("🌍")),
        ("ü\\u00fc", Some("üü")),
        ("\\ud83c", None),
        ("\\ud83cx", None),
        ("\\ud83c\\n", None),
        ("\\ud83c\\ud83c", None),
        ("\\udf0d\\ud83c", None),
    ];
    for (raw, expected) in cases {
        assert_eq!(unescape(raw.as_bytes()).as_deref(), expected, "{raw}");
    }
    assert_eq!(unescape(b"\xFF"), None);
}

#[test]
fn keys_compare_decoded() {
    let cases = [
        ("model", "model", true),
        ("mod\\u0065l", "model", true),
        ("\\u006d\\u006f\\u0064\\u0065\\u006c", "model", true),
        ("models", "model", false),
        ("Model", "model", false),
        ("mode\\u004c", "model", false),
        ("model\\u0000", "model", false),
        ("\\ud800", "model", false),
        ("max_completion_tokens", "max_completion_tokens", true),
        ("\\u006dax_completion_token\\u0073", "max_completion_tokens", true),
    ];
    for (raw, name, expected) in cases {
        let text = Text { raw: raw.as_bytes(), escaped: raw.contains('\\') };
        assert_eq!(text.is(name), expected, "{raw}");
    }
    let long = "\\u0061".repeat(1_000);
    assert!(!Text { raw: long.as_bytes(), escaped: true }.is("a"));
}
