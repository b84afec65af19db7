//! The tests of the workspace, and all there is together.

use std::time::Duration;

use anyhow::Result;

use crate::stage::Stages;
use crate::static_checks::{BUILD, cargo};
use crate::{engine, install, static_checks};

/// Static checks, the workspace's tests and the real engines. A failed part does not keep the others from running.
///
/// # Errors
/// The first part that failed, after all have run.
pub(crate) fn all(stages: &mut Stages) -> Result<()> {
    let results = [
        static_checks::all(stages),
        workspace(stages),
        pages(stages),
        demo(stages),
        engine::test(stages, &[]),
    ];
    results.into_iter().collect()
}

/// The first thing a newcomer runs: it must start, show something and stop by itself.
fn demo(stages: &mut Stages) -> Result<()> {
    engine::build(stages)?;
    let demo = &["run", "--release", "--locked", "--", "demo", "--duration", "5"];
    stages.run("demo", Duration::from_secs(60), &mut cargo(demo))
}

/// What people look at, drawn by a real browser.
fn pages(stages: &mut Stages) -> Result<()> {
    install::chromium(stages)?;
    let tests =
        &["test", "--locked", "--package", "expediter", "--test", "it", "simulate_page", "--", "--ignored"];
    stages.run_tests("pages in a browser", BUILD, &mut cargo(tests))
}

/// All tests of the workspace's crates, and the examples in their docs.
///
/// # Errors
/// Where a test failed or did not build.
pub(crate) fn workspace(stages: &mut Stages) -> Result<()> {
    let runner: &[&str] = match install::cargo_nextest(stages) {
        Ok(()) => &["nextest", "run", "--workspace", "--locked", "--profile", "ci"],
        Err(error) => {
            eprintln!("cargo-nextest cannot be installed ({error:#}); cargo test runs the tests instead");
            &["test", "--workspace", "--locked", "--no-fail-fast"]
        }
    };
    // The tests' own limits are in .config/nextest.toml; this one is for the build and the whole.
    let tests = stages.run_tests("tests", 2 * BUILD, &mut cargo(runner));
    let examples = stages.run_tests(
        "examples in docs",
        BUILD,
        &mut cargo(&["test", "--doc", "--workspace", "--locked"]),
    );
    tests.and(examples)
}
