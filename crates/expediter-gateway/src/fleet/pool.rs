//! One pool: the dispatcher, behind a lock that no `.await` crosses, and the tables that turn its ids into
//! sockets and tasks.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use expediter_core::{Dispatcher, Output, ReplicaState, ReplicaView, Request};
use expediter_types::{BlockHash, ModelId, Prng, ReplicaId, RequestId, Time};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use tokio_util::sync::CancellationToken;

use super::{Flight, Mailbox, Order, Replica};
use crate::clock::Clock;
use crate::metrics::{Label, Metrics, PoolLabels, RequestLabels};

/// Replicas that serve the same model alike.
pub(crate) struct Pool {
    pub(crate) name: Arc<str>,
    /// The base model's name at the engines.
    pub(crate) model: Arc<str>,
    pub(crate) model_id: ModelId,
    pub(crate) label: Label,
    pub(crate) series: PoolSeries,
    /// Cancelled when the pool is forgotten: its driver stops.
    pub(super) retired: CancellationToken,
    clock: Clock,
    state: Mutex<State>,
}

/// The pool's own series, looked up once.
pub(crate) struct PoolSeries {
    pub(crate) in_flight: Gauge,
    /// Requests that were completed with a 2xx: the usual end.
    pub(crate) completed: Counter,
    pub(crate) retries: Counter,
    pub(crate) input_tokens: Counter,
    pub(crate) output_tokens: Counter,
    pub(crate) cached_tokens: Counter,
    pub(crate) first_token: Histogram,
    pub(crate) request_time: Histogram,
}

struct State {
    dispatcher: Dispatcher,
    replicas: BTreeMap<ReplicaId, Arc<Replica>>,
    mailboxes: HashMap<RequestId, Arc<Mailbox>>,
    effects: VecDeque<Effect>,
}

/// What the pool's driver must do for the dispatcher.
pub(crate) enum Effect {
    /// Send one tiny request and report whether it was answered.
    WarmUp(Arc<Replica>),
    /// Say that nothing of ours runs there any more.
    Drained(Arc<Replica>),
}

impl Pool {
    pub(crate) fn new(
        name: &str,
        (model, model_id): (&str, ModelId),
        settings: expediter_core::Settings,
        clock: Clock,
        metrics: &Metrics,
        rng: Prng,
    ) -> Self {
        let label = Label::new(name);
        let labels = PoolLabels { pool: label.clone() };
        Self {
            name: name.into(),
            model: model.into(),
            model_id,
            series: PoolSeries {
                in_flight: metrics.in_flight.get_or_create_owned(&labels),
                completed: metrics.requests.get_or_create_owned(&RequestLabels {
                    pool: label.clone(),
                    outcome: "completed",
                    status_class: "2xx",
                }),
                retries: metrics.retries.get_or_create_owned(&labels),
                input_tokens: metrics.input_tokens.get_or_create_owned(&labels),
                output_tokens: metrics.output_tokens.get_or_create_owned(&labels),
                cached_tokens: metrics.cached_tokens.get_or_create_owned(&labels),
                first_token: metrics.first_token.get_or_create_owned(&labels),
                request_time: metrics.request_time.get_or_create_owned(&labels),
            },
            label,
            retired: CancellationToken::new(),
            clock,
            state: Mutex::new(State {
                dispatcher: Dispatcher::new(settings, rng),
                replicas: BTreeMap::new(),
                mailboxes: HashMap::new(),
                effects: VecDeque::new(),
            }),
        }
    }

    /// Gives the dispatcher an input and passes its orders on.
    pub(crate) fn tell<T>(&self, input: impl FnOnce(&mut Dispatcher, Time) -> T) -> T {
        let mut state = self.lock();
        let told = input(&mut state.dispatcher, self.clock.now());
        state.pass_on();
        told
    }

