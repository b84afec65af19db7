//! A shard: one thread with a runtime of its own that owns its connections from accept to upstream. A token that
//! arrives wakes one thread, once.

use std::future::poll_fn;
use std::io;
use std::net::TcpStream as StdTcpStream;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::client_io::{ClientIo, ClientLimits};
use crate::exchange::{Exchange, handle};
use crate::fleet::Fleet;
use crate::usage::UsageWriter;

/// How the acceptor reaches a shard.
pub(crate) struct ShardHandle(mpsc::Sender<(StdTcpStream, OwnedSemaphorePermit)>);

impl ShardHandle {
    /// Gives the shard a connection; fails where the shard has stopped.
    pub(super) async fn hand_over(
        &self,
        stream: StdTcpStream,
        slot: OwnedSemaphorePermit,
    ) -> Result<(), Stopped> {
        self.0.send((stream, slot)).await.map_err(|_| Stopped)
    }
}

/// The shard has stopped.
pub(super) struct Stopped;

/// Connections accepted and not yet taken by the shard.
const HAND_OVER_MAX: usize = 1024;

/// When a shard stops, and how fast.
#[derive(Clone, Default)]
pub(crate) struct StopSignals {
    /// No new connections and no new requests; what runs may end.
    gentle: CancellationToken,
    /// Everything ends.
    hard: CancellationToken,
    /// Whether one of the two was given: cheaper to ask.
    asked: Arc<AtomicBool>,
}

impl StopSignals {
    /// Lets what runs end.
    pub(crate) fn stop_gently(&self) {
        self.asked.store(true, Ordering::Relaxed);
        self.gentle.cancel();
    }

    /// Ends everything.
    pub(crate) fn stop_hard(&self) {
        self.asked.store(true, Ordering::Relaxed);
        self.hard.cancel();
    }

    /// The signal to begin nothing new.
    pub(crate) fn gentle(&self) -> CancellationToken {
        self.gentle.clone()
    }
}

/// Starts shard `number`. The thread ends once it was told to stop and its connections are closed.
pub(crate) fn start_shard(
    number: usize,
    fleet: Arc<Fleet>,
    usage: Arc<UsageWriter>,
    tls: Option<TlsAcceptor>,
    stop: StopSignals,
) -> io::Result<(ShardHandle, JoinHandle<()>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (sender, connections) = mpsc::channel(HAND_OVER_MAX);
    let thread = std::thread::Builder::new().name(format!("shard-{number}")).spawn(move || {
        let tasks = TaskTracker::new();
        let exchange = Arc::new(Exchange::new(fleet, usage, tasks.clone()));
        let shard = Arc::new(Shard { exchange, tls, stop, tasks });
        runtime.block_on(shard.run(connections));
    })?;
    Ok((ShardHandle(sender), thread))
}

impl StopSignals {
    /// Runs `connection` to its end. Told to stop gently, it is asked to end; told to stop hard, it is
    /// left where it is.
    ///
    /// A connection is polled for every token, a stop comes once: the signals are asked again only when the
    /// task was woken and there is one.
    async fn run<C, E>(&self, mut connection: Pin<&mut C>, ask_to_end: impl Fn(Pin<&mut C>)) -> Result<(), E>
    where
        C: Future<Output = Result<(), E>>,
    {
        let (mut gentle, mut hard) = (pin!(self.gentle.cancelled()), pin!(self.hard.cancelled()));
        let (mut listens, mut is_winding_down) = (false, false);
        poll_fn(|cx| {
            if let Poll::Ready(served) = connection.as_mut().poll(cx) {
                return Poll::Ready(served);
            }
            if listens && !self.asked.load(Ordering::Relaxed) {
                return Poll::Pending;
            }
            listens = true;
            if hard.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            if !is_winding_down && gentle.as_mut().poll(cx).is_ready() {
                is_winding_down = true;
                ask_to_end(connection.as_mut());
                return connection.as_mut().poll(cx);
            }
            Poll::Pending
        })
        .await
    }
}

struct Shard {
    exchange: Arc<Exchange>,
    tls: Option<TlsAcceptor>,
    stop: StopSignals,
    /// Connections, and what belongs to them.
    tasks: TaskTracker,
}

