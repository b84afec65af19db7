//! What is still to happen, in order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use expediter_core::Failure;
use expediter_types::{ReplicaId, RequestId, Time};

/// Something that happens at a moment.
#[derive(Debug)]
pub(super) enum Event {
    /// A client's request comes to its gateway; from the open loop or as a follow-up.
    Arrive { request: RequestId, open_loop: bool },
    /// The gateway has read it and asks its dispatcher.
    Decide { request: RequestId },
    /// An attempt comes to its replica.
    Reach { request: RequestId, attempt: u32 },
    /// A gateway's warm-up request comes to a replica.
    ReachWarmUp { gateway: usize, replica: ReplicaId },
    /// The connection of an attempt was closed, and its replica sees that.
    Abort { request: RequestId, replica: ReplicaId },
    /// The step under way ends, unless the replica's `epoch` has moved on.
    EndStep { replica: ReplicaId, epoch: u32 },
    /// What a step brought comes to the gateways.
    Hear { heard: Vec<Heard> },
    /// An attempt's failure comes to its gateway.
    Fail { request: RequestId, attempt: u32, failure: Failure },
    /// A gateway asks a replica how it is.
    Probe { gateway: usize, replica: ReplicaId },
    /// A replica's report comes to a gateway.
    Report { gateway: usize, replica: ReplicaId },
    /// A dispatcher's deadline.
    Timeout { gateway: usize, pool: usize },
    /// The fault of this number in the scenario.
    Fault { index: usize },
    /// The fleet is looked at, for the report.
    Sample,
}

/// What a gateway hears of one attempt.
#[derive(Clone, Copy, Debug)]
pub(super) enum Heard {
    /// So many tokens are out, and perhaps that was all.
    Output { request: RequestId, attempt: u32, produced: u64, end: bool },
    /// A warm-up request was answered.
    WarmUp { gateway: usize, replica: ReplicaId, answered: bool },
}

/// Events in order of time; those of one moment in the order in which they were set.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    heap: BinaryHeap<Entry>,
    count: u64,
}

#[derive(Debug)]
struct Entry {
    key: Reverse<(Time, u64)>,
    event: Event,
}

impl Agenda {
    pub(super) fn set(&mut self, at: Time, event: Event) {
        self.count += 1;
        self.heap.push(Entry { key: Reverse((at, self.count)), event });
    }

    /// When the next event happens.
    pub(super) fn next_at(&self) -> Option<Time> {
        self.heap.peek().map(|entry| entry.key.0.0)
    }

    pub(super) fn pop(&mut self) -> Option<(Time, Event)> {
        self.heap.pop().map(|entry| (entry.key.0.0, entry.event))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_as_they_were_set() {
        let mut agenda = Agenda::default();
        for (at, index) in [(5, 0), (1, 1), (5, 2), (1, 3)] {
            agenda.set(Time(at), Event::Fault { index });
        }
        assert_eq!(agenda.next_at(), Some(Time(1)));
        let mut order = Vec::new();
        while let Some((_, event)) = agenda.pop() {
            if let Event::Fault { index } = event {
                order.push(index);
            }
        }
        assert_eq!(order, [1, 3, 0, 2]);
    }
}
