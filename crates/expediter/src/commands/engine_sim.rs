//! `expediter engine-sim`

mod adapters;
mod kv_events;

use std::io::Write as _;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use expediter_engine_server::{EngineServer, FaultScript, Settings, Termination};
use expediter_engine_sim::{Calibration, Profile, ProfileSet, Scheduling, Settings as EngineSettings};
use expediter_types::{BlockSize, Blocks, Tokens};

use adapters::AdapterArgs;
use kv_events::KvEventsArgs;

use crate::small_file;

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
    /// A table of more profiles, one a line: `name c0 w1 g g0 a k b pp blocks block_bytes`.
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
    /// Requests in a replica, waiting and running, above which it answers 503.
    #[arg(long, value_name = "N")]
    max_num_queued_reqs: Option<u32>,
    /// Prompt tokens of requests without a first token, from which on it answers 503.
    #[arg(long, value_name = "TOKENS")]
    max_num_queued_tokens: Option<u64>,
    /// Streams that are refused begin with status 200, and say so then.
    #[arg(long)]
    late_refusals: bool,
    /// Who goes first.
    #[arg(long, value_name = "POLICY", default_value = "fcfs")]
    scheduling_policy: SchedulingPolicy,
    /// Mean length of answers that end by themselves; left out, every answer runs to its cap.
    #[arg(long, value_name = "TOKENS")]
    answer_tokens_mean: Option<u32>,
    /// Fixes every draw.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    kv_events: KvEventsArgs,
    #[command(flatten)]
    adapters: AdapterArgs,
    /// A key without which everything under `/v1/` is refused. May be given several times.
    #[arg(long = "api-key", value_name = "KEY")]
    api_keys: Vec<String>,
    /// Serve `/sleep`, `/wake_up`, `/is_sleeping` and `/reset_prefix_cache`.
    #[arg(long)]
    dev_mode: bool,
    /// Send `x-request-id` with every answer.
    #[arg(long)]
    request_id_headers: bool,
    /// Faults by script: `[{"at_ms":5000,"replica":0,"fault":"crash","for_ms":2000}, …]`. Faults are also set by
    /// POST to `/fault` and `/faults` of a replica.
    #[arg(long, value_name = "FILE")]
    faults: Option<PathBuf>,
    /// What requests in flight see when the program is told to stop. A second signal ends it at once.
    #[arg(long, value_name = "HOW", default_value = "abort")]
    on_sigterm: OnSigterm,
}

/// `--scheduling-policy`
#[derive(Clone, Copy, Debug, ValueEnum)]
enum SchedulingPolicy {
    Fcfs,
    Priority,
}

/// What real engines were seen to do.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum OnSigterm {
    /// Answers end with `finish_reason` `abort`.
    Abort,
    /// Answers end with an error.
    Error,
    /// Nothing comes any more, for 30 seconds.
    Silence,
    /// They are answered in full, for 30 seconds at most.
    Drain,
}

impl EngineSim {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let how = match self.on_sigterm {
            OnSigterm::Abort => Termination::Abort,
            OnSigterm::Error => Termination::Error,
            OnSigterm::Silence => Termination::Silence,
            OnSigterm::Drain => Termination::Drain,
        };
        let settings = self.settings()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut stop = super::StopSignal::new()?;
            let server = EngineServer::start(settings).await?;
            for address in server.addresses() {
                writeln!(std::io::stdout(), "http://{address}")?;
            }
            stop.received().await;
            tokio::select! {
                () = server.terminate(how, PATIENCE) => {}
                () = stop.received() => {}
            }
            server.shutdown().await;
            Ok(ExitCode::SUCCESS)
        })
    }

    fn settings(self) -> Result<Settings> {
        let defaults = Settings::default();
        let engine = self.engine()?;
        let faults = match &self.faults {
            Some(file) => {
                let text = read(file)?;
                FaultScript::parse(&text).with_context(|| file.display().to_string())?
            }
            None => FaultScript::default(),
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
            kv_events: self.kv_events.settings(),
            adapters: self.adapters.settings(),
            api_keys: self.api_keys,
            dev_mode: self.dev_mode,
            request_id_headers: self.request_id_headers,
            late_refusals: self.late_refusals,
            faults,
        })
    }

    fn engine(&self) -> Result<EngineSettings> {
        let of_profile = EngineSettings::calibrated(&self.calibration()?);
        Ok(EngineSettings {
            blocks: self.blocks.map_or(of_profile.blocks, Blocks),
            block_size: self.block_size.map_or(of_profile.block_size, BlockSize),
            max_num_seqs: self.max_num_seqs.map_or(of_profile.max_num_seqs, NonZeroU32::get),
            max_num_queued_reqs: self.max_num_queued_reqs,
            max_num_queued_tokens: self.max_num_queued_tokens.map(Tokens),
            scheduling: match self.scheduling_policy {
                SchedulingPolicy::Fcfs => Scheduling::Fcfs,
                SchedulingPolicy::Priority => Scheduling::Priority,
            },
            lora: self.adapters.engine(),
            ..of_profile
        })
    }

    /// Of the user's own profiles, or of those that ship.
    fn calibration(&self) -> Result<Calibration> {
        let own = match &self.profiles {
            Some(file) => ProfileSet::parse(&read(file)?).with_context(|| file.display().to_string())?,
            None => ProfileSet::default(),
        };
        let known = own.get(&self.profile).or_else(|| ProfileSet::shipped().get(&self.profile));
        let Some(calibration) = known else {
            let names: Vec<&str> =
                own.iter().chain(ProfileSet::shipped().iter()).map(|known| known.name.as_str()).collect();
            bail!("`{}` is no profile; there are {}", self.profile, names.join(", "));
        };
        Ok(calibration.clone())
    }
}

fn read(file: &Path) -> Result<String> {
    small_file::read(file).with_context(|| format!("cannot read {}", file.display()))
}

/// How long a program that was told to stop waits for its answers.
const PATIENCE: Duration = Duration::from_secs(30);

fn profile_help() -> String {
    let names = Profile::ALL.map(|profile| profile.to_string()).join(", ");
    format!("Model and cards that the timing follows: one of {names}")
}
