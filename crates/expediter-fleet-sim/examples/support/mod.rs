//! What the examples share: runs, spread over the cores.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use expediter_fleet_sim::{Report, Scenario, Simulation, Workload};

/// Runs a scenario to its end.
pub fn run(scenario: &Scenario, workload: Box<dyn Workload>, seed: u64) -> Report {
    let mut simulation =
        Simulation::new(scenario, workload, seed).expect("the examples' scenarios are sound");
    while simulation.advance(Duration::from_secs(60)) {}
    simulation.report()
}

/// Does `work` for each of `items`, on all cores, and returns the results in order.
pub fn parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let one = || {
        while let Some((index, item)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            items.get(index).map(|item| (index, item))
        } {
            let result = work(item);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
        }
    };
    std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        (0..cores).for_each(|_| drop(scope.spawn(one)));
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}
