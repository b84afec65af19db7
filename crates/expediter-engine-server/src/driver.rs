//! Where engine-sim meets clock and sockets: one task a replica, with one timer, that ends steps when they are
//! due and passes each token on to the answer it belongs to.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use expediter_engine_sim::{
    ArriveError, Engine, FinishReason, Progress, Request, Settings as EngineSettings, Step,
};
use expediter_types::{Prng, RequestId, Time, Tokens};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::fault::{Fault, Termination};
use crate::kv_events::{Content, Translation};
use crate::metrics::Telemetry;
use crate::replica::Shared;

/// What the driver is told.
#[derive(Debug)]
pub(crate) enum Input {
    /// Whether the queue takes so many sequences of one request.
    Admit { sequences: u64, answer: oneshot::Sender<bool> },
    /// A sequence for the engine; what comes of it goes to `sink`. `content` is there where KV events are published.
    Arrive { request: Request, content: Option<Arc<Content>>, sink: Sink },
    /// Nobody waits for it any more.
    Abort(RequestId),
    /// What is wrong from now on. `done` is answered when it is.
    Fault { fault: Fault, done: oneshot::Sender<()> },
    /// An order of the development mode.
    Develop { order: Develop, answer: oneshot::Sender<bool> },
}

/// What a server in development mode can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Develop {
    /// Begin no step; `keep` what is in the engine, or give it up first.
    Sleep {
        level: u8,
        keep: bool,
    },
    WakeUp,
    /// Answers whether it sleeps.
    IsSleeping,
    /// Answers whether the prefix cache could be emptied.
    ResetPrefixCache,
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
    /// The queue had no room after all.
    Refused,
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
    /// Set while the process drains, until the engine is empty.
    draining: bool,
    /// Told to stop, or killed: what comes next is a new process.
    ended: bool,
    translation: Option<Translation>,
}

/// A sequence in the engine.
struct Open {
    sink: Sink,
    last_token: Time,
}

impl Driver {
    pub(crate) fn new(shared: Arc<Shared>, inputs: mpsc::UnboundedReceiver<Input>, rng: Prng) -> Self {
        let kv_events = shared.settings.kv_events.as_ref();
        let settings = EngineSettings { kv_events: kv_events.is_some(), ..shared.settings.engine.clone() };
        let block_size = settings.block_size.0.get();
        let translation = kv_events.map(|events| Translation::new(block_size, events.hashes));
        Self {
            shared,
            inputs,
            engine: Engine::new(settings),
            translation,
            draining: false,
            ended: false,
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
            if self.draining && self.open.is_empty() {
                self.draining = false;
                self.shared.drained();
            }
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
            Input::Admit { sequences, answer } => _ = answer.send(self.engine.check_queue(sequences).is_ok()),
            Input::Arrive { request, content, sink } => self.arrive(request, content, sink),
            Input::Abort(id) => {
                self.engine.abort(id);
                self.close(id);
            }
            Input::Fault { fault, done } => {
                self.apply(fault);
                _ = done.send(());
            }
            Input::Develop { order, answer } => _ = answer.send(self.develop(order)),
        }
        self.shared.telemetry().stats = self.engine.stats();
    }

    fn arrive(&mut self, request: Request, content: Option<Arc<Content>>, sink: Sink) {
        let (id, index) = (request.id, sink.index);
        let end = match self.engine.arrive(request, self.shared.clock.now()) {
            Ok(()) => {
                self.open.insert(id, Open { sink, last_token: Time::ZERO });
                if let Some((translation, content)) = self.translation.as_mut().zip(content) {
                    translation.arrive(id, content);
                }
                return;
            }
            Err(ArriveError::QueueFull { .. }) => End::Refused,
            // Checked before: the KV cache holds a request of full length, and adapters are known.
            Err(ArriveError::TooLong { .. } | ArriveError::Empty | ArriveError::Adapter) => End::Lost,
        };
        _ = sink.outputs.send(Output { index, produced: 0, cached: 0, end: Some(end) });
    }

    /// Nobody hears of the request any more.
    fn close(&mut self, id: RequestId) -> Option<Open> {
        if let Some(translation) = &mut self.translation {
            translation.leave(id);
        }
        self.open.remove(&id)
    }

