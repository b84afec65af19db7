//! `expediter check FILE`

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use expediter_gateway::settings::Settings;

use crate::config::{Source, load};

/// Check a configuration file: report all its mistakes, each with its place and how to mend it.
///
/// The files that it names (replica files, keys, certificates) are read and checked too; nothing is started.
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The configuration file, in YAML.
    file: PathBuf,
    /// Check the file with this setting on top, as `serve --set`.
    #[arg(long = "set", value_name = "PATH=VALUE")]
    sets: Vec<String>,
}

impl Check {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let file = self.file.display().to_string();
        let source = Source {
            file: Some(self.file),
            sets: self.sets,
            urls: Vec::new(),
            admin_token: super::admin_token(),
        };
        match load(source) {
            Ok(loaded) => {
                writeln!(std::io::stdout(), "{file}: {}", summary(&loaded.settings))?;
                Ok(ExitCode::SUCCESS)
            }
            Err(problems) => {
                writeln!(std::io::stderr(), "{problems}")?;
                Ok(ExitCode::FAILURE)
            }
        }
    }
}

/// What an operator compares with what they meant to write.
fn summary(settings: &Settings) -> String {
    let in_pools: usize = settings.pools.values().map(|pool| pool.replicas.len()).sum();
    let replicas = in_pools + settings.replicas.len();
    let mut summary = format!(
        "no mistakes; {} with {}, {}; clients on {}, operators on {}",
        count(settings.pools.len(), "pool", "pools"),
        count(replicas, "replica", "replicas"),
        count(settings.aliases.iter().count(), "alias", "aliases"),
        settings.listen,
        settings.admin.listen,
    );
    if replicas == 0 {
        summary.push_str(
            "; `serve` needs URLs of replicas as arguments, or an admin token to register them with",
        );
    }
    summary
}

fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}
