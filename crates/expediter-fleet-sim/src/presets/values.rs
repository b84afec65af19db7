//! The numbers that a preset is run with.

use std::collections::BTreeMap;

use crate::workload::WorkloadError;

/// A number that a preset can be told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// Its name, in lower case with underscores.
    pub name: &'static str,
    /// What holds where nothing is said.
    pub default: f64,
    /// What it is, with its unit.
    pub about: &'static str,
}

pub(super) const fn parameter(name: &'static str, default: f64, about: &'static str) -> Parameter {
    Parameter { name, default, about }
}

/// A number for each parameter of one preset.
#[derive(Clone, Debug, PartialEq)]
pub struct Values {
    preset: &'static str,
    numbers: BTreeMap<&'static str, f64>,
}

impl Values {
    pub(super) fn new(preset: &'static str, parameters: impl Iterator<Item = &'static Parameter>) -> Self {
        Self { preset, numbers: parameters.map(|parameter| (parameter.name, parameter.default)).collect() }
    }

    /// Sets a parameter. Whether the number can be is seen when the workload starts.
    pub fn set(&mut self, name: &str, number: f64) -> Result<(), WorkloadError> {
        if let Some(slot) = self.numbers.get_mut(name) {
            *slot = number;
            return Ok(());
        }
        let known = self.numbers.keys().copied().collect::<Vec<_>>().join(", ");
        Err(WorkloadError::Unknown { workload: self.preset, field: name.to_owned(), known })
    }

    /// The number of a parameter; `None` where the preset has none of this name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.numbers.get(name).copied()
    }

    /// The number of a parameter that the preset is known to have.
    pub(super) fn number(&self, name: &'static str) -> f64 {
        self.get(name).expect("a preset asks for its own parameters only, and a test starts each")
    }

    /// A whole number from 0 to 4 billion.
    pub(super) fn whole(&self, name: &'static str) -> Result<u32, WorkloadError> {
        let value = self.number(name);
        let fits = value.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&value);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked in the line above"
        )]
        if fits {
            Ok(value as u32)
        } else {
            Err(WorkloadError::OutOfRange { field: name, value, remedy: "a whole number, 0 or more" })
        }
    }

    /// A switch: 0 or 1.
    pub(super) fn switch(&self, name: &'static str) -> Result<bool, WorkloadError> {
        match self.whole(name) {
            Ok(0) => Ok(false),
            Ok(1) => Ok(true),
            Ok(_) | Err(_) => {
                let value = self.number(name);
                Err(WorkloadError::OutOfRange { field: name, value, remedy: "0 for no or 1 for yes" })
            }
        }
    }

    /// Seconds, 0 or more, up to a year.
    pub(super) fn seconds(&self, name: &'static str) -> Result<std::time::Duration, WorkloadError> {
        let value = self.number(name);
        if (0.0..=366.0 * 86_400.0).contains(&value) {
            return Ok(std::time::Duration::from_secs_f64(value));
        }
        Err(WorkloadError::OutOfRange {
            field: name,
            value,
            remedy: "a number of seconds from 0, at most a year",
        })
    }
}
