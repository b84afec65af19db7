//! Reads the gateway twice a second and shows what it read.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::hints::Doors;
use super::history::History;
use super::line::Line;
use super::notices::Notices;
use super::reading::Reading;
use super::screen::{Screen, Terminal, plain, terminal_width, write};
use super::table::View;
use super::traffic::Tally;

/// What is shown, and where it comes from.
pub(crate) struct Show {
    doors: Doors,
    notices: Notices,
    /// None where the user is alone with the gateway.
    tally: Option<watch::Receiver<Tally>>,
    /// Told once, when every replica is ready.
    ready: Option<oneshot::Sender<()>>,
    started: Instant,
    reading: Reading,
    history: History,
}

/// From one reading to the next.
const BEAT: Duration = Duration::from_millis(500);
/// Beats from one table to the next where the old one stays: 5 s.
const BEATS_A_REPORT: u32 = 10;
/// For a reading. Without one, the last stays.
const READING_LIMIT: Duration = Duration::from_secs(2);

impl Show {
    pub(crate) fn new(
        doors: Doors,
        notices: Notices,
        tally: Option<watch::Receiver<Tally>>,
        ready: oneshot::Sender<()>,
    ) -> Self {
        Self {
            doors,
            notices,
            tally,
            ready: Some(ready),
            started: Instant::now(),
            reading: Reading::default(),
            history: History::default(),
        }
    }

    /// Goes on until nobody can see it any more.
    pub(crate) async fn run(&mut self, screen: &mut Screen) -> io::Result<()> {
        let mut suspend = matches!(*screen, Screen::Live(_)).then(|| signal(SignalKind::from_raw(SIGTSTP)));
        let mut suspend = suspend.take().transpose()?;
        let mut beats = interval(BEAT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Skip);
        for beat in 0_u32.. {
            tokio::select! {
                _ = beats.tick() => {}
                () = received(suspend.as_mut()) => screen.suspend(),
            }
            self.read().await;
            match &*screen {
                Screen::Live(terminal) => {
                    let size = terminal.size();
                    put(Terminal::frame(&self.view(|view| view.screen(size)), size)).await?;
                }
                Screen::Plain if beat == 0 => put(plain(&self.view(|view| view.introduction()))).await?,
                Screen::Plain if beat % BEATS_A_REPORT == 0 => put(self.report()).await?,
                Screen::Plain => {}
            }
        }
        Ok(())
    }

    /// The tables as they are at the last reading, without escape codes.
    pub(crate) fn report(&self) -> String {
        plain(&self.view(|view| view.report(terminal_width())))
    }

    /// Asks the gateway.
    pub(crate) async fn read(&mut self) {
        let reading = Reading::take(self.doors.operators, &self.doors.token);
        let problem = match timeout(READING_LIMIT, reading).await {
            Ok(Ok(reading)) => {
                self.history.push(Instant::now(), reading.pools.clone());
                if reading.is_ready()
                    && let Some(ready) = self.ready.take()
                {
                    // Where there is no traffic, nobody waits for it.
                    let _ = ready.send(());
                }
                self.reading = reading;
                return;
            }
            Ok(Err(error)) => format!("cannot read the gateway: {error:#}"),
            Err(_) => "the gateway does not tell its state in time".to_owned(),
        };
        self.notices.push(problem);
    }

    fn view(&self, lines: impl FnOnce(View<'_>) -> Vec<Line>) -> Vec<Line> {
        let tally = self.tally.as_ref().map(|tally| tally.borrow().clone());
        lines(View {
            doors: &self.doors,
            uptime: self.started.elapsed(),
            reading: &self.reading,
            history: &self.history,
            tally: tally.as_ref(),
            notices: &self.notices.recent(Instant::now()),
        })
    }
}

/// Ctrl-Z, by the number it has on every Unix.
const SIGTSTP: i32 = 20;

async fn received(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => _ = signal.recv().await,
        None => std::future::pending().await,
    }
}

/// Writes on a thread that may block: a reader that is in no hurry must not stop the replicas.
pub(crate) async fn put(text: String) -> io::Result<()> {
    spawn_blocking(move || write(&text)).await.unwrap_or(Ok(()))
}
