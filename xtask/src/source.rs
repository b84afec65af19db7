//! Reads source files as text: the second net under the purity of the pure crates.
//!
//! The standard library has clocks, sockets, files and maps with a random order too, and no dependency shows
//! them. This reads words, not Rust: it knows comments, `use std::{…}` groups and where the tests begin.

/// Modules of `std` that a pure crate must not name.
const MODULES: &[&str] = &["env", "fs", "io", "net", "os", "process", "thread"];

/// Words that a pure crate must not use, wherever they come from.
const WORDS: &[(&str, &str)] = &[
    ("Instant", "take `now: Time` as an argument"),
    ("SystemTime", "take `now: Time` as an argument"),
    ("HashMap", "its order differs from run to run: BTreeMap"),
    ("HashSet", "its order differs from run to run: BTreeSet"),
    ("RandomState", "ambient randomness: take `&mut Prng`"),
    ("thread_local", "state is owned by the caller"),
    ("println", "return what happened"),
    ("eprintln", "return what happened"),
    ("async", "a state machine waits by `poll_timeout`"),
    ("await", "a state machine waits by `poll_timeout`"),
];

/// What `text`, a file of a pure crate, uses that it must not. Each line names the place and the remedy.
pub(crate) fn impurities(path: &str, text: &str) -> Vec<String> {
    let code = without_comments(before_tests(text));
    let mut violations = Vec::new();
    let mut excused = false;
    for (number, line) in (1..).zip(code.lines()) {
        for (word, remedy) in WORDS {
            if has_word(line, word) && !excused {
                violations.push(format!("{path}:{number}: `{word}` in a pure crate: {remedy}"));
            }
        }
        // A type that clippy bans is let through where the code says why.
        excused = line.contains("expect(clippy::disallowed_types, reason");
    }
    for (number, module) in std_modules(&code) {
        if MODULES.contains(&module.as_str()) {
            violations
                .push(format!("{path}:{number}: `std::{module}` in a pure crate: it has no IO of its own"));
        }
    }
    violations
}

/// What speaks against one router for gateway and simulator: a second dispatcher, or a driver that makes none.
/// `files` are paths from the root with their text.
pub(crate) fn routers(files: &[(String, String)]) -> Vec<String> {
    let codes = files.iter().map(|(path, text)| (path, without_comments(before_tests(text))));
    let (mut violations, mut drivers) = (Vec::new(), Vec::new());
    for (path, code) in codes {
        let is_core = path.starts_with("crates/expediter-core/");
        if !is_core && ["struct Dispatcher", "enum Policy"].iter().any(|word| has_word(&code, word)) {
            violations.push(format!("{path}: a second router: decisions belong to expediter-core"));
        }
        if !is_core && code.contains("Dispatcher::new(") {
            drivers.push(path.as_str());
        }
    }
    for driver in ["crates/expediter-gateway/", "crates/expediter-fleet-sim/"] {
        if !drivers.iter().any(|path| path.starts_with(driver)) {
            violations.push(format!("{driver}: does not drive expediter-core's `Dispatcher`"));
        }
    }
    violations
}

/// Whether `text` has `word` with no letter, digit or underscore beside it.
pub(crate) fn has_word(text: &str, word: &str) -> bool {
    let joins = |character: char| character.is_alphanumeric() || character == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back().is_some_and(joins);
        let after = text[at + word.len()..].chars().next().is_some_and(joins);
        !before && !after
    })
}

/// Each module named after `std::`, with its line; of a group each member.
fn std_modules(code: &str) -> Vec<(usize, String)> {
    let mut modules = Vec::new();
    for (at, prefix) in code.match_indices("std::") {
        let number = code[..at].matches('\n').count() + 1;
        let rest = &code[at + prefix.len()..];
        if let Some(group) = rest.strip_prefix('{') {
            modules.extend(group_heads(group).into_iter().map(|head| (number, head)));
        } else {
            modules.push((number, first_word(rest)));
        }
    }
    modules
}

