//! Words that cross between decision and replica: units, ids, time, random draws, and what an engine reports.
//!
//! Nothing here decides, and nothing here does IO. A type carries its unit, so that two numbers that must not
//! be swapped are two types.

mod arrival;
mod ids;
mod prng;
mod prompt;
mod report;
mod time;
mod units;

pub use arrival::Arrival;
pub use ids::{ModelId, ReplicaId, RequestId};
pub use prng::Prng;
pub use prompt::{BlockHash, BlockHasher, BlockMap, BlockSet, Prompt};
pub use report::EngineReport;
pub use time::Time;
pub use units::{BlockSize, Blocks, Tokens};
