//! Counts that were written as doubles.

/// A double as a count: whole, not negative, and small enough (below 2^53) that every count up to it is a double
/// too.
pub(crate) fn count(value: f64) -> Option<u64> {
    let fits = value.fract() == 0.0 && (0.0..9_007_199_254_740_992.0).contains(&value);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked in the line above")]
    fits.then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_counts_count() {
        let cases = [
            (0.0, Some(0)),
            (-0.0, Some(0)),
            (1e3, Some(1_000)),
            (9_007_199_254_740_991.0, Some(9_007_199_254_740_991)),
            (9_007_199_254_740_992.0, None),
            (0.5, None),
            (-1.0, None),
            (f64::NAN, None),
            (f64::INFINITY, None),
        ];
        for (value, expected) in cases {
            assert_eq!(count(value), expected, "{value}");
        }
    }
}
