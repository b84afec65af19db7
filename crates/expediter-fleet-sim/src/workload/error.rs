//! What can be wrong with the parameters of a workload.

/// A parameter that gives no workload. The message names the field and what to change.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WorkloadError {
    /// A number outside its range.
    #[error("`{field}` is {value}: give {remedy}")]
    OutOfRange {
        /// The parameter.
        field: &'static str,
        /// What it was.
        value: f64,
        /// What it should be.
        remedy: &'static str,
    },
    /// A list without members.
    #[error("`{field}` is empty: give {remedy}")]
    Empty {
        /// The parameter.
        field: &'static str,
        /// What it should hold.
        remedy: &'static str,
    },
    /// A parameter that the workload does not have.
    #[error("`{workload}` has no parameter `{field}`: choose among {known}")]
    Unknown {
        /// The workload's name.
        workload: &'static str,
        /// The parameter asked for.
        field: String,
        /// Those it has, separated by commas.
        known: String,
    },
    /// Requests too long for the model.
    #[error(
        "request {number} of the trace needs {tokens} tokens, the model takes {limit}: \
         filter by length, or name a longer model"
    )]
    TooLong {
        /// Which request, from 1.
        number: usize,
        /// Its prompt and answer.
        tokens: u64,
        /// The model's length.
        limit: u64,
    },
}

/// A rate is above 0 and not absurd: a million requests a second is a hundred times any fleet here.
pub(super) fn check_rate(field: &'static str, value: f64) -> Result<(), WorkloadError> {
    let remedy = "a number of requests per second above 0, at most 1,000,000";
    check(value > 0.0 && value <= 1e6, field, value, remedy)
}

/// A share or a probability.
pub(super) fn check_share(field: &'static str, value: f64) -> Result<(), WorkloadError> {
    check((0.0..=1.0).contains(&value), field, value, "a share from 0 to 1")
}

/// A count of which there must be at least one.
pub(super) fn check_count(field: &'static str, value: u64) -> Result<(), WorkloadError> {
    check((1..=COUNT_MAX).contains(&value), field, value as f64, "a whole number from 1 to 10,000,000")
}

const COUNT_MAX: u64 = 10_000_000;

pub(super) fn check(
    holds: bool,
    field: &'static str,
    value: f64,
    remedy: &'static str,
) -> Result<(), WorkloadError> {
    if holds { Ok(()) } else { Err(WorkloadError::OutOfRange { field, value, remedy }) }
}
