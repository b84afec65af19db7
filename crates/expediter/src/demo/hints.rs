//! Commands for the user to paste into another terminal.

use std::net::SocketAddr;

use super::reading::Replica;

/// Where the gateway can be reached.
#[derive(Clone, Debug)]
pub(crate) struct Doors {
    /// For clients.
    pub(crate) clients: SocketAddr,
    /// For operators.
    pub(crate) operators: SocketAddr,
    /// What operators present.
    pub(crate) token: String,
}

/// A piece of a command.
enum Part {
    /// A line may end before it where a backslash says that the command goes on.
    Word(String),
    /// It goes on within the quotes of the word before, in JSON, where a line may end without a backslash.
    Quoted(&'static str),
}

impl Doors {
    /// A streaming chat.
    pub(crate) fn chat(&self, width: usize) -> Vec<String> {
        let parts = [
            Part::Word(format!("curl -N http://{}/v1/chat/completions", self.clients)),
            Part::Word("-H 'content-type: application/json'".to_owned()),
            Part::Word("-d '{\"model\":\"gpt-fast\",\"stream\":true,".to_owned()),
            Part::Quoted("\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}'"),
        ];
        command(&parts, width)
    }

    /// The replica list, with the way in.
    pub(crate) fn replicas(&self, width: usize) -> Vec<String> {
        let parts = [
            Part::Word("curl".to_owned()),
            Part::Word(format!("-H 'authorization: Bearer {}'", self.token)),
            Part::Word(format!("{}/admin/replicas", self.operators)),
        ];
        command(&parts, width)
    }
}

/// Makes a simulated replica fail for a while.
pub(crate) fn crash(replica: &Replica, width: usize) -> Vec<String> {
    let address = replica.url.trim_start_matches("http://").trim_end_matches('/');
    let parts = [
        Part::Word(format!("curl {address}/fault")),
        Part::Word("-d '{\"fault\":\"crash\",\"for_ms\":9000}'".to_owned()),
    ];
    command(&parts, width)
}

/// In as few lines of `width` cells as its parts allow. Pasted whole, they are one command.
fn command(parts: &[Part], width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for (index, part) in parts.iter().enumerate() {
        let (glue, end, text) = match part {
            Part::Word(text) => (" ", " \\", text.as_str()),
            Part::Quoted(text) => ("", "", *text),
        };
        let room_for_end = if index + 1 < parts.len() { " \\".len() } else { 0 };
        if line.is_empty() {
            line.push_str(text);
        } else if line.len() + glue.len() + text.len() + room_for_end <= width {
            line.push_str(glue);
            line.push_str(text);
        } else {
            lines.push(line + end);
            line = format!("{INDENT}{text}");
        }
    }
    lines.push(line);
    lines
}

/// Of lines after the first: by it one sees that they belong together.
const INDENT: &str = "  ";

#[cfg(test)]
mod tests {
    use super::*;

    fn doors() -> Doors {
        let (clients, operators) = ("127.0.0.1:18080".parse().unwrap(), "127.0.0.1:18081".parse().unwrap());
        Doors { clients, operators, token: "0123456789abcdef".to_owned() }
    }

    #[test]
    fn commands_fit_a_small_terminal() {
        let replica = Replica { url: "http://127.0.0.1:41231/".to_owned(), ..Replica::default() };
        for command in [doors().chat(80), doors().replicas(80), crash(&replica, 80)] {
            assert!(command.iter().all(|line| line.len() <= 80), "{command:#?}");
        }
        assert_eq!(
            crash(&replica, 80),
            ["curl 127.0.0.1:41231/fault -d '{\"fault\":\"crash\",\"for_ms\":9000}'"]
        );
        let expected = [
            "curl -N http://127.0.0.1:18080/v1/chat/completions \\",
            "  -H 'content-type: application/json' -d '{\"model\":\"gpt-fast\",\"stream\":true,",
            "  \"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}'",
        ];
        assert_eq!(doors().chat(80), expected);
    }

    #[test]
    fn a_wide_terminal_needs_fewer_lines() {
        assert_eq!(doors().chat(300).len(), 1);
        assert_eq!(doors().replicas(300).len(), 1);
    }
}
