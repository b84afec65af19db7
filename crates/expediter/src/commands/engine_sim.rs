//! `expediter engine-sim`

use std::io::Write as _;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use expediter_engine_server::{EngineServer, Settings};
use expediter_engine_sim::{Calibration, Profile, ProfileSet, Settings as EngineSettings};
use expediter_types::{BlockSize, Blocks, Tokens};

/// Run simulated replicas that one can curl: vLLM's HTTP face over a model of its scheduler and its timing.
///
/// Prints the URL of each replica on stdout, one a line, when all listen. SIGTERM or SIGINT stops them.
#[derive(Debug, Args)]
pub(crate) struct EngineSim {
    /// How many replicas, each on a port of its own.
    #[arg(long, value_name = "N", default_value_t = 1)]
    replicas: u16,
    /// The name of the model that they serve.
    #[arg(long, value_name = "NAME", default_value = "tiny")]
    model: String,
    /// Where the first replica listens; the others take the ports after it. With port 0 the system chooses each.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8100")]
    listen: SocketAddr,
    /// Seconds of the simulated engine in one second of the clock.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    speed: f64,
    #[arg(long, value_name = "NAME", default_value = Profile::default().name(), help = profile_help())]
    profile: String,
    /// A table of more profiles, one a line: name c0 w1 g g0 a k b pp blocks block_bytes.
    #[arg(long, value_name = "FILE")]
    profiles: Option<PathBuf>,
    /// KV blocks of each replica; what fits on the profile's cards where it is left out.
    #[arg(long, value_name = "N")]
    blocks: Option<u64>,
    /// Tokens in a KV block.
    #[arg(long, value_name = "TOKENS")]
    block_size: Option<NonZeroU32>,
    /// Most sequences in a batch.
    #[arg(long, value_name = "N")]
    max_num_seqs: Option<NonZeroU32>,
    /// Most tokens of a request, prompt and output together.
    #[arg(long, value_name = "TOKENS")]
    max_model_len: Option<u64>,
    /// Mean length of answers that end by themselves; left out, every answer runs to its cap.
    #[arg(long, value_name = "TOKENS")]
    answer_tokens_mean: Option<u32>,
    /// Fixes every draw.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

impl EngineSim {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let settings = self.settings()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut stop = super::StopSignal::new()?;
            let server = EngineServer::start(settings).await?;
            for address in server.addresses() {
                writeln!(std::io::stdout(), "http://{address}")?;
            }
            stop.received().await;
            server.shutdown().await;
            Ok(ExitCode::SUCCESS)
        })
    }

    fn settings(self) -> Result<Settings> {
        let defaults = Settings::default();
        let of_profile = EngineSettings::calibrated(&calibration(&self.profile, self.profiles.as_deref())?);
        let engine = EngineSettings {
            blocks: self.blocks.map_or(of_profile.blocks, Blocks),
            block_size: self.block_size.map_or(of_profile.block_size, BlockSize),
            max_num_seqs: self.max_num_seqs.map_or(of_profile.max_num_seqs, NonZeroU32::get),
            ..of_profile
        };
        Ok(Settings {
            model: self.model,
            replicas: self.replicas,
            listen: self.listen,
            max_model_len: self.max_model_len.map_or(defaults.max_model_len, Tokens),
            engine,
            speed: self.speed,
            answer_tokens_mean: self.answer_tokens_mean,
            seed: self.seed,
            ..defaults
        })
    }
}

/// The profile of this name: one of the user's table, if it has one, else one that ships with the program.
fn calibration(name: &str, table: Option<&Path>) -> Result<Calibration> {
    let own = match table {
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
            ProfileSet::parse(&text).with_context(|| path.display().to_string())?
        }
        None => ProfileSet::default(),
    };
    if let Some(found) = own.get(name).or_else(|| ProfileSet::shipped().get(name)) {
        return Ok(found.clone());
    }
    let names: Vec<&str> =
        own.iter().chain(ProfileSet::shipped().iter()).map(|one| one.name.as_str()).collect();
    bail!("`{name}` is no profile; there are {}", names.join(", "))
}

fn profile_help() -> String {
    let names = Profile::ALL.map(|profile| profile.to_string()).join(", ");
    format!("Model and cards that the timing follows: one of {names}")
}
