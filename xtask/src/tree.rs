//! The workspace's dependency graph, read from `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use serde_json::Value;

/// Every package of the resolved graph, by its id.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    packages: BTreeMap<String, Package>,
    members: BTreeSet<String>,
}

/// One package of the graph.
#[derive(Debug, Default)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Path of its `Cargo.toml`.
    pub(crate) manifest: String,
    /// What it declares, whether or not a feature switches it on.
    pub(crate) declared: Vec<String>,
    links: Vec<Link>,
}

#[derive(Debug)]
struct Link {
    to: String,
    kinds: BTreeSet<Kind>,
}

/// What a dependency is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Normal,
    Build,
    Dev,
}

impl Tree {
    /// Reads what `cargo metadata --format-version 1` prints.
    ///
    /// # Errors
    /// Where the text is not of that form.
    pub(crate) fn read(metadata: &str) -> Result<Self> {
        let root: Value = serde_json::from_str(metadata).context("cargo metadata printed no JSON")?;
        let mut tree = Self::default();
        for package in list(&root["packages"], "packages")? {
            let declared = list(&package["dependencies"], "dependencies")?;
            let declared = declared.iter().map(|dependency| {
                // A renamed dependency is known to the code by its new name.
                let renamed = dependency["rename"].as_str();
                renamed.map_or_else(|| text(&dependency["name"], "name"), |name| Ok(name.to_owned()))
            });
            let read = Package {
                name: text(&package["name"], "name")?,
                manifest: text(&package["manifest_path"], "manifest_path")?,
                declared: declared.collect::<Result<_>>()?,
                links: Vec::new(),
            };
            tree.packages.insert(text(&package["id"], "id")?, read);
        }
        for node in list(&root["resolve"]["nodes"], "nodes")? {
            let links = list(&node["deps"], "deps")?.iter().map(read_link).collect::<Result<_>>()?;
            let id = text(&node["id"], "id")?;
            tree.packages.get_mut(&id).with_context(|| format!("{id} is no package"))?.links = links;
        }
        for member in list(&root["workspace_members"], "workspace_members")? {
            tree.members.insert(text(member, "member")?);
        }
        Ok(tree)
    }

    /// The workspace's own packages.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Package> {
        self.members.iter().filter_map(|id| self.packages.get(id))
    }

    /// Names of the workspace's packages that `package` depends on directly, in one of these ways.
    pub(crate) fn own_dependencies(&self, package: &Package, kinds: &[Kind]) -> BTreeSet<String> {
        let links = package.links.iter().filter(|link| self.members.contains(&link.to));
        let links = links.filter(|link| kinds.iter().any(|kind| link.kinds.contains(kind)));
        links.filter_map(|link| self.packages.get(&link.to)).map(|package| package.name.clone()).collect()
    }

    /// Every package that ends up in `package` when it is built as a library, with the chain of names that
    /// leads there. What only its tests or its build script use is not among them.
    pub(crate) fn closure(&self, package: &Package) -> BTreeMap<String, Vec<String>> {
        let mut found = BTreeMap::new();
        let mut open = vec![(package, vec![package.name.clone()])];
        while let Some((package, chain)) = open.pop() {
            for link in package.links.iter().filter(|link| link.kinds.contains(&Kind::Normal)) {
                let Some(next) = self.packages.get(&link.to) else { continue };
                if !found.contains_key(&next.name) {
                    let chain: Vec<String> = chain.iter().cloned().chain([next.name.clone()]).collect();
                    found.insert(next.name.clone(), chain.clone());
                    open.push((next, chain));
                }
            }
        }
        found
    }
}

fn read_link(link: &Value) -> Result<Link> {
    let kinds = list(&link["dep_kinds"], "dep_kinds")?.iter().map(|kind| match kind["kind"].as_str() {
        Some("dev") => Kind::Dev,
        Some("build") => Kind::Build,
        Some(_) | None => Kind::Normal,
    });
    Ok(Link { to: text(&link["pkg"], "pkg")?, kinds: kinds.collect() })
}

fn list<'a>(value: &'a Value, what: &str) -> Result<&'a Vec<Value>> {
    value.as_array().with_context(|| format!("cargo metadata has no list `{what}`"))
}

fn text(value: &Value, what: &str) -> Result<String> {
    Ok(value.as_str().with_context(|| format!("cargo metadata has no text `{what}`"))?.to_owned())
}

#[cfg(test)]
pub(crate) mod planted {
    //! Small graphs to plant violations in.

    use serde_json::json;

    use super::Tree;

    /// A package, what it depends on, and `normal`, `dev` or `build`.
    pub(crate) type Planted = (&'static str, &'static str, &'static str);

    /// A graph of these links; every name that begins with `expediter` is a member of the workspace.
    pub(crate) fn tree(links: &[Planted]) -> Tree {
        let mut names: Vec<&str> = links.iter().flat_map(|(from, to, _)| [*from, *to]).collect();
        names.sort_unstable();
        names.dedup();
        let packages = names.iter().map(|name| {
            let declared =
                links.iter().filter(|(from, ..)| from == name).map(|(_, to, _)| json!({"name": to}));
            let declared: Vec<_> = declared.collect();
            json!({"id": name, "name": name, "manifest_path": name, "dependencies": declared})
        });
        let nodes = names.iter().map(|name| {
            let deps = links.iter().filter(|(from, ..)| from == name).map(|(_, to, kind)| {
                let kind = if *kind == "normal" { json!(null) } else { json!(kind) };
                json!({"pkg": to, "dep_kinds": [{"kind": kind}]})
            });
            json!({"id": name, "deps": deps.collect::<Vec<_>>()})
        });
        let members: Vec<_> = names.iter().filter(|name| name.starts_with("expediter")).collect();
        let metadata = json!({
            "packages": packages.collect::<Vec<_>>(),
            "workspace_members": members,
            "resolve": {"nodes": nodes.collect::<Vec<_>>()},
        });
        Tree::read(&metadata.to_string()).expect("it is of cargo metadata's form")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closure_follows_normal_dependencies_and_names_the_chain() {
        let tree = planted::tree(&[
            ("expediter-core", "thiserror", "normal"),
            ("thiserror", "deep", "normal"),
            ("expediter-core", "proptest", "dev"),
            ("expediter-core", "cc", "build"),
        ]);
        let core = tree.members().next().expect("core is a member");
        let closure = tree.closure(core);
        assert_eq!(closure.keys().collect::<Vec<_>>(), ["deep", "thiserror"]);
        assert_eq!(closure["deep"], ["expediter-core", "thiserror", "deep"]);
    }

    #[test]
    fn what_is_no_metadata_is_refused() {
        for text in ["", "[]", "{}", r#"{"packages": [{}]}"#] {
            assert!(Tree::read(text).is_err(), "{text}");
        }
    }
}
