//! Aliases: names that clients may ask for beside those of the pools.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::key_path::KeyPath;
use super::mistake::{Mistake, closest};
use super::raw::{RawAlias, RawShare};

/// Every alias with the pools it leads to. Chains of aliases are resolved, each pool stands once, and every name
/// leads to at least one pool: circles, loose ends and clashes with a pool's name do not get this far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AliasTable(BTreeMap<String, Vec<PoolShare>>);

/// One pool behind an alias.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolShare {
    /// The pool's name.
    pub pool: String,
    /// Its share of the requests, above 0; the shares of an alias add up to 1.
    pub share: f64,
}

impl AliasTable {
    /// The pools behind `alias`, in order of name; none where there is no such alias.
    pub fn get(&self, alias: &str) -> Option<&[PoolShare]> {
        self.0.get(alias).map(Vec::as_slice)
    }

    /// The pool that `draw`, a number from 0 up to but without 1, falls on.
    pub fn pick(&self, alias: &str, draw: f64) -> Option<&str> {
        let (last, before) = self.get(alias)?.split_last()?;
        let mut edge = 0.0;
        let hit = before.iter().find(|target| {
            edge += target.share;
            draw < edge
        });
        Some(&hit.unwrap_or(last).pool)
    }

    /// All aliases, in order of name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[PoolShare])> {
        self.0.iter().map(|(name, shares)| (name.as_str(), shares.as_slice()))
    }

    /// Resolves `raw` against the names of the pools, and adds what is wrong to `mistakes`.
    pub(super) fn resolve(
        raw: &BTreeMap<String, RawAlias>,
        pools: &BTreeSet<&str>,
        mistakes: &mut Vec<Mistake>,
    ) -> Self {
        let links: Links<'_> = raw.iter().map(|(name, alias)| (name.as_str(), targets(alias))).collect();
        for (name, alias) in raw {
            check_names(name, alias, raw, pools, mistakes);
        }
        let (table, unresolved) = resolve_in_order(&links, pools);
        mistakes.extend(circles(&unresolved).into_iter().map(|circle| circle_mistake(&circle)));
        table
    }
}

/// Each alias with its targets and their weights.
type Links<'a> = BTreeMap<&'a str, Vec<(&'a str, u64)>>;

fn targets(alias: &RawAlias) -> Vec<(&str, u64)> {
    match alias {
        RawAlias::One(to) => vec![(to, 1)],
        RawAlias::Split(shares) => {
            shares.iter().map(|share| (share.to.as_str(), share.weight.get())).collect()
        }
    }
}

/// Everything that can be wrong with one alias by itself: its name, loose ends, and weights of nothing.
fn check_names(
    name: &str,
    alias: &RawAlias,
    aliases: &BTreeMap<String, RawAlias>,
    pools: &BTreeSet<&str>,
    mistakes: &mut Vec<Mistake>,
) {
    let path = KeyPath::ROOT.key("aliases").key(name);
    if pools.contains(name) {
        mistakes.push(Mistake::new(
            path.clone(),
            format!("`{name}` is the name of a pool and of an alias"),
            "rename the alias or the pool: a name that clients ask for means one thing",
        ));
    }
    let mut check_target = |to: &str, path: KeyPath| {
        if !pools.contains(to) && !aliases.contains_key(to) {
            let known =
                pools.iter().copied().chain(aliases.keys().map(String::as_str).filter(|key| *key != name));
            let remedy = match closest(to, known) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("add `{to}` under `pools`, or name one that is there"),
            };
            mistakes.push(Mistake::new(path, format!("`{to}` is neither a pool nor an alias"), remedy));
        }
    };
    match alias {
        RawAlias::One(to) => check_target(to, path),
        RawAlias::Split(shares) => {
            for (index, RawShare { to, .. }) in shares.iter().enumerate() {
                check_target(to, path.index(index).key("to"));
            }
            if shares.iter().all(|share| share.weight.get() == 0) {
                mistakes.push(Mistake::new(
                    path,
                    format!("alias `{name}` leads nowhere: it has no target with a weight above 0"),
                    "give a target a weight, or take the alias out",
                ));
            }
        }
    }
}

/// Resolves every alias after all that it leads to. What is left over is in a circle, or leads into one.
fn resolve_in_order<'a>(links: &Links<'a>, pools: &BTreeSet<&str>) -> (AliasTable, Links<'a>) {
    let mut table = AliasTable::default();
    let mut unresolved = links.clone();
    loop {
        let next: Vec<&str> = unresolved
            .iter()
            .filter(|(_, targets)| targets.iter().all(|(to, _)| !unresolved.contains_key(to)))
            .map(|(name, _)| *name)
            .collect();
        if next.is_empty() {
            return (table, unresolved);
        }
        for name in next {
            let targets = unresolved.remove(name).unwrap_or_default();
            let shares = merge_shares(&targets, &table, pools);
            table.0.insert(name.to_owned(), shares);
        }
    }
}

/// The pools behind targets that are pools or resolved aliases, each pool once.
fn merge_shares(targets: &[(&str, u64)], table: &AliasTable, pools: &BTreeSet<&str>) -> Vec<PoolShare> {
    let total = targets.iter().map(|(_, weight)| weight).sum::<u64>() as f64;
    let mut merged: BTreeMap<&str, f64> = BTreeMap::new();
    for &(to, weight) in targets.iter().filter(|(_, weight)| *weight > 0) {
        let share = weight as f64 / total;
        if pools.contains(to) {
            *merged.entry(to).or_default() += share;
        }
        for target in table.get(to).unwrap_or_default() {
            *merged.entry(&target.pool).or_default() += share * target.share;
        }
    }
    merged.into_iter().map(|(pool, share)| PoolShare { pool: pool.to_owned(), share }).collect()
}

/// The shortest circle through each alias that is in one; each circle once, from its first name on.
fn circles<'a>(links: &Links<'a>) -> BTreeSet<Vec<&'a str>> {
    links
        .keys()
        .filter_map(|start| shortest_circle(start, links))
        .map(|mut circle| {
            let first = (0..circle.len()).min_by_key(|&at| circle[at]).unwrap_or(0);
            circle.rotate_left(first);
            circle
        })
        .collect()
}

fn shortest_circle<'a>(start: &'a str, links: &Links<'a>) -> Option<Vec<&'a str>> {
    let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut frontier = VecDeque::from([start]);
    while let Some(name) = frontier.pop_front() {
        for &(to, _) in links.get(name)? {
            if to == start {
                let mut circle = vec![name];
                while let Some(before) = came_from.get(circle[circle.len() - 1]) {
                    circle.push(before);
                }
                circle.reverse();
                return Some(circle);
            }
            if links.contains_key(to) && !came_from.contains_key(to) {
                came_from.insert(to, name);
                frontier.push_back(to);
            }
        }
    }
    None
}

fn circle_mistake(circle: &[&str]) -> Mistake {
    let way: Vec<String> = circle.iter().chain(circle.first()).map(|name| format!("`{name}`")).collect();
    Mistake::new(
        KeyPath::ROOT.key("aliases").key(circle[0]),
        format!("these aliases lead in a circle: {}", way.join(" → ")),
        "let one of them name a pool",
    )
}

#[cfg(test)]
mod tests;