    fn apply(&mut self, fault: Fault) {
        match fault {
            Fault::Abort => return self.give_up(End::Finished),
            Fault::Error => return self.give_up(|_| End::Lost),
            Fault::EventGap { batches } => {
                if let Some(events) = &self.shared.events {
                    events.publisher.withhold(batches);
                }
                return;
            }
            Fault::Crash => self.restart(),
            Fault::Terminate { how } => match how {
                Termination::Abort => self.give_up(End::Finished),
                Termination::Error => self.give_up(|_| End::Lost),
                Termination::Silence | Termination::Drain => {}
            },
            Fault::Ok
            | Fault::Refuse
            | Fault::Hang
            | Fault::Freeze
            | Fault::Status { .. }
            | Fault::Cut { .. }
            | Fault::Slow { .. }
            | Fault::StaleMetrics
            | Fault::Unhealthy => {
                if self.ended {
                    self.restart();
                }
            }
        }
        self.ended = fault.ends_process();
        self.draining = fault == Fault::Terminate { how: Termination::Drain };
        self.frozen = fault == Fault::Freeze || (self.ended && !self.draining);
        self.slow = if let Fault::Slow { factor } = fault { factor } else { 1.0 };
    }

    /// A new process. Nobody says goodbye: sinks close, and with them the connections.
    fn restart(&mut self) {
        self.step = None;
        for id in self.open.keys().copied().collect::<Vec<_>>() {
            self.close(id);
        }
        self.engine.restart();
        *self.shared.telemetry() = Telemetry::new(self.shared.clock.unix().as_secs_f64());
        self.shared.adapters.reset(&self.shared.settings.adapters.modules);
        if let Some(events) = &self.shared.events {
            events.publisher.restart();
        }
    }

    fn develop(&mut self, order: Develop) -> bool {
        match order {
            Develop::Sleep { level, keep } => {
                if !keep {
                    self.give_up(End::Finished);
                }
                self.engine.sleep(level);
                self.shared.telemetry().sleep = (level > 0).then_some(level);
                true
            }
            Develop::WakeUp => {
                self.engine.wake_up();
                self.shared.telemetry().sleep = None;
                true
            }
            Develop::IsSleeping => self.engine.is_sleeping(),
            Develop::ResetPrefixCache => self.engine.reset_prefix_cache(),
        }
    }

    fn give_up(&mut self, end: impl Fn(FinishReason) -> End) {
        self.step = None;
        let now = self.shared.clock.now();
        for progress in self.engine.abort_all() {
            let end = end(FinishReason::Abort);
            match end {
                End::Finished(reason) => self.shared.telemetry().count_end(&progress, reason, now),
                End::Lost | End::Refused => self.shared.telemetry().count_failure(),
            }
            if let Some(open) = self.close(progress.id) {
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
        let shared = Arc::clone(&self.shared);
        let mut telemetry = shared.telemetry();
        telemetry.count_step(&step);
        for progress in self.engine.end_step(end) {
            let Some(open) = self.open.get_mut(&progress.id) else { continue };
            telemetry.count_token(&progress, open.last_token, end);
            open.last_token = end;
            send(&open.sink, &progress, progress.end.map(End::Finished));
            if let Some(reason) = progress.end {
                telemetry.count_end(&progress, reason, end);
                self.close(progress.id);
            }
        }
        telemetry.stats = self.engine.stats();
        if self.engine.settings().lora.is_some() {
            let adapters = self.engine.running_adapters();
            let names: Vec<String> = adapters.into_iter().filter_map(|id| shared.adapters.name(id)).collect();
            telemetry.note_adapters(names.join(","), shared.clock.unix().as_secs_f64());
        }
        drop(telemetry);
        self.publish();
    }

    /// What the step that has just ended did to the prefix cache.
    fn publish(&mut self) {
        let (Some(translation), Some(events)) = (&mut self.translation, &self.shared.events) else { return };
        let now = self.shared.clock.unix().as_secs_f64();
        if let Some(batch) = translation.batch(self.engine.kv_events(), now) {
            events.publisher.publish(&batch);
        }
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
