//! The replica over its sockets: beside captures of a real engine, and under every fault.

mod behaviour;
mod client;
mod conformance;
mod faults;
