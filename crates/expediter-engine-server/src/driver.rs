//! Where engine-sim meets clock and sockets: one task a replica, with one timer, that ends steps when they are
//! due and passes each token on to the answer it belongs to.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use expediter_engine_sim::{Engine, FinishReason, Progress, Request, Step};
use expediter_types::{Prng, RequestId, Time, Tokens};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::fault::Fault;
use crate::metrics::Telemetry;
use crate::replica::Shared;

/// What the driver is told.
#[derive(Debug)]
pub(crate) enum Input {
    /// A sequence for the engine; what comes of it goes to `sink`.
    Arrive { request: Request, sink: Sink },
    /// Nobody waits for it any more.
    Abort(RequestId),
    /// What is wrong from now on. `done` is answered when it is.
    Fault { fault: Fault, done: oneshot::Sender<()> },
}

/// Where the tokens of a sequence go.
#[derive(Clone, Debug)]
pub(crate) struct Sink {
    /// The choice of the answer.
    pub(crate) index: usize,
    pub(crate) outputs: mpsc::UnboundedSender<Output>,
}

/// What an answer hears of one of its choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Output {
    pub(crate) index: usize,
    /// Tokens so far; without a new one where the engine gave up.
    pub(crate) produced: u64,
    /// Prompt tokens that were cached.
    pub(crate) cached: u64,
    pub(crate) end: Option<End>,
}

/// How a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The engine says so.
    Finished(FinishReason),
    /// The engine is lost.
    Lost,
}

/// Runs one engine. Ends with `stop`.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    inputs: mpsc::UnboundedReceiver<Input>,
    engine: Engine,
    rng: Prng,
    /// The step under way and when it ends.
    step: Option<(Step, Time)>,
    /// When the last step ended, while the engine is busy: the next begins there, not when the timer woke us.
    last_end: Option<Time>,
    open: HashMap<RequestId, Open>,
    frozen: bool,
    slow: f64,
}

/// A sequence in the engine.
struct Open {
    sink: Sink,
    last_token: Time,
}

impl Driver {
    pub(crate) fn new(shared: Arc<Shared>, inputs: mpsc::UnboundedReceiver<Input>, rng: Prng) -> Self {
        let engine = Engine::new(shared.settings.engine.clone());
        Self {
            shared,
            inputs,
            engine,
            rng,
            step: None,
            last_end: None,
            open: HashMap::new(),
            frozen: false,
            slow: 1.0,
        }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            self.advance();
            let due = self.step.filter(|_| !self.frozen).map(|(_, end)| self.shared.clock.instant(end));
            tokio::select! {
                () = stop.cancelled() => return,
                input = self.inputs.recv() => match input {
                    Some(input) => self.handle(input),
                    None => return,
                },
                () = wait_until(due) => {}
            }
            while let Ok(input) = self.inputs.try_recv() {
                self.handle(input);
            }
        }
    }

    fn handle(&mut self, input: Input) {
        match input {
            Input::Arrive { request, sink } => {
                let (id, index) = (request.id, sink.index);
                match self.engine.arrive(request, self.shared.clock.now()) {
                    Ok(()) => _ = self.open.insert(id, Open { sink, last_token: Time::ZERO }),
                    // Checked before: the KV cache holds a request of full length.
                    Err(_) => {
                        _ = sink.outputs.send(Output { index, produced: 0, cached: 0, end: Some(End::Lost) });
                    }
                }
            }
            Input::Abort(id) => {
                self.engine.abort(id);
                self.open.remove(&id);
            }
            Input::Fault { fault, done } => {
                self.apply(fault);
                _ = done.send(());
            }
        }
        self.shared.telemetry().stats = self.engine.stats();
    }

    fn apply(&mut self, fault: Fault) {
        self.frozen = fault == Fault::Freeze;
        self.slow = if let Fault::Slow { factor } = fault { factor } else { 1.0 };
        match fault {
            Fault::Abort => self.give_up(End::Finished),
            Fault::Error => self.give_up(|_| End::Lost),
            // Nobody says goodbye: sinks close, and with them the connections.
            Fault::Crash => {
                self.step = None;
                self.open.clear();
                self.engine = Engine::new(self.shared.settings.engine.clone());
                *self.shared.telemetry() = Telemetry::new(self.shared.clock.unix().as_secs_f64());
            }
            Fault::Ok
            | Fault::Refuse
            | Fault::Hang
            | Fault::Freeze
            | Fault::Status { .. }
            | Fault::Cut { .. }
            | Fault::Slow { .. }
            | Fault::StaleMetrics
            | Fault::Unhealthy => {}
        }
    }

    fn give_up(&mut self, end: impl Fn(FinishReason) -> End) {
        self.step = None;
        let now = self.shared.clock.now();
        for progress in self.engine.abort_all() {
            let end = end(FinishReason::Abort);
            match end {
                End::Finished(reason) => self.shared.telemetry().count_end(&progress, reason, now),
                End::Lost => self.shared.telemetry().count_failure(),
            }
            if let Some(open) = self.open.remove(&progress.id) {
                send(&open.sink, &progress, Some(end));
            }
        }
    }

    /// Ends every step that is due, and begins the next where there is work.
    fn advance(&mut self) {
        if self.frozen {
            return;
        }
        let now = self.shared.clock.now();
        loop {
            match self.step {
                Some((_, end)) if end > now => return,
                Some((step, end)) => self.end_step(step, end),
                None => {}
            }
            // After a rest, and where the machine cannot keep up, it begins now.
            let late = self.shared.clock.engine_time(CATCH_UP);
            let start = self.last_end.filter(|end| now.since(*end) <= late).unwrap_or(now);
            let Some(step) = self.engine.begin_step(start, &mut self.rng) else {
                self.last_end = None;
                return;
            };
            self.step = Some((step, start + step.duration.mul_f64(self.slow)));
        }
    }

    fn end_step(&mut self, step: Step, end: Time) {
        self.step = None;
        self.last_end = Some(end);
        let mut telemetry = self.shared.telemetry();
        telemetry.count_step(&step);
        for progress in self.engine.end_step(end) {
            let Some(open) = self.open.get_mut(&progress.id) else { continue };
            telemetry.count_token(&progress, open.last_token, end);
            open.last_token = end;
            send(&open.sink, &progress, progress.end.map(End::Finished));
            if let Some(reason) = progress.end {
                telemetry.count_end(&progress, reason, end);
                self.open.remove(&progress.id);
            }
        }
        telemetry.stats = self.engine.stats();
    }
}

/// A closed sink is one whose client left: its abort is on the way.
fn send(sink: &Sink, progress: &Progress, end: Option<End>) {
    let (Tokens(produced), Tokens(cached)) = (progress.produced, progress.life.cached);
    _ = sink.outputs.send(Output { index: sink.index, produced, cached, end });
}

async fn wait_until(due: Option<tokio::time::Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Real time by which steps may be late and still begin where the last one ended. Timers of the runtime are late
/// by up to a millisecond, and a busy machine by tens.
const CATCH_UP: Duration = Duration::from_millis(100);
