//! The decoder against one that has the whole answer before it.

use expediter_wire::answer::{AnswerHead, BodyDecoder, BodyFraming, Decoded, HeadParse, parse_head};

/// How a body ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// In full, with so many bytes left behind it.
    Complete(usize),
    /// The bytes ended first.
    Cut,
    /// It is malformed.
    Bad,
}

/// Reads an answer in pieces. Returns its head and its body, where the head is good.
pub(crate) fn check(answer: &[u8], piece_lengths: &[u8]) -> Option<(AnswerHead, Vec<u8>, End)> {
    let Ok(HeadParse::Complete { head, consumed }) = parse_head(answer) else {
        return None;
    };
    for cut in [consumed / 2, consumed - 1] {
        let early = parse_head(&answer[..cut]);
        assert!(matches!(early, Ok(HeadParse::Partial)), "a head is good only when it is whole");
    }
    let rest = &answer[consumed..];
    let (body, end) = decode(head.body, rest, piece_lengths);
    assert_eq!(
        (&body, &end),
        (&decode(head.body, rest, &[]).0, &decode(head.body, rest, &[]).1),
        "pieces matter"
    );
    assert_eq!((&body, &end), (&oracle(head.body, rest).0, &oracle(head.body, rest).1));
    Some((head, body, end))
}

/// Decodes a body that arrives in pieces.
pub(crate) fn decode(framing: BodyFraming, bytes: &[u8], piece_lengths: &[u8]) -> (Vec<u8>, End) {
    let (mut decoder, mut body, mut seen) = (BodyDecoder::new(framing), Vec::new(), 0);
    for piece in super::pieces(bytes, piece_lengths).into_iter().chain([&b""[..]]) {
        let mut input = piece;
        loop {
            match decoder.next(&mut input) {
                Ok(Decoded::Data(data)) => {
                    assert!(!data.is_empty());
                    body.extend_from_slice(data);
                }
                Ok(Decoded::NeedMore) => {
                    assert!(input.is_empty());
                    break;
                }
                Ok(Decoded::End) => {
                    assert!(decoder.is_done() && decoder.end_of_input().is_ok());
                    let left = bytes.len() - seen - (piece.len() - input.len());
                    return (body, End::Complete(left));
                }
                Err(_) => return (body, End::Bad),
            }
        }
        seen += piece.len();
    }
    match decoder.end_of_input() {
        Ok(()) => (body, End::Complete(0)),
        Err(_) => (body, End::Cut),
    }
}

fn oracle(framing: BodyFraming, bytes: &[u8]) -> (Vec<u8>, End) {
    match framing {
        BodyFraming::None => (Vec::new(), End::Complete(bytes.len())),
        BodyFraming::UntilClose => (bytes.to_vec(), End::Complete(0)),
        BodyFraming::Length(length) => {
            match bytes.split_at_checked(usize::try_from(length).unwrap_or(usize::MAX)) {
                Some((body, rest)) => (body.to_vec(), End::Complete(rest.len())),
                None => (bytes.to_vec(), End::Cut),
            }
        }
        BodyFraming::Chunked => {
            let mut body = Vec::new();
            let end = chunked(bytes, &mut body).map_or_else(|end| end, End::Complete);
            (body, end)
        }
    }
}

fn chunked(mut rest: &[u8], body: &mut Vec<u8>) -> Result<usize, End> {
    loop {
        let size = size(&mut rest)?;
        if size == 0 {
            return trailers(rest);
        }
        let available = usize::try_from(size).unwrap_or(usize::MAX).min(rest.len());
        body.extend_from_slice(&rest[..available]);
        rest = &rest[available..];
        if !line(&mut rest, 0)?.is_empty() {
            return Err(End::Bad);
        }
    }
}

fn size(rest: &mut &[u8]) -> Result<u64, End> {
    let start = rest.iter().take(17).take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (digits, extension) = rest.split_at(start);
    if (start == 0 && !rest.is_empty())
        || start == 17
        || !matches!(extension.first(), None | Some(b';' | b'\r'))
    {
        return Err(End::Bad);
    }
    *rest = extension;
    line(rest, 4096)?;
    let digits = std::str::from_utf8(digits).expect("hexadecimal digits");
    u64::from_str_radix(digits, 16).map_err(|_| End::Bad)
}

fn trailers(mut rest: &[u8]) -> Result<usize, End> {
    let mut budget = 8192;
    loop {
        let trailer = line(&mut rest, budget)?;
        if trailer.is_empty() {
            return Ok(rest.len());
        }
        budget -= trailer.len();
    }
}

/// Takes a line of at most `limit` bytes and its CR LF off the front.
fn line<'a>(rest: &mut &'a [u8], limit: usize) -> Result<&'a [u8], End> {
    let end = rest.iter().take(limit).take_while(|byte| !matches!(byte, b'\r' | b'\n' | 0)).count();
    match rest[end..] {
        [] | [b'\r'] => Err(End::Cut),
        [b'\r', b'\n', ..] => {
            let line = &rest[..end];
            *rest = &rest[end + 2..];
            Ok(line)
        }
        _ => Err(End::Bad),
    }
}
