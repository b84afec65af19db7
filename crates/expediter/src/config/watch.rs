//! Loads the configuration again when one of its files changes.
//!
//! The files are read once a second and compared with what was read before. That works where notifications and
//! times of modification do not: on network mounts, on the symlinks of a Kubernetes `ConfigMap`, and for two writes
//! within the granularity of the file system's clock. A configuration is a few kilobytes, so that a reading costs
//! less than watching it cleverly. SIGHUP loads at once.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use expediter_gateway::settings::Settings;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use super::document::Problems;
use super::load::{Contents, FileRole, Inputs, Loaded, Source, check_replica_file, load_from, read};

/// Starts to watch the files of `loaded`, in a task of `tracker` that ends with `stop`. The receiver holds the
/// settings in force: at first those of `loaded`, then whatever was last read without a mistake.
///
/// # Errors
/// Where the process cannot listen for SIGHUP.
pub(crate) fn watch(
    loaded: Loaded,
    tracker: &TaskTracker,
    stop: CancellationToken,
) -> std::io::Result<watch::Receiver<Arc<Settings>>> {
    let hangup = signal(SignalKind::hangup())?;
    let (sender, receiver) = watch::channel(Arc::new(loaded.settings.clone()));
    let watcher = Watcher::new(loaded);
    tracker.spawn(async move { stop.run_until_cancelled(run(watcher, hangup, sender)).await });
    Ok(receiver)
}

/// How often the files are read.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A change counts once two readings this far apart agree: a file may be caught half written.
const SETTLE: Duration = Duration::from_millis(100);

async fn run(mut watcher: Watcher, mut hangup: Signal, sender: watch::Sender<Arc<Settings>>) {
    let mut ticks = interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let trigger = tokio::select! {
            _ = ticks.tick() => Trigger::Tick,
            _ = hangup.recv() => Trigger::Hangup,
        };
        if trigger == Trigger::Tick && !off_the_loop(&mut watcher, Watcher::has_changed).await {
            continue;
        }
        sleep(SETTLE).await;
        let outcome = off_the_loop(&mut watcher, move |watcher| watcher.reload(trigger)).await;
        report(&outcome);
        if let Some(settings) = outcome.into_settings() {
            sender.send_replace(settings);
        }
    }
}

