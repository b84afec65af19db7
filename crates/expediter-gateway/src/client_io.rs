//! The socket of a client: what the HTTP library reads and writes through.
//!
//! It adds what the library lacks: limits on idle connections, on heads that dribble in and on clients that do
//! not read; a way to see that a client left although it had sent more than it should have; and an unhurried
//! close, so that an early answer is not lost to a reset.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::lazy_timer::LazyTimer;

/// How long a client may take for what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientLimits {
    /// For the first byte of the next request.
    pub(crate) idle: Duration,
    /// From a head's first byte to its last, and to the first byte after connecting.
    pub(crate) head: Duration,
    /// To take any byte of what is written to it.
    pub(crate) stall: Duration,
}

/// The client closed its side, or its connection broke.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the client is gone")]
pub(crate) struct ClientGone;

/// A client's byte stream, shared by the HTTP library and by the request in progress.
pub(crate) struct ClientIo<T>(Arc<Mutex<Inside<T>>>);

/// What a request needs to know of its client's connection.
pub(crate) trait Client: Send + Sync {
    /// Ready when the client has left. Reads ahead of the HTTP library, which stops reading while a request
    /// is in progress and bytes of a further one are there.
    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()>;
    /// Whether the client speaks HTTP/2.
    fn is_h2(&self) -> bool;
    /// A request begins: its own limits hold from here.
    fn begin(&self);
    /// Its body is here: from now on bytes that come belong to a further request, if anybody is there at all.
    fn body_received(&self);
    /// It ended: the limit of idle connections holds from here.
    fn end(&self);
    /// The request's body will not be read: close unhurriedly.
    fn linger(&self);
}

#[expect(clippy::struct_excessive_bools, reason = "facts about a socket that vary independently")]
struct Inside<T> {
    io: T,
    limits: ClientLimits,
    is_h2: bool,
    /// Requests in progress; while there is one, its own limits hold and not those of this connection.
    requests: usize,
    /// Whether the first byte of the next head is here.
    in_head: bool,
    /// When the next head must be complete or, before its first byte, must have begun.
    head_deadline: Instant,
    /// Read before the HTTP library asked.
    ahead: VecDeque<u8>,
    /// The HTTP library waits for bytes itself, and sees the client leave.
    library_reads: bool,
    /// Whether the body of the request in progress is here.
    body_received: bool,
    /// The client sends no more.
    ended: bool,
    /// Our side is closed.
    shut: bool,
    lingers: bool,
    read_timer: LazyTimer,
    /// When a write that makes no progress fails.
    write_deadline: Option<Instant>,
    write_timer: LazyTimer,
}

impl<T> ClientIo<T> {
    pub(crate) fn new(io: T, limits: ClientLimits) -> Self {
        Self(Arc::new(Mutex::new(Inside {
            io,
            limits,
            is_h2: false,
            requests: 0,
            in_head: true,
            head_deadline: Instant::now() + limits.head,
            ahead: VecDeque::new(),
            library_reads: false,
            body_received: false,
            ended: false,
            shut: false,
            lingers: false,
            read_timer: LazyTimer::default(),
            write_deadline: None,
            write_timer: LazyTimer::default(),
        })))
    }

    /// The same connection, for the requests on it.
    pub(crate) fn client(&self, is_h2: bool) -> Arc<dyn Client>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        self.lock().is_h2 = is_h2;
        Arc::clone(&self.0) as Arc<dyn Client>
    }

    fn lock(&self) -> MutexGuard<'_, Inside<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> ClientIo<T> {
    /// Waits for the connection's first bytes and tells whether they open HTTP/2 without TLS. They stay to be
    /// read.
    pub(crate) async fn begins_h2(&self) -> io::Result<bool> {
        poll_fn(|cx| {
            let mut inside = self.lock();
            loop {
                let seen = inside.ahead.len().min(PREFACE.len());
                if !inside.ahead.iter().take(seen).eq(&PREFACE[..seen]) {
                    return Poll::Ready(Ok(false));
                }
                if seen == PREFACE.len() {
                    return Poll::Ready(Ok(true));
                }
                if inside.ended {
                    return Poll::Ready(Ok(false));
                }
                ready!(inside.poll_read_ahead(cx))?;
            }
        })
        .await
    }
}

/// The first bytes of an HTTP/2 connection that no HTTP/1 request can begin with. Source: RFC 9113 §3.4.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";

/// How much is read ahead of the HTTP library to see a client leave. Behind more than that its leaving could not
/// be seen: one that sends so much while its request runs is taken for gone.
const AHEAD_BYTES_MAX: usize = 64 * 1024;

/// How long bytes of an unwanted body are read after an early answer. Long enough for what is on its way.
const LINGER: Duration = Duration::from_secs(2);

