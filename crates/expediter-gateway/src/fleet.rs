//! The fleet as the gateway knows it: its pools, the replicas in them, and the names that lead to them.

mod convert;
mod driver;
mod flight;
mod mailbox;
mod member;
mod pool;
mod prober;
mod replica;
mod routes;
mod warm_up;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use expediter_core::{Policy, ReplicaState};
use expediter_types::{ModelId, Prng, ReplicaId, RequestId};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use flight::Flight;
pub(crate) use mailbox::{Mailbox, Order};
pub(crate) use member::{Member, Source};
pub(crate) use pool::Pool;
pub(crate) use replica::{AttemptOutcome, Replica};
pub(crate) use routes::{Route, Routes};

use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::settings::{ReplicaUrl, Settings};
use crate::upstream::TlsRoots;

/// Everything that outlives a request. One in a process, shared by all shards.
pub(crate) struct Fleet {
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) settings: Arc<ArcSwap<Settings>>,
    /// Set once, when the process is asked to stop.
    pub(crate) stopping: AtomicBool,
    routes: ArcSwap<Routes>,
    inside: Mutex<Inside>,
    next_request: AtomicU64,
    next_replica: AtomicU32,
    next_member: AtomicU32,
    seed: u64,
    tls_roots: TlsRoots,
    tasks: TaskTracker,
    stop: CancellationToken,
}

struct Inside {
    pools: BTreeMap<Arc<str>, Arc<Pool>>,
    members: BTreeMap<ReplicaUrl, Arc<Member>>,
    models: HashMap<Arc<str>, ModelId>,
}

/// Why a model leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unresolved {
    /// Every replica has said what it serves, and this is not among it.
    Unknown,
    /// A replica that has not been reached may serve it.
    NotYet,
}

/// How often a request looks again while nothing is known of any replica.
const RESOLVE_INTERVAL: Duration = Duration::from_millis(50);

/// Model names that replicas may bring in all: a replica with a runaway list must not fill the memory.
const MODELS_MAX: usize = 16 * 1024;

impl Fleet {
    /// An empty fleet. Its tasks run in `tasks` until `stop`.
    pub(crate) fn new(
        settings: Arc<Settings>,
        metrics: Arc<Metrics>,
        seed: u64,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            clock: Clock::start(),
            metrics,
            settings: Arc::new(ArcSwap::new(settings)),
            stopping: AtomicBool::new(false),
            routes: ArcSwap::from_pointee(Routes::default()),
            inside: Mutex::new(Inside {
                pools: BTreeMap::new(),
                members: BTreeMap::new(),
                models: HashMap::new(),
            }),
            next_request: AtomicU64::new(1),
            next_replica: AtomicU32::new(1),
            next_member: AtomicU32::new(1),
            seed,
            tls_roots: TlsRoots::default(),
            tasks,
            stop,
        })
    }

    /// An id for the next request.
    pub(crate) fn next_request(&self) -> RequestId {
        RequestId(self.next_request.fetch_add(1, Ordering::Relaxed))
    }

    /// A request id for clients that send none: unlike those of other processes and other runs.
    pub(crate) fn fresh_id(&self, id: RequestId) -> u64 {
        Prng::new(self.seed ^ id.0).bits()
    }

    /// Keeps clients from choosing prompts whose hashes collide.
    pub(crate) fn prompt_seed(&self) -> u64 {
        Prng::new(!self.seed).bits()
    }

    /// How a replica of `pool` is chosen.
    pub(crate) fn policy(&self, pool: &str) -> Policy {
        convert::policy(&self.settings.load(), pool)
    }

    /// Where requests for `model` go.
    pub(crate) fn resolve(&self, model: Option<&str>, id: RequestId) -> Option<Route> {
        self.routes.load().resolve(model, || Prng::new(self.seed ^ id.0.rotate_left(32)).unit())
    }

    /// Where requests for `model` go, once anything is known: what the first replicas serve is found out in the
    /// first moments of a run, and a request of these is not told that its model does not exist.
    ///
    /// # Errors
    /// Where there is no such model, or none yet.
    pub(crate) async fn resolve_or_wait(
        &self,
        model: Option<&str>,
        id: RequestId,
    ) -> Result<Route, Unresolved> {
        let deadline = tokio::time::Instant::now() + self.settings.load().wait.limit;
        loop {
            if let Some(route) = self.resolve(model, id) {
                return Ok(route);
            }
            if self.members().iter().all(|member| member.seat().is_some()) {
                return Err(Unresolved::Unknown);
            }
            if !self.routes().is_empty() || tokio::time::Instant::now() >= deadline {
                return Err(Unresolved::NotYet);
            }
            tokio::time::sleep(RESOLVE_INTERVAL).await;
        }
    }

    /// The names that requests may use.
    pub(crate) fn routes(&self) -> Arc<Routes> {
        self.routes.load_full()
    }

    /// All pools, in order of name.
    pub(crate) fn pools(&self) -> Vec<Arc<Pool>> {
        self.lock().pools.values().cloned().collect()
    }

    /// All members, in order of URL.
    pub(crate) fn members(&self) -> Vec<Arc<Member>> {
        self.lock().members.values().cloned().collect()
    }

    /// Whether a request could be served now.
    pub(crate) fn is_ready(&self) -> bool {
        !self.stopping.load(Ordering::Relaxed)
            && self
                .pools()
                .iter()
                .any(|pool| pool.views().iter().any(|(_, view)| view.state == ReplicaState::Ready))
    }

    /// The pool called `name`, made where there is none.
    fn pool(self: &Arc<Self>, name: &str, model: &str) -> Arc<Pool> {
        let model_id = self.model_id(model).unwrap_or(ModelId(0));
        let mut inside = self.lock();
        if let Some(pool) = inside.pools.get(name) {
            return Arc::clone(pool);
        }
        let settings = self.settings.load();
        let seed = self.seed ^ inside.pools.len() as u64;
        let pool = Arc::new(Pool::new(
            name,
            (model, model_id),
            convert::core_settings(&settings, name),
            self.clock,
            &self.metrics,
            Prng::new(seed),
        ));
        inside.pools.insert(Arc::clone(&pool.name), Arc::clone(&pool));
        drop(inside);
        self.tasks.spawn(driver::drive(Arc::clone(self), Arc::clone(&pool)));
        pool
    }

    /// The id of a model name; none where there are too many names.
    fn model_id(&self, name: &str) -> Option<ModelId> {
        let mut inside = self.lock();
        if let Some(id) = inside.models.get(name) {
            return Some(*id);
        }
        let next = u32::try_from(inside.models.len()).ok().filter(|_| inside.models.len() < MODELS_MAX)?;
        inside.models.insert(name.into(), ModelId(next));
        Some(ModelId(next))
    }

    /// Makes the table of names anew. Call when a pool, an alias or a model list has changed.
    fn rebuild_routes(&self) {
        let (pools, models) = {
            let inside = self.lock();
            (inside.pools.values().cloned().collect::<Vec<_>>(), inside.models.clone())
        };
        let settings = self.settings.load();
        self.routes.store(Arc::new(Routes::new(&pools, &models, &settings.aliases)));
    }

    fn next_replica(&self) -> ReplicaId {
        ReplicaId(self.next_replica.fetch_add(1, Ordering::Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
