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
    direct: BTreeMap<Arc<str>, Route>,
    aliases: AliasTable,
    /// For requests that name no model: the one pool, where there is just one.
    default: Option<Route>,
}

impl Routes {
    /// A pool's own name comes first, then what it calls its model, then what its replicas list. The first
    /// pool, in order of name, keeps a name that several claim.
    pub(super) fn new(
        pools: &[Arc<Pool>],
        models: &HashMap<Arc<str>, ModelId>,
        aliases: &AliasTable,
    ) -> Self {
        let mut direct: BTreeMap<Arc<str>, Route> = BTreeMap::new();
        let base = |pool: &Arc<Pool>| Route {
            pool: Arc::clone(pool),
            model_id: pool.model_id,
            model: Arc::clone(&pool.model),
        };
        for pool in pools {
            direct.insert(Arc::clone(&pool.name), base(pool));
        }
        for pool in pools {
            direct.entry(Arc::clone(&pool.model)).or_insert_with(|| base(pool));
        }
        for pool in pools {
            for model in pool.served() {
                if let Some((name, id)) = models.get_key_value(model.id.as_str()) {
                    direct.entry(Arc::clone(name)).or_insert_with(|| Route {
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
        Self { direct, aliases: aliases.clone(), default }
    }

    /// The route of `model`; `draw` splits an alias by its weights.
    pub(crate) fn resolve(&self, model: Option<&str>, draw: impl FnOnce() -> f64) -> Option<Route> {
        // vLLM serves a request without a model, or with an empty one.
        let Some(model) = model.filter(|model| !model.is_empty()) else {
            return self.default.clone();
        };
        if let Some(route) = self.direct.get(model) {
            return Some(route.clone());
        }
        // An alias's pool may be one that discovery has not found.
        self.direct.get(self.aliases.pick(model, draw())?).cloned()
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
