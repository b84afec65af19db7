//! A client that sees bytes: it sends what a test wrote down, and reads what comes.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// An answer as it came, its body without the framing of chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Names as sent, in order.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
    /// The framing said that this is all.
    pub(crate) complete: bool,
}

impl Answer {
    pub(crate) fn parse(bytes: &[u8], method: &str) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let text = text.strip_prefix("HTTP/1.1 100 Continue\r\n\r\n").unwrap_or(&text);
        let (head, rest) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or(0);
        let header =
            |line: &str| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
        let headers: Vec<(String, String)> = lines.filter_map(header).collect();
        let value =
            |name: &str| headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        let (body, complete) = if value("transfer-encoding") == Some("chunked") {
            unchunk(rest)
        } else {
            let length: usize = value("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
            (rest.to_owned(), method == "HEAD" || rest.len() == length)
        };
        Self { status, headers, body, complete }
    }

    /// The payloads of a stream's events.
    pub(crate) fn events(&self) -> Vec<&str> {
        self.body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect()
    }
}

fn unchunk(mut rest: &str) -> (String, bool) {
    let mut body = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let Ok(size) = usize::from_str_radix(size, 16) else { break };
        if size == 0 {
            return (body, true);
        }
        let Some(chunk) = after.get(..size) else { break };
        body.push_str(chunk);
        rest = after[size..].strip_prefix("\r\n").unwrap_or("");
    }
    (body, false)
}

/// Sends a request and reads until the connection ends. `None` where it was reset, or ended without a byte.
pub(crate) async fn exchange(address: SocketAddr, request: &[u8]) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream.write_all(request).await.ok()?;
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("the answer ends");
    let method = request.split(|byte| *byte == b' ').next().map(String::from_utf8_lossy).unwrap_or_default();
    read.ok().filter(|count| *count > 0).map(|_| Answer::parse(&bytes, &method))
}

/// The bytes of a request that closes its connection.
pub(crate) fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Sends a request of its own connection.
pub(crate) async fn send(address: SocketAddr, method: &str, path: &str, body: &str) -> Option<Answer> {
    exchange(address, &request(method, path, body)).await
}

/// A connection that has sent a request, to be read as the test likes.
pub(crate) async fn open(address: SocketAddr, path: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("the replica listens");
    stream.write_all(&request("POST", path, body)).await.expect("the replica reads");
    stream
}

/// Reads until what has come contains `mark`.
pub(crate) async fn read_until(stream: &mut TcpStream, mark: &str) -> String {
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut buffer)).await.expect("something comes");
        let count = read.expect("the connection stands");
        assert!(count > 0, "it ended before {mark:?}: {}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&buffer[..count]);
        if String::from_utf8_lossy(&text).contains(mark) {
            return String::from_utf8_lossy(&text).into_owned();
        }
    }
}

/// Waits until something is so. Polling, since sockets have their own time.
pub(crate) async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// No test passes by it: it ends one that would hang.
const PATIENCE: Duration = Duration::from_secs(20);
