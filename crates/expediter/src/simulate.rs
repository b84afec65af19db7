//! What is behind `expediter simulate`: scenario files, runs on all cores, and what is shown of them.
//!
//! The way of a run: [`load`] reads a scenario into a [`plan`], [`run`] spreads its jobs over threads, and each
//! report becomes an [`outcome`] at once; [`table`], [`json`] and [`page`] show the outcomes.

pub(crate) mod json;
pub(crate) mod list;
pub(crate) mod load;
pub(crate) mod outcome;
pub(crate) mod output;
pub(crate) mod page;
pub(crate) mod plan;
pub(crate) mod progress;
pub(crate) mod run;
pub(crate) mod table;

mod check;
mod decimal;
mod defaults;
mod picture;
mod raw;
mod source;
mod traces;
