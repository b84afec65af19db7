//! A fleet in virtual time: the same `Dispatcher` as the gateway's over simulated replicas, driven by one queue
//! of events. No clock, no IO; one seed, one history.
//!
//! | module | holds |
//! | --- | --- |
//! | `scenario` | what is simulated, and what goes wrong |
//! | `workload` | where requests come from |
//! | `presets` | fleets and workloads that have a name |
//! | `report` | what a run brought |
//! | `summary` | what that amounts to |
//! | `ceiling` | the highest rate that is sustained |
//! | `simulation` | the run itself |

mod ceiling;
pub mod presets;
mod report;
mod scenario;
mod simulation;
mod summary;
pub mod workload;

pub use ceiling::{Ceiling, CeilingSearch, find_ceiling};
pub use report::{End, PoolReport, ReplicaReport, ReplicaSample, Report, RequestRecord, Sample};
pub use scenario::{Fault, FaultAt, Pool, Scenario, ScenarioError, Slo};
pub use simulation::Simulation;
pub use summary::{Counts, Distribution, Quantiles, Shares, Spread, Summary, meets_slo, spread};
pub use workload::Workload;
