//! A client that writes and reads raw bytes, notes when they came, and leaves in every way a client
//! can leave.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::replica::find;
use super::sse;
use super::wait::PATIENCE;

/// How the peer ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Fin,
    Reset,
}

/// How far the body of an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More may come.
    Open,
    /// It ended as its framing says.
    Complete,
    /// The connection ended before it did.
    Cut(End),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length(usize),
    /// Bytes still to come of this chunk; `None` between chunks.
    Chunked(Option<usize>),
    UntilClose,
}

/// An answer as far as it was read.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    /// The head's bytes, blank line included.
    pub head: Vec<u8>,
    pub headers: Vec<(String, String)>,
    /// Statuses of the 1xx answers before it.
    pub interim: Vec<u16>,
    pub head_at: Instant,
    /// The body without chunk framing.
    pub body: Vec<u8>,
    /// After each read that grew the body: when, and how long the body was then.
    pub reads: Vec<(Instant, usize)>,
    pub progress: Progress,
    framing: Framing,
}

impl Answer {
    /// The first header of this name, in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn headers_named(&self, name: &str) -> Vec<&str> {
        let named = self.headers.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.as_str()).collect()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.describe()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Non-empty payloads of the events read so far.
    pub fn payloads(&self) -> Vec<String> {
        sse::payloads(&self.body)
    }

    /// When the body had grown to `length` bytes.
    pub fn at(&self, length: usize) -> Instant {
        self.reads.iter().find(|(_, total)| *total >= length).expect("that much was read").0
    }

    /// Fails unless this is the gateway's own error, in the shape of the API; returns its `code`.
    pub fn error_code(&self) -> String {
        let content_type = self.header("content-type").unwrap_or("");
        assert!(content_type.starts_with("application/json"), "{}", self.describe());
        let error = &self.json()["error"];
        assert!(error["message"].is_string() && error["type"].is_string(), "{}", self.describe());
        error["code"].as_str().unwrap_or_else(|| panic!("no code: {}", self.describe())).to_owned()
    }

    /// For messages of failing tests.
    pub fn describe(&self) -> String {
        let body = &self.body[..self.body.len().min(2000)];
        format!("{} {:?}, {:?}: {}", self.status, self.headers, self.progress, String::from_utf8_lossy(body))
    }

    /// Moves body bytes from `input`; the end of the connection is `end`.
    fn decode(&mut self, input: &mut Vec<u8>, end: Option<End>) {
        let before = self.body.len();
        while self.progress == Progress::Open {
            match self.framing {
                Framing::Length(left) => {
                    let taken = left.min(input.len());
                    self.body.extend(input.drain(..taken));
                    self.framing = Framing::Length(left - taken);
                    if left == taken {
                        self.progress = Progress::Complete;
                    } else {
                        break;
                    }
                }
                Framing::UntilClose => {
                    self.body.append(input);
                    if end == Some(End::Fin) {
                        self.progress = Progress::Complete;
                    }
                    break;
                }
                Framing::Chunked(None) => {
                    let Some(line) = find(input, b"\r\n") else { break };
                    let text = String::from_utf8(input[..line].to_vec()).expect("a chunk size line");
                    let size = usize::from_str_radix(text.split(';').next().unwrap_or("").trim(), 16)
                        .unwrap_or_else(|_| panic!("no chunk size: {text:?}"));
                    if size == 0 {
                        // The trailer section ends with an empty line; without trailers it is the next one.
                        let Some(last) = find(&input[line..], b"\r\n\r\n") else { break };
                        input.drain(..line + last + 4);
                        self.progress = Progress::Complete;
                    } else {
                        input.drain(..line + 2);
                        self.framing = Framing::Chunked(Some(size));
                    }
                }
                Framing::Chunked(Some(left)) => {
                    let taken = left.min(input.len());
                    self.body.extend(input.drain(..taken));
                    self.framing = Framing::Chunked(Some(left - taken));
                    if left > taken || input.len() < 2 {
                        break;
                    }
                    assert_eq!(&input[..2], b"\r\n", "a chunk ends with CRLF");
                    input.drain(..2);
                    self.framing = Framing::Chunked(None);
                }
            }
        }
        if self.body.len() > before {
            self.reads.push((Instant::now(), self.body.len()));
        }
        if let (Progress::Open, Some(end)) = (self.progress, end) {
            self.progress = Progress::Cut(end);
        }
    }
}

