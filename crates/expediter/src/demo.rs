//! The parts of `expediter demo`: simulated replicas, traffic for them, and a table of what becomes of it.
//!
//! The table is read as an operator would read it, from `/admin/replicas` and `/metrics` over HTTP. The way of a
//! number: [`reading`] parses it, [`history`] makes rates of counters, [`table`] makes lines of it, [`screen`]
//! puts them where the user looks; [`show`] does so on a beat.

pub(crate) mod asks;
pub(crate) mod fleet;
pub(crate) mod hints;
pub(crate) mod history;
pub(crate) mod http;
pub(crate) mod line;
pub(crate) mod notices;
pub(crate) mod reading;
pub(crate) mod screen;
pub(crate) mod show;
pub(crate) mod table;
pub(crate) mod traffic;
