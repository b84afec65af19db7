//! Faults on demand: the ways in which real engines fail, one at a time.

mod script;

use serde::{Deserialize, Serialize};

use crate::listener::Position;

pub use script::{FaultScript, ScriptError};

/// What is wrong with a replica. As JSON for `POST /fault`: `{"fault":"slow","factor":4.0}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "snake_case")]
pub enum Fault {
    /// Nothing.
    #[default]
    Ok,
    /// The listener is closed, and idle connections with it; what is in flight goes on.
    Refuse,
    /// As a killed process: every port is closed, every connection cut. What comes back is a new process: an empty
    /// engine, counts and KV events from 0, a new start time, the adapters of the settings.
    Crash,
    /// The process is told to stop, and does one of the things that real ones do. What comes back is a new process.
    Terminate {
        /// Which.
        #[serde(default)]
        how: Termination,
    },
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
    /// The next batches of KV events are lost to subscribers; a replay has them. Nothing else is wrong.
    EventGap {
        /// How many.
        batches: u64,
    },
}

/// What becomes of a process that is told to stop. Seen of vLLM 0.32.0 after a SIGTERM: the first three by chance in
/// 5, 1 and 3 of 9 trials, the last with `--shutdown-timeout`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Termination {
    /// The port is closed; every request ends with `finish_reason` `abort`, as if that were an answer.
    #[default]
    Abort,
    /// The port is closed; every request ends with the error of a lost engine process.
    Error,
    /// The port is closed; requests stay open, and nothing comes any more.
    Silence,
    /// The port stays open and `/health` says 200 until the last request has ended. New text is answered with 500,
    /// new token ids not at all.
    Drain,
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
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FaultOrder {
    pub(crate) fault: Fault,
    /// Heals by itself after this time. Needed for what cannot be healed over its own port.
    pub(crate) for_ms: Option<u64>,
}

impl FaultOrder {
    /// Reads `{"fault":…}` with the members of that fault, and `for_ms`.
    pub(crate) fn read(order: serde_json::Value) -> Result<Self, String> {
        let serde_json::Value::Object(mut members) = order else {
            return Err("a fault is an object: {\"fault\":\"slow\",\"factor\":4}".to_owned());
        };
        let for_ms = members.remove("for_ms");
        let for_ms = for_ms
            .map(|ms| {
                ms.as_u64().ok_or_else(|| format!("`for_ms` must be a number of milliseconds, not {ms}"))
            })
            .transpose()?;
        let given: Vec<String> = members.keys().cloned().collect();
        let fault: Fault =
            serde_json::from_value(serde_json::Value::Object(members)).map_err(|error| error.to_string())?;
        if let Some(mistake) = fault.mistake() {
            return Err(mistake.to_owned());
        }
        let known = serde_json::to_value(fault).expect("a fault is valid JSON");
        if let Some(unknown) = given.iter().find(|name| known.get(name.as_str()).is_none()) {
            return Err(format!("unknown field `{unknown}`"));
        }
        if for_ms.is_some() && fault.is_momentary() {
            return Err("`for_ms` means nothing here: this fault is over at once".to_owned());
        }
        Ok(Self { fault, for_ms })
    }
}

impl Fault {
    /// Why this fault cannot be.
    pub(crate) fn mistake(self) -> Option<&'static str> {
        match self {
            Self::Status { status } if !(400..600).contains(&status) => Some("`status` must be 400 to 599"),
            Self::Slow { factor } if !(1e-6..=1e6).contains(&factor) => {
                Some("`factor` must be a positive number, from 0.000001 to 1000000")
            }
            Self::Ok
            | Self::Refuse
            | Self::Crash
            | Self::Terminate { .. }
            | Self::Hang
            | Self::Freeze
            | Self::Status { .. }
            | Self::Cut { .. }
            | Self::Slow { .. }
            | Self::StaleMetrics
            | Self::Unhealthy
            | Self::Abort
            | Self::Error
            | Self::EventGap { .. } => None,
        }
    }

    /// What the port does.
    pub(crate) const fn door(self) -> Position {
        match self {
            Self::Refuse
            | Self::Terminate { how: Termination::Abort | Termination::Error | Termination::Silence } => {
                Position::Closed
            }
            Self::Crash => Position::Cut,
            Self::Ok
            | Self::Terminate { how: Termination::Drain }
            | Self::Hang
            | Self::Freeze
            | Self::Status { .. }
            | Self::Cut { .. }
            | Self::Slow { .. }
            | Self::StaleMetrics
            | Self::Unhealthy
            | Self::Abort
            | Self::Error
            | Self::EventGap { .. } => Position::Open,
        }
    }

    /// Happens and is over, and leaves what else is wrong as it is.
    pub(crate) const fn is_momentary(self) -> bool {
        matches!(self, Self::Abort | Self::Error | Self::EventGap { .. })
    }

    /// After it comes a new process.
    pub(crate) const fn ends_process(self) -> bool {
        matches!(self, Self::Crash | Self::Terminate { .. })
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
        let order = |json: &str| FaultOrder::read(serde_json::from_str(json).expect(json));
        let cases = [
            (r#"{"fault":"ok"}"#, Fault::Ok),
            (r#"{"fault":"status","status":503}"#, Fault::Status { status: 503 }),
            (r#"{"fault":"cut","after":3}"#, Fault::Cut { after: 3, by: CutBy::Fin }),
            (r#"{"fault":"cut","after":3,"by":"rst"}"#, Fault::Cut { after: 3, by: CutBy::Rst }),
            (r#"{"fault":"slow","factor":2.5}"#, Fault::Slow { factor: 2.5 }),
            (r#"{"fault":"stale_metrics"}"#, Fault::StaleMetrics),
            (r#"{"fault":"terminate"}"#, Fault::Terminate { how: Termination::Abort }),
            (r#"{"fault":"terminate","how":"drain"}"#, Fault::Terminate { how: Termination::Drain }),
            (r#"{"fault":"event_gap","batches":2}"#, Fault::EventGap { batches: 2 }),
        ];
        for (json, fault) in cases {
            assert_eq!(order(json), Ok(FaultOrder { fault, for_ms: None }), "{json}");
        }
        let refuse = FaultOrder { fault: Fault::Refuse, for_ms: Some(500) };
        assert_eq!(order(r#"{"fault":"refuse","for_ms":500}"#), Ok(refuse));
        let mistakes = [
            ("[]", "a fault is an object"),
            ("{}", "missing field `fault`"),
            (r#"{"fault":"explode"}"#, "unknown variant `explode`"),
            (r#"{"fault":"slow"}"#, "missing field `factor`"),
            (r#"{"fault":"slow","factor":"x"}"#, "invalid type: string"),
            (r#"{"fault":"slow","factor":0}"#, "`factor` must be a positive number"),
            (r#"{"fault":"status","status":200}"#, "`status` must be 400 to 599"),
            (r#"{"fault":"ok","after":3}"#, "unknown field `after`"),
            (r#"{"fault":"hang","for_ms":-1}"#, "`for_ms` must be a number of milliseconds, not -1"),
            (r#"{"fault":"abort","for_ms":1}"#, "`for_ms` means nothing here"),
        ];
        for (json, start) in mistakes {
            let message = order(json).expect_err(json);
            assert!(message.starts_with(start), "{json}: {message}");
        }
    }
}
