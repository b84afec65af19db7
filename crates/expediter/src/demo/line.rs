//! Lines of text in a few styles, with or without the escape codes for them.

use std::fmt::Write as _;

/// How a piece of text looks on a terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Style {
    #[default]
    Plain,
    Bold,
    Dim,
    Good,
    Warn,
    Bad,
}

impl Style {
    /// Parameters of "select graphic rendition" (ECMA-48 §8.3.117), from the 16 colours that every theme has.
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => "1",
            Self::Dim => "2",
            Self::Good => "32",
            Self::Warn => "33",
            Self::Bad => "31",
        }
    }
}

/// A line, in pieces of one style each. Its characters take one cell each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line(Vec<(Style, String)>);

impl Line {
    /// A line of one piece.
    pub(crate) fn of(style: Style, text: impl Into<String>) -> Self {
        Self(vec![(style, text.into())])
    }

    /// Adds a piece.
    pub(crate) fn push(&mut self, style: Style, text: impl Into<String>) {
        self.0.push((style, text.into()));
    }

    /// The cells that it takes.
    pub(crate) fn width(&self) -> usize {
        self.0.iter().map(|(_, text)| text.chars().count()).sum()
    }

    /// Its text alone.
    pub(crate) fn plain(&self) -> String {
        let text: String = self.0.iter().map(|(_, text)| text.as_str()).collect();
        text.trim_end().to_owned()
    }

    /// Its text with escape codes, cut to `width` cells. Control characters, which would move the cursor, become
    /// spaces.
    pub(crate) fn styled(&self, width: usize) -> String {
        let (mut shown, mut left) = (String::new(), width);
        for (style, text) in &self.0 {
            let piece: String =
                text.chars().take(left).map(|char| if char.is_control() { ' ' } else { char }).collect();
            left -= piece.chars().count();
            if *style == Style::Plain {
                shown.push_str(&piece);
            } else {
                // Writing to a string does not fail.
                let _ = write!(shown, "\x1b[{}m{piece}\x1b[0m", style.code());
            }
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_to_its_width_and_moves_no_cursor() {
        let mut line = Line::of(Style::Plain, "state ");
        line.push(Style::Good, "re\nady");
        line.push(Style::Plain, "  ");
        assert_eq!(line.plain(), "state re\nady");
        assert_eq!(line.styled(80), "state \x1b[32mre ady\x1b[0m  ");
        assert_eq!(line.styled(8), "state \x1b[32mre\x1b[0m");
    }
}
