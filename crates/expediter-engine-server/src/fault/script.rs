//! Faults by script: what goes wrong, and when.

use std::time::Duration;

use serde_json::Value;

use super::FaultOrder;

/// Faults in order of their time. As JSON:
/// `[{"at_ms":0,"fault":"slow","factor":4},{"at_ms":5000,"replica":1,"fault":"crash","for_ms":2000}]`.
///
/// `at_ms` counts real time from the start, whatever `speed` is. `replica` counts from 0; without it all are meant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultScript(Vec<Entry>);

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) at: Duration,
    pub(crate) replica: Option<u16>,
    pub(crate) order: FaultOrder,
}

/// Why a text is no script.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// No JSON, or something else.
    #[error("a script is a JSON list of faults: {0}")]
    NoList(String),
    /// A fault that is none.
    #[error("fault {entry} of the script: {mistake}")]
    Entry {
        /// Its place, from 0.
        entry: usize,
        /// What is wrong.
        mistake: String,
    },
}

impl FaultScript {
    /// Reads a script.
    ///
    /// # Errors
    /// The first mistake, with the place of its fault in the list.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        let list: Vec<Value> =
            serde_json::from_str(text).map_err(|error| ScriptError::NoList(error.to_string()))?;
        let mut entries: Vec<Entry> = Vec::with_capacity(list.len());
        for (place, value) in list.into_iter().enumerate() {
            let wrong = |mistake| ScriptError::Entry { entry: place, mistake };
            let entry = read(value).map_err(wrong)?;
            if let Some(previous) = entries.last().filter(|previous| previous.at > entry.at) {
                let (at, before) = (entry.at.as_millis(), previous.at.as_millis());
                return Err(wrong(format!("`at_ms` {at} is before {before}, that of the fault before it")));
            }
            entries.push(entry);
        }
        Ok(Self(entries))
    }

    /// How many faults there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing goes wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Faults with their place that are for one replica, and for which.
    pub(crate) fn replicas(&self) -> impl Iterator<Item = (usize, u16)> {
        self.0.iter().enumerate().filter_map(|(place, entry)| Some((place, entry.replica?)))
    }

    /// What this replica does, in order of time.
    pub(crate) fn of(&self, replica: u16) -> Vec<Entry> {
        self.0.iter().filter(|entry| entry.replica.is_none_or(|wanted| wanted == replica)).copied().collect()
    }
}

fn read(mut value: Value) -> Result<Entry, String> {
    let mut take = |name: &str| value.as_object_mut().and_then(|members| members.remove(name));
    let (at_ms, replica) = (take("at_ms"), take("replica"));
    let number = |name: &str, value: &Value| {
        value.as_u64().ok_or_else(|| format!("`{name}` must be a whole number, not {value}"))
    };
    let at_ms = number("at_ms", &at_ms.ok_or("`at_ms` is missing")?)?;
    let replica = replica.map(|value| {
        u16::try_from(number("replica", &value)?).map_err(|_| format!("there is no replica {value}"))
    });
    Ok(Entry {
        at: Duration::from_millis(at_ms),
        replica: replica.transpose()?,
        order: FaultOrder::read(value)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Fault;

    #[test]
    fn a_script_is_a_list_in_order_of_time() {
        let script = FaultScript::parse(
            r#"[{"at_ms":0,"fault":"slow","factor":4},{"at_ms":500,"replica":1,"fault":"crash","for_ms":200},
                {"at_ms":500,"fault":"ok"}]"#,
        );
        let script = script.unwrap();
        let of = |replica| script.of(replica).iter().map(|entry| entry.order.fault).collect::<Vec<_>>();
        assert_eq!(of(0), [Fault::Slow { factor: 4.0 }, Fault::Ok]);
        assert_eq!(of(1), [Fault::Slow { factor: 4.0 }, Fault::Crash, Fault::Ok]);
        assert_eq!(script.of(1)[1].at, Duration::from_millis(500));
        assert_eq!(script.replicas().collect::<Vec<_>>(), [(1, 1)]);
    }

    #[test]
    fn a_mistake_is_named_with_its_place() {
        let cases = [
            ("[", "a script is a JSON list of faults: EOF"),
            ("{}", "a script is a JSON list of faults: invalid type: map"),
            ("[7]", "fault 0 of the script: `at_ms` is missing"),
            (r#"[{"fault":"ok"}]"#, "fault 0 of the script: `at_ms` is missing"),
            (
                r#"[{"at_ms":-5,"fault":"ok"}]"#,
                "fault 0 of the script: `at_ms` must be a whole number, not -5",
            ),
            (
                r#"[{"at_ms":5,"fault":"ok"},{"at_ms":4,"fault":"ok"}]"#,
                "fault 1 of the script: `at_ms` 4 is before 5, that of the fault before it",
            ),
            (
                r#"[{"at_ms":0,"fault":"ok","replica":70000}]"#,
                "fault 0 of the script: there is no replica 70000",
            ),
            (r#"[{"at_ms":0,"fault":"explode"}]"#, "fault 0 of the script: unknown variant `explode`"),
            (r#"[{"at_ms":0,"fault":"ok","x":1}]"#, "fault 0 of the script: unknown field `x`"),
        ];
        for (text, start) in cases {
            let message = FaultScript::parse(text).expect_err(text).to_string();
            assert!(message.starts_with(start), "{text}: {message}");
        }
    }
}
