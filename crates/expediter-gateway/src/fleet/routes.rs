//! From the model that a request names to the pool that serves it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use expediter_core::ReplicaState;
use expediter_types::ModelId;
use expediter_wire::models::ServedModel;

use super::Pool;
use crate::settings::AliasTable;

/// Where a request goes.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) pool: Arc<Pool>,
    /// Only replicas that list this model can take it.
    pub(crate) model_id: ModelId,
    /// The model's name at the replicas.
    pub(crate) model: Arc<str>,
}

/// Every name that leads to a pool.
#[derive(Default)]
pub(crate) struct Routes {
    /// By the pools' own names.
    pools: BTreeMap<Arc<str>, Route>,
    aliases: AliasTable,
    /// By the names at the engines: what pools call their models, and what replicas list.
    models: BTreeMap<Arc<str>, Route>,
    /// For requests that name no model: the one pool, where there is just one.
    default: Option<Route>,
}

impl Routes {
    /// Where pools claim one name of a model, the first in order of name keeps it, and one that calls its model
    /// so comes before one whose replicas list it.
    pub(super) fn new(pools: &[Arc<Pool>], ids: &HashMap<Arc<str>, ModelId>, aliases: &AliasTable) -> Self {
        let base = |pool: &Arc<Pool>| Route {
            pool: Arc::clone(pool),
            model_id: pool.model_id,
            model: Arc::clone(&pool.model),
        };
        let mut models: BTreeMap<Arc<str>, Route> = BTreeMap::new();
        for pool in pools {
            models.entry(Arc::clone(&pool.model)).or_insert_with(|| base(pool));
        }
        for pool in pools {
            for model in pool.served() {
                if let Some((name, id)) = ids.get_key_value(model.id.as_str()) {
                    models.entry(Arc::clone(name)).or_insert_with(|| Route {
                        pool: Arc::clone(pool),
                        model_id: *id,
                        model: Arc::clone(name),
                    });
                }
            }
        }
        let default = match pools {
            [only] => Some(base(only)),
            _ => None,
        };
        let pools = pools.iter().map(|pool| (Arc::clone(&pool.name), base(pool))).collect();
        Self { pools, aliases: aliases.clone(), models, default }
    }

    /// The route of `model`; `draw` splits an alias by its weights. The operator's words come before those of
    /// the replicas: a pool's name, then an alias, then a name at the engines.
    pub(crate) fn resolve(&self, model: Option<&str>, draw: impl FnOnce() -> f64) -> Option<Route> {
        // vLLM serves a request without a model, or with an empty one.
        let Some(model) = model.filter(|model| !model.is_empty()) else {
            return self.default.clone();
        };
        if let Some(route) = self.pools.get(model) {
            return Some(route.clone());
        }
        match self.aliases.pick(model, draw()) {
            Some(pool) => self.pools.get(pool).cloned(),
            None => self.models.get(model).cloned(),
        }
    }

    /// Whether no name leads anywhere.
    pub(crate) fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }

    /// Every alias with the names of its pools.
    pub(crate) fn aliases(&self) -> &AliasTable {
        &self.aliases
    }
}

impl Pool {
    /// What the replicas list, each name once, in order of name.
    fn served(&self) -> Vec<ServedModel> {
        self.served_where(|_| true)
    }

    /// The same of those replicas that are ready.
    pub(crate) fn served_ready(&self) -> Vec<ServedModel> {
        self.served_where(|state| state == ReplicaState::Ready)
    }

    fn served_where(&self, counts: impl Fn(ReplicaState) -> bool) -> Vec<ServedModel> {
        let mut served = BTreeMap::new();
        for (replica, view) in self.views() {
            if counts(view.state) {
                for model in replica.served().iter() {
                    served.entry(model.id.clone()).or_insert_with(|| model.clone());
                }
            }
        }
        served.into_values().collect()
    }
}
