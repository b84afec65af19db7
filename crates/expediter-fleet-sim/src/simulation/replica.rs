//! One replica of the fleet: an engine, the step under way, and what is wrong with it.

use std::time::Duration;

use expediter_engine_sim::{Engine, Settings};
use expediter_types::{EngineReport, Prng, RequestId, Time};

use crate::report::{ReplicaReport, ReplicaSample};

/// A replica.
#[derive(Debug)]
pub(super) struct Replica {
    /// Its pool, by place.
    pub(super) pool: usize,
    pub(super) engine: Engine,
    pub(super) rng: Prng,
    pub(super) condition: Condition,
    /// Whether it is part of the fleet.
    pub(super) present: bool,
    /// Steps begun under another number are void.
    pub(super) epoch: u32,
    /// When the step under way ends.
    pub(super) step_ends: Option<Time>,
    /// What is left of the step that a freeze stopped.
    pub(super) frozen_step: Option<Duration>,
    /// Requests that came while it did not listen to anybody.
    pub(super) unheard: Vec<(RequestId, u32)>,
    /// Shown instead of the truth while reports are stale.
    pub(super) stale: Option<EngineReport>,
    /// When its process started, in seconds of the run.
    pub(super) started_at: f64,
    pub(super) report: ReplicaReport,
    /// Counts of engines that were lost in a crash.
    lost: ReplicaReport,
}

/// What is wrong with a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Condition {
    /// What becomes of connections.
    pub(super) door: Door,
    /// No step ends.
    pub(super) frozen: bool,
    /// Answers to generation carry this status.
    pub(super) status: Option<u16>,
    /// Answers break off after so many tokens.
    pub(super) cut: Option<u64>,
    /// Steps take so many times as long; `None` for the normal time.
    pub(super) slow: Option<f64>,
}

/// What becomes of connections to a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Door {
    /// They are taken and answered.
    #[default]
    Open,
    /// They are refused, while what is in flight goes on.
    Closed,
    /// They are taken, and nothing is answered.
    Mute,
    /// They are refused, for the process is gone.
    Gone,
}

impl Replica {
    pub(super) fn new(pool: usize, settings: Settings, seed: u64, now: Time) -> Self {
        let engine = Engine::new(settings);
        let blocks = engine.stats().blocks;
        Self {
            pool,
            engine,
            rng: Prng::new(seed),
            condition: Condition::default(),
            present: true,
            epoch: 0,
            step_ends: None,
            frozen_step: None,
            unheard: Vec::new(),
            stale: None,
            started_at: seconds(now),
            report: ReplicaReport { blocks, ..ReplicaReport::default() },
            lost: ReplicaReport::default(),
        }
    }

    /// Begins the next step where there is work and nothing hinders it. Returns when it will end.
    pub(super) fn begin_step(&mut self, now: Time) -> Option<Time> {
        if self.step_ends.is_some() || self.condition.frozen || self.condition.door == Door::Gone {
            return None;
        }
        let step = self.engine.begin_step(now, &mut self.rng)?;
        let end = now + step.duration.mul_f64(self.condition.slow.unwrap_or(1.0));
        self.step_ends = Some(end);
        Some(end)
    }

    /// What its metrics say.
    pub(super) fn engine_report(&self) -> EngineReport {
        if let Some(stale) = self.stale {
            return stale;
        }
        let stats = self.engine.stats();
        EngineReport {
            running: Some(stats.running),
            waiting: Some(stats.waiting),
            kv_usage: Some(stats.kv_usage()),
            preemptions: Some(stats.preemptions),
            block_size: Some(self.engine.settings().block_size.0.get()),
            // As the engine counts them, the null block included.
            blocks: Some(stats.blocks.0 + 1),
            progress: stats.steps,
            started_at: Some(self.started_at),
        }
    }

    /// Loses the engine with all it held: what runs there is for the caller to end.
    pub(super) fn lose_engine(&mut self, now: Time) {
        self.lost = self.totals();
        self.engine = Engine::new(self.engine.settings().clone());
        self.started_at = seconds(now);
        self.void_step();
    }

    /// The step under way never ends.
    pub(super) fn void_step(&mut self) {
        self.epoch += 1;
        self.step_ends = None;
        self.frozen_step = None;
    }

    /// What it did over the run.
    pub(super) fn totals(&self) -> ReplicaReport {
        let stats = self.engine.stats();
        ReplicaReport {
            preemptions: self.lost.preemptions + stats.preemptions,
            steps: self.lost.steps + stats.steps,
            ..self.report
        }
    }

    /// How it is at this moment.
    pub(super) fn sample(&self) -> ReplicaSample {
        if !self.present || self.condition.door == Door::Gone {
            return ReplicaSample::default();
        }
        let stats = self.engine.stats();
        let blocks = stats.blocks.0.max(1) as f64;
        ReplicaSample {
            present: true,
            running: u32::try_from(stats.running).unwrap_or(u32::MAX),
            waiting: u32::try_from(stats.waiting).unwrap_or(u32::MAX),
            in_use: ratio(stats.in_use.0 as f64 / blocks),
            resident: ratio(stats.resident.0 as f64 / blocks),
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a share of 0 to 1, for a picture")]
fn ratio(share: f64) -> f32 {
    share as f32
}

fn seconds(at: Time) -> f64 {
    at.since(Time::ZERO).as_secs_f64()
}
