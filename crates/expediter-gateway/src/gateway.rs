//! Starting and stopping it all.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::serve_admin;
use crate::fleet::Fleet;
use crate::metrics::Metrics;
use crate::server::{Listening, StopSignals, acceptor, bind, listen, start_shard};
use crate::settings::Settings;
use crate::usage::UsageWriter;

/// A gateway that runs. Its control tasks live on the runtime it was started on, its requests on threads of
/// their own.
pub struct Gateway {
    /// Where clients connect.
    pub address: SocketAddr,
    /// Where operators connect.
    pub admin_address: SocketAddr,
    fleet: Arc<Fleet>,
    usage: Arc<UsageWriter>,
    tasks: TaskTracker,
    /// Ends the control tasks.
    stop: CancellationToken,
    shards_stop: StopSignals,
    threads: Vec<JoinHandle<()>>,
}

/// Why a gateway does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is taken, or not ours.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The usage records have nowhere to go.
    #[error("cannot open the usage file: {0}")]
    Usage(#[source] io::Error),
    /// The certificate is of no use.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The system gives no thread.
    #[error("cannot start a shard: {0}")]
    Shard(#[source] io::Error),
}

impl Gateway {
    /// Starts serving by the settings in `reload`, and takes over each one that follows. Call within a runtime.
    pub fn start(mut reload: watch::Receiver<Arc<Settings>>) -> Result<Self, StartError> {
        let settings = reload.borrow_and_update().clone();
        let metrics = Arc::new(Metrics::new());
        let usage =
            UsageWriter::open(&settings.usage, metrics.records_lost.clone()).map_err(StartError::Usage)?;
        let usage = Arc::new(usage);
        let tasks = TaskTracker::new();
        let stop = CancellationToken::new();
        let fleet = Fleet::new(Arc::clone(&settings), metrics, process_seed(), tasks.clone(), stop.clone());
        let current: Arc<ArcSwap<Settings>> = Arc::clone(&fleet.settings);
        let tls = settings.tls.as_ref().map(|_| acceptor(current)).transpose()?;
        let shards_stop = StopSignals::default();

        let data = open(settings.listen)?;
        let admin = open(settings.admin.listen)?;
        let (mut shards, mut threads) = (Vec::new(), Vec::new());
        for number in 0..shard_count(&settings) {
            let (shard, thread) =
                start_shard(number, Arc::clone(&fleet), Arc::clone(&usage), tls.clone(), shards_stop.clone())
                    .map_err(StartError::Shard)?;
            shards.push(shard);
            threads.push(thread);
        }
        fleet.apply(&settings);
        let slots = connection_slots(&fleet.settings.load());
        tasks.spawn(listen(data.listener, shards, slots, shards_stop.gentle()));
        tasks.spawn(serve_admin(Arc::clone(&fleet), admin.listener, stop.clone()));
        tasks.spawn(take_over(Arc::clone(&fleet), reload, stop.clone()));
        let scheme = if tls.is_some() { "https" } else { "http" };
        tracing::info!(address = %data.address, scheme, "listening");
        tracing::info!(address = %admin.address, "admin listening");
        Ok(Self {
            address: data.address,
            admin_address: admin.address,
            fleet,
            usage,
            tasks,
            stop,
            shards_stop,
            threads,
        })
    }

    /// Stops: no new connections, no new requests; what runs may end within the settings' limit, and then it is
    /// cut. Returns when everything has ended and every record is written.
    pub async fn stop(self) {
        self.fleet.stopping.store(true, Ordering::Relaxed);
        let limit = self.fleet.settings.load().limits.stop;
        tracing::info!(limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX), "stopping");
        self.shards_stop.stop_gently();
        let threads = self.threads;
        let mut ended = tokio::task::spawn_blocking(move || {
            for thread in threads {
                // A panic in it has been printed.
                let _ = thread.join();
            }
        });
        if tokio::time::timeout(limit, &mut ended).await.is_err() {
            tracing::warn!("requests did not end within the limit and are cut");
            self.shards_stop.stop_hard();
            let _ = tokio::time::timeout(HARD_STOP_LIMIT, ended).await;
        }
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        drop(self.fleet);
        if let Some(usage) = Arc::into_inner(self.usage) {
            usage.close();
        }
        tracing::info!("stopped");
    }
}

/// Dropping connections takes no time; a shard that does not even do that is not waited for.
const HARD_STOP_LIMIT: Duration = Duration::from_secs(2);

fn open(address: SocketAddr) -> Result<Listening, StartError> {
    bind(address).map_err(|source| StartError::Listen { address, source })
}

fn shard_count(settings: &Settings) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    settings.shards.map_or(cores, NonZeroUsize::get)
}

/// As many connections as are configured, or as the process has descriptors for: each may need one more to a
/// replica.
fn connection_slots(settings: &Settings) -> Arc<Semaphore> {
    let configured = usize::try_from(settings.limits.connections_max).unwrap_or(usize::MAX);
    let descriptors = descriptors();
    let possible =
        usize::try_from(descriptors.saturating_sub(DESCRIPTORS_KEPT) / 2).unwrap_or(usize::MAX).max(1);
    if possible < configured {
        tracing::warn!(
            descriptors,
            connections_max = possible,
            "fewer descriptors than `limits.connections_max` needs: raise the hard limit of open files"
        );
    }
    Arc::new(Semaphore::new(configured.min(possible).min(Semaphore::MAX_PERMITS)))
}

/// For listeners, probes, the admin API and files.
const DESCRIPTORS_KEPT: u64 = 128;

/// Raises the soft limit of open files to the hard one, and says what it is.
fn descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised.current.unwrap_or(u64::MAX),
        Err(_) => limit.current.unwrap_or(u64::MAX),
    }
}

/// Applies each new set of settings until `stop`.
async fn take_over(fleet: Arc<Fleet>, mut reload: watch::Receiver<Arc<Settings>>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            changed = reload.changed() => if changed.is_err() { return },
        }
        let settings = reload.borrow_and_update().clone();
        fleet.apply(&settings);
        tracing::info!("settings applied");
    }
}

/// Unlike in any other process: what request ids and draws begin with.
fn process_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
