//! The commands, one module each.

mod check;
mod schema;
mod serve;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use expediter_gateway::settings::Secret;

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
    Check(check::Check),
    Schema(schema::Schema),
    Serve(serve::Serve),
}

impl Cli {
    /// Runs the command to its end.
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.command {
            Command::Check(check) => check.run(),
            Command::Schema(schema) => schema.run(),
            Command::Serve(serve) => serve.run(),
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
