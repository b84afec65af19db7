//! The highest rate that is sustained, by bisection.

/// Where to look. Rates are in requests per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CeilingSearch {
    /// Tried first; it should be near the ceiling, but need not be.
    pub start: f64,
    /// Lower rates are not tried: where this one is not sustained, none is.
    pub min: f64,
    /// Higher rates are not tried.
    pub max: f64,
    /// The search ends where the lowest rate that failed exceeds the highest one sustained by this share of it.
    pub tolerance: f64,
    /// The most rates that are tried.
    pub tries_max: usize,
}

impl Default for CeilingSearch {
    /// From one request per second, to within 2 %: seeds differ by more.
    fn default() -> Self {
        Self { start: 1.0, min: 1e-3, max: 1e6, tolerance: 0.02, tries_max: 60 }
    }
}

/// What a search found.
#[derive(Clone, Debug, PartialEq)]
pub struct Ceiling {
    /// The highest rate that was sustained; 0 where none was.
    pub rate: f64,
    /// The lowest rate that was not sustained; `None` where even the highest tried was: the ceiling lies above.
    pub failed: Option<f64>,
    /// Every rate tried and whether it was sustained, in order.
    pub tried: Vec<(f64, bool)>,
}

/// Doubles or halves the rate until one is sustained and one is not, then halves the gap between them, on a
/// logarithmic scale, so that the relative error shrinks alike at every scale. Sustaining is taken to be
/// monotonic; where noise makes it not so, the result is one of the places where it changes.
///
/// # Errors
/// The first error of `sustains` ends the search.
pub fn find_ceiling<E>(
    search: &CeilingSearch,
    mut sustains: impl FnMut(f64) -> Result<bool, E>,
) -> Result<Ceiling, E> {
    let mut ceiling = Ceiling { rate: 0.0, failed: None, tried: Vec::new() };
    while ceiling.tried.len() < search.tries_max {
        let Some(rate) = next_rate(search, &ceiling) else { break };
        let sustained = sustains(rate)?;
        ceiling.tried.push((rate, sustained));
        if sustained {
            ceiling.rate = rate;
        } else {
            ceiling.failed = Some(rate);
        }
    }
    Ok(ceiling)
}

/// The rate to try next; `None` where the search is over.
fn next_rate(search: &CeilingSearch, known: &Ceiling) -> Option<f64> {
    let sustained = (known.rate > 0.0).then_some(known.rate);
    match (sustained, known.failed) {
        (None, None) => Some(search.start.clamp(search.min, search.max)),
        (Some(rate), None) => (rate < search.max).then(|| (rate * 2.0).min(search.max)),
        (None, Some(rate)) => (rate > search.min).then(|| (rate / 2.0).max(search.min)),
        (Some(low), Some(high)) => (high > low * (1.0 + search.tolerance)).then(|| (low * high).sqrt()),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    const SEARCH: CeilingSearch =
        CeilingSearch { start: 4.0, min: 0.5, max: 64.0, tolerance: 0.02, tries_max: 40 };

    fn search_for(ceiling: f64, search: &CeilingSearch) -> Ceiling {
        let Ok(found) = find_ceiling(search, |rate| Ok::<_, Infallible>(rate <= ceiling));
        found
    }

    #[test]
    fn a_ceiling_is_found_wherever_it_lies() {
        for ceiling in [0.51, 0.9, 3.99, 4.0, 4.01, 7.4, 33.3, 63.0] {
            let found = search_for(ceiling, &SEARCH);
            let failed = found.failed.unwrap();
            assert!(found.rate <= ceiling && ceiling < failed, "{ceiling}: {found:?}");
            assert!(failed <= found.rate * 1.02, "{ceiling}: {found:?}");
            assert!(found.tried.len() <= 14, "{ceiling}: {} tries", found.tried.len());
        }
    }

    #[test]
    fn the_limits_of_a_search_show_in_its_result() {
        // (ceiling, tries allowed, rate, failed, tries made)
        let cases = [
            (0.1, 40, 0.0, Some(0.5), 4),
            (100.0, 40, 64.0, None, 5),
            (64.0, 40, 64.0, None, 5),
            (20.0, 4, 16.0, Some(32.0), 4),
            (20.0, 0, 0.0, None, 0),
        ];
        for (ceiling, tries_max, rate, failed, tries) in cases {
            let found = search_for(ceiling, &CeilingSearch { tries_max, ..SEARCH });
            assert_eq!((found.rate, found.failed, found.tried.len()), (rate, failed, tries), "{ceiling}");
        }
    }

    #[test]
    fn a_start_outside_the_limits_begins_at_the_nearer_one() {
        for (start, first) in [(0.01, 0.5), (1e9, 64.0)] {
            let found = search_for(8.0, &CeilingSearch { start, ..SEARCH });
            assert_eq!(found.tried.first().map(|(rate, _)| *rate), Some(first));
        }
    }

    #[test]
    fn an_error_ends_the_search() {
        let mut tries = 0;
        let found = find_ceiling(&SEARCH, |_| {
            tries += 1;
            if tries == 3 { Err("stopped") } else { Ok(true) }
        });
        assert_eq!((found, tries), (Err("stopped"), 3));
    }
}
