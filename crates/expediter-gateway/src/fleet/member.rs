//! Who belongs to the fleet: replicas from the configuration, from watched files and from the admin API.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use expediter_core::{ProbeFailure, ProbeResult};
use expediter_types::ModelId;
use expediter_wire::models::ServedModel;
use tokio_util::sync::CancellationToken;

use super::{Fleet, Pool, Replica, convert, prober};
use crate::settings::{ReplicaUrl, Settings};
use crate::upstream::Target;

/// One address that the fleet is told of. It becomes a replica once its pool is known.
pub(crate) struct Member {
    /// What the admin API calls it, from the first to the last.
    pub(crate) id: u32,
    pub(crate) url: ReplicaUrl,
    pub(crate) source: Source,
    /// The pool it is configured for; without one its pool is that of the base model it lists.
    configured_pool: Option<String>,
    pub(super) pinned: Option<Arc<[SocketAddr]>>,
    seat: Mutex<Option<Seat>>,
    /// Cancelled when it leaves the fleet: its prober stops.
    pub(super) left: CancellationToken,
}

/// A member's place in a pool.
#[derive(Clone)]
pub(crate) struct Seat {
    pub(crate) pool: Arc<Pool>,
    pub(crate) replica: Arc<Replica>,
}

/// Who brought a member, and so who may take it away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The configuration, or a file that it names.
    Configured,
    /// An operator, through the admin API. It stays through reloads.
    Admin,
}

