//! `expediter serve`

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use expediter_gateway::Gateway;
use expediter_gateway::settings::Settings;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{Loaded, Source, load, watch};
use crate::logging::{self, LogLevelHandle};

/// Serve OpenAI-compatible requests from a fleet of vLLM replicas.
///
/// With replica URLs as arguments nothing else is needed: the gateway asks each replica for its model and listens
/// on 127.0.0.1:8080. SIGTERM or SIGINT stops it: requests in flight may end within `limits.stop_ms`; a second
/// signal stops it at once. SIGHUP reads the configuration again, as a change of the file does.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Replicas, such as `http://gpu1:8000`. Their pools are found by asking them for their model.
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
        if is_idle(&loaded.settings) {
            bail!(
                "no replicas: give their URLs as arguments, list them under `replicas` or `pools` in the \
                 configuration, or set an admin token to register them with"
            );
        }
        let log_level = logging::start(loaded.settings.log);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let result = runtime.block_on(serve(loaded, log_level));
        // A reading of a file on a dead network mount is not waited for.
        runtime.shutdown_background();
        result.map(|()| ExitCode::SUCCESS)
    }
}

/// Whether there is no replica, and no way for one to come.
fn is_idle(settings: &Settings) -> bool {
    settings.replicas.is_empty() && settings.pools.is_empty() && settings.admin.token.is_none()
}

async fn serve(loaded: Loaded, log_level: LogLevelHandle) -> Result<()> {
    let mut stop_signal = super::StopSignal::new()?;
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let reload = watch(loaded, &tasks, stop.clone()).context("cannot listen for SIGHUP")?;
    let mut levels = reload.clone();
    tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
        while levels.changed().await.is_ok() {
            log_level.set(levels.borrow_and_update().log.level);
        }
    }));
    let gateway = Gateway::start(reload)?;
    stop_signal.received().await;
    tokio::select! {
        () = gateway.stop() => {}
        () = stop_signal.received() => {}
    }
    stop.cancel();
    tasks.close();
    tasks.wait().await;
    Ok(())
}
