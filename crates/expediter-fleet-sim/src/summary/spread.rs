//! How far the runs of several seeds lie apart.

/// One number over the runs of several seeds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The arithmetic mean.
    pub mean: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// The standard deviation of a sample (n − 1 in the denominator); 0 for a single value.
    pub deviation: f64,
}

/// `None` where there are no values.
pub fn spread(values: &[f64]) -> Option<Spread> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (!values.is_empty()).then(|| Spread {
        mean,
        min: values.iter().copied().fold(f64::INFINITY, f64::min),
        max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        deviation: if values.len() == 1 { 0.0 } else { (squares / (count - 1.0)).sqrt() },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_that_of_a_sample() {
        let cases: [(&[f64], Option<[f64; 4]>); 4] = [
            (&[], None),
            (&[3.0], Some([3.0, 3.0, 3.0, 0.0])),
            (&[2.0, 2.0], Some([2.0, 2.0, 2.0, 0.0])),
            (&[1.0, 2.0, 3.0], Some([2.0, 1.0, 3.0, 1.0])),
        ];
        for (values, expected) in cases {
            let expected = expected.map(|[mean, min, max, deviation]| Spread { mean, min, max, deviation });
            assert_eq!(spread(values), expected, "{values:?}");
        }
    }
}
