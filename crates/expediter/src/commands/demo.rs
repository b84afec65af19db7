//! `expediter demo`

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use expediter_gateway::settings::{Secret, Settings};
use expediter_gateway::{Gateway, StartError};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};

use crate::config::{Source, load};
use crate::demo::asks::Asks;
use crate::demo::fleet::Fleet;
use crate::demo::hints::Doors;
use crate::demo::notices::Notices;
use crate::demo::screen::Screen;
use crate::demo::show::{Show, put};
use crate::demo::traffic::{self, Tally};
use crate::logging;

/// Show it at work: a gateway, three pools of simulated replicas, and a modest traffic, in one process.
///
/// Clients are served on 127.0.0.1:8080, or on another port where that is taken; the screen shows what to try. A
/// table is redrawn twice a second; where stdout is no terminal, one is printed every 5 s. Ctrl-C stops it all.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Leave the traffic to the user.
    #[arg(long)]
    no_traffic: bool,
    /// Stop by itself after so many seconds.
    #[arg(long, value_name = "SECONDS")]
    duration: Option<u64>,
    /// Fixes every draw of the traffic and of the simulated replicas.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// A setting of the gateway, as `serve --set`.
    #[arg(long = "set", value_name = "PATH=VALUE")]
    sets: Vec<String>,
}

impl Demo {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let result = runtime.block_on(self.demo());
        // A write to an output that nobody reads is not waited for.
        runtime.shutdown_background();
        result
    }

    async fn demo(self) -> Result<ExitCode> {
        let mut stop_signal = super::StopSignal::new()?;
        let fleet = Fleet::start(self.seed).await?;
        let Some(settings) = self.settings(&fleet)? else { return Ok(ExitCode::FAILURE) };
        let mut screen = Screen::open();
        let notices = Notices::default();
        if screen.shares_stderr() {
            notices.take_log();
        } else {
            logging::start(settings.log);
        }
        let token = settings.admin.token.as_ref().map_or("", Secret::reveal).to_owned();
        // Where its other end is dropped, the gateway only stops to wait for other settings.
        let gateway = self.start_gateway(settings)?;
        let (clients, operators) = (reachable(gateway.address), reachable(gateway.admin_address));

        let (tally_sender, tally) = watch::channel(Tally::default());
        let (ready_sender, ready) = oneshot::channel();
        let mut traffic = JoinSet::new();
        if !self.no_traffic {
            let asks = Asks::new(self.seed);
            traffic.spawn(async move {
                let _ = timeout(READY_LIMIT, ready).await;
                traffic::run(clients, asks, tally_sender).await;
            });
        }
        let doors = Doors { clients, operators, token };
        let mut show = Show::new(doors, notices, (!self.no_traffic).then_some(tally), ready_sender);
        let shown = tokio::select! {
            shown = show.run(&mut screen) => shown,
            () = stop_signal.received() => Ok(()),
            () = ends_after(self.duration) => Ok(()),
        };
        // A terminal that takes no output keeps whoever waits for it.
        let _ = timeout(OUTPUT_LIMIT, spawn_blocking(move || drop(screen))).await;
        let stopping = async {
            let _ = timeout(LAST_READING_LIMIT, show.read()).await;
            traffic.shutdown().await;
            gateway.stop().await;
            fleet.stop().await;
        };
        tokio::select! {
            _ = timeout(STOP_LIMIT, stopping) => {}
            () = stop_signal.received() => {}
        }
        match shown {
            Ok(()) => timeout(OUTPUT_LIMIT, put(show.report())).await.unwrap_or(Ok(()))?,
            // Whoever reads us has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(error) => return Err(error).context("cannot write the table"),
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The settings that the demo is about, with those of the user on top. None where they have mistakes, which
    /// then have been told.
    fn settings(&self, fleet: &Fleet) -> Result<Option<Settings>> {
        let token = super::admin_token().map_or_else(random_token, Ok)?;
        let sets = fleet.settings().into_iter().chain(self.sets.iter().cloned()).collect();
        let source = Source { sets, admin_token: Some(token), ..Source::default() };
        match load(source) {
            Ok(loaded) if loaded.settings.tls.is_none() => Ok(Some(loaded.settings)),
            Ok(_) => bail!("the clients of the demo speak plain HTTP: leave out `tls`"),
            Err(problems) => {
                writeln!(io::stderr(), "{problems}")?;
                Ok(None)
            }
        }
    }

    /// Starts it where the settings say; or beside, where that is taken and the user has not chosen it.
    fn start_gateway(&self, mut settings: Settings) -> Result<Gateway> {
        loop {
            let (_, reload) = watch::channel(Arc::new(settings.clone()));
            let (address, source) = match Gateway::start(reload) {
                Err(StartError::Listen { address, source }) => (address, source),
                started => return Ok(started?),
            };
            let (path, place) = if address == settings.listen {
                ("listen", &mut settings.listen)
            } else {
                ("admin.listen", &mut settings.admin.listen)
            };
            let is_chosen = self.sets.iter().any(|set| set.starts_with(&format!("{path}=")));
            if is_chosen || place.port() == 0 || source.kind() != io::ErrorKind::AddrInUse {
                bail!("cannot listen on {address} ({source}): choose another with --set {path}=127.0.0.1:0");
            }
            place.set_port(0);
            tracing::warn!("{address} is taken: using another port (--set {path}=... chooses one)");
        }
    }
}

/// For the replicas to become ready, before the traffic begins all the same.
const READY_LIMIT: Duration = Duration::from_secs(5);

/// For the numbers of the last table.
const LAST_READING_LIMIT: Duration = Duration::from_millis(300);

/// For all to end in order; what has not then ends with the process.
const STOP_LIMIT: Duration = Duration::from_millis(1_500);

/// For the last that is written.
const OUTPUT_LIMIT: Duration = Duration::from_millis(250);

async fn ends_after(seconds: Option<u64>) {
    match seconds {
        Some(seconds) => sleep(Duration::from_secs(seconds)).await,
        None => std::future::pending().await,
    }
}

/// A token that nobody can guess while the demo runs: 64 bits, short enough to stand in a line of the screen.
fn random_token() -> Result<Secret> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).context("/dev/urandom")?;
    Ok(Secret::new(format!("{:016x}", u64::from_ne_bytes(bytes))))
}

/// Where to connect to what listens on `address`: one that stands for every interface is no destination.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        IpAddr::V4(_) | IpAddr::V6(_) => {}
    }
    address
}
