//! Clients that send their next request only after the last one has ended.

use std::time::Duration;

use expediter_types::{Arrival, ModelId, Prng, Prompt, Time, Tokens};

use super::Workload;
use super::arrivals::to_time;
use super::error::{WorkloadError, check, check_count, check_rate};

/// The clients of a closed loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clients {
    /// How many there are, and so how many requests are open at most.
    pub count: u32,
    /// How many of them begin each second, one after the other.
    pub start_rate: f64,
    /// From the end of a request to the same client's next. At least a millisecond: a client that is refused at
    /// once would else ask without end at one moment.
    pub pause: Duration,
}

impl Clients {
    /// `count` clients that begin at `start_rate` per second and hardly pause.
    pub const fn new(count: u32, start_rate: f64) -> Self {
        Self { count, start_rate, pause: Duration::from_millis(1) }
    }

    fn check(self) -> Result<(), WorkloadError> {
        check_count("clients", u64::from(self.count))?;
        check_rate("start_rate", self.start_rate)?;
        let seconds = self.pause.as_secs_f64();
        check(self.pause >= Duration::from_millis(1), "pause", seconds, "0.001 seconds or more")
    }
}

/// What a client sends.
pub(super) struct Ask {
    pub(super) tenant: u32,
    pub(super) prompt: Prompt,
    pub(super) output: Tokens,
    pub(super) output_cap: Tokens,
}

/// What clients send next.
pub(super) trait Source {
    /// The next request of this client, from 0; `None` where it has no more.
    fn ask(&mut self, client: usize, rng: &mut Prng) -> Option<Ask>;
}

/// A closed loop over a source.
pub(super) struct ClosedLoop<S> {
    source: S,
    clients: Clients,
    model: ModelId,
    rng: Prng,
    /// Clients that have begun.
    begun: usize,
    /// The client of each request, in the order in which they were taken.
    askers: Vec<usize>,
}

impl<S: Source> ClosedLoop<S> {
    pub(super) fn new(source: S, clients: Clients, model: ModelId, rng: Prng) -> Result<Self, WorkloadError> {
        clients.check()?;
        Ok(Self { source, clients, model, rng, begun: 0, askers: Vec::new() })
    }

    fn take(&mut self, client: usize, at: Time) -> Option<Arrival> {
        let Ask { tenant, prompt, output, output_cap } = self.source.ask(client, &mut self.rng)?;
        self.askers.push(client);
        Some(Arrival { at, model: self.model, tenant, prompt, output, output_cap })
    }
}

impl<S: Source> Workload for ClosedLoop<S> {
    fn next(&mut self) -> Option<Arrival> {
        let client = self.begun;
        if client >= self.clients.count as usize {
            return None;
        }
        self.begun += 1;
        self.take(client, to_time(client as f64 / self.clients.start_rate))
    }

    fn follow_up(&mut self, nth: u64, now: Time) -> Option<Arrival> {
        let client = *self.askers.get(usize::try_from(nth).ok()?)?;
        self.take(client, now + self.clients.pause)
    }
}
