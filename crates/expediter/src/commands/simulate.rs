//! `expediter simulate`

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::{Value, json};

use crate::config::Overlay;
use crate::demo::line::Line;
use crate::simulate::list;
use crate::simulate::load;
use crate::simulate::outcome::Outcome;
use crate::simulate::output::Output;
use crate::simulate::plan::Plan;
use crate::simulate::progress::{Progress, REDRAW};
use crate::simulate::run::{Runs, Wishes};
use crate::simulate::{json as results, page, table};

/// Simulate a fleet in virtual time: the gateway's own decisions over modelled replicas, many policies side by side.
///
/// Every policy runs at every rate with every seed, spread over all cores. One seed is one history: the same
/// command gives the same numbers on every machine. `--list` shows what can be named here.
#[derive(Debug, Args)]
pub(crate) struct Simulate {
    /// The scenario: a YAML file with the fleet, the workload and what goes wrong.
    #[arg(long, value_name = "FILE", conflicts_with = "workload")]
    scenario: Option<PathBuf>,
    /// A workload by name, on the fleet that it is meant for; `reference` where nothing is said.
    #[arg(long, value_name = "NAME")]
    workload: Option<String>,
    /// Policies to compare; `all` is every one.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    policy: Vec<String>,
    /// Requests per second to offer, one run for each.
    #[arg(long, value_name = "RATE,…", value_delimiter = ',', allow_negative_numbers = true)]
    rate: Vec<f64>,
    /// How many seeds.
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// The first seed.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Time in which requests arrive, such as `90s`.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// The part of it that is not measured, such as `30s`.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    warm_up: Option<Duration>,
    /// Look for the highest rate inside the SLO, by bisection, instead of running given rates.
    #[arg(long)]
    find_ceiling: bool,
    /// Replay a trace on the scenario's fleet.
    #[arg(long, value_name = "FILE", requires = "format", conflicts_with = "workload")]
    trace: Option<PathBuf>,
    /// How the trace is written: `mooncake`, `bailian`, `azure` or `servegen`.
    #[arg(long, value_name = "FORMAT", requires = "trace")]
    format: Option<String>,
    /// A setting of the scenario, over the file's.
    #[arg(long = "set", value_name = "PATH=VALUE")]
    sets: Vec<String>,
    /// Write the results as JSON to this file; `-` is stdout, and the table then goes to stderr.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with charts to this file, whole in itself; to `simulation.html` where neither this nor `--json`
    /// is given.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Show the digest of every run's history; of a search, every rate tried.
    #[arg(long, short)]
    verbose: bool,
    /// List scenarios, workloads with their parameters, policies and profiles.
    #[arg(long, exclusive = true)]
    list: bool,
}

