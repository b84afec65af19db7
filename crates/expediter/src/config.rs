//! The configuration: from a file, `--set` and the environment to `Settings`, with every mistake at its place;
//! and again whenever one of the files changes.
//!
//! The way of a value: [`yaml`] reads located nodes, [`overrides`] puts in what the command line says, [`mod@schema`]
//! checks keys, types and ranges, `Settings::from_raw` checks what they mean, [`mod@watch`] does it all again.

mod document;
mod finding;
mod hint;
mod load;
mod node;
mod overrides;
mod scalar;
mod schema;
mod watch;
mod yaml;

#[cfg(test)]
mod tests;

pub(crate) use self::document::{Document, Overlay, Problems};
pub(crate) use self::load::{Loaded, Source, load};
pub(crate) use self::schema::schema;
pub(crate) use self::watch::watch;
