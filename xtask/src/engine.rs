//! Two real vLLM replicas and the stock clients against the gateway: `tests/engine`, run by pytest.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::install;
use crate::stage::Stages;
use crate::static_checks::{BUILD, cargo};

/// Builds the program as users do.
///
/// # Errors
/// Where it does not build.
pub(crate) fn build(stages: &mut Stages) -> Result<()> {
    stages.run(
        "build for release",
        BUILD,
        &mut cargo(&["build", "--release", "--locked", "--package", "expediter"]),
    )
}

/// Builds the program, installs engine and clients where missing, and runs the tests.
/// `arguments` go to pytest.
///
/// # Errors
/// Where something cannot be installed, or a test failed.
pub(crate) fn test(stages: &mut Stages, arguments: &[String]) -> Result<()> {
    build(stages)?;
    install::clients(stages)?;
    install::engine(stages)?;
    let cache = install::cache()?;
    let venv = cache.join("clients/venv/bin");
    let mut pytest = Command::new(venv.join("python"));
    pytest.args(["-m", "pytest", "tests/engine"]).args(arguments);
    pytest.env("PATH", install::path_with(&venv)).env("EXPEDITER_CACHE", &cache);
    stages.run_tests("tests with real engines", LIMIT, &mut pytest)
}

/// They take about five minutes on 2 idle cores.
const LIMIT: Duration = Duration::from_secs(1500);
