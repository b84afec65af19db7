//! The two ZeroMQ sockets of a replica: PUB, which tells, and ROUTER, which is asked for what was told before.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::Arc;

use bytes::{Buf as _, Bytes, BytesMut};
use expediter_wire::kv_events::Replay;
use expediter_wire::zmtp::{Event, Role, Session};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::kv_events::Publisher;
use crate::listener::Listener;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Socket {
    Publish,
    Replay,
}

/// The process is there, or not: then its port is closed, and no connection stands.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) open: bool,
    pub(crate) done: oneshot::Sender<()>,
}

/// Serves the socket's port until `stop`.
pub(crate) async fn serve(
    socket: Socket,
    publisher: Arc<Publisher>,
    mut listener: Listener,
    mut gates: mpsc::UnboundedReceiver<Gate>,
    stop: CancellationToken,
) {
    let connections = TaskTracker::new();
    let mut cut = stop.child_token();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            stream = listener.accept() => {
                let connection = Connection::new(socket, Arc::clone(&publisher), stream);
                let cut = cut.clone();
                connections.spawn(async move { cut.run_until_cancelled_owned(connection.serve()).await });
            }
            Some(gate) = gates.recv() => {
                if gate.open {
                    tokio::select! {
                        () = listener.reopen() => {}
                        () = stop.cancelled() => break,
                    }
                } else {
                    listener.close();
                    cut.cancel();
                    cut = stop.child_token();
                }
                _ = gate.done.send(());
            }
        }
    }
    connections.close();
    connections.wait().await;
}

/// One peer.
struct Connection {
    publisher: Arc<Publisher>,
    stream: TcpStream,
    session: Session,
    source: Source,
    /// On its way to the peer.
    pending: BytesMut,
    ready: bool,
}

/// What is to be sent.
enum Source {
    /// To a subscriber: what is published.
    Published { id: u64, messages: mpsc::Receiver<Bytes> },
    /// To whoever asked: the rest of the answer.
    Asked(VecDeque<Bytes>),
}

impl Source {
    /// The next message; never where there is none.
    async fn next(&mut self) -> Bytes {
        let next = match self {
            Self::Published { messages, .. } => messages.recv().await,
            Self::Asked(replies) => replies.pop_front(),
        };
        match next {
            Some(message) => message,
            None => std::future::pending().await,
        }
    }
}

impl Connection {
    fn new(socket: Socket, publisher: Arc<Publisher>, stream: TcpStream) -> Self {
        let (role, source) = match socket {
            Socket::Publish => {
                let (id, messages) = publisher.connect();
                (Role::Publisher, Source::Published { id, messages })
            }
            Socket::Replay => (Role::Router, Source::Asked(VecDeque::new())),
        };
        _ = stream.set_nodelay(true);
        let session = Session::new(role, QUESTION_BYTES_MAX);
        Self { publisher, stream, session, source, pending: BytesMut::new(), ready: false }
    }

    /// Until the peer leaves, or says what is no ZMTP.
    async fn serve(mut self) {
        let mut buffer = [0; 4_096];
        loop {
            self.pending.extend_from_slice(&self.session.take_output());
            let waits = !self.pending.is_empty();
            // Who asks again before it has read the answer waits with its question in its own socket.
            let listens = matches!(&self.source, Source::Published { .. }) || !waits;
            tokio::select! {
                ready = self.stream.readable(), if listens => {
                    let read = ready.and_then(|()| self.stream.try_read(&mut buffer));
                    match read {
                        Ok(0) => return,
                        Ok(count) => self.session.receive(&buffer[..count]),
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                        Err(_) => return,
                    }
                    if !self.take_events() {
                        return;
                    }
                }
                ready = self.stream.writable(), if waits => {
                    match ready.and_then(|()| self.stream.try_write(&self.pending)) {
                        Ok(count) => self.pending.advance(count),
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                        Err(_) => return,
                    }
                }
                message = self.source.next(), if self.ready && self.pending.len() < PENDING_BYTES => {
                    self.pending.extend_from_slice(&message);
                }
            }
        }
    }

    /// Returns whether the connection can go on.
    fn take_events(&mut self) -> bool {
        loop {
            let event = match self.session.poll_event() {
                Ok(Some(event)) => event,
                Ok(None) => return true,
                Err(_) => return false,
            };
            match (event, &mut self.source) {
                (Event::Ready, _) => self.ready = true,
                (Event::Subscribe(topic), Source::Published { id, .. }) => {
                    self.publisher.subscribe(*id, topic);
                }
                (Event::Unsubscribe(topic), Source::Published { id, .. }) => {
                    self.publisher.unsubscribe(*id, &topic);
                }
                (Event::Message(frames), Source::Asked(replies)) => {
                    // What is no question has no answer, as in the real engine.
                    if let Ok(question) = Replay::read(&frames) {
                        replies.extend(self.publisher.replay(question));
                    }
                }
                (Event::Message(_), Source::Published { .. })
                | (Event::Subscribe(_) | Event::Unsubscribe(_), Source::Asked(_)) => {}
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Source::Published { id, .. } = self.source {
            self.publisher.disconnect(id);
        }
    }
}

/// A topic or a question, generously.
const QUESTION_BYTES_MAX: usize = 4_096;
/// What is taken from the queue before the socket takes it: enough to fill a segment or two.
const PENDING_BYTES: usize = 64 << 10;