/// A connection to the gateway (or to anything that speaks HTTP/1.1).
pub struct Client {
    stream: TcpStream,
    input: Vec<u8>,
    end: Option<End>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the gateway accepts");
        stream.set_nodelay(true).expect("no delay");
        Self { stream, input: Vec::new(), end: None }
    }

    /// Writes bytes as they are.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).expect("the gateway reads");
    }

    /// The same where the peer may have closed.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// Writes a POST with `content-length`.
    pub fn post(&mut self, path: &str, body: impl AsRef<[u8]>) {
        self.send(post_bytes(path, &[], body.as_ref()));
    }

    pub fn get(&mut self, path: &str) {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: gateway.test\r\n\r\n"));
    }

    /// Reads up to the end of an answer's head; 1xx answers before it are noted and skipped.
    pub fn begin_answer(&mut self) -> Answer {
        self.try_begin_answer()
            .unwrap_or_else(|end| panic!("the connection ended ({end:?}) before an answer's head"))
    }

    /// The same where the peer may close instead.
    pub fn try_begin_answer(&mut self) -> Result<Answer, End> {
        let deadline = Instant::now() + PATIENCE;
        let mut interim = Vec::new();
        loop {
            while let Some(end) = find(&self.input, b"\r\n\r\n") {
                let head: Vec<u8> = self.input.drain(..end + 4).collect();
                let mut answer = parse_head(head);
                if (100..200).contains(&answer.status) && answer.status != 101 {
                    interim.push(answer.status);
                    continue;
                }
                answer.interim = interim;
                answer.decode(&mut self.input, self.end);
                return Ok(answer);
            }
            if let Some(end) = self.end {
                return Err(end);
            }
            assert!(
                self.fill(deadline),
                "no answer within {PATIENCE:?}: {:?}",
                String::from_utf8_lossy(&self.input)
            );
        }
    }

    /// Reads until `n` heads came, and returns all that came: for answers whose framing their method
    /// decides (HEAD, CONNECT).
    pub fn read_heads(&mut self, n: usize) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = String::from_utf8_lossy(&self.input).into_owned();
            if text.matches("\r\n\r\n").count() >= n || self.end.is_some() {
                return text;
            }
            assert!(self.fill(deadline), "no {n} heads but {text:?}");
        }
    }

    /// An answer's head if one begins within `time`.
    pub fn try_begin_answer_within(&mut self, time: Duration) -> Result<Answer, Option<End>> {
        let deadline = Instant::now() + time;
        while self.end.is_none() && find(&self.input, b"\r\n\r\n").is_none() {
            if !self.fill(deadline) {
                return Err(None);
            }
        }
        self.try_begin_answer().map_err(Some)
    }

    /// Reads one 1xx answer; returns its status. Fails the test where the final answer comes instead.
    pub fn read_interim(&mut self) -> u16 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(end) = find(&self.input, b"\r\n\r\n") {
                let status = parse_head(self.input.drain(..end + 4).collect()).status;
                assert!((100..200).contains(&status), "no interim answer but {status}");
                return status;
            }
            assert!(self.end.is_none() && self.fill(deadline), "no interim answer");
        }
    }

    /// Reads more of the body: one read, unless it has ended.
    pub fn read_more(&mut self, answer: &mut Answer) {
        if answer.progress == Progress::Open {
            assert!(
                self.fill(Instant::now() + PATIENCE),
                "nothing within {PATIENCE:?}: {}",
                answer.describe()
            );
            answer.decode(&mut self.input, self.end);
        }
    }

    /// Reads until `enough`; fails the test where the body ends before.
    pub fn read_until(&mut self, answer: &mut Answer, what: &str, enough: impl Fn(&Answer) -> bool) {
        while !enough(answer) {
            assert_eq!(answer.progress, Progress::Open, "ended before {what}: {}", answer.describe());
            self.read_more(answer);
        }
    }

    /// Reads until `n` events with a payload came.
    pub fn read_events(&mut self, answer: &mut Answer, n: usize) {
        self.read_until(answer, &format!("{n} events"), |answer| answer.payloads().len() >= n);
    }

    /// Reads to the end of the body.
    pub fn finish(&mut self, answer: &mut Answer) {
        while answer.progress == Progress::Open {
            self.read_more(answer);
        }
    }

    /// A whole answer.
    pub fn read_answer(&mut self) -> Answer {
        let mut answer = self.begin_answer();
        self.finish(&mut answer);
        answer
    }

    /// Waits until the peer closes, and returns how; bytes that come meanwhile are kept.
    pub fn wait_end(&mut self) -> End {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(end) = self.end {
                return end;
            }
            assert!(self.fill(deadline), "not closed within {PATIENCE:?}");
        }
    }

    /// Whether the peer has closed, as far as can be seen within `time`.
    pub fn ended_within(&mut self, time: Duration) -> Option<End> {
        let deadline = Instant::now() + time;
        while self.end.is_none() && self.fill(deadline) {}
        self.end
    }

    /// Bytes read and not used by an answer.
    pub fn unread(&self) -> &[u8] {
        &self.input
    }

    /// Closes with FIN (or RST, where bytes were left unread in the socket). Returns when.
    pub fn close(self) -> Instant {
        let now = Instant::now();
        drop(self);
        now
    }

    /// Closes with RST. Returns when.
    pub fn reset(self) -> Instant {
        let socket = socket2::SockRef::from(&self.stream);
        socket.set_linger(Some(Duration::ZERO)).expect("no linger");
        self.close()
    }

    /// Sends FIN and goes on reading.
    pub fn half_close(&mut self) -> Instant {
        let now = Instant::now();
        self.stream.shutdown(Shutdown::Write).expect("half-close");
        now
    }

    /// Makes the receive buffer small, so that a client that does not read pushes back early.
    pub fn small_receive_buffer(&self) {
        let socket = socket2::SockRef::from(&self.stream);
        socket.set_recv_buffer_size(4096).expect("a small buffer");
    }

    /// Reads once; `false` where nothing came before the deadline.
    fn fill(&mut self, deadline: Instant) -> bool {
        if self.end.is_some() {
            return true;
        }
        let timeout = deadline.saturating_duration_since(Instant::now()).max(Duration::from_micros(1));
        self.stream.set_read_timeout(Some(timeout)).expect("a timeout");
        let mut bytes = [0; 16384];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.end = Some(End::Fin),
            Ok(n) => self.input.extend_from_slice(&bytes[..n]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return false;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => self.end = Some(End::Reset),
        }
        true
    }
}

