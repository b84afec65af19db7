//! Black-box tests of the program: the real binary between scripted replicas and raw clients.
//!
//! Cases are named after the list in `docs/cases.md`, which maps each to its tests.

#![allow(dead_code, reason = "a kit offers more than the tests of the day use")]
#![allow(unreachable_pub, reason = "one test binary: `pub` in its modules reads better than `pub(crate)`")]
#![allow(clippy::unwrap_used, reason = "a test that fails panics")]
#![allow(clippy::disallowed_methods, reason = "these tests live in real time, with real sockets and threads")]

mod admin;
mod bodies;
mod cancellation;
mod compatibility;
mod configuration;
mod connections;
mod demo;
mod half_dead;
mod headers;
mod health;
mod keep_alive;
mod kit;
mod kit_self;
mod labels;
mod names;
mod prefix_policies;
mod reload;
mod reports;
mod retries;
mod routing;
mod security;
mod simulate;
mod simulate_page;
mod slow_clients;
mod smuggling;
mod soak;
mod sse;
mod stop;
mod tls_clients;
mod usage;
mod zero_config;
