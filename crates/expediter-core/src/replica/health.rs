//! What the probes of a replica say, added up.

use super::SetAsideCause;
use crate::dispatcher::ProbeFailure;

/// Probes in a row that failed, by what they say: a port that refuses is down, a list without models serves
/// nobody, but a probe without an answer may only mean that the engine is busy.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Whether the last probe succeeded.
    well: bool,
    down_in_row: u32,
    no_model_in_row: u32,
    silent_in_row: u32,
    /// Whether a probe failed since the replica last changed its place.
    was_unwell: bool,
}

impl Health {
    /// A probe succeeded. Returns `true` where one had failed since the replica was set aside.
    pub(crate) fn succeed(&mut self) -> bool {
        let was_unwell = self.was_unwell;
        *self = Self { well: true, ..Self::default() };
        was_unwell
    }

    /// A probe failed. Returns the cause if a ready replica is to be set aside for it; `alive` says that it
    /// showed life a moment ago.
    pub(crate) fn fail(
        &mut self,
        failure: ProbeFailure,
        alive: bool,
        silent_max: u32,
    ) -> Option<SetAsideCause> {
        self.well = false;
        self.was_unwell = true;
        match failure {
            ProbeFailure::Refused | ProbeFailure::Status(_) => {
                self.down_in_row = self.down_in_row.saturating_add(1);
                (self.down_in_row >= DOWN_IN_ROW_MAX).then_some(SetAsideCause::Health)
            }
            ProbeFailure::NoModel | ProbeFailure::Malformed => {
                self.no_model_in_row = self.no_model_in_row.saturating_add(1);
                (self.no_model_in_row >= DOWN_IN_ROW_MAX).then_some(SetAsideCause::NoModel)
            }
            ProbeFailure::Silent => {
                self.silent_in_row = self.silent_in_row.saturating_add(1);
                (self.silent_in_row >= silent_max && !alive).then_some(SetAsideCause::Health)
            }
        }
    }

    /// The replica changed its place: what came before says nothing of how it will do there.
    pub(crate) fn begin(&mut self) {
        *self = Self { well: self.well, was_unwell: !self.well, ..Self::default() };
    }

    /// Whether the last probe succeeded.
    pub(crate) fn is_well(&self) -> bool {
        self.well
    }
}

/// One failure may be chance or a restart of the probe's own connection; two are not.
const DOWN_IN_ROW_MAX: u32 = 2;
