//! One client connection: when it is closed, and how.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::replica::Shared;
use crate::routes;

/// How a listener ends its connections.
#[derive(Clone, Debug)]
pub(crate) struct Ends {
    /// Idle ones at once, the others after their answer.
    pub(crate) close: CancellationToken,
    /// All at once, whatever they are doing.
    pub(crate) cut: CancellationToken,
}

impl Ends {
    pub(crate) fn new(stop: &CancellationToken) -> Self {
        Self { close: CancellationToken::new(), cut: stop.child_token() }
    }
}

/// What a request may do to its connection.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    phase: Arc<watch::Sender<Phase>>,
    reset: Arc<AtomicBool>,
}

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing so far.
    Fresh,
    /// A request is being read or answered.
    Busy,
    /// The last answer has gone out.
    Idle,
}

/// Held while a request is being answered.
#[derive(Debug)]
pub(crate) struct Busy(Arc<watch::Sender<Phase>>);

impl Connection {
    pub(crate) fn busy(&self) -> Busy {
        self.phase.send_replace(Phase::Busy);
        Busy(Arc::clone(&self.phase))
    }

    /// When the connection ends it will be by a reset.
    pub(crate) fn end_by_reset(&self) {
        self.reset.store(true, Ordering::Relaxed);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.send_replace(Phase::Idle);
    }
}

/// Serves a connection to its end. A client that leaves, be it by closing its write side only, ends what it asked
/// for: the answer's future or body is dropped, and with it the request in the engine.
pub(crate) async fn serve(shared: Arc<Shared>, stream: TcpStream, ends: Ends) {
    // Without it a token waits for the acknowledgement of the one before.
    _ = stream.set_nodelay(true);
    let (phase, phases) = watch::channel(Phase::Fresh);
    let connection = Connection { phase: Arc::new(phase), reset: Arc::default() };
    let io = Io { stream, reset: Arc::clone(&connection.reset) };
    let service = service_fn(move |request| routes::answer(Arc::clone(&shared), connection.clone(), request));
    let mut http = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(None)
            .max_headers(HEADERS_MAX)
            .serve_connection(TokioIo::new(io), service)
    );
    let mut closing = false;
    let mut idle = pin!(expired(phases));
    loop {
        tokio::select! {
            // The client sees what became of it; there is nobody else to tell.
            _ = &mut http => return,
            () = ends.cut.cancelled() => return,
            () = ends.close.cancelled(), if !closing => closing = true,
            () = &mut idle, if !closing => closing = true,
        }
        http.as_mut().graceful_shutdown();
    }
}

/// Returns when the connection has been idle for the keep-alive time. One that never asked for anything may stay.
async fn expired(mut phases: watch::Receiver<Phase>) {
    loop {
        // An error means that the connection is being dropped, and this with it.
        if phases.wait_for(|phase| *phase == Phase::Idle).await.is_err() {
            return std::future::pending().await;
        }
        tokio::select! {
            () = tokio::time::sleep(KEEP_ALIVE) => return,
            _ = phases.wait_for(|phase| *phase == Phase::Busy) => {}
        }
    }
}

/// A socket that can end by a reset.
struct Io {
    stream: TcpStream,
    reset: Arc<AtomicBool>,
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.reset.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Drop for Io {
    fn drop(&mut self) {
        if self.reset.load(Ordering::Relaxed) {
            // Closing a socket that lingers for no time resets it.
            _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
        }
    }
}

/// `VLLM_HTTP_TIMEOUT_KEEP_ALIVE`.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// The real engine took 600.
const HEADERS_MAX: usize = 1_024;