impl<T: AsyncRead + AsyncWrite + Unpin> Inside<T> {
    /// Reads once into `ahead`, within the limits of the phase.
    fn poll_read_ahead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut bytes = [MaybeUninit::uninit(); 1024];
        let mut buffer = ReadBuf::uninit(&mut bytes);
        match Pin::new(&mut self.io).poll_read(cx, &mut buffer) {
            Poll::Ready(Ok(())) => {
                self.ended |= buffer.filled().is_empty();
                self.ahead.extend(buffer.filled());
                self.bytes_came();
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => self.poll_read_limit(cx).map(Err),
        }
    }

    /// The HTTP/2 library reads all the time, and ends each stream by itself. That for HTTP/1 reads until the
    /// body is here, and then until a byte of a further request is.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_h2 || !self.body_received {
            return Poll::Pending;
        }
        while !self.ended && self.ahead.len() < AHEAD_BYTES_MAX {
            if ready!(self.poll_read_ahead(cx)).is_err() {
                self.ended = true;
            }
        }
        Poll::Ready(())
    }

    fn bytes_came(&mut self) {
        if self.is_h2 {
            self.head_deadline = Instant::now() + self.limits.idle;
        } else if self.requests == 0 && !self.in_head {
            self.in_head = true;
            self.head_deadline = Instant::now() + self.limits.head;
        }
    }

    fn poll_read_limit(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.requests > 0 {
            return Poll::Pending;
        }
        ready!(self.read_timer.poll_passed(cx, self.head_deadline));
        Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "no whole request head in time"))
    }

    /// Passes a write's progress on. One that makes none notices that nobody is there, or that nobody reads.
    fn unless_blocked<N>(&mut self, cx: &mut Context<'_>, write: Poll<io::Result<N>>) -> Poll<io::Result<N>> {
        if write.is_ready() {
            self.write_deadline = None;
            return write;
        }
        if self.requests > 0 && self.poll_gone(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let deadline = *self.write_deadline.get_or_insert_with(|| Instant::now() + self.limits.stall);
        ready!(self.write_timer.poll_passed(cx, deadline));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }

    /// Reads what the client still sends and forgets it, until it ends, or for [`LINGER`]. A close with unread
    /// bytes would be a reset, which may overtake the answer.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = *self.write_deadline.get_or_insert_with(|| Instant::now() + LINGER);
        let mut bytes = [MaybeUninit::uninit(); 4096];
        while !self.ended {
            let mut buffer = ReadBuf::uninit(&mut bytes);
            match Pin::new(&mut self.io).poll_read(cx, &mut buffer) {
                Poll::Ready(read) => self.ended = read.is_err() || buffer.filled().is_empty(),
                Poll::Pending => return self.write_timer.poll_passed(cx, deadline),
            }
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
        }
        Poll::Ready(())
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Client for Mutex<Inside<T>> {
    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inside = self.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut inside.library_reads) { Poll::Pending } else { inside.poll_gone(cx) }
    }

    fn is_h2(&self) -> bool {
        self.lock().unwrap_or_else(PoisonError::into_inner).is_h2
    }

    fn begin(&self) {
        let mut inside = self.lock().unwrap_or_else(PoisonError::into_inner);
        inside.requests += 1;
        inside.in_head = false;
        inside.body_received = false;
    }

    fn body_received(&self) {
        self.lock().unwrap_or_else(PoisonError::into_inner).body_received = true;
    }

    fn end(&self) {
        let mut inside = self.lock().unwrap_or_else(PoisonError::into_inner);
        inside.requests = inside.requests.saturating_sub(1);
        inside.head_deadline = Instant::now() + inside.limits.idle;
    }

    fn linger(&self) {
        self.lock().unwrap_or_else(PoisonError::into_inner).lingers = true;
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for ClientIo<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut inside = self.lock();
        if !inside.ahead.is_empty() {
            let (front, _) = inside.ahead.as_slices();
            let length = front.len().min(buffer.remaining());
            buffer.put_slice(&front[..length]);
            inside.ahead.drain(..length);
            return Poll::Ready(Ok(()));
        }
        if inside.ended {
            return Poll::Ready(Ok(()));
        }
        match Pin::new(&mut inside.io).poll_read(cx, buffer) {
            Poll::Ready(Ok(())) => {
                inside.bytes_came();
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                inside.library_reads = true;
                inside.poll_read_limit(cx).map(Err)
            }
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ClientIo<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut inside = self.lock();
        let written = Pin::new(&mut inside.io).poll_write(cx, bytes);
        inside.unless_blocked(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut inside = self.lock();
        let written = Pin::new(&mut inside.io).poll_write_vectored(cx, slices);
        inside.unless_blocked(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.lock().io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inside = self.lock();
        let flushed = Pin::new(&mut inside.io).poll_flush(cx);
        inside.unless_blocked(cx, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inside = self.lock();
        if !inside.shut {
            ready!(Pin::new(&mut inside.io).poll_shutdown(cx))?;
            inside.shut = true;
        }
        if inside.lingers { inside.poll_linger(cx).map(Ok) } else { Poll::Ready(Ok(())) }
    }
}
