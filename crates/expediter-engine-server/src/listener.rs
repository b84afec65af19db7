//! The replica's port: takes connections while it is open, and what becomes of them when it is not.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection::{self, Ends};
use crate::replica::Shared;

/// What the port does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// It takes connections.
    Open,
    /// It takes none, and idle ones are closed; what is in flight goes on.
    Closed,
    /// It takes none, and every connection is cut.
    Cut,
}

/// The port is to do this.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) position: Position,
    pub(crate) done: oneshot::Sender<()>,
}

/// A bound port.
pub(crate) struct Listener {
    open: Option<TcpListener>,
    address: SocketAddr,
}

impl Listener {
    pub(crate) async fn bind(address: SocketAddr) -> io::Result<Self> {
        let open = TcpListener::bind(address).await?;
        let address = open.local_addr()?;
        Ok(Self { open: Some(open), address })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection; never while the port is closed.
    pub(crate) async fn accept(&self) -> TcpStream {
        let Some(open) = &self.open else { return std::future::pending().await };
        loop {
            match open.accept().await {
                Ok((stream, _)) => return stream,
                // Out of descriptors, or the client was gone before we came: the next may do better.
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    /// Whoever comes now is refused.
    pub(crate) fn close(&mut self) {
        self.open = None;
    }

    /// Listens again. The port is ours by custom only, so that someone may be quicker: then until he is gone.
    pub(crate) async fn reopen(&mut self) {
        while self.open.is_none() {
            match TcpListener::bind(self.address).await {
                Ok(open) => self.open = Some(open),
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }
}

/// Serves the replica's port until `stop`.
pub(crate) async fn run(
    shared: Arc<Shared>,
    mut listener: Listener,
    mut doors: mpsc::UnboundedReceiver<Door>,
    stop: CancellationToken,
) {
    let connections = TaskTracker::new();
    let mut ends = Ends::new(&stop);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            stream = listener.accept() => {
                connections.spawn(connection::serve(Arc::clone(&shared), stream, ends.clone()));
            }
            Some(door) = doors.recv() => {
                match door.position {
                    Position::Open => tokio::select! {
                        () = listener.reopen() => {}
                        () = stop.cancelled() => break,
                    },
                    Position::Closed => {
                        listener.close();
                        ends.close.cancel();
                        ends.close = CancellationToken::new();
                    }
                    Position::Cut => {
                        listener.close();
                        ends.cut.cancel();
                        ends = Ends::new(&stop);
                    }
                }
                _ = door.done.send(());
            }
        }
    }
    connections.close();
    connections.wait().await;
}

/// Long enough not to spin, short enough for nobody to notice.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
