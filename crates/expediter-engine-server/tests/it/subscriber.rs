//! The other ends of a replica's `PUB` and `ROUTER` sockets.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use expediter_wire::kv_events::{KvEventBatch, Published, Replay, ReplayReply, decode};
use expediter_wire::zmtp::{Event, Role, Session, write_message};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A connection to PUB or ROUTER.
pub(crate) struct Peer {
    stream: TcpStream,
    session: Session,
}

impl Peer {
    /// A subscriber to everything that begins with `topic`.
    pub(crate) async fn subscribe(address: SocketAddr, topic: &str) -> Self {
        let mut peer = Self::connect(address, Role::Subscriber).await;
        peer.session.subscribe(topic.as_bytes());
        peer.flush().await;
        peer
    }

    /// Asks for what was published from `from` on, and takes answers to the end.
    pub(crate) async fn replay(address: SocketAddr, from: u64) -> Vec<(u64, KvEventBatch)> {
        let mut peer = Self::connect(address, Role::Dealer).await;
        let mut question = Vec::new();
        write_message(&Replay { from }.frames(), &mut question);
        peer.stream.write_all(&question).await.unwrap();
        let mut batches = Vec::new();
        loop {
            let frames = peer.message().await.expect("answers end with an end");
            match ReplayReply::read(&frames).unwrap() {
                ReplayReply::Batch { sequence, payload } => {
                    batches.push((sequence, decode(payload).unwrap()));
                }
                ReplayReply::End => return batches,
            }
        }
    }

    async fn connect(address: SocketAddr, role: Role) -> Self {
        let stream = TcpStream::connect(address).await.expect("the socket listens");
        let mut peer = Self { stream, session: Session::new(role, 1 << 20) };
        peer.flush().await;
        assert_eq!(peer.event().await, Some(Event::Ready));
        peer
    }

    /// The next published batch with its number; `None` where the connection ends.
    pub(crate) async fn batch(&mut self) -> Option<(u64, KvEventBatch)> {
        let frames = self.message().await?;
        let published = Published::read(&frames).unwrap();
        Some((published.sequence, decode(published.payload).unwrap()))
    }

    pub(crate) async fn message(&mut self) -> Option<Vec<Bytes>> {
        match self.event().await? {
            Event::Message(frames) => Some(frames),
            other @ (Event::Ready | Event::Subscribe(_) | Event::Unsubscribe(_)) => panic!("{other:?}"),
        }
    }

    async fn event(&mut self) -> Option<Event> {
        let mut buffer = vec![0; 16 << 10];
        loop {
            if let Some(event) = self.session.poll_event().unwrap() {
                self.flush().await;
                return Some(event);
            }
            self.flush().await;
            let read = tokio::time::timeout(PATIENCE, self.stream.read(&mut buffer));
            match read.await.expect("something comes") {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.session.receive(&buffer[..count]),
            }
        }
    }

    async fn flush(&mut self) {
        self.stream.write_all(&self.session.take_output()).await.unwrap();
    }
}

/// No test passes by it: it ends one that would hang.
const PATIENCE: Duration = Duration::from_secs(20);
