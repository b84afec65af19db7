//! Tests of the dispatcher as a whole, in virtual time.
#![expect(clippy::cast_possible_truncation, reason = "tests draw and count small numbers")]

mod cases;
mod policies;
mod pool;
mod prefix_policies;
mod retries;
mod silence;
mod simulation;
mod states;
mod waiting;
mod world;
