//! Runs programs as named stages: each with a time limit, its output shown and kept, its time in the report.
//!
//! A stage that passes its limit is interrupted, then killed with its whole process group, so that nothing it
//! started goes on and CI never hangs.

use std::io::{IsTerminal as _, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::counts::{self, Counts};

/// The stages of one run, in order, with the time each took, and how many tests passed in them.
pub(crate) struct Stages {
    root: PathBuf,
    done: Vec<(String, Duration, bool)>,
    tests: Option<Counts>,
}

impl Stages {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_path_buf(), done: Vec::new(), tests: None }
    }

    /// The workspace's folder, in which every stage runs.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Runs `command` in the workspace's folder.
    ///
    /// # Errors
    /// Where it cannot start, ends with another status than 0, or takes longer than `limit`.
    pub(crate) fn run(&mut self, name: &str, limit: Duration, command: &mut Command) -> Result<()> {
        self.run_kept(name, limit, command).1
    }

    /// Runs a test runner, and adds what its closing lines say to the counts.
    ///
    /// # Errors
    /// As `run`.
    pub(crate) fn run_tests(&mut self, name: &str, limit: Duration, command: &mut Command) -> Result<()> {
        let (output, result) = self.run_kept(name, limit, command);
        let mut counts = counts::read(&output);
        if result.is_err() && counts.failed == 0 {
            counts.failed = 1; // It did not build, or did not end: the closing line must not look green.
        }
        self.tests = Some(self.tests.unwrap_or_default().and(counts));
        result
    }

    fn run_kept(&mut self, name: &str, limit: Duration, command: &mut Command) -> (String, Result<()>) {
        eprintln!("== {name}");
        let start = now();
        let kept = Arc::new(Mutex::new(Vec::new()));
        let result = self
            .run_to_end(limit, command, &kept)
            .and_then(|status| if status.success() { Ok(()) } else { bail!("it ended with {status}") });
        self.done.push((name.to_owned(), now().duration_since(start), result.is_ok()));
        let bytes = kept.lock().unwrap_or_else(PoisonError::into_inner);
        let output = String::from_utf8_lossy(&bytes).into_owned();
        (output, result.with_context(|| format!("stage `{name}` failed")))
    }

    /// Runs a check that is a function of ours as a stage; it fails where the list is not empty.
    pub(crate) fn check(
        &mut self,
        name: &str,
        check: impl FnOnce(&Path) -> Result<Vec<String>>,
    ) -> Result<()> {
        eprintln!("== {name}");
        let start = now();
        let result = check(&self.root).and_then(|violations| {
            for violation in &violations {
                eprintln!("{violation}");
            }
            if violations.is_empty() { Ok(()) } else { bail!("{} found", violations.len()) }
        });
        self.done.push((name.to_owned(), now().duration_since(start), result.is_ok()));
        result.with_context(|| format!("stage `{name}` failed"))
    }

    /// What `command` prints on stdout, without a stage of its own.
    ///
    /// # Errors
    /// Where it cannot start or ends with another status than 0.
    pub(crate) fn capture(&self, command: &mut Command) -> Result<String> {
        let output = command.current_dir(&self.root).stderr(Stdio::inherit()).output();
        let output = output.with_context(|| format!("cannot start {}", show(command)))?;
        if !output.status.success() {
            bail!("{} ended with {}", show(command), output.status);
        }
        String::from_utf8(output.stdout).with_context(|| format!("{} printed no UTF-8", show(command)))
    }

    /// Prints each stage's time, and as the last line how many tests passed.
    pub(crate) fn report(&self) {
        if self.done.is_empty() {
            return;
        }
        eprintln!("\nstage                              seconds");
        for (name, time, passed) in &self.done {
            eprintln!("{name:<33} {:>8.1}{}", time.as_secs_f64(), if *passed { "" } else { "  failed" });
        }
        let total: Duration = self.done.iter().map(|(_, time, _)| *time).sum();
        eprintln!("{:<33} {:>8.1}", "all", total.as_secs_f64());
        if let Some(counts) = self.tests {
            // Nothing is lost where nobody listens any more: the exit status says it too.
            let _ = writeln!(std::io::stdout(), "{}", counts.line());
        }
    }

    fn run_to_end(&self, limit: Duration, command: &mut Command, kept: &Kept) -> Result<ExitStatus> {
        let shown = show(command);
        eprintln!("$ {shown}");
        command.current_dir(&self.root);
        if has_own_group() {
            command.process_group(0);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {shown}"))?;
        let (closed, both_closed) = mpsc::channel();
        if let Some(out) = child.stdout.take() {
            tee(out, std::io::stdout(), Arc::clone(kept), closed.clone());
        }
        if let Some(err) = child.stderr.take() {
            tee(err, std::io::stderr(), Arc::clone(kept), closed.clone());
        }
        drop(closed);
        let status = wait(&mut child, limit);
        // What it left behind may still hold the pipes: take what has come, then let them be.
        let _ = both_closed.recv_timeout(Duration::from_secs(2));
        status
    }
}

