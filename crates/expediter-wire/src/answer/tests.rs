use super::*;

/// Reads a head that has to be good.
fn head(text: &str) -> (AnswerHead, usize) {
    match parse_head(text.as_bytes()) {
        Ok(HeadParse::Complete { head, consumed }) => (head, consumed),
        other => panic!("{text:?}: {other:?}"),
    }
}

#[test]
fn how_a_body_ends_and_whether_the_connection_stays() {
    let cases = [
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", BodyFraming::Length(5), true),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nCONTENT-LENGTH: 5\r\n\r\n", BodyFraming::Length(5), true),
        ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", BodyFraming::Length(0), true),
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\n", BodyFraming::Length(5), false),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: x, Close\r\n\r\n",
            BodyFraming::Length(5),
            false,
        ),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", BodyFraming::Chunked, true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n", BodyFraming::Chunked, true),
        ("HTTP/1.1 200 OK\r\n\r\n", BodyFraming::UntilClose, false),
        ("HTTP/1.1 200\r\n\r\n", BodyFraming::UntilClose, false),
        ("HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\n", BodyFraming::Length(5), false),
        (
            "HTTP/1.0 200 OK\r\ncontent-length: 5\r\nconnection: keep-alive\r\n\r\n",
            BodyFraming::Length(5),
            true,
        ),
        ("HTTP/1.1 204 No Content\r\n\r\n", BodyFraming::None, true),
        ("HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", BodyFraming::None, true),
        ("HTTP/1.1 100 Continue\r\n\r\n", BodyFraming::None, true),
    ];
    for (text, body, keep_alive) in cases {
        let (head, consumed) = head(text);
        assert_eq!((head.body, head.keep_alive, consumed), (body, keep_alive, text.len()), "{text:?}");
        assert_eq!(head.is_informational(), text.contains(" 100 "), "{text:?}");
    }
}

#[test]
fn headers_are_kept_in_order_with_their_bytes() {
    let (head, _) = head("HTTP/1.1 503 Busy\r\nX-A:  1 \r\nx-b:\r\nx-a: \"ü\"\r\n\r\nbody");
    let pairs: Vec<(&str, &[u8])> =
        head.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    assert_eq!(head.status, 503);
    assert_eq!(pairs, [("x-a", &b"1"[..]), ("x-a", "\"ü\"".as_bytes()), ("x-b", b"")]);
}

#[test]
fn heads_that_are_refused() {
    let with = |headers: &str| format!("HTTP/1.1 200 OK\r\n{headers}\r\n\r\n").into_bytes();
    let long = "a".repeat(HEAD_BYTES_MAX);
    let cases: [(&str, Vec<u8>, AnswerError); 22] = [
        ("two framings", with("content-length: 5\r\ntransfer-encoding: chunked"), AnswerError::TwoFramings),
        ("two lengths", with("content-length: 5\r\ncontent-length: 6"), AnswerError::Length),
        ("a list of lengths", with("content-length: 5, 5"), AnswerError::Length),
        ("a signed length", with("content-length: +5"), AnswerError::Length),
        ("a negative length", with("content-length: -5"), AnswerError::Length),
        ("a length in two words", with("content-length: 5 5"), AnswerError::Length),
        ("a hexadecimal length", with("content-length: 0x5"), AnswerError::Length),
        ("no length", with("content-length:"), AnswerError::Length),
        ("a huge length", with("content-length: 18446744073709551616"), AnswerError::Length),
        ("another coding", with("transfer-encoding: gzip"), AnswerError::TransferEncoding),
        ("two codings", with("transfer-encoding: gzip, chunked"), AnswerError::TransferEncoding),
        (
            "chunked twice",
            with("transfer-encoding: chunked\r\ntransfer-encoding: chunked"),
            AnswerError::TransferEncoding,
        ),
        (
            "chunks in HTTP/1.0",
            b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".into(),
            AnswerError::TransferEncoding,
        ),
        ("a folded header", with("x: a\r\n b"), AnswerError::Head(httparse::Error::HeaderName)),
        ("a space before the colon", with("x : a"), AnswerError::Head(httparse::Error::HeaderName)),
        ("NUL in a value", with("x: a\0b"), AnswerError::Head(httparse::Error::HeaderValue)),
        ("CR in a value", with("x: a\rb"), AnswerError::Head(httparse::Error::HeaderValue)),
        ("another protocol", b"SSH-2.0-x\r\n".into(), AnswerError::Head(httparse::Error::Version)),
        ("another version", b"HTTP/2.0 200 OK\r\n\r\n".into(), AnswerError::Head(httparse::Error::Version)),
        ("a low status", b"HTTP/1.1 099 X\r\n\r\n".into(), AnswerError::Status(99)),
        ("another protocol to switch to", b"HTTP/1.1 101 X\r\n\r\n".into(), AnswerError::Status(101)),
        ("a long head", with(&format!("x: {long}")), AnswerError::HeadTooLong),
    ];
    for (name, bytes, expected) in cases {
        assert_eq!(parse_head(&bytes).unwrap_err(), expected, "{name}");
    }
    let many = with(&["x: y"; HEADERS_MAX + 1].join("\r\n"));
    assert_eq!(parse_head(&many).unwrap_err(), AnswerError::Head(httparse::Error::TooManyHeaders));
    assert!(parse_head(&with(&["x: y"; HEADERS_MAX].join("\r\n"))).is_ok());
    let endless = format!("HTTP/1.1 200 OK\r\nx: {long}");
    assert_eq!(parse_head(endless.as_bytes()).unwrap_err(), AnswerError::HeadTooLong, "and no end in sight");
}

