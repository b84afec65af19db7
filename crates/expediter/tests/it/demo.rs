//! `expediter demo`, the real program with its own replicas, clients and table.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::json;

use super::kit::client::{Client, Progress};
use super::kit::gateway::CHAT;
use super::kit::wait::{PATIENCE, eventually, eventually_some};

/// The demo with its output piped, killed at the end.
struct Demo {
    child: Child,
    stdout: BufReader<ChildStdout>,
    /// Where clients connect.
    address: SocketAddr,
    admin_address: SocketAddr,
    token: String,
}

impl Demo {
    fn start(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_expediter"));
        command.args(["demo", "--set", "listen=127.0.0.1:0", "--set", "admin.listen=127.0.0.1:0"]).args(args);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut introduction = String::new();
        while !introduction.contains("/admin/replicas") {
            assert!(stdout.read_line(&mut introduction).expect("text") > 0, "it ended: {introduction}");
        }
        let after = |start: &str| {
            let from = introduction.find(start).unwrap_or_else(|| panic!("no {start}: {introduction}"));
            introduction[from + start.len()..].split([' ', '\n', '\'']).next().unwrap_or_default().to_owned()
        };
        let address = |start: &str| after(start).parse::<SocketAddr>().expect("an address");
        Self {
            address: address(" http://"),
            admin_address: address("admin http://"),
            token: after("Bearer "),
            child,
            stdout,
        }
    }

    /// All further lines; returns when the demo has ended, which must be in order.
    fn wait_end(&mut self) -> Vec<String> {
        let lines = self.stdout.by_ref().lines().map(|line| line.expect("text")).collect();
        let status =
            eventually_some(PATIENCE, "the demo exits", || self.child.try_wait().expect("its state"));
        assert!(status.success(), "{status:?}");
        lines
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The rows of the last table whose header has these columns, each cell by its column's name.
fn last_table(lines: &[String], columns: &[&str]) -> Vec<Vec<String>> {
    // Columns are kept apart by two spaces, at least; a name has one at most.
    let cells = |line: &String| -> Vec<String> {
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
    };
    let header = lines
        .iter()
        .rposition(|line| cells(line).starts_with(&[columns[0].to_owned(), columns[1].to_owned()]));
    let header = header.unwrap_or_else(|| panic!("no table: {lines:#?}"));
    let titles = cells(&lines[header]);
    let position = |column: &&str| {
        let found = titles.iter().position(|title| title == column);
        found.unwrap_or_else(|| panic!("no column {column}: {titles:?}"))
    };
    let positions: Vec<usize> = columns.iter().map(position).collect();
    let rows = lines[header + 1..].iter().map(cells).take_while(|cells| cells.len() == titles.len());
    rows.map(|cells| positions.iter().map(|at| cells[*at].clone()).collect()).collect()
}

#[test]
fn the_traffic_is_served_and_the_table_shows_it() {
    let mut demo = Demo::start(&["--duration", "6"]);
    let lines = demo.wait_end();
    assert!(lines.iter().all(|line| !line.contains('\x1b')), "escape codes in a pipe: {lines:#?}");

    let pools = last_table(&lines, &["pool", "req/s", "requests", "errors"]);
    let names: Vec<&str> = pools.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(names, ["m-8b", "m-32b", "m-70b"], "{lines:#?}");
    for row in &pools {
        assert!(row[2].parse::<u64>().is_ok_and(|requests| requests > 0), "{row:?} in {lines:#?}");
        assert_eq!(row[3], "0", "{lines:#?}");
    }
    let replicas = last_table(&lines, &["pool", "id", "state", "failed"]);
    assert_eq!(replicas.len(), 8, "{lines:#?}");
    assert!(replicas.iter().all(|row| row[2] == "ready" && row[3] == "0"), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("early, 0 failed")), "{lines:#?}");
}

#[test]
fn without_traffic_it_is_the_users_own() {
    let mut demo = Demo::start(&["--no-traffic"]);
    let body = json!({
        "model": "gpt-fast", "stream": true, "max_tokens": 20,
        "messages": [{ "role": "user", "content": "hello" }],
    });
    let mut client = Client::connect(demo.address);
    client.post(CHAT, body.to_string());
    let answer = client.read_answer();
    assert_eq!((answer.status, answer.progress), (200, Progress::Complete), "{}", answer.describe());
    assert_eq!(answer.payloads().last().map(String::as_str), Some("[DONE]"), "{}", answer.describe());

    let replicas = |token: &str| {
        let mut client = Client::connect(demo.admin_address);
        client.send(format!(
            "GET /admin/replicas HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {token}\r\n\r\n"
        ));
        client.read_answer()
    };
    assert_eq!(replicas("guessed").status, 401);
    eventually(PATIENCE, "the one request is counted", || {
        let shown = replicas(&demo.token).json();
        let all = shown["replicas"].as_array().expect("a list");
        assert_eq!(all.len(), 8);
        all.iter().filter_map(|replica| replica["dispatched"].as_u64()).sum::<u64>() == 1
    });

    let signalled = Command::new("kill").args(["-TERM", &demo.child.id().to_string()]).status();
    assert!(signalled.expect("kill runs").success());
    let lines = demo.wait_end();
    let pools = last_table(&lines, &["pool", "req/s", "requests"]);
    let requests: Vec<&str> = pools.iter().map(|row| row[2].as_str()).collect();
    assert_eq!(requests, ["1", "0", "0"], "{lines:#?}");
}

#[test]
fn mistakes_in_settings_are_told() {
    let cases = [
        ("limits.gap_ms=soon", "limits.gap_ms"),
        ("lisen=127.0.0.1:0", "listen"),
        ("listen=192.0.2.1:80", "cannot listen on 192.0.2.1:80"),
    ];
    for (set, expected) in cases {
        let output = Command::new(env!("CARGO_BIN_EXE_expediter"))
            .args(["demo", "--duration", "1", "--set", "admin.listen=127.0.0.1:0", "--set", set])
            .stdin(Stdio::null())
            .output()
            .expect("the program starts");
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{set}: {told}");
        assert!(told.contains(expected), "{set}: {told}");
    }
}
