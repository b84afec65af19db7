//! When a replica that is out of rotation is asked to prove itself, by a tiny request that risks no client's.

use std::time::Duration;

use expediter_types::Time;

use crate::replica::SetAsideCause;
use crate::settings::Settings;

/// The trials of one replica: at most one is under way, and those that fail lie further and further apart.
#[derive(Debug, Default)]
pub(crate) struct Trial {
    /// Until when the trial under way may answer.
    pub(crate) pending: Option<Time>,
    /// When the next one is due.
    pub(crate) due: Time,
    failed_in_row: u32,
    started: Option<Time>,
}

impl Trial {
    /// Trials of a replica that became healthy for the first time, the first of them at once.
    pub(crate) fn begin(now: Time) -> Self {
        Self { due: now, ..Self::default() }
    }

    /// The replica left the rotation. Where it had come back on a trial and never proved it, that trial failed
    /// after all, and the gaps go on growing.
    pub(crate) fn set_aside(&mut self, cause: SetAsideCause, unproven: bool, settings: &Settings, now: Time) {
        self.failed_in_row = if unproven { self.failed_in_row.saturating_add(1) } else { 0 };
        self.due = match cause {
            // The trial waits for health, and comes with it.
            SetAsideCause::Health | SetAsideCause::NoModel => self.earliest(cause, settings, now),
            SetAsideCause::Failing
            | SetAsideCause::Unreachable
            | SetAsideCause::Silent
            | SetAsideCause::Lost => now + self.gap(Some(cause), settings),
        };
    }

    /// Health came back after it had been away: the next trial need not wait out its gap.
    pub(crate) fn hasten(&mut self, cause: Option<SetAsideCause>, settings: &Settings, now: Time) {
        let earliest = cause.map_or(now, |cause| self.earliest(cause, settings, now));
        self.due = self.due.min(earliest);
    }

    /// A trial begins.
    pub(crate) fn start(&mut self, settings: &Settings, now: Time) {
        self.started = Some(now);
        self.pending = Some(now + settings.warm_up_timeout.max(STEP_MIN));
    }

    /// The trial under way failed, or never answered.
    pub(crate) fn fail(&mut self, cause: Option<SetAsideCause>, settings: &Settings, now: Time) {
        self.pending = None;
        self.failed_in_row = self.failed_in_row.saturating_add(1);
        self.due = now + self.gap(cause, settings);
    }

    /// The gap to the next trial after those that failed. A replica that was never ready (no cause) may be
    /// loading weights for long: it is asked at a steady beat.
    fn gap(&self, cause: Option<SetAsideCause>, settings: &Settings) -> Duration {
        let breaker = &settings.breaker;
        let first = breaker.trial.max(STEP_MIN);
        let Some(cause) = cause else { return first };
        let doubled = first.saturating_mul(1 << self.failed_in_row.min(16));
        let gap = doubled.min(breaker.trial_max.max(first));
        if cause == SetAsideCause::Silent && self.failed_in_row > 0 {
            gap.max(settings.silence.trial_gap)
        } else {
            gap
        }
    }

    /// The earliest moment for another trial, whatever health says: a replica whose health flaps is not tried
    /// at every turn.
    fn earliest(&self, cause: SetAsideCause, settings: &Settings, now: Time) -> Time {
        let spacing = match cause {
            SetAsideCause::Silent => settings.silence.trial_gap,
            SetAsideCause::Failing
            | SetAsideCause::Unreachable
            | SetAsideCause::Lost
            | SetAsideCause::Health
            | SetAsideCause::NoModel => settings.breaker.trial,
        };
        self.started.map_or(now, |started| now.max(started + spacing))
    }
}

/// Keeps timers from firing over and over at one moment.
const STEP_MIN: Duration = Duration::from_millis(1);