impl Shard {
    async fn run(self: Arc<Self>, mut connections: mpsc::Receiver<(StdTcpStream, OwnedSemaphorePermit)>) {
        let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
        loop {
            tokio::select! {
                () = self.stop.gentle.cancelled() => break,
                _ = sweep.tick() => self.exchange.sweep(),
                accepted = connections.recv() => match accepted {
                    Some((stream, slot)) => {
                        let shard = Arc::clone(&self);
                        self.tasks.spawn(async move {
                            shard.serve(stream).await;
                            drop(slot);
                        });
                    }
                    None => break,
                },
            }
        }
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Serves one connection to its end.
    async fn serve(&self, stream: StdTcpStream) {
        let metrics = &self.exchange.fleet.metrics;
        metrics.connections.inc();
        let served = self.serve_stream(stream).await;
        metrics.connections.dec();
        if let Err(error) = served {
            // Clients leave and break off in many ways; none of them is a fault of ours.
            tracing::debug!(%error, "connection ended");
        }
    }

    async fn serve_stream(&self, stream: StdTcpStream) -> Result<(), ConnectionError> {
        stream.set_nonblocking(true)?;
        // Small writes must not wait for the other side's acknowledgement. A socket without the option works too.
        let _ = stream.set_nodelay(true);
        let stream = TcpStream::from_std(stream)?;
        let limits = self.exchange.fleet.settings.load().limits;
        let client_limits = ClientLimits { idle: limits.idle, head: limits.head, stall: limits.client_stall };
        match &self.tls {
            None => {
                let io = ClientIo::new(stream, client_limits);
                // Nothing was asked on it yet: a stop need not wait for the first byte.
                let begins = self.stop.gentle.run_until_cancelled(io.begins_h2()).await;
                let Some(h2) = begins.transpose()? else { return Ok(()) };
                self.serve_http(io, h2).await
            }
            Some(tls) => {
                let handshake = tokio::time::timeout(limits.head, tls.accept(stream));
                let Some(shaken) = self.stop.gentle.run_until_cancelled(handshake).await else {
                    return Ok(());
                };
                let stream = shaken.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
                let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                self.serve_http(ClientIo::new(stream, client_limits), h2).await
            }
        }
    }

    async fn serve_http<T>(&self, io: ClientIo<T>, h2: bool) -> Result<(), ConnectionError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let client = io.client(h2);
        let exchange = Arc::clone(&self.exchange);
        let service = service_fn(move |request: Request<Incoming>| {
            handle(Arc::clone(&exchange), Arc::clone(&client), request)
        });
        if h2 {
            let tasks = TaskTracker::new();
            let mut builder = http2::Builder::new(OnTracker(tasks));
            builder
                .timer(TokioTimer::new())
                .max_concurrent_streams(H2_STREAMS_MAX)
                .max_header_list_size(H2_HEAD_BYTES_MAX)
                .keep_alive_interval(H2_PING_INTERVAL)
                .keep_alive_timeout(H2_PING_TIMEOUT)
                .max_send_buf_size(H2_SEND_BUFFER_BYTES);
            let connection = pin!(builder.serve_connection(TokioIo::new(io), service));
            self.stop.run(connection, http2::Connection::graceful_shutdown).await?;
        } else {
            let mut builder = http1::Builder::new();
            builder.max_buf_size(HEAD_BYTES_MAX);
            let connection = pin!(builder.serve_connection(TokioIo::new(io), service));
            self.stop.run(connection, http1::Connection::graceful_shutdown).await?;
        }
        Ok(())
    }
}

/// The largest head that is read; beyond it the answer is 431.
const HEAD_BYTES_MAX: usize = 64 * 1024;
const H2_HEAD_BYTES_MAX: u32 = 64 * 1024;

/// Streams a client may have open on one HTTP/2 connection.
const H2_STREAMS_MAX: u32 = 256;

/// What is kept for an HTTP/2 stream whose client reads slowly.
const H2_SEND_BUFFER_BYTES: usize = 64 * 1024;

/// A client that vanished without a word is noticed by an HTTP/2 ping.
const H2_PING_INTERVAL: Duration = Duration::from_secs(30);
const H2_PING_TIMEOUT: Duration = Duration::from_secs(20);

const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Why a connection ended before its time.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

/// Runs an HTTP/2 connection's streams on this shard; they end with it.
#[derive(Clone)]
struct OnTracker(TaskTracker);

impl<F> hyper::rt::Executor<F> for OnTracker
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        self.0.spawn(future);
    }
}
