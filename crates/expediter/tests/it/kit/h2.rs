//! HTTP/2 by prior knowledge, two ways: [`H2`], a real client (the `h2` crate) for requests as
//! people send them, and [`RawH2`], frames written by hand for what no library would send.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use bytes::Bytes;

use super::wait::PATIENCE;

/// An answer over HTTP/2.
#[derive(Debug)]
pub struct H2Answer {
    pub status: u16,
    pub headers: http::HeaderMap,
    pub body: Vec<u8>,
    /// Why the stream ended, where it was not by its end.
    pub error: Option<String>,
}

/// A connection of the real client.
pub struct H2 {
    runtime: Runtime,
    sender: h2::client::SendRequest<Bytes>,
}

/// A runtime on a thread of its own, so that the connection lives while the test does other things.
struct Runtime {
    handle: tokio::runtime::Handle,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Runtime {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let handle = runtime.handle().clone();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || {
            let _ = runtime.block_on(stopped);
        });
        Self { handle, stop: Some(stop), thread: Some(thread) }
    }

    fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.handle.block_on(async {
            tokio::time::timeout(PATIENCE, work).await.expect("the gateway answers in time")
        })
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// An answer that is being read.
pub struct H2Stream {
    sender: h2::SendStream<Bytes>,
    receiver: h2::RecvStream,
    pub status: u16,
    pub headers: http::HeaderMap,
    pub body: Vec<u8>,
}

impl H2 {
    pub fn connect(address: SocketAddr) -> Self {
        let runtime = Runtime::start();
        let (sender, connection) = runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(address).await.expect("the gateway accepts");
            stream.set_nodelay(true).expect("no delay");
            let (sender, connection) = h2::client::handshake(stream).await.expect("an HTTP/2 handshake");
            (sender.ready().await.expect("ready"), connection)
        });
        runtime.handle.spawn(async move {
            // Its end shows at the streams.
            let _ = connection.await;
        });
        Self { runtime, sender }
    }

    /// Sends a POST and reads the head of its answer.
    pub fn begin_post(&mut self, path: &str, headers: &[(&str, &str)], body: &str) -> H2Stream {
        let mut request = http::Request::post(format!("http://gateway.test{path}"))
            .header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).expect("a request");
        let body = Bytes::copy_from_slice(body.as_bytes());
        self.runtime.block_on(async {
            let (answer, mut sender) = self.sender.send_request(request, false).expect("sent");
            sender.send_data(body, true).expect("sent");
            let (head, receiver) = answer.await.expect("an answer").into_parts();
            let (status, headers) = (head.status.as_u16(), head.headers);
            H2Stream { sender, receiver, status, headers, body: Vec::new() }
        })
    }

    /// Reads one DATA frame; `false` at the end of the stream.
    pub fn read_more(&self, stream: &mut H2Stream) -> Result<bool, h2::Error> {
        self.runtime.block_on(async {
            match stream.receiver.data().await {
                None => Ok(false),
                Some(Ok(data)) => {
                    let _ = stream.receiver.flow_control().release_capacity(data.len());
                    stream.body.extend_from_slice(&data);
                    Ok(true)
                }
                Some(Err(error)) => Err(error),
            }
        })
    }

    /// Reads until `n` events with a payload came.
    pub fn read_events(&self, stream: &mut H2Stream, n: usize) {
        while super::sse::payloads(&stream.body).len() < n {
            assert!(self.read_more(stream).expect("the stream lives"), "ended before {n} events");
        }
    }

    /// A POST, answered whole.
    pub fn post(&mut self, path: &str, body: &str) -> H2Answer {
        let mut stream = self.begin_post(path, &[], body);
        let error = loop {
            match self.read_more(&mut stream) {
                Ok(true) => {}
                Ok(false) => break None,
                Err(error) => break Some(error.to_string()),
            }
        };
        H2Answer { status: stream.status, headers: stream.headers, body: stream.body, error }
    }

    /// Cancels one stream with `RST_STREAM`; the connection lives on. Returns when.
    pub fn cancel(&self, mut stream: H2Stream) -> Instant {
        let now = Instant::now();
        self.runtime.block_on(async { stream.sender.send_reset(h2::Reason::CANCEL) });
        now
    }

    /// Closes the connection without a word of HTTP/2. Returns when.
    pub fn close(self) -> Instant {
        let now = Instant::now();
        drop(self);
        now
    }
}

