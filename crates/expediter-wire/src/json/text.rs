//! Strings of a JSON text.

/// A string as it stands in the text, already checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    /// The bytes between the quotes.
    pub(crate) raw: &'a [u8],
    /// Whether they hold a backslash.
    pub(crate) escaped: bool,
}

impl Text<'_> {
    /// Whether the string, its escapes decoded, is `name`.
    pub(crate) fn is(self, name: &str) -> bool {
        self.decoded_to(&mut [0; KEY_BYTES_MAX]) == Some(name.as_bytes())
    }

    /// The string with its escapes decoded, in `buffer` where it has any. `None` where it is no valid text, or
    /// longer than any key that is looked for.
    pub(crate) fn decoded_to<'b>(&'b self, buffer: &'b mut [u8; KEY_BYTES_MAX]) -> Option<&'b [u8]> {
        if !self.escaped {
            return Some(self.raw);
        }
        if self.raw.len() > KEY_BYTES_MAX * ESCAPE_BYTES_MAX {
            return None;
        }
        let text = unescape(self.raw)?;
        let part = buffer.get_mut(..text.len())?;
        part.copy_from_slice(text.as_bytes());
        Some(part)
    }
}

/// Longer than every key that any reader here looks for.
pub(crate) const KEY_BYTES_MAX: usize = 32;

/// Bytes of the longest escape of one ASCII character: `\u0061`.
const ESCAPE_BYTES_MAX: usize = 6;

/// Decodes the escapes of a string that was checked before; `raw` is what stands between its quotes. `None`
/// where that is no valid text: a lone surrogate, or bytes that are not UTF-8.
pub(crate) fn unescape(raw: &[u8]) -> Option<String> {
    let mut rest = std::str::from_utf8(raw).ok()?;
    let mut text = String::with_capacity(rest.len());
    while let Some(at) = rest.find('\\') {
        text.push_str(&rest[..at]);
        let letter = *rest.as_bytes().get(at + 1)?;
        rest = rest.get(at + 2..)?;
        text.push(match letter {
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let mut unit = code_unit(&mut rest)?;
                if (0xD800..0xDC00).contains(&unit) {
                    rest = rest.strip_prefix("\\u")?;
                    let low = code_unit(&mut rest)?;
                    if !(0xDC00..0xE000).contains(&low) {
                        return None;
                    }
                    unit = 0x1_0000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
                }
                char::from_u32(unit)?
            }
            quote_or_slash => char::from(quote_or_slash),
        });
    }
    text.push_str(rest);
    Some(text)
}

/// Takes four hexadecimal digits off `rest`.
fn code_unit(rest: &mut &str) -> Option<u32> {
    let (digits, after) = rest.split_at_checked(4)?;
    *rest = after;
    u32::from_str_radix(digits, 16).ok()
}
