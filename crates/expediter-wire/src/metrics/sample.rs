//! One line of a metrics page.

/// A sample: `name{label="value",…} number [time]`. Its labels are checked and not yet decoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample<'a> {
    /// The whole name.
    pub(super) name: &'a [u8],
    /// What stands between the braces.
    labels: &'a [u8],
    /// The number; may be infinite, or none.
    pub(super) value: f64,
}

impl<'a> Sample<'a> {
    /// Reads a line without its line end. `None` where it is no sample.
    pub(super) fn read(line: &'a [u8]) -> Option<Self> {
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':');
        let length = line.iter().take_while(|byte| is_name(byte)).count();
        let (name, rest) = line.split_at(length);
        if name.first().is_none_or(u8::is_ascii_digit) {
            return None;
        }
        let rest = rest.trim_ascii_start();
        let (labels, rest) = if let Some(inner) = rest.strip_prefix(b"{") {
            let (labels, rest) = inner.split_at(labels_length(inner)?);
            (labels, &rest[1..])
        } else if rest.len() < line.len() - length {
            (&rest[..0], rest)
        } else {
            return None;
        };
        let mut words = rest.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
        let value = number(words.next()?)?;
        if let Some(time) = words.next() {
            number(time)?;
        }
        words.next().is_none().then_some(Self { name, labels, value })
    }

    /// Whether the name is one of the engine's own, and not of its HTTP server or its language.
    pub(super) fn is_the_engines(&self) -> bool {
        self.name.starts_with(b"vllm:") || self.name.starts_with(b"vllm_")
    }

    /// The name without the engine's prefix, and how far the spelling is from the original: 0 is `vllm:x`, 1
    /// `vllm_x` (collectors that allow no colon), 2 `x`.
    pub(super) fn plain_name(&self) -> (&'a [u8], u8) {
        if let Some(name) = self.name.strip_prefix(b"vllm:") {
            (name, 0)
        } else if let Some(name) = self.name.strip_prefix(b"vllm_") {
            (name, 1)
        } else {
            (self.name, 2)
        }
    }

    /// The value of a label, its escapes decoded.
    pub(super) fn label(&self, name: &str) -> Option<String> {
        let mut rest = self.labels;
        while let Some(label) = next_label(&mut rest)? {
            if label.name == name.as_bytes() {
                return Some(unescape(label.value));
            }
        }
        None
    }
}

/// A label; its value is what stands between the quotes.
struct Label<'a> {
    name: &'a [u8],
    value: &'a [u8],
}

/// The length of what stands before the closing brace. `None` where that is no list of labels, or has no brace.
fn labels_length(inner: &[u8]) -> Option<usize> {
    let mut rest = inner;
    while next_label(&mut rest)?.is_some() {}
    rest.starts_with(b"}").then(|| inner.len() - rest.len())
}

/// Takes a label and its comma off the front; `Some(None)` where the list ends, `None` where it is malformed.
#[expect(clippy::option_option, reason = "malformed and ended are two things, and `?` tells them apart")]
fn next_label<'a>(rest: &mut &'a [u8]) -> Option<Option<Label<'a>>> {
    let text = rest.trim_ascii_start();
    if text.is_empty() || text[0] == b'}' {
        *rest = text;
        return Some(None);
    }
    let is_name = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
    let (name, value) = text.split_at(text.iter().take_while(is_name).count());
    let quoted = value.trim_ascii_start().strip_prefix(b"=")?.trim_ascii_start().strip_prefix(b"\"")?;
    let mut end = 0;
    while *quoted.get(end)? != b'"' {
        end += if quoted[end] == b'\\' { 2 } else { 1 };
    }
    let after = quoted[end + 1..].trim_ascii_start();
    *rest = match after.first() {
        Some(b',') => &after[1..],
        Some(b'}') | None => after,
        Some(_) => return None,
    };
    (!name.is_empty()).then_some(Some(Label { name, value: &quoted[..end] }))
}

/// Decodes `\\`, `\"` and `\n`; another backslash stands for itself.
fn unescape(value: &[u8]) -> String {
    let mut text = Vec::with_capacity(value.len());
    let mut bytes = value.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        let decoded = match (byte, bytes.peek()) {
            (b'\\', Some(b'\\')) => b'\\',
            (b'\\', Some(b'"')) => b'"',
            (b'\\', Some(b'n')) => b'\n',
            _ => {
                text.push(byte);
                continue;
            }
        };
        text.push(decoded);
        bytes.next();
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Reads a number as Go's `ParseFloat` does for these pages: decimal, `NaN`, `+Inf`, `-Inf`.
fn number(word: &[u8]) -> Option<f64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}