/// Runs `work` on a thread that may block: a network mount can keep a reader waiting for minutes.
async fn off_the_loop<T: Send + 'static>(
    watcher: &mut Watcher,
    work: impl FnOnce(&mut Watcher) -> T + Send + 'static,
) -> T {
    let mut moved = std::mem::take(watcher);
    let task = tokio::task::spawn_blocking(move || (work(&mut moved), moved));
    match task.await {
        Ok((result, moved)) => {
            *watcher = moved;
            result
        }
        // Aborted by the end of the runtime: nobody waits for this any more.
        Err(error) if error.is_cancelled() => std::future::pending().await,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// What makes the watcher look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trigger {
    /// Time passed: only what changed is of interest.
    Tick,
    /// Somebody asked: load whatever is there, and say what came of it.
    Hangup,
}

/// What came of a look at the files.
pub(super) enum Outcome {
    /// They are as before, or changed again while they were looked at.
    Unchanged,
    /// They hold mistakes. The configuration file that was right stays in force; where a file that it names has
    /// changed and is right, with that.
    Refused { problems: Box<Problems>, instead: Option<Arc<Settings>> },
    /// They are right.
    Applied {
        settings: Arc<Settings>,
        /// What changed and takes effect only when the program starts.
        needs_restart: Vec<&'static str>,
        /// Replica files that cannot be used, and why: the list they held before stays.
        stale: Vec<(PathBuf, String)>,
    },
}

impl Outcome {
    /// What is to be in force from now on, if anything new.
    pub(super) fn into_settings(self) -> Option<Arc<Settings>> {
        match self {
            Self::Unchanged => None,
            Self::Refused { instead, .. } => instead,
            Self::Applied { settings, .. } => Some(settings),
        }
    }
}

/// The files, as they were when last looked at.
#[derive(Default)]
pub(super) struct Watcher {
    source: Source,
    /// What the program was started with.
    started: Option<Arc<Settings>>,
    /// The last reading that led to a load, whatever came of it.
    seen: Inputs,
    /// The last reading that differed from `seen`.
    pending: Option<Inputs>,
    /// The last configuration file that was right.
    good_text: Option<Contents>,
    /// The last contents of each replica file that could be used.
    replica_files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Watcher {
    pub(super) fn new(loaded: Loaded) -> Self {
        let Loaded { source, settings, inputs } = loaded;
        let started = Some(Arc::new(settings));
        let mut watcher = Self { source, started, good_text: inputs.text.clone(), ..Self::default() };
        watcher.remember(inputs.files.clone(), inputs);
        watcher
    }

    /// Reads the files, and tells whether they differ from those that were loaded.
    pub(super) fn has_changed(&mut self) -> bool {
        let inputs = self.observe();
        let changed = inputs != self.seen;
        self.pending = changed.then_some(inputs);
        changed
    }

    /// Loads the files, if they have not changed since `has_changed` saw them differ.
    pub(super) fn reload(&mut self, trigger: Trigger) -> Outcome {
        let observed = self.observe();
        if trigger == Trigger::Tick && self.pending.as_ref() != Some(&observed) {
            return Outcome::Unchanged;
        }
        self.pending = None;
        let mut reading = Reading { good: &self.replica_files, now: observed.files, stale: Vec::new() };
        let first = reading.load(&self.source, observed.text.clone());
        let refused = match first {
            Ok(loaded) => {
                let Reading { mut now, stale, .. } = reading;
                now.retain(|path, _| loaded.inputs.files.contains_key(path));
                let started = self.started.as_deref();
                let needs_restart = started.map(|started| started.needs_restart(&loaded.settings));
                let settings = Arc::new(loaded.settings);
                self.good_text.clone_from(&observed.text);
                self.remember(loaded.inputs.files, Inputs { text: observed.text, files: now });
                return Outcome::Applied {
                    settings,
                    needs_restart: needs_restart.unwrap_or_default(),
                    stale,
                };
            }
            Err(problems) => problems,
        };
        let second = (observed.text != self.good_text && reading.now_differs_from(&self.seen.files))
            .then(|| reading.load(&self.source, self.good_text.clone()).ok())
            .flatten();
        let seen = Inputs { text: observed.text, files: reading.now };
        let instead = second.map(|loaded| {
            self.remember(loaded.inputs.files, seen.clone());
            Arc::new(loaded.settings)
        });
        self.seen = seen;
        Outcome::Refused { problems: refused, instead }
    }

    /// Keeps what a load used, for when it cannot be read, and what the files really held, for the comparison with
    /// the next reading.
    fn remember(&mut self, used: BTreeMap<PathBuf, Contents>, seen: Inputs) {
        let usable = used.into_iter().filter(|(_, contents)| check_replica_file(contents).is_ok());
        self.replica_files = usable.filter_map(|(path, contents)| Some((path, contents.ok()?))).collect();
        self.seen = seen;
    }

    /// The present contents of the files that were read last.
    fn observe(&self) -> Inputs {
        Inputs {
            text: self.source.file.as_deref().map(read),
            files: self.seen.files.keys().map(|path| (path.clone(), read(path))).collect(),
        }
    }
}

/// The files as they are now, and what stands in for a replica file that cannot be used.
struct Reading<'a> {
    good: &'a BTreeMap<PathBuf, Vec<u8>>,
    now: BTreeMap<PathBuf, Contents>,
    stale: Vec<(PathBuf, String)>,
}

impl Reading<'_> {
    /// Whether a file that was read before has changed.
    fn now_differs_from(&self, before: &BTreeMap<PathBuf, Contents>) -> bool {
        before.iter().any(|(path, contents)| self.now.get(path) != Some(contents))
    }

    fn load(&mut self, source: &Source, text: Option<Contents>) -> Result<Loaded, Box<Problems>> {
        self.stale.clear();
        load_from(source.clone(), text, &mut |role, path| {
            let now = self.now.entry(path.to_owned()).or_insert_with(|| read(path));
            match (role, self.good.get(path), check_replica_file(now)) {
                (FileRole::Replicas, Some(before), Err(why)) => {
                    self.stale.push((path.to_owned(), why));
                    Ok(before.clone())
                }
                (FileRole::Replicas | FileRole::Other, _, _) => now.clone(),
            }
        })
    }
}

fn report(outcome: &Outcome) {
    match outcome {
        Outcome::Unchanged => {}
        Outcome::Refused { problems, .. } => {
            for line in problems.lines() {
                error!(mistake = line, "configuration refused");
            }
            warn!("the last good configuration stays");
        }
        Outcome::Applied { needs_restart, stale, .. } => {
            for (path, why) in stale {
                warn!(file = %path.display(), why, "replica file cannot be used; its last good list stays");
            }
            if !needs_restart.is_empty() {
                warn!(settings = needs_restart.join(", "), "changed settings need a restart");
            }
            info!("configuration reloaded");
        }
    }
}

#[cfg(test)]
mod tests;