/// What is left behind a body, if it ended; or why it is refused.
type End<'a> = Result<Option<&'a [u8]>, AnswerError>;

/// Decodes a chunked body that comes in one piece.
fn chunked(bytes: &[u8]) -> (String, End<'_>) {
    let (mut decoder, mut input, mut body) = (BodyDecoder::new(BodyFraming::Chunked), bytes, String::new());
    loop {
        match decoder.next(&mut input) {
            Ok(Decoded::Data(data)) => body.push_str(std::str::from_utf8(data).unwrap()),
            Ok(Decoded::NeedMore) => return (body, decoder.end_of_input().map(|()| None)),
            Ok(Decoded::End) => return (body, Ok(Some(input))),
            Err(error) => return (body, Err(error)),
        }
    }
}

#[test]
fn chunks() {
    let extension = |length: usize| format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(length - 1));
    let trailer = |length: usize| format!("0\r\n{}\r\n\r\n", "x".repeat(length));
    let cases: [(&str, String, &str, End<'_>); 27] = [
        ("one", "5\r\nhello\r\n0\r\n\r\n".into(), "hello", Ok(Some(b""))),
        ("two", "5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n".into(), "hello!", Ok(Some(b""))),
        ("none", "0\r\n\r\n".into(), "", Ok(Some(b""))),
        ("something behind", "0\r\n\r\nHTTP/1.1".into(), "", Ok(Some(b"HTTP/1.1"))),
        ("capitals and zeros", "00A\r\n0123456789\r\n000\r\n\r\n".into(), "0123456789", Ok(Some(b""))),
        ("an extension", "5;a=\"b\"\r\nhello\r\n0;x\r\n\r\n".into(), "hello", Ok(Some(b""))),
        ("trailers", "0\r\na: b\r\nc: d\r\n\r\n".into(), "", Ok(Some(b""))),
        ("the longest extension", extension(4096), "hello", Ok(Some(b""))),
        ("too long an extension", extension(4097), "", Err(AnswerError::Chunk("long extension"))),
        ("the longest trailers", trailer(8192), "", Ok(Some(b""))),
        ("too long trailers", trailer(8193), "", Err(AnswerError::Chunk("long trailer"))),
        ("cut in the size", "5".into(), "", Err(AnswerError::Truncated)),
        ("cut in the data", "5\r\nhel".into(), "hel", Err(AnswerError::Truncated)),
        ("cut after the data", "5\r\nhello\r\n".into(), "hello", Err(AnswerError::Truncated)),
        ("cut before the last line", "5\r\nhello\r\n0\r\n".into(), "hello", Err(AnswerError::Truncated)),
        ("no size", "\r\nhello".into(), "", Err(AnswerError::Chunk("no size"))),
        ("no size but an extension", ";x\r\n".into(), "", Err(AnswerError::Chunk("no size"))),
        ("a signed size", "+5\r\nhello".into(), "", Err(AnswerError::Chunk("no size"))),
        ("a prefixed size", "0x5\r\nhello".into(), "", Err(AnswerError::Chunk("bad size"))),
        ("a space behind the size", "5 \r\nhello".into(), "", Err(AnswerError::Chunk("bad size"))),
        ("a bare LF behind the size", "5\nhello".into(), "", Err(AnswerError::Chunk("bad size"))),
        ("a bare CR behind the size", "5\rhello".into(), "", Err(AnswerError::Chunk("bad line end"))),
        ("a bare LF in an extension", "5;\nhello".into(), "", Err(AnswerError::Chunk("bad extension"))),
        (
            "a bare LF behind the data",
            "5\r\nhello\n".into(),
            "hello",
            Err(AnswerError::Chunk("bad line end")),
        ),
        ("more data than said", "5\r\nhello!\r\n".into(), "hello", Err(AnswerError::Chunk("bad line end"))),
        ("a bare LF in a trailer", "0\r\na: b\n\r\n".into(), "", Err(AnswerError::Chunk("bad trailer"))),
        ("a size of 17 digits", format!("{:017}\r\n", 0), "", Err(AnswerError::Chunk("bad size"))),
    ];
    for (name, bytes, body, end) in cases {
        assert_eq!(chunked(bytes.as_bytes()), (body.to_owned(), end), "{name}");
    }
    let huge = BodyDecoder::new(BodyFraming::Chunked).next(&mut &b"ffffffffffffffff\r\nx"[..]);
    assert_eq!(huge, Ok(Decoded::Data(b"x")), "the largest size is no overflow");
}

#[test]
fn only_a_body_without_a_length_may_end_with_the_connection() {
    let cases = [
        (BodyFraming::None, "", true),
        (BodyFraming::Length(5), "hello", true),
        (BodyFraming::Length(5), "hell", false),
        (BodyFraming::Length(0), "", true),
        (BodyFraming::UntilClose, "", true),
        (BodyFraming::UntilClose, "hello", true),
        (BodyFraming::Chunked, "5\r\nhello\r\n", false),
        (BodyFraming::Chunked, "0\r\n\r\n", true),
    ];
    for (framing, bytes, complete) in cases {
        let (mut decoder, mut input) = (BodyDecoder::new(framing), bytes.as_bytes());
        while let Decoded::Data(_) = decoder.next(&mut input).unwrap() {}
        assert_eq!(decoder.end_of_input().is_ok(), complete, "{framing:?} {bytes:?}");
        assert_eq!(
            decoder.is_done(),
            complete && framing != BodyFraming::UntilClose,
            "{framing:?} {bytes:?}"
        );
    }
}
