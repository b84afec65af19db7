//! The answer to `GET /v1/models`.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::fleet::Fleet;

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Model<'a>>,
}

#[derive(Serialize)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    root: &'a str,
    parent: Option<&'a str>,
    max_model_len: Option<u64>,
}

/// What ready replicas serve, under every name that a request may use: the engines' own, the pools', the
/// aliases. `root` is the name at the engine.
pub(super) fn models_list(fleet: &Fleet) -> Vec<u8> {
    // Seconds of Unix time, as of the start: bodies of two calls compare equal.
    let created = fleet.clock.unix_ms(expediter_types::Time::ZERO) / 1000;
    let model = |id, root, parent, max_model_len| Model {
        id,
        object: "model",
        created,
        owned_by: "expediter",
        root,
        parent,
        max_model_len,
    };
    let pools: Vec<_> = fleet.pools().into_iter().map(|pool| (pool.served_ready(), pool)).collect();
    let mut names: BTreeMap<&str, Model<'_>> = BTreeMap::new();
    for (served, pool) in &pools {
        for served in served {
            names.entry(&served.id).or_insert_with(|| {
                model(&served.id, &served.id, served.parent.as_deref(), served.max_model_len)
            });
        }
        if let Some(base) = served.iter().find(|served| *served.id == *pool.model) {
            names.entry(&pool.name).or_insert_with(|| model(&pool.name, &base.id, None, base.max_model_len));
        }
    }
    let routes = fleet.routes();
    for (alias, shares) in routes.aliases().iter() {
        let base = shares.iter().find_map(|share| {
            let (served, pool) = pools.iter().find(|(_, pool)| *pool.name == *share.pool)?;
            served.iter().find(|served| *served.id == *pool.model)
        });
        if let Some(base) = base {
            names.entry(alias).or_insert_with(|| model(alias, &base.id, None, base.max_model_len));
        }
    }
    let list = List { object: "list", data: names.into_values().collect() };
    // Strings and numbers always encode.
    serde_json::to_vec(&list).unwrap_or_default()
}