/// What a stage has printed so far.
type Kept = Arc<Mutex<Vec<u8>>>;

/// Copies what a child prints to our own output and into `kept`; `closed` is dropped at its end.
fn tee(
    mut from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    kept: Kept,
    closed: mpsc::Sender<()>,
) {
    thread::spawn(move || {
        let _closed = closed;
        let mut buffer = [0; 8192];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let bytes = &buffer[..length];
            kept.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            // Our own output may be a closed pipe (`| head`): the stage goes on regardless.
            let _ = to.write_all(bytes).and_then(|()| to.flush());
        }
    });
}

/// Waits for the child's end; after `limit` interrupts its group, and kills it when that is not enough.
fn wait(child: &mut Child, limit: Duration) -> Result<ExitStatus> {
    if let Some(status) = wait_until(child, limit)? {
        return Ok(status);
    }
    eprintln!("limit of {} s passed", limit.as_secs());
    for signal in ["INT", "TERM"] {
        send(signal, child)?;
        if wait_until(child, GRACE)?.is_some() {
            break;
        }
    }
    // Also where the child itself has ended: what it started may ignore the milder signals.
    send("KILL", child)?;
    wait_until(child, GRACE)?;
    bail!("it did not end within {} s", limit.as_secs())
}

/// Whether a stage is a process group of its own, to be stopped with all that it started. At a terminal it is not:
/// there Ctrl-C must reach it, which goes to our own group.
fn has_own_group() -> bool {
    !std::io::stdin().is_terminal()
}

/// Sends a signal to the child, or its group. The standard library sends none but KILL, and none to a group.
fn send(signal: &str, child: &Child) -> Result<()> {
    let group = if has_own_group() { "-" } else { "" };
    let mut kill = Command::new("kill");
    kill.args(["-s", signal, "--", &format!("{group}{}", child.id())]).stderr(Stdio::null()).status()?;
    Ok(())
}

fn wait_until(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let start = now();
    while now().duration_since(start) < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        pause();
    }
    Ok(None)
}

#[expect(clippy::disallowed_methods, reason = "the one clock of xtask: limits and the time report")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "the standard library waits for a child only without a limit")]
fn pause() {
    thread::sleep(Duration::from_millis(20));
}

fn show(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|argument| argument.to_string_lossy().into_owned()));
    words.join(" ")
}

/// Time for an interrupted stage to stop what it started (real replicas among it).
const GRACE: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    fn stages() -> Stages {
        Stages::new(Path::new("/"))
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn keeps_what_a_stage_prints() {
        let mut command = shell("echo one; echo two >&2");
        let (output, result) = stages().run_kept("print", Duration::from_secs(60), &mut command);
        assert!(result.is_ok() && output.contains("one\n") && output.contains("two\n"), "{output}");
    }

    #[test]
    fn a_status_other_than_0_fails_the_stage() {
        let error = stages().run("fail", Duration::from_secs(60), &mut shell("exit 3"));
        assert!(format!("{:#}", error.expect_err("3 is not 0")).contains("exit status: 3"));
    }

    #[test]
    fn a_runner_that_counts_nothing_and_fails_counts_as_a_failure() {
        let mut stages = stages();
        let result = stages.run_tests("build", Duration::from_secs(60), &mut shell("echo 1 passed; exit 1"));
        assert!(result.is_err());
        assert_eq!(stages.tests, Some(Counts { passed: 0, failed: 1, skipped: 0 }));
    }

    #[test]
    fn a_stage_past_its_limit_is_stopped_with_its_children() {
        let mut stages = stages();
        let error = stages.run("hang", Duration::from_millis(50), &mut shell("sleep 600 & wait"));
        let error = format!("{:#}", error.expect_err("it sleeps longer than its limit"));
        assert!(error.contains("did not end within"), "{error}");
    }
}
