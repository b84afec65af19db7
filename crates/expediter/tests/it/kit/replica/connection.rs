//! One connection of a scripted replica: reading requests, sending bytes, and noticing the peer's
//! close while doing either, or nothing.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{ConnectionNote, Kind, Request, Shared, Then};
use crate::kit::wait::Signal;

/// The peer closed the connection.
#[derive(Clone, Copy, Debug)]
pub struct Gone;

/// A connection in the hands of a script.
pub struct Conn {
    stream: TcpStream,
    /// Read and not yet used.
    input: Vec<u8>,
    gone: bool,
    id: usize,
    /// Index in the notes of the request being answered.
    current: Option<usize>,
    /// Whether that is a client's request.
    work: bool,
    shared: Arc<Shared>,
}

enum Filled {
    Bytes,
    TimedOut,
    Gone,
}

impl Conn {
    /// Sends bytes as they are, in one write where the socket takes them.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), Gone> {
        let bytes = bytes.as_ref();
        match self.stream.write_all(bytes) {
            Ok(()) => {
                if self.work {
                    self.shared.sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                }
                Ok(())
            }
            Err(_) => Err(self.note_gone()),
        }
    }

    /// Sends bytes in pieces of `size`, `pause` apart.
    pub fn send_pieces(&mut self, bytes: &[u8], size: usize, pause: Duration) -> Result<(), Gone> {
        for piece in bytes.chunks(size) {
            self.send(piece)?;
            if !pause.is_zero() {
                self.pause(pause)?;
            }
        }
        Ok(())
    }

    /// Sends one chunk of a chunked body, in one write.
    pub fn chunk(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), Gone> {
        self.send(chunked(bytes.as_ref()))
    }

    /// Sends the chunk that ends a chunked body.
    pub fn last_chunk(&mut self) -> Result<(), Gone> {
        self.send("0\r\n\r\n")
    }

    /// Sends the head of an event stream, as the engine does: chunked, and at once.
    pub fn sse_head(&mut self) -> Result<(), Gone> {
        self.send(
            "HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\nserver: uvicorn\r\n\
             content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n",
        )
    }

    /// Sends one event with this payload as a chunk.
    pub fn event(&mut self, payload: &str) -> Result<(), Gone> {
        self.chunk(format!("data: {payload}\n\n"))
    }

    /// Sends a whole answer with `content-length`.
    pub fn answer(&mut self, status: u16, content_type: &str, body: impl AsRef<[u8]>) -> Result<(), Gone> {
        let body = body.as_ref();
        let mut bytes = format!(
            "HTTP/1.1 {status} Status\r\nserver: uvicorn\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        bytes.extend_from_slice(body);
        self.send(bytes)
    }

    /// Lets time pass; ends early where the peer closes.
    pub fn pause(&mut self, time: Duration) -> Result<(), Gone> {
        // A socket's timeout is no finer than some milliseconds.
        if time < Duration::from_millis(5) {
            std::thread::sleep(time);
            return if self.gone { Err(Gone) } else { Ok(()) };
        }
        let until = Instant::now() + time;
        loop {
            match self.fill(Some(until)) {
                Filled::Bytes => {}
                Filled::TimedOut => return Ok(()),
                Filled::Gone => return Err(Gone),
            }
        }
    }

    /// Waits for the test's signal; ends early where the peer closes.
    pub fn wait(&mut self, signal: &Signal) -> Result<(), Gone> {
        while !signal.is_raised() {
            self.pause(Duration::from_millis(5))?;
        }
        Ok(())
    }

    /// Waits until the peer closes.
    pub fn until_gone(&mut self) -> Gone {
        loop {
            if matches!(self.fill(None), Filled::Gone) {
                return Gone;
            }
        }
    }

    /// Bytes that came and were not part of a request read so far.
    pub fn unread(&self) -> &[u8] {
        &self.input
    }

    /// Reads once, until `until` at the latest.
    fn fill(&mut self, until: Option<Instant>) -> Filled {
        if self.gone {
            return Filled::Gone;
        }
        let timeout = match until.map(|until| until.saturating_duration_since(Instant::now())) {
            Some(Duration::ZERO) => Some(Duration::from_micros(1)),
            timeout => timeout,
        };
        if self.stream.set_read_timeout(timeout).is_err() {
            self.note_gone();
            return Filled::Gone;
        }
        let mut bytes = [0; 16384];
        match self.stream.read(&mut bytes) {
            Ok(0) => {
                self.note_gone();
                Filled::Gone
            }
            Ok(n) => {
                self.input.extend_from_slice(&bytes[..n]);
                Filled::Bytes
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Filled::TimedOut
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Filled::Bytes,
            Err(_) => {
                self.note_gone();
                Filled::Gone
            }
        }
    }

    fn note_gone(&mut self) -> Gone {
        if !self.gone {
            self.gone = true;
            let now = Instant::now();
            let mut notes = self.shared.notes();
            notes.connections[self.id].peer_closed = Some(now);
            if let Some(current) = self.current {
                notes.requests[current].aborted_at = Some(now);
            }
        }
        Gone
    }

    fn close(self, reset: bool) {
        self.shared.notes().connections[self.id].closed = Some(Instant::now());
        if reset {
            let socket = socket2::SockRef::from(&self.stream);
            let _ = socket.set_linger(Some(Duration::ZERO));
        }
    }
}

/// One chunk of a chunked body.
pub fn chunked(bytes: &[u8]) -> Vec<u8> {
    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    chunk
}

/// Serves one connection to its end.
pub(super) fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let _ = stream.set_nodelay(true);
    let id = {
        let mut notes = shared.notes();
        notes.connections.push(ConnectionNote { accepted: Instant::now(), peer_closed: None, closed: None });
        notes.connections.len() - 1
    };
    let mut conn = Conn { stream, input: Vec::new(), gone: false, id, current: None, work: false, shared };
    let then = converse(&mut conn).unwrap_or(Then::Fin);
    if then == Then::Hold {
        conn.until_gone();
    }
    conn.close(then == Then::Reset);
}

