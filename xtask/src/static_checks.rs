//! The checks that run no test: each is one stage, and a failed one does not keep the others from running.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::install;
use crate::stage::Stages;
use crate::tree::Tree;
use crate::{lines, purity as rules, source, unused};

/// Every static check.
///
/// # Errors
/// The first check that failed, after all have run.
pub(crate) fn all(stages: &mut Stages) -> Result<()> {
    let results = [
        stages.run("format", QUICK, &mut cargo(&["fmt", "--all", "--check"])),
        purity(stages),
        lines(stages),
        unused_dependencies(stages),
        stages.run("clippy", BUILD, &mut cargo(CLIPPY)),
        stages.run("docs", BUILD, cargo(DOC).env("RUSTDOCFLAGS", "-D warnings")),
        generated(stages),
        deny(stages),
    ];
    results.into_iter().collect()
}

/// Which of our crates see which, and what the pure ones must not use.
///
/// # Errors
/// Where there is a violation; each is printed.
pub(crate) fn purity(stages: &mut Stages) -> Result<()> {
    let tree = tree(stages)?;
    let directions = stages.check("dependency directions", |_| Ok(rules::directions(&tree)));
    let purity = stages.check("purity", |root| {
        let mut violations = rules::purity(&tree);
        for package in rules::pure() {
            for file in rust_files(&root.join("crates").join(package).join("src"))? {
                let is_test =
                    file.ends_with("tests.rs") || file.components().any(|part| part.as_os_str() == "tests");
                if !is_test {
                    violations.extend(source::impurities(&shown(root, &file), &read(&file)?));
                }
            }
        }
        Ok(violations)
    });
    let routers = stages.check("one router", |root| {
        let mut files = Vec::new();
        for file in rust_files(&root.join("crates"))? {
            if file.components().any(|part| part.as_os_str() == "src") {
                files.push((shown(root, &file), read(&file)?));
            }
        }
        Ok(source::routers(&files))
    });
    directions.and(purity).and(routers)
}

/// No source file above the limit; prints the longest.
///
/// # Errors
/// Where a file is too long.
pub(crate) fn lines(stages: &mut Stages) -> Result<()> {
    stages.check("lines of source files", |root| {
        let mut files = Vec::new();
        for folder in ["crates", "xtask", "fuzz"] {
            for file in rust_files(&root.join(folder))? {
                files.push((shown(root, &file), read(&file)?.lines().count()));
            }
        }
        for line in lines::longest(&files, 5) {
            eprintln!("{line}");
        }
        Ok(lines::too_long(&files))
    })
}

/// Generated files that differ from what the program prints.
fn generated(stages: &mut Stages) -> Result<()> {
    let fresh = schemas(stages)?;
    stages.check("generated files", |root| {
        let is_stale = |(file, fresh): &&(&str, String)| {
            fs::read_to_string(root.join(file)).map_or(true, |current| current != *fresh)
        };
        let stale = fresh.iter().filter(is_stale);
        let complaint = |(file, _): &(&str, String)| {
            format!("{file}: differs from what the settings say; run `cargo xtask generate`")
        };
        Ok(stale.map(complaint).collect())
    })
}

/// Writes the generated files anew.
///
/// # Errors
/// Where the program does not build, or the files cannot be written.
pub(crate) fn generate(stages: &mut Stages) -> Result<()> {
    for (file, schema) in schemas(stages)? {
        fs::write(stages.root().join(file), schema).with_context(|| format!("cannot write {file}"))?;
    }
    Ok(())
}

/// Each generated file with its text: the JSON Schemas of what people write, for editors.
fn schemas(stages: &mut Stages) -> Result<Vec<(&'static str, String)>> {
    stages.run("build", BUILD, &mut cargo(&["build", "--locked", "--package", "expediter"]))?;
    let program = ["run", "--quiet", "--locked", "--package", "expediter", "--", "schema"];
    let text = |more: &[&str]| stages.capture(&mut cargo(&[&program, more].concat()));
    Ok(vec![
        ("config/expediter.schema.json", text(&[])?),
        ("config/simulate.schema.json", text(&["--simulate"])?),
    ])
}

/// Licences, sources and bans of everything we depend on, by `deny.toml`.
fn deny(stages: &mut Stages) -> Result<()> {
    install::cargo_deny(stages)?;
    let deny = &["deny", "--locked", "--workspace", "check", "bans", "licenses", "sources"];
    stages.run("deny", BUILD, &mut cargo(deny))
}

fn unused_dependencies(stages: &mut Stages) -> Result<()> {
    let tree = tree(stages)?;
    stages.check("unused dependencies", |root| {
        let mut violations = Vec::new();
        let mut manifests = Vec::new();
        for package in tree.members() {
            let manifest = Path::new(&package.manifest);
            let folder = manifest.parent().context("a manifest lies in a folder")?;
            let sources: Vec<String> =
                rust_files(folder)?.iter().map(|file| read(file)).collect::<Result<_>>()?;
            for name in unused::unnamed(&package.declared, &sources) {
                violations.push(format!("{}: {name} is declared and never named", shown(root, manifest)));
            }
            manifests.push(read(manifest)?);
        }
        let root_manifest = read(&root.join("Cargo.toml"))?;
        for name in unused::unclaimed(&root_manifest, &manifests) {
            violations.push(format!("Cargo.toml: no member depends on {name}"));
        }
        Ok(violations)
    })
}

fn tree(stages: &Stages) -> Result<Tree> {
    let metadata = stages.capture(&mut cargo(&["metadata", "--format-version", "1", "--locked"]))?;
    Tree::read(&metadata)
}

/// The cargo that runs us, so that a toolchain chosen on the command line (`cargo +name`) stays chosen.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    command
}

/// Every `.rs` file below `folder`, in order; none where there is no such folder.
fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.with_context(|| format!("cannot list {}", folder.display()))?.path();
            if path.is_dir() && !path.ends_with("target") {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn shown(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

const CLIPPY: &[&str] = &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
const DOC: &[&str] = &["doc", "--workspace", "--no-deps", "--document-private-items", "--locked"];

const QUICK: Duration = Duration::from_secs(120);
/// A clean build of everything takes a few minutes on 2 cores; a machine that is busy may need several times that.
pub(crate) const BUILD: Duration = Duration::from_secs(1200);
