//! `expediter schema`

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

/// Print the JSON Schema of the configuration file, for editors and CI.
#[derive(Debug, Args)]
pub(crate) struct Schema {
    /// That of the scenario file of `expediter simulate` instead.
    #[arg(long)]
    simulate: bool,
}

impl Schema {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let schema = if self.simulate { crate::simulate::load::schema() } else { crate::config::schema() };
        let text = serde_json::to_string_pretty(&schema)?;
        writeln!(std::io::stdout(), "{text}")?;
        Ok(ExitCode::SUCCESS)
    }
}
