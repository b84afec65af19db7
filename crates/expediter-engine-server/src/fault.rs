//! Faults on demand: the ways in which real engines fail, one at a time.

use serde::{Deserialize, Serialize};

/// What is wrong with a replica. As JSON for `POST /fault`: `{"fault":"slow","factor":4.0}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "snake_case")]
pub enum Fault {
    /// Nothing.
    #[default]
    Ok,
    /// The listener is closed, and idle connections with it; what is in flight goes on.
    Refuse,
    /// As a killed process: the listener is closed, every connection cut, the engine empty when it comes back.
    Crash,
    /// Connections are accepted and requests read, but nothing is answered, `/health` neither.
    Hang,
    /// As a stopped engine process: no step ends, `/health` says 200, `/metrics` shows the past.
    Freeze,
    /// Generation is answered with this status.
    Status {
        /// 400 to 599.
        status: u16,
    },
    /// An answer ends after this many events of its stream, or tokens where it is not streamed.
    Cut {
        /// 0 cuts before the first.
        after: u32,
        /// How the connection ends.
        #[serde(default)]
        by: CutBy,
    },
    /// Every step takes this many times as long.
    Slow {
        /// Above 0; 1 is no fault.
        factor: f64,
    },
    /// `/metrics` shows the past, all else works.
    StaleMetrics,
    /// `/health` says 503, all else works.
    Unhealthy,
    /// Every request in the engine ends now with `finish_reason` `abort`, as on a SIGTERM. Nothing stays wrong.
    Abort,
    /// Every request in the engine ends now with the error of a lost engine process. Nothing stays wrong.
    Error,
}

/// How a cut connection ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CutBy {
    /// In order, but without the end of the answer.
    #[default]
    Fin,
    /// By a reset.
    Rst,
}

/// What `POST /fault` takes: a fault, and how long it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub(crate) struct FaultOrder {
    #[serde(flatten)]
    pub(crate) fault: Fault,
    /// Heals by itself after this time. Needed for what cannot be healed over its own port.
    pub(crate) for_ms: Option<u64>,
}

impl Fault {
    /// Why this fault cannot be.
    pub(crate) fn mistake(self) -> Option<&'static str> {
        match self {
            Self::Status { status } if !(400..600).contains(&status) => Some("`status` must be 400 to 599"),
            Self::Slow { factor } if !(factor.is_finite() && factor > 0.0) => {
                Some("`factor` must be a positive number")
            }
            Self::Ok
            | Self::Refuse
            | Self::Crash
            | Self::Hang
            | Self::Freeze
            | Self::Status { .. }
            | Self::Cut { .. }
            | Self::Slow { .. }
            | Self::StaleMetrics
            | Self::Unhealthy
            | Self::Abort
            | Self::Error => None,
        }
    }

    /// Whether the replica takes connections.
    pub(crate) const fn listens(self) -> bool {
        !matches!(self, Self::Refuse | Self::Crash)
    }

    /// Whether `/metrics` shows the past.
    pub(crate) const fn metrics_are_stale(self) -> bool {
        matches!(self, Self::Freeze | Self::StaleMetrics)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_one_line_of_json() {
        let cases = [
            (r#"{"fault":"ok"}"#, Fault::Ok),
            (r#"{"fault":"status","status":503}"#, Fault::Status { status: 503 }),
            (r#"{"fault":"cut","after":3}"#, Fault::Cut { after: 3, by: CutBy::Fin }),
            (r#"{"fault":"cut","after":3,"by":"rst"}"#, Fault::Cut { after: 3, by: CutBy::Rst }),
            (r#"{"fault":"slow","factor":2.5}"#, Fault::Slow { factor: 2.5 }),
            (r#"{"fault":"stale_metrics"}"#, Fault::StaleMetrics),
        ];
        for (json, expected) in cases {
            let order: FaultOrder = serde_json::from_str(json).expect(json);
            assert_eq!((order.fault, order.for_ms), (expected, None), "{json}");
        }
        let order: FaultOrder = serde_json::from_str(r#"{"fault":"refuse","for_ms":500}"#).unwrap();
        assert_eq!((order.fault, order.for_ms), (Fault::Refuse, Some(500)));
        assert!(serde_json::from_str::<FaultOrder>(r#"{"fault":"explode"}"#).is_err());
    }
}