/// Frames by hand.
pub struct RawH2 {
    stream: TcpStream,
    input: Vec<u8>,
}

/// One frame: type, flags, stream, payload.
#[derive(Clone, Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const END_STREAM: u8 = 1;
    pub const ACK: u8 = 1;
    pub const END_HEADERS: u8 = 4;
}

impl RawH2 {
    /// Connects and sends preface and empty SETTINGS.
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the gateway accepts");
        stream.set_nodelay(true).expect("no delay");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut raw = Self { stream, input: Vec::new() };
        raw.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        raw.frame(Frame::SETTINGS, 0, 0, &[]);
        raw
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the gateway reads");
    }

    pub fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).expect("a frame's length").to_be_bytes();
        let mut bytes = vec![length[1], length[2], length[3], kind, flags];
        bytes.extend_from_slice(&stream.to_be_bytes());
        bytes.extend_from_slice(payload);
        self.send(&bytes);
    }

    /// Sends HEADERS of a POST, without the end of the stream.
    pub fn post_head(&mut self, stream: u32, path: &str, headers: &[(&str, &str)]) {
        let pseudo =
            [(":method", "POST"), (":scheme", "http"), (":authority", "gateway.test"), (":path", path)];
        let block: Vec<u8> =
            pseudo.iter().chain(headers).flat_map(|(name, value)| literal(name, value)).collect();
        self.frame(Frame::HEADERS, Frame::END_HEADERS, stream, &block);
    }

    /// Sends a whole POST.
    pub fn post(&mut self, stream: u32, path: &str, body: &str) {
        self.post_head(stream, path, &[("content-type", "application/json")]);
        self.frame(Frame::DATA, Frame::END_STREAM, stream, body.as_bytes());
    }

    /// Sends GOAWAY with `NO_ERROR`.
    pub fn go_away(&mut self) {
        self.frame(Frame::GOAWAY, 0, 0, &[0; 8]);
    }

    /// Reads the next frame, acknowledging SETTINGS and PING; `None` where the peer closed.
    pub fn read(&mut self) -> Option<Frame> {
        loop {
            if self.input.len() >= 9 {
                let length = u32::from_be_bytes([0, self.input[0], self.input[1], self.input[2]]) as usize;
                if self.input.len() >= 9 + length {
                    let bytes: Vec<u8> = self.input.drain(..9 + length).collect();
                    let stream = u32::from_be_bytes([bytes[5] & 0x7f, bytes[6], bytes[7], bytes[8]]);
                    let frame =
                        Frame { kind: bytes[3], flags: bytes[4], stream, payload: bytes[9..].to_vec() };
                    if matches!(frame.kind, Frame::SETTINGS | Frame::PING) && frame.flags & Frame::ACK == 0 {
                        let echo = if frame.kind == Frame::PING { frame.payload.clone() } else { Vec::new() };
                        self.frame(frame.kind, Frame::ACK, 0, &echo);
                    }
                    return Some(frame);
                }
            }
            let mut bytes = [0; 16384];
            match self.stream.read(&mut bytes) {
                Ok(0) | Err(_) => return None,
                Ok(n) => self.input.extend_from_slice(&bytes[..n]),
            }
        }
    }

    /// Reads DATA of this stream until `n` events with a payload came; returns the body so far.
    pub fn read_events(&mut self, stream: u32, n: usize) -> Vec<u8> {
        let mut body = Vec::new();
        while super::sse::payloads(&body).len() < n {
            let frame = self.read().expect("the connection lives");
            if frame.kind == Frame::DATA && frame.stream == stream {
                body.extend_from_slice(&frame.payload);
            }
        }
        body
    }

    /// Closes the connection. Returns when.
    pub fn close(self) -> Instant {
        let now = Instant::now();
        drop(self);
        now
    }
}

/// A header in HPACK, literal and without indexing or Huffman coding.
fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        let length = u8::try_from(text.len()).ok().filter(|length| *length < 127).expect("a short text");
        bytes.push(length);
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}
