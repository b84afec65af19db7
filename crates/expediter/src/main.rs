//! The program `expediter`: command line, configuration, and the wiring of the parts.
//!
//! Exit status: 0 when all went well; 1 when the configuration has mistakes, or something failed while running;
//! 2 when the command line cannot be understood.

mod commands;
mod config;
mod demo;
mod logging;
mod simulate;
mod small_file;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    match commands::Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("expediter: {error:#}");
            ExitCode::FAILURE
        }
    }
}
