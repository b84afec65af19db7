//! Accepts connections and hands each to a shard in turn.
//!
//! One acceptor and a hand-over, rather than one listener a shard: connections live long and carry many
//! requests, so an even spread is worth more than a thread change at accept.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::ShardHandle;

/// A bound listener and its address.
pub(crate) struct Listening {
    pub(crate) listener: TcpListener,
    pub(crate) address: SocketAddr,
}

/// Connections that the kernel may hold for us.
const BACKLOG: i32 = 4096;

/// Binds `address`; port 0 lets the system choose.
pub(crate) fn bind(address: SocketAddr) -> io::Result<Listening> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A restart must not wait for the old process's connections to be forgotten.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    let listener = TcpListener::from_std(socket.into())?;
    let address = listener.local_addr()?;
    Ok(Listening { listener, address })
}

/// Accepts until `stop`. While `slots` are taken nothing is accepted: what waits in the kernel's queue is
/// served when a connection ends.
pub(crate) async fn listen(
    listener: TcpListener,
    shards: Vec<ShardHandle>,
    slots: Arc<Semaphore>,
    stop: CancellationToken,
) {
    for shard in shards.iter().cycle() {
        let accepted = async {
            let slot = Arc::clone(&slots).acquire_owned().await.ok()?;
            Some((slot, accept(&listener).await))
        };
        let (slot, stream) = tokio::select! {
            () = stop.cancelled() => return,
            accepted = accepted => match accepted {
                Some(accepted) => accepted,
                None => return,
            },
        };
        // A shard that is gone has been stopped: so will this be.
        let _ = shard.hand_over(stream, slot).await;
    }
}

/// The next connection, through whatever the system cannot give at the moment.
async fn accept(listener: &TcpListener) -> std::net::TcpStream {
    loop {
        match listener.accept().await.and_then(|(stream, _)| stream.into_std()) {
            Ok(stream) => return stream,
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                // No descriptors or no memory: others must end first.
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    )
}

const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
