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

use crate::adapters::Adapters;
use crate::clock::Clock;
use crate::driver::{Driver, Input};
use crate::fault::{Fault, FaultScript};
use crate::kv_events::{self, Gate, Publisher, Socket};
use crate::listener::{self, Door, Listener, Position};
use crate::metrics::Telemetry;
use crate::request::Model;
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
    /// Its place among the replicas.
    index: u16,
    /// Fixes what this replica draws.
    pub(crate) seed: u64,
    pub(crate) adapters: Adapters,
    pub(crate) events: Option<EventSockets>,
    pub(crate) inputs: mpsc::UnboundedSender<Input>,
    /// Generations that are being answered.
    pub(crate) in_flight: AtomicU64,
    ids: AtomicU64,
    telemetry: Mutex<Telemetry>,
    fault: Mutex<FaultState>,
    doors: mpsc::UnboundedSender<Door>,
    /// Ends the faults that are still to come by script.
    script: Mutex<CancellationToken>,
    /// Tasks that heal a fault after its time.
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// Where KV events go.
#[derive(Debug)]
pub(crate) struct EventSockets {
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) address: SocketAddr,
    pub(crate) replay: Option<SocketAddr>,
    gates: Vec<mpsc::UnboundedSender<Gate>>,
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
        let listener = bind(Settings::address(settings.listen, index)).await?;
        let events = EventSockets::bind(&settings, index, tasks, stop).await?;
        let (inputs, driver_inputs) = mpsc::unbounded_channel();
        let (doors, listener_doors) = mpsc::unbounded_channel();
        let seed = settings.seed.wrapping_mul(1 << 16).wrapping_add(u64::from(index));
        let shared = Arc::new(Shared {
            clock,
            address: listener.address(),
            index,
            seed,
            adapters: Adapters::new(&settings.adapters.modules),
            events,
            settings,
            inputs,
            in_flight: AtomicU64::new(0),
            ids: AtomicU64::new(0),
            telemetry: Mutex::new(Telemetry::new(clock.unix().as_secs_f64())),
            fault: Mutex::default(),
            doors,
            script: Mutex::default(),
            tasks: tasks.clone(),
            stop: stop.clone(),
        });
        let driver = Driver::new(Arc::clone(&shared), driver_inputs, Prng::new(seed));
        tasks.spawn(driver.run(stop.clone()));
        tasks.spawn(listener::run(Arc::clone(&shared), listener, listener_doors, stop.clone()));
        shared.follow(&shared.settings.faults);
        Ok(Self(shared))
    }

    /// Where it listens, or did before a fault closed its port.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// Where it publishes KV events.
    pub fn kv_events(&self) -> Option<SocketAddr> {
        self.0.events.as_ref().map(|events| events.address)
    }

    /// Where it answers for KV events that were published before.
    pub fn kv_events_replay(&self) -> Option<SocketAddr> {
        self.0.events.as_ref().and_then(|events| events.replay)
    }

    /// Connections that have subscribed to KV events.
    pub fn kv_events_subscribers(&self) -> usize {
        self.0.events.as_ref().map_or(0, |events| events.publisher.subscribers())
    }

    /// The engine's state and counts, whatever `/metrics` shows.
    pub fn stats(&self) -> Stats {
        self.0.telemetry().stats
    }

    /// Whether a generation is being answered.
    pub(crate) fn is_answering(&self) -> bool {
        self.0.in_flight.load(Ordering::Relaxed) > 0
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

    /// What requests are checked against.
    pub(crate) fn model(&self) -> Model<'_> {
        let Settings { model, max_model_len, .. } = &*self.settings;
        Model { name: model, max_model_len: *max_model_len, adapters: &self.adapters }
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

    /// Returns a number that no other call with a lasting fault returns.
    pub(crate) async fn set_fault(&self, fault: Fault) -> u64 {
        let (generation, revives) = self.note_fault(fault);
        let (done, driver) = oneshot::channel();
        _ = self.inputs.send(Input::Fault { fault, done });
        // An error, here as below, means that the replica has been shut down, where nothing is left to go wrong.
        _ = driver.await;
        if fault.is_momentary() {
            return generation;
        }
        if revives {
            self.set_door(Position::Cut).await;
            self.set_gates(false).await;
        }
        self.set_door(fault.door()).await;
        self.set_gates(!fault.ends_process() || fault.door() == Position::Open).await;
        generation
    }

    /// The state's generation, and whether an ended process is followed by a new one.
    fn note_fault(&self, fault: Fault) -> (u64, bool) {
        let metrics = fault.metrics_are_stale().then(|| self.metrics());
        let mut state = self.fault_state();
        if fault.is_momentary() {
            return (state.generation, false);
        }
        let revives = state.fault.ends_process() && !fault.ends_process();
        let generation = state.generation + 1;
        *state = FaultState { fault, generation, metrics };
        (generation, revives)
    }

    async fn set_door(&self, position: Position) {
        let (done, listener) = oneshot::channel();
        _ = self.doors.send(Door { position, done });
        _ = listener.await;
    }

    async fn set_gates(&self, open: bool) {
        for gate in self.events.iter().flat_map(|events| &events.gates) {
            let (done, socket) = oneshot::channel();
            _ = gate.send(Gate { open, done });
            _ = socket.await;
        }
    }

    /// The engine of a process that drains has nothing left: it closes its ports and, when the last answers are out,
    /// is gone.
    pub(crate) fn drained(self: &Arc<Self>) {
        let shared = Arc::clone(self);
        let generation = self.fault_state().generation;
        self.tasks.spawn(async move {
            let gone = async {
                shared.set_door(Position::Closed).await;
                while shared.in_flight.load(Ordering::Relaxed) > 0 {
                    tokio::time::sleep(FLUSH).await;
                }
                tokio::time::sleep(FLUSH).await;
                if shared.fault_state().generation == generation {
                    shared.set_gates(false).await;
                    shared.set_door(Position::Cut).await;
                }
            };
            shared.stop.run_until_cancelled(gone).await;
        });
    }

    /// Begins with a script, and forgets the one before.
    pub(crate) fn follow(self: &Arc<Self>, script: &FaultScript) {
        let ended = self.stop.child_token();
        let before = std::mem::replace(
            &mut *self.script.lock().unwrap_or_else(PoisonError::into_inner),
            ended.clone(),
        );
        before.cancel();
        let (shared, entries, start) = (Arc::clone(self), script.of(self.index), tokio::time::Instant::now());
        if entries.is_empty() {
            return;
        }
        self.tasks.spawn(ended.run_until_cancelled_owned(async move {
            for entry in entries {
                tokio::time::sleep_until(start + entry.at).await;
                match entry.order.for_ms {
                    Some(ms) => shared.set_fault_for(entry.order.fault, Duration::from_millis(ms)).await,
                    None => _ = shared.set_fault(entry.order.fault).await,
                }
            }
        }));
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

impl EventSockets {
    /// Binds the sockets that the settings ask for, and serves them until `stop`.
    async fn bind(
        settings: &Settings,
        index: u16,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Result<Option<Self>, StartError> {
        let Some(asked) = &settings.kv_events else { return Ok(None) };
        let listener = bind(Settings::address(asked.listen, index)).await?;
        let replay_listener = match asked.replay {
            Some(first) => Some(bind(Settings::address(first, index)).await?),
            None => None,
        };
        let publisher = Arc::new(Publisher::new(asked.clone()));
        let (address, replay) = (listener.address(), replay_listener.as_ref().map(Listener::address));
        let mut gates = Vec::new();
        for (socket, listener) in [(Socket::Publish, Some(listener)), (Socket::Replay, replay_listener)] {
            let Some(listener) = listener else { continue };
            let (gate, socket_gates) = mpsc::unbounded_channel();
            gates.push(gate);
            let publisher = Arc::clone(&publisher);
            tasks.spawn(kv_events::serve(socket, publisher, listener, socket_gates, stop.clone()));
        }
        Ok(Some(Self { publisher, address, replay, gates }))
    }
}

async fn bind(address: SocketAddr) -> Result<Listener, StartError> {
    Listener::bind(address).await.map_err(|error| StartError::Listen { address, error })
}

/// Time for what has been written to leave. Nobody tells when it has.
const FLUSH: Duration = Duration::from_millis(20);
