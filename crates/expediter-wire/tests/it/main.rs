//! Invariants of the readers over generated and captured bytes. The functions in `invariants` are those that the
//! fuzz targets call too.

#![expect(clippy::unwrap_used, reason = "helpers of tests may stop them")]

mod captures;
mod cases;
mod generated;
mod invariants;
