//! Talking to replicas: a lean HTTP/1.1 client that the request's own task polls.
//!
//! One request at a time on a connection, so that closing it is the abort. No second task, no channel, no
//! timer of its own: the caller holds the clock, and a connection is dropped to end whatever it does.

mod connection;
mod idle;
mod io;
mod probe_client;
mod target;

pub(crate) use connection::{Connection, ReadError};
pub(crate) use idle::IdlePool;
pub(crate) use io::UpstreamIo;
pub(crate) use probe_client::{ProbeClient, ProbeError};
pub(crate) use target::{ConnectError, Target, TlsRoots, resolve};