/// Answers requests until one of them, or the peer, ends the connection.
fn converse(conn: &mut Conn) -> Result<Then, Gone> {
    let accept = conn.shared.behaviour().accept.clone();
    if let Some(accept) = accept
        && let Some(then) = accept(conn)?
    {
        return Ok(then);
    }
    for nth in 0.. {
        let manners = conn.shared.behaviour().manners;
        let idle_until = manners.idle_fin.filter(|_| nth > 0).map(|idle| Instant::now() + idle);
        if nth > 0 && manners.reset_reused && next_is_post(conn, idle_until)? {
            return Ok(Then::Reset);
        }
        let Some(head) = read_head(conn, idle_until)? else { return Ok(Then::Fin) };
        let mut request = parse_head(head, conn.id, nth);
        let (script, before_body) = {
            let behaviour = conn.shared.behaviour();
            match request.kind {
                Kind::Probe => (behaviour.gets.get(&request.path).cloned(), None),
                Kind::WarmUp => (Some(Arc::clone(&behaviour.warm_up)), None),
                Kind::Work => (Some(Arc::clone(&behaviour.post)), behaviour.before_body.clone()),
            }
        };
        let index = {
            let mut notes = conn.shared.notes();
            notes.requests.push(request.clone());
            notes.requests.len() - 1
        };
        conn.current = Some(index);
        conn.work = request.kind == Kind::Work;
        if let Some(before_body) = before_body
            && let Some(then) = before_body(conn, &request)?
        {
            return Ok(then);
        }
        request.body = read_body(conn, &request)?;
        request.complete_at = Some(Instant::now());
        conn.shared.notes().requests[index] = request.clone();
        let then = match script {
            Some(script) => script(conn, &request)?,
            None => {
                conn.answer(404, "application/json", r#"{"detail":"Not Found"}"#).map(|()| Then::KeepAlive)?
            }
        };
        if then == Then::Hold {
            // The request stays open: a close from here on is its abort.
            return Ok(then);
        }
        conn.shared.notes().requests[index].answered_at = Some(Instant::now());
        conn.current = None;
        if then != Then::KeepAlive {
            return Ok(then);
        }
    }
    Ok(Then::Fin)
}

/// Whether what comes next on the connection is a POST, looked at without reading it.
fn next_is_post(conn: &mut Conn, until: Option<Instant>) -> Result<bool, Gone> {
    if !conn.input.is_empty() {
        return Ok(conn.input.starts_with(b"POST"));
    }
    let timeout =
        until.map(|until| until.saturating_duration_since(Instant::now()).max(Duration::from_micros(1)));
    let _ = conn.stream.set_read_timeout(timeout);
    let mut start = [0; 4];
    match conn.stream.peek(&mut start) {
        Ok(0) => Err(conn.note_gone()),
        Ok(n) => Ok(b"POST".starts_with(&start[..n])),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(false),
        Err(_) => Err(conn.note_gone()),
    }
}

/// Reads a head, its blank line included; `None` where none began before `idle_until`.
fn read_head(conn: &mut Conn, idle_until: Option<Instant>) -> Result<Option<Vec<u8>>, Gone> {
    loop {
        if let Some(end) = find(&conn.input, b"\r\n\r\n") {
            return Ok(Some(conn.input.drain(..end + 4).collect()));
        }
        let until = idle_until.filter(|_| conn.input.is_empty());
        match conn.fill(until) {
            Filled::Bytes => {}
            Filled::TimedOut => return Ok(None),
            Filled::Gone => return Err(Gone),
        }
    }
}

fn read_body(conn: &mut Conn, request: &Request) -> Result<Vec<u8>, Gone> {
    if request.header("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue")) {
        conn.send("HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    if request.header("transfer-encoding").is_some() {
        let mut body = Vec::new();
        loop {
            let line = read_line(conn)?;
            let size = line.split(';').next().unwrap_or("").trim();
            let size = usize::from_str_radix(size, 16).expect("the gateway sent a chunk size");
            let data = read_exactly(conn, size)?;
            body.extend_from_slice(&data);
            if size == 0 {
                while !read_line(conn)?.is_empty() {}
                return Ok(body);
            }
            assert_eq!(read_line(conn)?, "", "a chunk ends with an empty line");
        }
    }
    let length = request.header("content-length").map_or(0, |value| value.parse().expect("a length"));
    read_exactly(conn, length)
}

fn read_line(conn: &mut Conn) -> Result<String, Gone> {
    loop {
        if let Some(end) = find(&conn.input, b"\r\n") {
            let line: Vec<u8> = conn.input.drain(..end + 2).collect();
            return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
        }
        if matches!(conn.fill(None), Filled::Gone) {
            return Err(Gone);
        }
    }
}

fn read_exactly(conn: &mut Conn, length: usize) -> Result<Vec<u8>, Gone> {
    while conn.input.len() < length {
        if matches!(conn.fill(None), Filled::Gone) {
            return Err(Gone);
        }
    }
    Ok(conn.input.drain(..length).collect())
}

fn parse_head(head: Vec<u8>, connection: usize, nth: usize) -> Request {
    let text = String::from_utf8_lossy(&head).into_owned();
    let mut lines = text.split("\r\n");
    let mut first = lines.next().unwrap_or("").split(' ');
    let method = first.next().unwrap_or("").to_owned();
    let path = first.next().unwrap_or("").to_owned();
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect();
    let warm_up = headers.iter().any(|(name, value)| {
        name.eq_ignore_ascii_case("x-expediter-probe") && value.eq_ignore_ascii_case("warm-up")
    });
    let kind = match (method.as_str(), warm_up) {
        ("POST", true) => Kind::WarmUp,
        ("POST", false) => Kind::Work,
        _ => Kind::Probe,
    };
    Request {
        connection,
        nth,
        kind,
        method,
        path,
        headers,
        head,
        body: Vec::new(),
        head_at: Instant::now(),
        complete_at: None,
        answered_at: None,
        aborted_at: None,
    }
}

/// Where `needle` begins in `bytes`.
pub fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle)
}
