//! The commands, one module each.

mod check;
mod demo;
mod engine_sim;
mod schema;
mod serve;
mod simulate;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use expediter_gateway::settings::Secret;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// An LLM inference gateway and load balancer in front of vLLM replicas.
#[derive(Debug, Parser)]
#[command(version, about, after_help = EXIT_STATUS)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_STATUS: &str = "Exit status: 0 all went well; 1 the configuration has mistakes, or something failed; \
                           2 the command line cannot be understood.";

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Serve),
    Check(check::Check),
    Schema(schema::Schema),
    EngineSim(Box<engine_sim::EngineSim>),
    Demo(demo::Demo),
    Simulate(Box<simulate::Simulate>),
}

impl Cli {
    /// Runs the command to its end.
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.command {
            Command::Serve(serve) => serve.run(),
            Command::Check(check) => check.run(),
            Command::Schema(schema) => schema.run(),
            Command::EngineSim(engine_sim) => engine_sim.run(),
            Command::Demo(demo) => demo.run(),
            Command::Simulate(simulate) => simulate.run(),
        }
    }
}

/// SIGTERM and SIGINT: the wish that the program stops.
struct StopSignal {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignal {
    /// From now on the signals do not end the process by themselves. Call within a runtime.
    fn new() -> Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    /// Returns at the next one.
    async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// The admin token of the environment. An empty one counts as none: that is how one variable is taken back in a
/// container's environment.
fn admin_token() -> Option<Secret> {
    let token = std::env::var(ADMIN_TOKEN).ok()?;
    (!token.is_empty()).then(|| Secret::new(token))
}

const ADMIN_TOKEN: &str = "EXPEDITER_ADMIN_TOKEN";
