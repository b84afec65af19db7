//! How evenly work is spread over replicas.

/// The replicas' shares of the attempts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shares {
    /// The smallest share, 0 to 1.
    pub min: f64,
    /// The largest share, 0 to 1.
    pub max: f64,
    /// Standard deviation ÷ mean: 0 where all have the same.
    pub variation: f64,
}

impl Shares {
    /// `None` where there is nothing to share.
    pub fn of(counts: impl Iterator<Item = u64>) -> Option<Self> {
        let counts: Vec<f64> = counts.map(|count| count as f64).collect();
        let total: f64 = counts.iter().sum();
        if total == 0.0 {
            return None;
        }
        let mean = total / counts.len() as f64;
        let variance = counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / counts.len() as f64;
        Some(Self {
            min: counts.iter().copied().fold(f64::INFINITY, f64::min) / total,
            max: counts.iter().copied().fold(0.0, f64::max) / total,
            variation: variance.sqrt() / mean,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_tell_even_from_uneven() {
        let cases: [(&[u64], Option<[f64; 3]>); 5] = [
            (&[], None),
            (&[0, 0], None),
            (&[5], Some([1.0, 1.0, 0.0])),
            (&[5, 5, 5, 5], Some([0.25, 0.25, 0.0])),
            (&[10, 30], Some([0.25, 0.75, 0.5])),
        ];
        for (counts, expected) in cases {
            let expected = expected.map(|[min, max, variation]| Shares { min, max, variation });
            assert_eq!(Shares::of(counts.iter().copied()), expected, "{counts:?}");
        }
    }
}