/// The bytes of a POST with these headers besides `host`, `content-type` and `content-length`.
pub fn post_bytes(path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut bytes =
        format!("POST {path} HTTP/1.1\r\nhost: gateway.test\r\ncontent-type: application/json\r\n");
    for (name, value) in headers {
        bytes.push_str(name);
        bytes.push_str(": ");
        bytes.push_str(value);
        bytes.push_str("\r\n");
    }
    bytes.push_str("content-length: ");
    bytes.push_str(&body.len().to_string());
    bytes.push_str("\r\n\r\n");
    [bytes.as_bytes(), body].concat()
}

fn parse_head(head: Vec<u8>) -> Answer {
    let text = String::from_utf8(head.clone()).expect("a head in ASCII");
    let mut lines = text.split("\r\n");
    let first = lines.next().unwrap_or("");
    let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status: u16 = status.unwrap_or_else(|| panic!("no status line: {first:?}"));
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect();
    let mut answer = Answer {
        status,
        head,
        headers,
        interim: Vec::new(),
        head_at: Instant::now(),
        body: Vec::new(),
        reads: Vec::new(),
        progress: Progress::Open,
        framing: Framing::UntilClose,
    };
    let lengths = answer.headers_named("content-length");
    let encodings = answer.headers_named("transfer-encoding");
    assert!(lengths.len() + encodings.len() <= 1, "framed twice: {text}");
    answer.framing = if matches!(status, 204 | 304) || (100..200).contains(&status) {
        Framing::Length(0)
    } else if let Some(length) = lengths.first() {
        Framing::Length(length.parse().expect("a length"))
    } else if encodings.first().is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        Framing::Chunked(None)
    } else {
        Framing::UntilClose
    };
    answer
}
