//! Every decision of Expediter: a state machine without IO.
//!
//! [`Dispatcher`] is the way in; a pool has one. It is told what happens (a request arrives, a replica answers,
//! a probe fails), each time with `now`, and says what to do through [`Dispatcher::poll_output`] and
//! [`Dispatcher::poll_timeout`]. The gateway drives it with sockets and a clock, tests with a list of events in
//! virtual time. Every draw comes from the generator it was made with: one seed and one list of inputs are one
//! history.
//!
//! | module | holds |
//! | --- | --- |
//! | `dispatcher` | the inputs and outputs, and how they move replicas and requests |
//! | `replica` | what is known of one replica, and its states |
//! | `policy` | which of the replicas that qualify is chosen |
//! | `prefix` | which blocks of prompts each replica is likely to hold |
//! | `failure`, `refusal` | the two tables: whose fault a failure is, and what a client is told |
//! | `breaker`, `trial`, `silence`, `retry_budget`, `ledger`, `ttft` | one mechanism each |

mod breaker;
mod decision;
mod dispatcher;
mod failure;
mod ledger;
mod policy;
mod prefix;
mod refusal;
mod replica;
mod retry_budget;
mod settings;
mod silence;
mod timers;
mod trial;
mod ttft;

pub use decision::{Candidate, Decision, Verdict};
pub use dispatcher::{Dispatcher, Output, ProbeFailure, ProbeResult, Request};
pub use failure::{Failure, FailureVerdict};
pub use policy::{
    BoundedHashParameters, Policy, PolicyParameterError, PolicyParameters, ScorerWeights, StickyParameters,
    TreeParameters, UnknownPolicy,
};
pub use refusal::Refusal;
pub use replica::{ReplicaState, ReplicaView, SetAsideCause};
pub use settings::{BreakerSettings, Settings, SilenceSettings};
