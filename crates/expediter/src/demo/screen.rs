//! Where the lines go: a terminal that is redrawn, or an output that only grows.

use std::io::{self, IsTerminal as _, Write as _};

use rustix::process::{Signal, getpgrp, getpid, kill_process};
use rustix::termios::{
    LocalModes, OptionalActions, QueueSelector, Termios, tcflush, tcgetattr, tcgetpgrp, tcgetwinsize,
    tcsetattr,
};

use super::line::Line;
use super::table::Size;

/// The standard output.
pub(crate) enum Screen {
    /// A terminal of which this has taken possession.
    Live(Terminal),
    /// A file, a pipe, or the terminal of a background job. No escape codes.
    Plain,
}

impl Screen {
    /// Takes the terminal, if there is one.
    pub(crate) fn open() -> Self {
        if is_ours() { Self::Live(Terminal::enter()) } else { Self::Plain }
    }

    /// Whether log lines on stderr would go to the same place.
    pub(crate) fn shares_stderr(&self) -> bool {
        matches!(self, Self::Live(_)) && io::stderr().is_terminal()
    }

    /// Stops the process as Ctrl-Z does, with the terminal as it was, and takes the terminal again when the
    /// process goes on.
    pub(crate) fn suspend(&mut self) {
        *self = Self::Plain;
        // A signal to ourselves is always allowed.
        let _ = kill_process(getpid(), Signal::STOP);
        *self = Self::open();
    }
}

/// Whether stdout is a terminal that can be redrawn and that listens to us. A background job must not draw.
fn is_ours() -> bool {
    let can_draw = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
    let stdout = io::stdout();
    can_draw && stdout.is_terminal() && tcgetpgrp(&stdout).is_ok_and(|group| group == getpgrp())
}

/// A terminal in its alternate screen, without cursor and echo. Dropping it restores what was there.
pub(crate) struct Terminal {
    /// How stdin was, where that is a terminal.
    input: Option<Termios>,
}

impl Terminal {
    fn enter() -> Self {
        let stdin = io::stdin();
        let input = tcgetattr(&stdin).ok();
        if let Some(mut silent) = input.clone() {
            silent.local_modes.remove(LocalModes::ECHO);
            // Where this fails, keys show: not nice, and no more than that.
            let _ = tcsetattr(&stdin, OptionalActions::Now, &silent);
        }
        put(ENTER);
        Self { input }
    }

    /// Cells at present; those of the first terminals where it does not tell.
    #[expect(clippy::unused_self, reason = "only who has the terminal draws on it")]
    pub(crate) fn size(&self) -> Size {
        let told = tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        told.map_or(Size { width: 80, height: 24 }, |size| Size {
            width: size.ws_col.into(),
            height: size.ws_row.into(),
        })
    }

    /// A frame as bytes: every line of the screen is written, so that nothing of an earlier frame stays.
    pub(crate) fn frame(lines: &[Line], size: Size) -> String {
        let mut frame = HOME.to_owned();
        for row in 0..size.height {
            if row > 0 {
                frame.push_str("\r\n");
            }
            // Erased first: after the last cell is written, the cursor is still on it.
            frame.push_str(ERASE_LINE);
            frame.push_str(&lines.get(row).map(|line| line.styled(size.width)).unwrap_or_default());
        }
        frame
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        put(LEAVE);
        if let Some(input) = &self.input {
            let stdin = io::stdin();
            // What was typed meanwhile was not meant for the shell.
            let _ = tcflush(&stdin, QueueSelector::IFlush);
            let _ = tcsetattr(&stdin, OptionalActions::Now, input);
        }
    }
}

/// To the alternate screen, without the cursor (xterm's control sequences).
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const ERASE_LINE: &str = "\x1b[2K";

/// Cells of a line, where stdout is a terminal, even if it is not ours to draw on.
pub(crate) fn terminal_width() -> Option<usize> {
    tcgetwinsize(io::stdout()).ok().map(|size| size.ws_col.into()).filter(|width| *width > 0)
}

/// The lines as text, each with its end.
pub(crate) fn plain(lines: &[Line]) -> String {
    lines.iter().map(|line| line.plain() + "\n").collect()
}

/// Writes at once. A terminal that is gone has nobody to be told.
fn put(text: &str) {
    let _ = write(text);
}

/// Writes all of it, which may take as long as the reader likes.
pub(crate) fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}