    /// Hands `request` to the dispatcher. The flight releases it, whatever happens.
    pub(crate) fn arrive(self: &Arc<Self>, id: RequestId, request: Request) -> Flight {
        let mailbox = Arc::new(Mailbox::default());
        let mut state = self.lock();
        state.mailboxes.insert(id, Arc::clone(&mailbox));
        let now = self.clock.now();
        state.dispatcher.arrive(id, request, now);
        state.pass_on();
        drop(state);
        Flight::new(Arc::clone(self), id, mailbox)
    }

    /// The request is over for this pool: no order will reach it.
    pub(super) fn close_mailbox(&self, id: RequestId) {
        self.lock().mailboxes.remove(&id);
    }

    pub(super) fn join(&self, replica: Arc<Replica>) {
        let mut state = self.lock();
        let (id, now) = (replica.id, self.clock.now());
        let identity = BlockHash::of_name(0, &replica.name).0;
        state.replicas.insert(id, replica);
        state.dispatcher.join_as(id, identity, now);
        state.pass_on();
    }

    pub(super) fn remove(&self, id: ReplicaId) {
        let mut state = self.lock();
        let now = self.clock.now();
        state.dispatcher.remove(id, now);
        state.pass_on();
        state.replicas.remove(&id);
    }

    /// What the driver has to do, and when the dispatcher wants to hear of the time again.
    pub(super) fn drive(&self) -> VecDeque<Effect> {
        let mut state = self.lock();
        let now = self.clock.now();
        if state.dispatcher.poll_timeout().is_some_and(|(due, _)| due <= now) {
            state.dispatcher.handle_timeout(now);
            state.pass_on();
        }
        std::mem::take(&mut state.effects)
    }

    /// Every replica with what the dispatcher thinks of it.
    pub(crate) fn views(&self) -> Vec<(Arc<Replica>, ReplicaView)> {
        let state = self.lock();
        let views = state.dispatcher.replicas(self.clock.now());
        views.into_iter().filter_map(|view| Some((Arc::clone(state.replicas.get(&view.id)?), view))).collect()
    }

    /// Whether no request knows it any more.
    pub(super) fn is_idle(&self) -> bool {
        self.lock().mailboxes.is_empty()
    }

    /// The replicas whose state is not the one in `known`, which is brought up to date.
    pub(super) fn state_changes(
        &self,
        known: &mut BTreeMap<ReplicaId, ReplicaState>,
    ) -> Vec<(Arc<Replica>, ReplicaView)> {
        let views = self.views();
        known.retain(|id, _| views.iter().any(|(replica, _)| replica.id == *id));
        let is_new = |(replica, view): &(Arc<Replica>, ReplicaView)| {
            known.insert(replica.id, view.state) != Some(view.state)
        };
        views.into_iter().filter(is_new).collect()
    }

    /// Requests that wait for a ready replica.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().dispatcher.waiting()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock is a bug in the core; its counters stay usable, and the process serves on.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn pass_on(&mut self) {
        while let Some(output) = self.dispatcher.poll_output() {
            match output {
                Output::Dispatch { id, replica, decision } => {
                    // A replica stays in the table while the dispatcher can name it.
                    if let Some(replica) = self.replicas.get(&replica) {
                        self.deliver(id, Order::Dispatch { replica: Arc::clone(replica), decision });
                    }
                }
                Output::Refuse { id, refusal } => self.deliver(id, Order::Refuse(refusal)),
                Output::Expire { id } => self.deliver(id, Order::Expire),
                Output::Abandon { id, replica } => self.deliver(id, Order::Abandon(replica)),
                Output::Cut { id, replica } => self.deliver(id, Order::Cut(replica)),
                Output::WarmUp { replica } => self.effect(replica, Effect::WarmUp),
                Output::Drained { replica } => self.effect(replica, Effect::Drained),
            }
        }
    }

    fn deliver(&self, id: RequestId, order: Order) {
        if let Some(mailbox) = self.mailboxes.get(&id) {
            mailbox.deliver(order);
        }
    }

    fn effect(&mut self, replica: ReplicaId, effect: impl FnOnce(Arc<Replica>) -> Effect) {
        if let Some(replica) = self.replicas.get(&replica) {
            self.effects.push_back(effect(Arc::clone(replica)));
        }
    }
}
