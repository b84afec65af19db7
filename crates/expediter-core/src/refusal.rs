//! Why a request is not served: an answer, not an error. The gateway maps it to a status in one place.

use std::time::Duration;

use crate::failure::Failure;

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No replica is ready, and the request cannot wait for one.
    NoReadyReplica {
        /// When trying again may help.
        retry_after: Duration,
    },
    /// No replica lists the model.
    UnknownModel,
    /// No replica is ready, and as many requests wait for one as may.
    WaitingFull {
        /// When trying again may help.
        retry_after: Duration,
    },
    /// The attempt failed, and the pool's retries are used up: more would turn a fault into an overload.
    RetryBudget {
        /// How the attempt failed.
        last: Failure,
    },
    /// The last attempt failed, and no other may be made: too many were, no replica is left untried, or the
    /// failure is one that trying elsewhere does not cure.
    AttemptsSpent {
        /// How the last attempt failed.
        last: Failure,
    },
    /// Two replicas died while they worked on this request: it is not given to a third.
    Poison,
    /// Every replica that could take the request asked to be left alone.
    Overloaded {
        /// When the first of them may be asked again.
        retry_after: Duration,
    },
}

impl Refusal {
    /// A stable name, for error bodies, metrics and records.
    pub const fn code(self) -> &'static str {
        match self {
            Self::NoReadyReplica { .. } => "no_ready_replica",
            Self::UnknownModel => "model_not_found",
            Self::WaitingFull { .. } => "waiting_full",
            Self::RetryBudget { .. } => "retry_budget",
            Self::AttemptsSpent { .. } => "attempts_spent",
            Self::Poison => "poison",
            Self::Overloaded { .. } => "overloaded",
        }
    }
}
