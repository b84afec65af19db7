//! Where requests come from. Generators are structs of parameters; `start` takes the seed and gives the requests,
//! or says which parameter gives none. What a generator draws it draws from that seed alone.

use expediter_types::{Arrival, Time};

mod arrivals;
mod capacity;
mod chat_threads;
mod closed_loop;
mod content;
mod draw;
mod error;
mod groups;
mod lengths;
mod rate;
mod replay;
mod sessions;
mod tenants;
#[cfg(test)]
pub(crate) mod testing;

pub use arrivals::{Arrivals, Gaps};
pub use capacity::Capacity;
pub use chat_threads::ChatThreads;
pub use closed_loop::Clients;
pub use error::WorkloadError;
pub use groups::{Groups, Order};
pub use lengths::Lengths;
pub use rate::{Rate, Stage};
pub use replay::{Longer, Pace, Replay};
pub use sessions::{CodeGeneration, Range, Reasoning};
pub use tenants::{Rival, RivalTenants, Tenant, TenantMix};

/// A source of requests. An open loop sends by the clock; a closed loop sends only after an answer.
pub trait Workload {
    /// The next request that is sent whatever becomes of the others, in order of time; `None` when there are no
    /// more.
    fn next(&mut self) -> Option<Arrival>;

    /// The request that was the `nth` to be taken from this source (from 0, `next` and `follow_up` counted
    /// together) has ended at `now`, well or not. What its client sends because of that, at `now` or later.
    fn follow_up(&mut self, _nth: u64, _now: Time) -> Option<Arrival> {
        None
    }
}

/// Requests known beforehand, in order of time.
impl<I: Iterator<Item = Arrival>> Workload for I {
    fn next(&mut self) -> Option<Arrival> {
        Iterator::next(self)
    }
}
