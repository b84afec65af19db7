//! A fleet in virtual time: the same `Dispatcher` as the gateway's over simulated replicas, driven by one queue
//! of events. No clock, no IO; one seed, one history.
//!
//! | module | holds |
//! | --- | --- |
//! | `scenario` | what is simulated, and what goes wrong |
//! | `workload` | where requests come from |
//! | `report` | what a run brought |

mod report;
mod scenario;
mod workload;

pub use report::{End, PoolReport, ReplicaReport, ReplicaSample, Report, RequestRecord, Sample};
pub use scenario::{Fault, FaultAt, Pool, Scenario, Slo};
pub use workload::Workload;
