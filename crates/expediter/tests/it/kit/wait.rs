//! Waiting for what another process does: conditions with a generous limit, and signals between a
//! test and its scripts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// How long a test waits for something that normally takes milliseconds. Long, because the machine
/// may be busy with other builds; a test that passes never waits for it.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `condition` holds, asking every few milliseconds; fails the test after `limit`.
pub fn eventually(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    eventually_some(limit, what, || condition().then_some(()));
}

/// Waits until `find` finds something, and returns it; fails the test after `limit`.
pub fn eventually_some<T>(limit: Duration, what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Lets a time pass that the case itself asks for (a client that closes "after 1 s"). Never a
/// means to wait for something to happen: that is [`eventually`].
pub fn let_pass(time: Duration) {
    thread::sleep(time);
}

/// The middle of some times. A bound on the median holds on a busy machine where one on the
/// slowest would not.
pub fn median(times: &[Duration]) -> Duration {
    assert!(!times.is_empty(), "the median of nothing");
    let mut times = times.to_vec();
    times.sort_unstable();
    times[times.len() / 2]
}

/// Raises a flag when it is dropped, be it by a failure: so that threads of a scope that wait for the
/// flag end with their test.
pub struct RaiseOnDrop<'a>(pub &'a AtomicBool);

impl Drop for RaiseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Something that happens once: raised by one side, waited for by the other.
#[derive(Clone, Default)]
pub struct Signal(Arc<(Mutex<bool>, Condvar)>);

impl Signal {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn raise(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    pub fn is_raised(&self) -> bool {
        *self.0.0.lock().unwrap()
    }

    /// Waits until it is raised; fails the test after [`PATIENCE`].
    pub fn wait(&self, what: &str) {
        let guard = self.0.0.lock().unwrap();
        let (raised, _) = self.0.1.wait_timeout_while(guard, PATIENCE, |raised| !*raised).unwrap();
        assert!(*raised, "not within {PATIENCE:?}: {what}");
    }
}
