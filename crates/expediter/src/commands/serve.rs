//! `expediter serve`

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Args;
use expediter_gateway::Gateway;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{Source, load, watch};
use crate::logging;

/// Serve OpenAI-compatible requests from a fleet of vLLM replicas.
///
/// With replica URLs as arguments nothing else is needed: the gateway asks each replica for its model and listens
/// on 127.0.0.1:8080. SIGTERM or SIGINT stops it: requests in flight may end within `limits.stop_ms`; a second
/// signal stops it at once. SIGHUP reads the configuration again, as a change of the file does.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Replicas, such as http://gpu1:8000. Their pools are found by asking them for their model.
    #[arg(value_name = "URL")]
    urls: Vec<String>,
    /// The configuration file, in YAML. Its changes are taken over while serving.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A setting on top of the file, such as `limits.gap_ms=30000`. May be repeated.
    #[arg(long = "set", value_name = "PATH=VALUE")]
    sets: Vec<String>,
}

impl Serve {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let source =
            Source { file: self.config, sets: self.sets, urls: self.urls, admin_token: super::admin_token() };
        let loaded = match load(source) {
            Ok(loaded) => loaded,
            Err(problems) => {
                writeln!(std::io::stderr(), "{problems}")?;
                return Ok(ExitCode::FAILURE);
            }
        };
        let log_level = logging::start(loaded.settings.log);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
            let reload = watch(loaded, &tasks, stop.clone()).context("cannot listen for SIGHUP")?;
            let mut levels = reload.clone();
            tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
                while levels.changed().await.is_ok() {
                    let level = levels.borrow_and_update().log.level;
                    log_level.set(level);
                }
            }));
            let gateway = Gateway::start(reload)?;
            stop_signal().await?;
            tokio::select! {
                () = gateway.stop() => {}
                signal = stop_signal() => signal?,
            }
            stop.cancel();
            tasks.close();
            tasks.wait().await;
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// Returns when the process is asked to stop.
async fn stop_signal() -> Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