/// The first word of each member of a `{a, b::c, d::{e, f}}` group whose opening brace is already read.
fn group_heads(group: &str) -> Vec<String> {
    let mut heads = Vec::new();
    let mut depth = 1;
    let mut start = 0;
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if (character == ',' && depth == 1) || depth == 0 {
            heads.push(first_word(group[start..at].trim_start()));
            start = at + 1;
        }
        if depth == 0 {
            break;
        }
    }
    heads.retain(|head| !head.is_empty());
    heads
}

fn first_word(text: &str) -> String {
    text.chars().take_while(|character| character.is_alphanumeric() || *character == '_').collect()
}

/// The text with comments blanked, line by line. A `//` inside a string literal is taken for a comment too:
/// that hides the rest of its line, which a second net can bear.
fn without_comments(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    for line in text.lines() {
        code.push_str(line.split("//").next().unwrap_or(line));
        code.push('\n');
    }
    code
}

/// The part before the tests, which end a file; a test may draw its seed from the environment.
fn before_tests(text: &str) -> &str {
    text.find("#[cfg(test)]\nmod ").map_or(text, |at| &text[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_impurity_is_found() {
        let cases = [
            ("a clock", "use std::time::Instant;", 1),
            ("a clock by its path", "let now = std::time::SystemTime::now();", 1),
            ("a socket", "use std::net::TcpStream;", 1),
            ("in a group", "use std::{fmt, fs::File, time::Duration};", 1),
            (
                "in a group over lines",
                "use std::{\n    fmt,\n    collections::{BTreeMap, HashMap},\n    io,\n};",
                2,
            ),
            (
                "excused",
                "#[expect(clippy::disallowed_types, reason = \"fixed hasher\")]\ntype Map = HashMap<u32, u32>;",
                0,
            ),
            ("a random order", "let map: HashMap<u32, u32> = HashMap::new();", 1),
            ("a wait", "async fn wait() {}", 1),
            ("a comment may speak of it", "//! Takes no `Instant`, reads no std::fs.", 0),
            ("another word", "let instant = Instants::new(); fn reprintln() {}", 0),
            ("other modules", "use std::collections::BTreeMap;\nuse std::fmt;\nuse std::time::Duration;", 0),
            ("tests may", "fn pure() {}\n\n#[cfg(test)]\nmod tests {\n    use std::env;\n}", 0),
        ];
        for (name, text, expected) in cases {
            let violations = impurities("file.rs", text);
            assert_eq!(violations.len(), expected, "{name}: {violations:?}");
        }
    }

    #[test]
    fn a_violation_names_its_line() {
        let violations = impurities("a/b.rs", "// first\nuse std::fs;\n");
        assert!(violations[0].starts_with("a/b.rs:2: `std::fs`"), "{violations:?}");
    }

    /// Name, files with their text, violations.
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], usize);

    #[test]
    fn a_second_router_is_found() {
        const DRIVER: &str = "let dispatcher = Dispatcher::new(settings, rng);";
        let gateway = ("crates/expediter-gateway/src/fleet/pool.rs", DRIVER);
        let simulator = ("crates/expediter-fleet-sim/src/simulation/gateway.rs", DRIVER);
        let core = ("crates/expediter-core/src/dispatcher.rs", "pub struct Dispatcher;");
        let second = ("crates/expediter-fleet-sim/src/router.rs", "struct Dispatcher;");
        let cases: [Case<'_>; 3] = [
            ("one core, two drivers", &[core, gateway, simulator], 0),
            ("a dispatcher of the simulator's own", &[core, gateway, simulator, second], 1),
            ("a simulator without the core", &[core, gateway], 1),
        ];
        for (name, files, expected) in cases {
            let files: Vec<(String, String)> =
                files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
            assert_eq!(routers(&files).len(), expected, "{name}");
        }
    }
}
