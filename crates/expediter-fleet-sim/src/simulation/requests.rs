//! Every request of a run: what it brings, where it is, what became of it.

use std::time::Duration;

use expediter_types::{Arrival, BlockSet, ModelId, Prompt, ReplicaId, RequestId, Time, Tokens};

use crate::report::{End, RequestRecord};

/// The requests, by number: the n-th that was taken from the workload has the id n.
#[derive(Debug, Default)]
pub(super) struct Requests {
    all: Vec<Request>,
    /// Blocks that any request of the run has brought, pool by pool.
    seen: Vec<BlockSet>,
    open: u64,
}

/// One request.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) gateway: usize,
    pub(super) pool: usize,
    pub(super) record: RequestRecord,
    /// Present until the request has ended.
    pub(super) content: Option<Content>,
    pub(super) attempt: Option<Attempt>,
}

/// What a request brings.
#[derive(Clone, Debug)]
pub(super) struct Content {
    pub(super) model: ModelId,
    pub(super) prompt: Prompt,
    pub(super) output: Tokens,
    pub(super) output_cap: Tokens,
}

/// An attempt under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    /// Attempts are numbered, so that news of an old one is known for what it is.
    pub(super) number: u32,
    pub(super) replica: ReplicaId,
    /// When the dispatcher was last told how far it is.
    pub(super) told: Option<Time>,
    pub(super) cached: Tokens,
}

impl Requests {
    pub(super) fn new(pools: usize) -> Self {
        Self { seen: vec![BlockSet::default(); pools], ..Self::default() }
    }

    /// Requests taken so far.
    pub(super) fn count(&self) -> u64 {
        self.all.len() as u64
    }

    /// Requests that have not ended.
    pub(super) fn open(&self) -> u64 {
        self.open
    }

    /// Takes a request in, to be sent at its time.
    pub(super) fn take(&mut self, arrival: Arrival, at: Time, gateway: usize, pool: usize) -> RequestId {
        let id = RequestId(self.count());
        self.open += 1;
        let record = RequestRecord {
            arrived: at,
            pool: u16::try_from(pool).unwrap_or(u16::MAX),
            tenant: arrival.tenant,
            prompt: arrival.prompt.tokens(),
            ideal: Tokens::ZERO,
            cached: Tokens::ZERO,
            expected: Tokens::ZERO,
            output: Tokens::ZERO,
            ttft: None,
            total: Duration::ZERO,
            attempts: 0,
            end: End::Open,
        };
        let Arrival { model, prompt, output, output_cap, .. } = arrival;
        let content = Some(Content { model, prompt, output, output_cap });
        self.all.push(Request { gateway, pool, record, content, attempt: None });
        id
    }

    /// The request has arrived: counts what an infinite cache would hold of it, and adds it there.
    pub(super) fn arrived(&mut self, id: RequestId) {
        let Some(request) = self.all.get_mut(index(id)) else { return };
        let Some(content) = &request.content else { return };
        let seen = &mut self.seen[request.pool];
        let hashes = content.prompt.hashes();
        let own = content.prompt.prompt_hashes().len();
        let hits = hashes[..own].iter().take_while(|hash| seen.contains(*hash)).count();
        for hash in &hashes[hits..] {
            seen.insert(*hash);
        }
        let size = u64::from(content.prompt.block_size().0.get());
        // The last token is computed in any case.
        let most = content.prompt.tokens().saturating_sub(Tokens(1)).0 / size * size;
        request.record.ideal = Tokens((hits as u64 * size).min(most));
    }

    pub(super) fn get(&self, id: RequestId) -> Option<&Request> {
        self.all.get(index(id))
    }

    pub(super) fn get_mut(&mut self, id: RequestId) -> Option<&mut Request> {
        self.all.get_mut(index(id))
    }

    /// The attempt of this number, where it is under way.
    pub(super) fn attempt(&mut self, id: RequestId, number: u32) -> Option<&mut Attempt> {
        self.get_mut(id)?.attempt.as_mut().filter(|attempt| attempt.number == number)
    }

    /// The request has ended. Its content is let go. Returns `false` where it had ended before.
    pub(super) fn end(&mut self, id: RequestId, end: End, now: Time) -> bool {
        let Some(request) = self.all.get_mut(index(id)) else { return false };
        if request.content.take().is_none() {
            return false;
        }
        self.open -= 1;
        request.attempt = None;
        request.record.end = end;
        request.record.total = now.since(request.record.arrived);
        true
    }

    /// The records of requests that arrived within these times, in order of arrival.
    pub(super) fn records(&self, from: Time, until: Time, now: Time) -> Vec<RequestRecord> {
        let all = self.all.iter().map(|request| RequestRecord {
            total: match request.record.end {
                End::Open => now.since(request.record.arrived),
                End::Answered | End::Refused(_) | End::Expired | End::Cut => request.record.total,
            },
            ..request.record
        });
        let mut records: Vec<RequestRecord> =
            all.filter(|record| from <= record.arrived && record.arrived <= until).collect();
        records.sort_by_key(|record| record.arrived);
        records
    }
}

fn index(id: RequestId) -> usize {
    usize::try_from(id.0).unwrap_or(usize::MAX)
}
