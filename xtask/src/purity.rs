//! What each crate may depend on, and what the pure crates must not use: the invariants that are absences.

use std::collections::BTreeSet;

use crate::tree::{Kind, Tree};

/// One crate, and which of ours it may depend on.
struct Rule {
    package: &'static str,
    may: &'static [&'static str],
    pure: bool,
}

const fn rule(package: &'static str, pure: bool, may: &'static [&'static str]) -> Rule {
    Rule { package, may, pure }
}

/// A crate without a line here may not exist: whoever adds one decides its place first.
const RULES: &[Rule] = &[
    rule("expediter-types", true, &[]),
    rule("expediter-core", true, &["expediter-types"]),
    rule("expediter-engine-sim", true, &["expediter-types"]),
    rule("expediter-wire", false, &["expediter-types"]),
    rule("expediter-fleet-sim", true, &["expediter-types", "expediter-core", "expediter-engine-sim"]),
    rule("expediter-gateway", false, &["expediter-types", "expediter-core", "expediter-wire"]),
    rule("expediter-engine-server", false, &["expediter-types", "expediter-engine-sim", "expediter-wire"]),
    rule(
        "expediter",
        false,
        &[
            "expediter-types",
            "expediter-core",
            "expediter-wire",
            "expediter-engine-sim",
            "expediter-engine-server",
            "expediter-fleet-sim",
            "expediter-gateway",
        ],
    ),
    rule("xtask", false, &[]),
];

/// Clock, sockets, files, logging, ambient randomness and JSON: a pure crate takes `now` and the draws as
/// arguments and returns what happened.
const BANNED: &[&str] = &[
    "async-std",
    "chrono",
    "crossbeam-channel",
    "fastrand",
    "getrandom",
    "hyper",
    "jiff",
    "libc",
    "log",
    "mio",
    "parking_lot",
    "rand",
    "rustls",
    "rustix",
    "serde_json",
    "smol",
    "socket2",
    "time",
    "tokio",
    "tracing",
    "tracing-core",
];

/// Names of the pure crates, for the check of their sources.
pub(crate) fn pure() -> impl Iterator<Item = &'static str> {
    RULES.iter().filter(|rule| rule.pure).map(|rule| rule.package)
}

/// Dependencies among our own crates that point the wrong way.
pub(crate) fn directions(tree: &Tree) -> Vec<String> {
    let mut violations = Vec::new();
    for package in tree.members() {
        let name = &package.name;
        let Some(rule) = RULES.iter().find(|rule| rule.package == name) else {
            violations.push(format!("{name}: has no rule in xtask/src/purity.rs; say there what it may see"));
            continue;
        };
        let may: BTreeSet<&str> = rule.may.iter().copied().collect();
        for other in tree.own_dependencies(package, &[Kind::Normal, Kind::Build]) {
            if !may.contains(other.as_str()) {
                violations.push(format!("{name}: must not depend on {other}"));
            }
        }
        // Tests may use a crate that the code must not, but for these.
        for other in tree.own_dependencies(package, &[Kind::Dev]) {
            let blind = [name.as_str(), other.as_str()];
            let strangers = blind.contains(&"expediter-core") && blind.contains(&"expediter-engine-sim");
            if strangers || other == "expediter" {
                violations.push(format!("{name}: must not depend on {other}, not even in its tests"));
            }
        }
    }
    violations
}

/// Banned packages in the closure of the pure crates, with the chain that brings them in.
pub(crate) fn purity(tree: &Tree) -> Vec<String> {
    let mut violations = Vec::new();
    for package in tree.members().filter(|package| pure().any(|pure| pure == package.name)) {
        for (banned, chain) in tree.closure(package) {
            if BANNED.contains(&banned.as_str()) {
                violations.push(format!("{}: must not use {banned} ({})", package.name, chain.join(" -> ")));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::planted::{Planted, tree};

    #[test]
    fn a_planted_dependency_is_found_at_any_depth() {
        let cases: [(&str, &[Planted], usize); 5] = [
            ("a good tree", &[("expediter-core", "thiserror", "normal")], 0),
            ("direct", &[("expediter-core", "tokio", "normal")], 1),
            ("deep", &[("expediter-types", "innocent", "normal"), ("innocent", "getrandom", "normal")], 1),
            ("only in tests", &[("expediter-core", "tokio", "dev")], 0),
            ("not a pure crate", &[("expediter-gateway", "tokio", "normal")], 0),
        ];
        for (name, links, expected) in cases {
            assert_eq!(purity(&tree(links)).len(), expected, "{name}");
        }
    }

    #[test]
    fn a_violation_names_the_chain() {
        let tree = tree(&[("expediter-engine-sim", "innocent", "normal"), ("innocent", "mio", "normal")]);
        assert_eq!(
            purity(&tree),
            ["expediter-engine-sim: must not use mio (expediter-engine-sim -> innocent -> mio)"]
        );
    }

    #[test]
    fn a_dependency_against_the_direction_is_found() {
        let cases: [(&str, (&str, &str, &str), usize); 7] = [
            ("core sees types", ("expediter-core", "expediter-types", "normal"), 0),
            ("core sees a simulator", ("expediter-core", "expediter-engine-sim", "normal"), 1),
            ("a simulator sees core, in tests", ("expediter-engine-sim", "expediter-core", "dev"), 1),
            ("gateway sees a simulator", ("expediter-gateway", "expediter-engine-server", "normal"), 1),
            ("gateway's tests may", ("expediter-gateway", "expediter-engine-server", "dev"), 0),
            ("nothing sees the binary", ("expediter-wire", "expediter", "dev"), 1),
            ("a build script counts", ("expediter-types", "expediter-wire", "build"), 1),
        ];
        for (name, link, expected) in cases {
            assert_eq!(directions(&tree(&[link])).len(), expected, "{name}");
        }
    }

    #[test]
    fn a_crate_without_a_rule_is_found() {
        let tree = tree(&[("expediter-utils", "thiserror", "normal")]);
        assert_eq!(directions(&tree).len(), 1);
    }
}
