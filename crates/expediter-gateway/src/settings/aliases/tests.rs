use super::*;

fn resolve(aliases: &serde_json::Value) -> Result<AliasTable, Vec<String>> {
    let raw: BTreeMap<String, RawAlias> = serde_json::from_value(aliases.clone()).unwrap();
    let pools = BTreeSet::from(["m-8b", "m-70b"]);
    let mut mistakes = Vec::new();
    let table = AliasTable::resolve(&raw, &pools, &mut mistakes);
    if mistakes.is_empty() { Ok(table) } else { Err(mistakes.iter().map(Mistake::to_string).collect()) }
}

fn shares(table: &AliasTable, alias: &str) -> Vec<(String, f64)> {
    table.get(alias).unwrap().iter().map(|target| (target.pool.clone(), target.share)).collect()
}

#[test]
fn chains_and_splits_resolve_to_pools() {
    let table = resolve(&serde_json::json!({
        "a": "b", "b": "c", "c": "m-8b",
        "split": [{"to": "a", "weight": 3}, {"to": "m-70b"}],
        "nested": [{"to": "split"}, {"to": "m-8b"}, {"to": "m-70b", "weight": 0}],
    }))
    .unwrap();
    assert_eq!(shares(&table, "a"), [("m-8b".into(), 1.0)]);
    assert_eq!(shares(&table, "split"), [("m-70b".into(), 0.25), ("m-8b".into(), 0.75)]);
    assert_eq!(shares(&table, "nested"), [("m-70b".into(), 0.125), ("m-8b".into(), 0.875)]);
    for (draw, expected) in [(0.0, "m-70b"), (0.249, "m-70b"), (0.25, "m-8b"), (0.999, "m-8b")] {
        assert_eq!(table.pick("split", draw), Some(expected), "{draw}");
    }
    assert_eq!(table.pick("m-8b", 0.0), None);
}

#[test]
fn what_leads_nowhere_is_named() {
    let cases: [(&str, serde_json::Value, &[&str]); 8] = [
        (
            "a circle of two",
            serde_json::json!({"a": "b", "b": "a"}),
            &["aliases.a: these aliases lead in a circle: `a` → `b` → `a`; let one of them name a pool"],
        ),
        (
            "a circle of one",
            serde_json::json!({"a": "a"}),
            &["aliases.a: these aliases lead in a circle: `a` → `a`; let one of them name a pool"],
        ),
        (
            "what leads into a circle is not in it",
            serde_json::json!({"z": "c", "c": "b", "b": "c"}),
            &["aliases.b: these aliases lead in a circle: `b` → `c` → `b`; let one of them name a pool"],
        ),
        (
            "two circles through one alias",
            serde_json::json!({"a": [{"to": "b"}, {"to": "c"}, {"to": "m-8b"}], "b": "a", "c": "a"}),
            &[
                "aliases.a: these aliases lead in a circle: `a` → `b` → `a`; let one of them name a pool",
                "aliases.a: these aliases lead in a circle: `a` → `c` → `a`; let one of them name a pool",
            ],
        ),
        (
            "a missing pool",
            serde_json::json!({"a": "mistral"}),
            &[
                "aliases.a: `mistral` is neither a pool nor an alias; add `mistral` under `pools`, or name one that \
               is there",
            ],
        ),
        (
            "a slip",
            serde_json::json!({"a": [{"to": "m-8b"}, {"to": "m-07b", "weight": 2}]}),
            &["aliases.a[1].to: `m-07b` is neither a pool nor an alias; did you mean `m-70b`?"],
        ),
        (
            "a pool's name",
            serde_json::json!({"m-8b": "m-70b"}),
            &[
                "aliases.m-8b: `m-8b` is the name of a pool and of an alias; rename the alias or the pool: a name \
               that clients ask for means one thing",
            ],
        ),
        (
            "no weight at all",
            serde_json::json!({"a": [{"to": "m-8b", "weight": 0}], "b": []}),
            &[
                "aliases.a: alias `a` leads nowhere: it has no target with a weight above 0; give a target a \
                 weight, or take the alias out",
                "aliases.b: alias `b` leads nowhere: it has no target with a weight above 0; give a target a \
                 weight, or take the alias out",
            ],
        ),
    ];
    for (name, aliases, expected) in cases {
        assert_eq!(resolve(&aliases).unwrap_err(), expected, "{name}");
    }
}

#[test]
fn a_chain_as_long_as_one_likes_resolves() {
    let mut aliases = serde_json::json!({"a0": "m-8b"});
    for index in 1..300 {
        aliases[format!("a{index}")] = format!("a{}", index - 1).into();
    }
    assert_eq!(shares(&resolve(&aliases).unwrap(), "a299"), [("m-8b".into(), 1.0)]);
}
