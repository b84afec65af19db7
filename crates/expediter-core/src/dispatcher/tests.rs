//! Tests of the dispatcher as a whole, in virtual time.

mod cases;
mod pool;
mod retries;
mod silence;
mod simulation;
mod states;
mod waiting;
mod world;
