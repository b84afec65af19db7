//! `expediter schema`

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

/// Print the JSON Schema of the configuration file, for editors and CI.
#[derive(Debug, Args)]
pub(crate) struct Schema {}

impl Schema {
    #[expect(clippy::unused_self, reason = "all commands are run alike")]
    pub(crate) fn run(self) -> Result<ExitCode> {
        let text = serde_json::to_string_pretty(&crate::config::schema())?;
        writeln!(std::io::stdout(), "{text}")?;
        Ok(ExitCode::SUCCESS)
    }
}