impl Simulate {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if self.list {
            return Ok(told(io::stdout().write_all(list::text().as_bytes()))?);
        }
        let overlay = Overlay { sets: &self.sets, urls: &[], flags: self.flags()? };
        let plan = match load::load(self.scenario.as_deref(), overlay) {
            Ok(plan) => Arc::new(plan),
            Err(problems) => {
                writeln!(io::stderr(), "{problems}")?;
                return Ok(ExitCode::FAILURE);
            }
        };
        if self.find_ceiling && self.rate.len() > 1 {
            anyhow::bail!("--find-ceiling: begins at one --rate, and finds the others itself");
        }
        if let (Some(json), Some(html)) = (&self.json, &self.html)
            && std::path::absolute(json)? == std::path::absolute(html)?
        {
            anyhow::bail!("--json and --html: both name {}; give each a file of its own", json.display());
        }
        if self.find_ceiling && plan.source.load() != Some("rate") {
            anyhow::bail!("--find-ceiling: the workload `{}` has no rate to vary", plan.source.name());
        }
        let json = self.json.as_deref().map(Output::open).transpose()?;
        let html = self.page()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let Some(outcomes) = runtime.block_on(self.simulate(&plan, html.is_some()))? else {
            return Ok(ExitCode::FAILURE);
        };
        if let Some(json) = &json {
            json.write(&format!(
                "{}\n",
                serde_json::to_string_pretty(&results::Results::of(&plan, &outcomes))?
            ))?;
        }
        if let Some(html) = &html {
            html.write(&page::page(&plan, &outcomes, &command_line())?)?;
            if self.html.is_none() {
                writeln!(io::stderr(), "charts: {PAGE}")?;
            }
        }
        let (lines, to_stderr) = (self.lines(&plan, &outcomes), json.is_some_and(|json| json.is_stdout()));
        Ok(told(if to_stderr { show(&lines, &mut io::stderr()) } else { show(&lines, &mut io::stdout()) })?)
    }

    /// Where the page goes. A folder that takes no files only costs the page that nobody asked for.
    fn page(&self) -> Result<Option<Output>> {
        match (&self.html, &self.json) {
            (Some(file), _) => Output::open(file).map(Some),
            (None, Some(_)) => Ok(None),
            (None, None) => Ok(Output::open(Path::new(PAGE)).ok()),
        }
    }

    /// Runs everything; `None` where it was told to stop, which has then been said.
    async fn simulate(&self, plan: &Arc<Plan>, pictures: bool) -> Result<Option<Vec<Outcome>>> {
        let mut stop_signal = super::StopSignal::new()?;
        let wishes = Wishes { ceiling: self.find_ceiling, pictures };
        let mut runs = Runs::start(plan, wishes);
        let (shared, jobs, threads) = (runs.shared.clone(), runs.jobs, runs.threads);
        let all = plan.scenario.duration.saturating_mul(u32::try_from(jobs).unwrap_or(u32::MAX));
        let progress = Progress::new(jobs, (!self.find_ceiling).then_some(all));
        let drawing = async {
            let mut beat = tokio::time::interval(REDRAW);
            loop {
                beat.tick().await;
                progress.draw(&shared);
            }
        };
        let outcomes = tokio::select! {
            outcomes = runs.outcomes() => Some(outcomes),
            () = stop_signal.received() => None,
            () = drawing => None,
        };
        progress.clear();
        shared.stop();
        let Some(outcomes) = outcomes else {
            writeln!(
                io::stderr(),
                "stopped: {} of {jobs} runs had ended, and nothing was written",
                shared.ended()
            )?;
            return Ok(None);
        };
        let (outcomes, took) = (outcomes?, progress.elapsed().as_secs_f64());
        let simulated: f64 = outcomes.iter().map(|outcome| outcome.simulated.as_secs_f64()).sum();
        writeln!(
            io::stderr(),
            "{jobs} {}, {simulated:.0} s of virtual time in {took:.1} s on {threads} {}: {:.0} × real time",
            if jobs == 1 { "run" } else { "runs" },
            if threads == 1 { "core" } else { "cores" },
            simulated / took.max(1e-9),
        )?;
        Ok(Some(outcomes))
    }

    fn lines(&self, plan: &Plan, outcomes: &[Outcome]) -> Vec<Line> {
        if self.find_ceiling {
            table::ceilings(plan, outcomes, self.verbose)
        } else {
            table::table(plan, outcomes, self.verbose)
        }
    }

    /// The flags that stand for settings of the scenario.
    fn flags(&self) -> Result<Vec<(&'static str, &'static str, Value)>> {
        let mut flags: Vec<(&'static str, &'static str, Value)> = Vec::new();
        if let Some(name) = &self.workload {
            flags.push(("--workload", "workload.name", json!(name)));
        }
        if !self.policy.is_empty() {
            flags.push(("--policy", "policies", json!(self.policy)));
        }
        if !self.rate.is_empty() {
            flags.push(("--rate", "rates", json!(self.rate)));
        }
        flags.extend(self.seeds.map(|seeds| ("--seeds", "seeds", json!(seeds))));
        flags.extend(self.seed.map(|seed| ("--seed", "seed", json!(seed))));
        flags.extend(self.duration.map(|time| ("--duration", "duration_ms", millis(time))));
        flags.extend(self.warm_up.map(|time| ("--warm-up", "warm_up_ms", millis(time))));
        if let (Some(file), Some(format)) = (&self.trace, &self.format) {
            // Paths of a scenario are relative to its folder, this one to where the command is given.
            let file = std::path::absolute(file).context("--trace")?;
            flags.push(("--trace", "workload", json!({ "trace": { "file": file, "format": format } })));
            if self.rate.is_empty() {
                flags.push(("--trace", "rates", json!([])));
            }
        }
        Ok(flags)
    }
}

/// The page that is written unasked, in the current folder.
const PAGE: &str = "simulation.html";

fn millis(time: Duration) -> Value {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).into()
}

/// As it was typed, for whoever wants to see the same again.
fn command_line() -> String {
    let program = Path::new("expediter").display().to_string();
    let arguments = std::env::args().skip(1).map(|argument| {
        let plain = |c: char| c.is_alphanumeric() || "-_=.,/:".contains(c);
        if argument.chars().all(plain) { argument } else { format!("'{}'", argument.replace('\'', "'\\''")) }
    });
    std::iter::once(program).chain(arguments).collect::<Vec<_>>().join(" ")
}

fn show(lines: &[Line], out: &mut (impl io::Write + io::IsTerminal)) -> io::Result<()> {
    let styled = out.is_terminal();
    for line in lines {
        let text = if styled { line.styled(usize::MAX) } else { line.plain() };
        writeln!(out, "{}", text.trim_end())?;
    }
    out.flush()
}

/// Whoever closed the output has seen enough.
fn told(written: io::Result<()>) -> io::Result<ExitCode> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        Ok(()) | Err(_) => Ok(ExitCode::SUCCESS),
    }
}
