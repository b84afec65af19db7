//! A group of replicas.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::fault::{Fault, Termination};
use crate::replica::Replica;
use crate::settings::{Settings, StartError};

/// Running replicas. Dropping it stops them; `shutdown` also waits until they are gone.
#[derive(Debug)]
pub struct EngineServer {
    replicas: Vec<Replica>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl EngineServer {
    /// Binds every port, and serves on the runtime of the caller.
    ///
    /// # Errors
    /// Settings that cannot be served, or a port that cannot be had; then nothing runs.
    pub async fn start(settings: Settings) -> Result<Self, StartError> {
        settings.validate()?;
        let clock = Clock::new(settings.speed);
        let settings = Arc::new(settings);
        let mut server =
            Self { replicas: Vec::new(), tasks: TaskTracker::new(), stop: CancellationToken::new() };
        for index in 0..settings.replicas {
            let replica =
                Replica::start(Arc::clone(&settings), index, clock, &server.tasks, &server.stop).await?;
            server.replicas.push(replica);
        }
        Ok(server)
    }

    /// The replicas, in order of their ports.
    pub fn replicas(&self) -> &[Replica] {
        &self.replicas
    }

    /// Where they listen.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.replicas.iter().map(Replica::address).collect()
    }

    /// Tells every process to stop, and returns when their requests have ended, or after `patience`.
    pub async fn terminate(&self, how: Termination, patience: Duration) {
        for replica in &self.replicas {
            replica.set_fault(Fault::Terminate { how }).await;
        }
        let ended = async {
            while self.replicas.iter().any(Replica::is_answering) {
                tokio::time::sleep(POLL).await;
            }
        };
        // What has not ended by then is cut by whoever waits no longer.
        _ = tokio::time::timeout(patience, ended).await;
    }

    /// Closes every port and connection at once, and waits for all tasks.
    pub async fn shutdown(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for EngineServer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Nobody tells when the last answer has gone out.
const POLL: Duration = Duration::from_millis(10);
