//! Checks and tests of the tree: what CI runs, and what a person runs before sending a change.
//!
//! A check is a function from text (the output of `cargo metadata`, a source file) to a list of violations, so
//! that each has unit tests with planted ones. Only `stage` starts programs and reads the clock.

mod counts;
mod engine;
mod install;
mod lines;
mod purity;
mod source;
mod stage;
mod static_checks;
mod test;
mod tree;
mod unused;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};

use stage::Stages;

const USAGE: &str = "\
cargo xtask <command>

  test         everything: the static checks, all tests of the workspace, and two real vLLM replicas.
               Installs what these need where it is missing, and says what
  ci           the static checks and all tests of the workspace; needs no Python
  check        the static checks: format, clippy, docs, purity, directions, dependencies, lines, generated files
  test-engine  two real vLLM replicas and the stock OpenAI clients against the gateway
  purity       which crates may see which, and what the pure crates must not use
  lines        no source file above the limit; prints the longest
  install      only installs what `test` needs
  generate     writes the generated files of the tree anew

Arguments after `test-engine --` go to pytest, for example: cargo xtask test-engine -- -k faults -x
";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let root = root()?;
    let mut stages = Stages::new(&root);
    let command = arguments.first().map(String::as_str);
    let result = match command {
        Some("test") => test::all(&mut stages),
        Some("ci") => static_checks::all(&mut stages).and_then(|()| test::workspace(&mut stages)),
        Some("check") => static_checks::all(&mut stages),
        Some("test-engine") => engine::test(&mut stages, after_dashes(&arguments)),
        Some("purity") => static_checks::purity(&mut stages),
        Some("lines") => static_checks::lines(&mut stages),
        Some("install") => install::all(&mut stages),
        Some("generate") => static_checks::generate(&mut stages),
        Some(unknown) => bail!("no command `{unknown}`\n\n{USAGE}"),
        None => bail!("which command?\n\n{USAGE}"),
    };
    stages.report();
    result
}

fn after_dashes(arguments: &[String]) -> &[String] {
    let start = arguments.iter().position(|argument| argument == "--").map_or(arguments.len(), |at| at + 1);
    &arguments[start..]
}

/// The workspace's folder: the parent of this crate's.
fn root() -> Result<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(own.parent().context("xtask lies in no workspace")?.to_path_buf())
}
