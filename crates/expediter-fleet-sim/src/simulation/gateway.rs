//! One gateway of the fleet: a dispatcher for each pool, and the deadlines that are set for them.

use expediter_core::{Dispatcher, Output};
use expediter_types::{Prng, Time};

use crate::scenario::Pool;

/// A gateway.
#[derive(Debug)]
pub(super) struct Gateway {
    /// One for each pool, in the order of the scenario.
    pools: Vec<Driven>,
}

#[derive(Debug)]
struct Driven {
    dispatcher: Dispatcher,
    /// The earliest timeout event that is set.
    armed: Option<Time>,
}

impl Gateway {
    pub(super) fn new(pools: &[Pool], rng: &mut Prng) -> Self {
        let driven = |pool: &Pool| Driven {
            dispatcher: Dispatcher::new(pool.dispatcher.clone(), Prng::new(rng.bits())),
            armed: None,
        };
        Self { pools: pools.iter().map(driven).collect() }
    }

    pub(super) fn dispatcher(&mut self, pool: usize) -> &mut Dispatcher {
        &mut self.pools[pool].dispatcher
    }

    /// Requests that wait here for a replica.
    pub(super) fn waiting(&self) -> u64 {
        self.pools.iter().map(|driven| driven.dispatcher.waiting() as u64).sum()
    }

    pub(super) fn poll_output(&mut self, pool: usize) -> Option<Output> {
        self.pools[pool].dispatcher.poll_output()
    }

    /// A timeout event that must be set: the dispatcher's next deadline, where no earlier event is set.
    pub(super) fn arm(&mut self, pool: usize) -> Option<Time> {
        let driven = &mut self.pools[pool];
        let (at, _) = driven.dispatcher.poll_timeout()?;
        if driven.armed.is_some_and(|armed| armed <= at) {
            return None;
        }
        driven.armed = Some(at);
        Some(at)
    }

    /// A timeout event came.
    pub(super) fn timeout(&mut self, pool: usize, now: Time) {
        let driven = &mut self.pools[pool];
        if driven.armed.is_some_and(|armed| armed <= now) {
            driven.armed = None;
        }
        driven.dispatcher.handle_timeout(now);
    }
}
