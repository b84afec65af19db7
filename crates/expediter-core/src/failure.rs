//! Failures of attempts, judged in one table.

use std::time::Duration;

use crate::replica::SetAsideCause;

/// How an attempt at a replica failed. Answers that blame the request (4xx but 429) are answers, not failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No connection: refused, unreachable, or not made in time.
    Connect,
    /// The connection ended before the answer was complete.
    Death,
    /// No output in time, or a gap in a stream that was too long.
    Silent,
    /// A 5xx answer that is not back-pressure, or an error as the first frame of a 200.
    ServerError {
        /// The status of the answer, or the code in the error frame.
        status: u16,
    },
    /// Back-pressure: 429, or a 503 that says the engine is full.
    Overloaded {
        /// How long the replica asked to be left alone, if it did.
        retry_after: Option<Duration>,
    },
    /// A clean-looking end with `finish_reason: "abort"`: the replica is going down.
    Lost,
    /// Bytes that are no answer: no HTTP, impossible framing, garbage.
    Malformed,
}

/// What a failure means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureVerdict {
    /// Whether it counts against the replica.
    pub counts: bool,
    /// Whether another replica may be tried, as long as nothing was sent on to the client.
    pub retry: bool,
    /// Whether the replica may have died of this very request.
    pub death: bool,
    /// Where one such failure is enough to set the replica aside, the cause to name.
    pub sets_aside: Option<SetAsideCause>,
}

impl Failure {
    /// The table: whose fault it is and what follows. The breaker adds up what `counts`.
    pub const fn verdict(self) -> FailureVerdict {
        let counted = FailureVerdict { counts: true, retry: true, death: false, sets_aside: None };
        match self {
            Self::Death => FailureVerdict { death: true, ..counted },
            Self::Silent => FailureVerdict { sets_aside: Some(SetAsideCause::Silent), ..counted },
            // "Not implemented" and "HTTP version not supported" speak of the request: every replica says the same.
            Self::ServerError { status: 501 | 505 } => {
                FailureVerdict { counts: false, retry: false, ..counted }
            }
            Self::Connect | Self::Malformed | Self::ServerError { .. } => counted,
            Self::Overloaded { .. } => FailureVerdict { counts: false, ..counted },
            Self::Lost => FailureVerdict { death: true, sets_aside: Some(SetAsideCause::Lost), ..counted },
        }
    }

    /// A stable name, for metrics and records.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Death => "death",
            Self::Silent => "silent",
            Self::ServerError { .. } => "server_error",
            Self::Overloaded { .. } => "overloaded",
            Self::Lost => "lost",
            Self::Malformed => "malformed",
        }
    }
}
