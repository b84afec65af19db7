//! One replica: what its parts share, and the handle by which it is steered.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use expediter_engine_sim::Stats;
use expediter_types::{Prng, RequestId};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::driver::{Driver, Input};
use crate::fault::Fault;
use crate::listener::{self, Door, Listener};
use crate::metrics::Telemetry;
use crate::settings::{Settings, StartError};

/// A running replica. Clones are the same replica.
#[derive(Clone, Debug)]
pub struct Replica(pub(crate) Arc<Shared>);

/// What the tasks of a replica share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) settings: Arc<Settings>,
    pub(crate) clock: Clock,
    pub(crate) address: SocketAddr,
    /// Fixes what this replica draws.
    pub(crate) seed: u64,
    pub(crate) inputs: mpsc::UnboundedSender<Input>,
    /// Generations that are being answered.
    pub(crate) in_flight: AtomicU64,
    ids: AtomicU64,
    telemetry: Mutex<Telemetry>,
    fault: Mutex<FaultState>,
    doors: mpsc::UnboundedSender<Door>,
    /// Tasks that heal a fault after its time.
    tasks: TaskTracker,
    stop: CancellationToken,
}

#[derive(Debug, Default)]
struct FaultState {
    fault: Fault,
    /// Tells a fault set meanwhile from the one that a timer is to heal.
    generation: u64,
    /// What `/metrics` shows while it is stale.
    metrics: Option<String>,
}

impl Replica {
    /// Binds the replica's port and starts its tasks, which end with `stop`.
    pub(crate) async fn start(
        settings: Arc<Settings>,
        index: u16,
        clock: Clock,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Result<Self, StartError> {
        let asked = settings.address(index);
        let listener =
            Listener::bind(asked).await.map_err(|error| StartError::Listen { address: asked, error })?;
        let (inputs, driver_inputs) = mpsc::unbounded_channel();
        let (doors, listener_doors) = mpsc::unbounded_channel();
        let seed = settings.seed.wrapping_mul(1 << 16).wrapping_add(u64::from(index));
        let shared = Arc::new(Shared {
            settings,
            clock,
            address: listener.address(),
            seed,
            inputs,
            in_flight: AtomicU64::new(0),
            ids: AtomicU64::new(0),
            telemetry: Mutex::new(Telemetry::new(clock.unix().as_secs_f64())),
            fault: Mutex::default(),
            doors,
            tasks: tasks.clone(),
            stop: stop.clone(),
        });
        let driver = Driver::new(Arc::clone(&shared), driver_inputs, Prng::new(seed));
        tasks.spawn(driver.run(stop.clone()));
        tasks.spawn(listener::run(Arc::clone(&shared), listener, listener_doors, stop.clone()));
        Ok(Self(shared))
    }

    /// Where it listens, or did before a fault closed its port.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// The engine's state and counts, whatever `/metrics` shows.
    pub fn stats(&self) -> Stats {
        self.0.telemetry().stats
    }

    /// What is wrong at present.
    pub fn fault(&self) -> Fault {
        self.0.fault()
    }

    /// Makes something wrong, or all well again, and returns when it is so.
    pub async fn set_fault(&self, fault: Fault) {
        self.0.set_fault(fault).await;
    }
}

impl Shared {
    /// Held for a moment, never across an `.await`.
    pub(crate) fn telemetry(&self) -> MutexGuard<'_, Telemetry> {
        self.telemetry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn fault(&self) -> Fault {
        self.fault_state().fault
    }

    /// The first of `count` new ids in a row.
    pub(crate) fn request_ids(&self, count: usize) -> RequestId {
        RequestId(self.ids.fetch_add(count as u64, Ordering::Relaxed))
    }

    /// The text of `/metrics`, of now or of when it became stale.
    pub(crate) fn metrics(&self) -> String {
        let stale = self.fault_state().metrics.clone();
        stale.unwrap_or_else(|| self.telemetry().clone().render(&self.settings))
    }

    /// Returns a number that no other call returns.
    pub(crate) async fn set_fault(&self, fault: Fault) -> u64 {
        let lasting = if matches!(fault, Fault::Abort | Fault::Error) { Fault::Ok } else { fault };
        let metrics = lasting.metrics_are_stale().then(|| self.metrics());
        let generation = {
            let mut state = self.fault_state();
            let generation = state.generation + 1;
            *state = FaultState { fault: lasting, generation, metrics };
            generation
        };
        let (done, driver) = oneshot::channel();
        _ = self.inputs.send(Input::Fault { fault, done });
        let (done, listener) = oneshot::channel();
        _ = self.doors.send(Door { fault: lasting, done });
        // An error means that the replica has been shut down, where nothing is left to go wrong.
        _ = driver.await;
        _ = listener.await;
        generation
    }

    /// As `set_fault`, and heals it after `time` unless another has been set.
    pub(crate) async fn set_fault_for(self: &Arc<Self>, fault: Fault, time: Duration) {
        let (in_effect, is_in_effect) = oneshot::channel();
        let shared = Arc::clone(self);
        // Not in the caller's task: a crash ends that, where the caller is a connection to this very replica.
        self.tasks.spawn(async move {
            let generation = shared.set_fault(fault).await;
            // Nobody waits any more where the fault has ended the caller.
            let _ = in_effect.send(());
            tokio::select! {
                () = shared.stop.cancelled() => return,
                () = tokio::time::sleep(time) => {}
            }
            if shared.fault_state().generation == generation {
                shared.set_fault(Fault::Ok).await;
            }
        });
        // The task says so, or the replica is being stopped.
        let _ = is_in_effect.await;
    }

    fn fault_state(&self) -> MutexGuard<'_, FaultState> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