impl Member {
    /// Its place in a pool, once it is known.
    pub(crate) fn seat(&self) -> Option<Seat> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Seat>> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fleet {
    /// Takes over new settings. Replicas that stay keep their state, their ledger and their streams.
    pub(crate) fn apply(self: &Arc<Self>, settings: &Arc<Settings>) {
        let mut wanted: BTreeMap<&ReplicaUrl, Option<&str>> =
            settings.replicas.iter().map(|url| (url, None)).collect();
        for (name, pool) in &settings.pools {
            wanted.extend(pool.replicas.iter().map(|url| (url, Some(name.as_str()))));
        }
        self.settings.store(Arc::clone(settings));
        self.retire_pools_where(|pool| {
            settings.pools.get(&*pool.name).is_some_and(|wanted| *wanted.model != *pool.model)
        });
        for (name, pool) in &settings.pools {
            self.pool(name, &pool.model);
        }
        for pool in self.pools() {
            let core = convert::core_settings(settings, &pool.name);
            pool.tell(|dispatcher, now| dispatcher.set_settings(core, now));
        }
        for member in self.members() {
            let stays = match (member.source, wanted.get(&member.url)) {
                (Source::Configured, Some(pool)) => *pool == member.configured_pool.as_deref(),
                (Source::Configured, None) => false,
                // The configuration has the last word about an address that both name.
                (Source::Admin, wanted) => wanted.is_none(),
            };
            if stays {
                self.follow(&member, settings);
            } else {
                self.remove_member(&member);
            }
        }
        for (url, pool) in wanted {
            self.add_member(url.clone(), pool.map(str::to_owned), Source::Configured, None);
        }
        self.retire_empty_pools();
        self.rebuild_routes();
    }

    /// Adds a replica; the one that is there already where the address is known.
    pub(crate) fn add_member(
        self: &Arc<Self>,
        url: ReplicaUrl,
        configured_pool: Option<String>,
        source: Source,
        pinned: Option<Arc<[SocketAddr]>>,
    ) -> Arc<Member> {
        let member = Arc::new(Member {
            id: self.next_member.fetch_add(1, Ordering::Relaxed),
            url: url.clone(),
            source,
            configured_pool,
            pinned,
            seat: Mutex::new(None),
            left: self.stop.child_token(),
        });
        {
            let mut inside = self.lock();
            if let Some(known) = inside.members.get(&url) {
                return Arc::clone(known);
            }
            inside.members.insert(url, Arc::clone(&member));
        }
        self.follow(&member, &self.settings.load());
        self.tasks.spawn(prober::watch_health(Arc::clone(self), Arc::clone(&member)));
        self.tasks.spawn(prober::read_reports(Arc::clone(self), Arc::clone(&member)));
        member
    }

    /// Takes a replica out of the fleet. What still runs on it goes on until it ends.
    pub(crate) fn remove_member(&self, member: &Member) {
        self.lock().members.remove(&member.url);
        member.left.cancel();
        self.unseat(member);
        self.retire_empty_pools();
        self.rebuild_routes();
    }

    /// Brings a member of a configured pool to its place there, and gives it the pool's present key. A pool whose
    /// model has changed is another pool.
    fn follow(self: &Arc<Self>, member: &Member, settings: &Settings) {
        let configured =
            member.configured_pool.as_ref().and_then(|name| settings.pools.get_key_value(name.as_str()));
        let Some((name, wanted)) = configured else { return };
        let pool = self.pool(name, &wanted.model);
        match member.seat() {
            Some(seat) if Arc::ptr_eq(&seat.pool, &pool) => {
                seat.replica.set_engine_key(wanted.engine_key.clone());
            }
            _ => {
                self.unseat(member);
                self.seat(member, &pool);
            }
        }
    }

    /// Takes over the result of a health check.
    pub(super) fn take_health(
        self: &Arc<Self>,
        member: &Member,
        health: Result<Vec<ServedModel>, ProbeFailure>,
    ) {
        let models = match health {
            Ok(models) => models,
            Err(failure) => {
                if let Some(seat) = member.seat() {
                    let result = ProbeResult::Unhealthy(failure);
                    seat.pool.tell(|dispatcher, now| dispatcher.probe(seat.replica.id, result, now));
                }
                return;
            }
        };
        let ids: Vec<ModelId> = models.iter().filter_map(|model| self.model_id(&model.id)).collect();
        let Some(seat) = self.find_seat(member, &models) else { return };
        let result = if models.iter().any(|model| *model.id == *seat.pool.model) {
            ProbeResult::Healthy { models: ids }
        } else {
            ProbeResult::Unhealthy(ProbeFailure::NoModel)
        };
        let changed = seat.replica.set_served(&models);
        seat.pool.tell(|dispatcher, now| dispatcher.probe(seat.replica.id, result, now));
        if changed {
            self.rebuild_routes();
        }
    }

    /// The member's place; one that was found by asking moves when its base model changes.
    fn find_seat(self: &Arc<Self>, member: &Member, models: &[ServedModel]) -> Option<Seat> {
        let seat = member.seat();
        if member.configured_pool.is_some() {
            return seat;
        }
        let base = models.iter().find(|model| model.parent.is_none()).or(models.first());
        match (seat, base) {
            (Some(seat), None) => Some(seat),
            (Some(seat), Some(_)) if models.iter().any(|model| *model.id == *seat.pool.model) => Some(seat),
            (_, None) => None,
            (seat, Some(base)) => {
                if seat.is_some() {
                    self.unseat(member);
                }
                let pool = self.pool(&base.id, &base.id);
                let seat = self.seat(member, &pool);
                self.retire_empty_pools();
                seat
            }
        }
    }

    /// Gives `member` a place in `pool`; none where it has left the fleet meanwhile.
    fn seat(&self, member: &Member, pool: &Arc<Pool>) -> Option<Seat> {
        let settings = self.settings.load();
        let engine_key = settings.pools.get(&*pool.name).and_then(|pool| pool.engine_key.clone());
        let target = Target::new(member.url.clone(), member.pinned.clone(), &self.tls_roots);
        let replica = Replica::new(self.next_replica(), target, &pool.label, &self.metrics);
        replica.set_engine_key(engine_key);
        let replica = Arc::new(replica);
        let seat = Seat { pool: Arc::clone(pool), replica: Arc::clone(&replica) };
        // Under the seat's lock, so that whoever removes the member finds it seated, or keeps it from being so.
        let mut place = member.lock();
        if member.left.is_cancelled() {
            replica.forget_series(&self.metrics);
            return None;
        }
        *place = Some(seat.clone());
        pool.join(replica);
        Some(seat)
    }

    fn unseat(&self, member: &Member) {
        let seat = member.lock().take();
        if let Some(Seat { pool, replica }) = seat {
            pool.remove(replica.id);
            replica.gone.cancel();
            replica.forget_series(&self.metrics);
        }
    }

    /// Forgets pools that are not configured and have no replica: model names that come and go must not pile up.
    fn retire_empty_pools(&self) {
        let settings = self.settings.load();
        let seats: Vec<Seat> = self.members().iter().filter_map(|member| member.seat()).collect();
        self.retire_pools_where(|pool| {
            !settings.pools.contains_key(&*pool.name)
                && !seats.iter().any(|seat| Arc::ptr_eq(&seat.pool, pool))
        });
    }

    fn retire_pools_where(&self, goes: impl Fn(&Arc<Pool>) -> bool) {
        let mut retired = Vec::new();
        self.lock().pools.retain(|_, pool| {
            let stays = !goes(pool);
            if !stays {
                retired.push(Arc::clone(pool));
            }
            stays
        });
        for pool in retired {
            pool.retired.cancel();
            self.metrics.forget_pool(&pool.label);
        }
    }
}
