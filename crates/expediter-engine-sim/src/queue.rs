//! Who waits, in which order: vLLM's request queues (`vllm/v1/core/sched/request_queue.py`, 0.32.0), kept so that a
//! hundred thousand who wait cost a step nothing.

use std::collections::{BTreeMap, BTreeSet};

use expediter_types::{ModelId, RequestId, Time};

use crate::request::Request;
use crate::sequence::Sequence;
use crate::settings::Scheduling;

/// A place in the queue: the lowest is the head. Under `fcfs` only `number` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) priority: i32,
    pub(crate) arrived: Time,
    number: i64,
}

/// Requests that wait, in a line for each adapter, so that a line that cannot go on is passed over as a whole.
#[derive(Debug)]
pub(crate) struct WaitQueue {
    scheduling: Scheduling,
    lines: BTreeMap<Option<ModelId>, Line>,
    /// Where each request stands.
    places: BTreeMap<RequestId, (Option<ModelId>, Rank)>,
    /// The numbers that the next to come at the end and at the head get.
    last: i64,
    first: i64,
    deferred: usize,
}

#[derive(Debug, Default)]
struct Line {
    sequences: BTreeMap<Rank, Sequence>,
    /// Those that have never been passed over.
    fresh: BTreeSet<Rank>,
}

impl WaitQueue {
    pub(crate) fn new(scheduling: Scheduling) -> Self {
        Self { scheduling, lines: BTreeMap::new(), places: BTreeMap::new(), last: 0, first: -1, deferred: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Those that wait because their adapter had no place in a batch.
    pub(crate) fn deferred(&self) -> usize {
        self.deferred
    }

    /// Adapters that somebody waits for.
    pub(crate) fn adapters(&self) -> impl Iterator<Item = ModelId> {
        self.lines.keys().copied().flatten()
    }

    /// A request comes.
    pub(crate) fn arrive(&mut self, request: Request, now: Time) {
        let (priority, arrived) = match self.scheduling {
            Scheduling::Fcfs => (0, Time::ZERO),
            Scheduling::Priority => (request.priority, now),
        };
        let rank = Rank { priority, arrived, number: self.last };
        self.last += 1;
        self.insert(Sequence::new(request, rank, now));
    }

    /// A sequence that was put back comes: to the head under `fcfs`, to its old place under `priority`.
    pub(crate) fn put_back(&mut self, mut sequence: Sequence) {
        match self.scheduling {
            Scheduling::Fcfs => {
                sequence.rank.number = self.first;
                self.first -= 1;
            }
            Scheduling::Priority => {}
        }
        self.insert(sequence);
    }

    fn insert(&mut self, sequence: Sequence) {
        let (adapter, rank) = (sequence.request.adapter, sequence.rank);
        self.places.insert(sequence.request.id, (adapter, rank));
        let line = self.lines.entry(adapter).or_default();
        if adapter.is_some() {
            line.fresh.insert(rank);
        }
        line.sequences.insert(rank, sequence);
    }

    /// The first of those whose adapter is admissible.
    pub(crate) fn head(&self, admissible: impl Fn(Option<ModelId>) -> bool) -> Option<&Sequence> {
        let lines = self.lines.iter().filter(|(adapter, _)| admissible(**adapter));
        let heads = lines.filter_map(|(_, line)| line.sequences.first_key_value());
        heads.min_by_key(|(rank, _)| **rank).map(|(_, sequence)| sequence)
    }

    /// Takes a request out of the queue, if it is there.
    pub(crate) fn remove(&mut self, id: RequestId) -> Option<Sequence> {
        let (adapter, rank) = self.places.remove(&id)?;
        let line = self.lines.get_mut(&adapter)?;
        if adapter.is_some() && !line.fresh.remove(&rank) {
            self.deferred -= 1;
        }
        let sequence = line.sequences.remove(&rank);
        if line.sequences.is_empty() {
            self.lines.remove(&adapter);
        }
        sequence
    }

    /// Notes who was passed over in a step that looked at all up to `end`, or at all: those whose adapter was not
    /// admissible.
    pub(crate) fn pass_over(&mut self, admissible: impl Fn(Option<ModelId>) -> bool, end: Option<Rank>) {
        for (adapter, line) in &mut self.lines {
            if admissible(*adapter) {
                continue;
            }
            while line.fresh.first().is_some_and(|rank| end.is_none_or(|end| *rank < end)) {
                line.fresh.pop_first();
                self.deferred += 1;
            }
        }
    }

    /// Takes all out of the queue, in its order.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Sequence> + use<> {
        self.places.clear();
        self.deferred = 0;
        let lines = std::mem::take(&mut self.lines).into_values();
        lines.flat_map(|line| line.sequences).collect::<BTreeMap<_, _>>().into_values()
    }

    /// All of them, line by line.
    #[cfg(test)]
    pub(crate) fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        self.lines.values().flat_map(|line| line.sequences.values())
    }

    /// The ids in order of the queue.
    #[cfg(test)]
    pub(crate) fn ids(&self) -> Vec<RequestId> {
        let places: BTreeMap<Rank, RequestId> =
            self.places.iter().map(|(id, (_, rank))| (*rank, *id)).collect();
        places.into_values().collect()
    }
}

#[cfg(test)]
mod tests;
