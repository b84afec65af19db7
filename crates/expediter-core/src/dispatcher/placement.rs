//! Finding a replica for a request: at once, after a wait, or not at all.

use std::time::Duration;

use expediter_types::{BlockSize, RequestId, Time, Tokens};

use super::{Attempt, Dispatcher, Entry, Output, Request, Stage};
use crate::decision::{Candidate, Decision, Verdict};
use crate::ledger::Ledger;
use crate::policy::{Ask, Policy, QUALIFIES, load};
use crate::prefix::Matches;
use crate::refusal::Refusal;
use crate::replica::{Replica, ReplicaState, SetAsideCause};
use crate::silence;
use crate::timers::Timer;

impl Dispatcher {
    /// A request came. It is dispatched if a replica qualifies, waits if one may become ready, and is refused
    /// otherwise.
    pub fn arrive(&mut self, id: RequestId, request: Request, now: Time) {
        if self.requests.contains_key(&id) {
            return;
        }
        self.budget.deposit(&self.settings, now);
        self.tickets += 1;
        let entry = Entry {
            request,
            ticket: self.tickets,
            tried: Vec::new(),
            deaths: 0,
            stage: Stage::Waiting { deadline: now },
        };
        match self.choose(&entry, now) {
            Some((index, decision)) => self.dispatch(id, entry, index, decision, now),
            None => self.hold(id, entry, now),
        }
    }

    /// Chooses among the replicas that qualify for an attempt. Where each of them pushes back, the one that is
    /// first to take requests again is better than none.
    pub(super) fn choose(&mut self, entry: &Entry, now: Time) -> Option<(usize, Decision)> {
        let policy = self.settings.policy;
        let request = &entry.request;
        let ask = Ask {
            policy,
            parameters: &self.settings.policy_parameters,
            request,
            charge: Ledger::bounded(self.charge(request)),
            pool: self.pool_view(),
            now,
        };
        let hashes = request.prompt.prompt_hashes();
        let matches = policy.predicts_hits().then(|| self.prefixes.longest_match(hashes));
        let blocks =
            |replica: &Replica| matches.as_ref().map_or(0, |matches: &Matches| matches.blocks(replica.slot));
        let candidate = |replica: &Replica| {
            let blocks = blocks(replica);
            let cached = expected_cached(request, blocks);
            Candidate {
                replica: replica.id,
                load: load(&ask, replica, cached),
                cached,
                prefix_share: blocks as f64 / hashes.len().max(1) as f64,
                verdict: qualify(replica, entry, now),
            }
        };
        let mut candidates: Vec<Candidate> = self.fleet.iter().map(candidate).collect();
        let chosen = self.chooser.choose(&ask, &self.fleet, &mut candidates, &mut self.rng);
        let index = chosen.or_else(|| {
            let indices = 0..candidates.len();
            let pushed_back = indices.filter(|&index| candidates[index].verdict == Verdict::PushedBack);
            let first = pushed_back.min_by_key(|&index| self.fleet[index].push_back.until)?;
            candidates[first].verdict = Verdict::Chosen;
            Some(first)
        });
        let index = index.or_else(|| {
            let last =
                self.last_resort(entry).min_by(|a, b| candidates[*a].load.total_cmp(&candidates[*b].load))?;
            candidates[last].verdict = Verdict::Chosen;
            Some(last)
        })?;
        let attempt = u32::try_from(entry.tried.len()).unwrap_or(u32::MAX).saturating_add(1);
        let (replica, expected_cached) = (self.fleet[index].id, candidates[index].cached);
        Some((index, Decision { policy, replica, attempt, expected_cached, candidates }))
    }

    /// Sends a request to the replica at `index`. Its load counts from here, not from the answer.
    pub(super) fn dispatch(
        &mut self,
        id: RequestId,
        mut entry: Entry,
        index: usize,
        decision: Decision,
        now: Time,
    ) {
        self.turns += 1;
        let charge = self.charge(&entry.request);
        let replica = &mut self.fleet[index];
        replica.last_turn = self.turns;
        replica.dispatched += 1;
        self.usual.charge.follow(Ledger::bounded(charge).0);
        let uncached = entry.request.prompt.tokens().saturating_sub(decision.expected_cached);
        let charge = replica.ledger.charge(charge, uncached);
        let check = silence::deadline(replica, &entry.request, now, &self.settings, now)
            .min(now + self.settings.first_output_limit);
        self.timers.set(check, Timer::Silence(id));
        entry.stage = Stage::Attempt(Attempt {
            replica: replica.id,
            since: now,
            nth: replica.dispatched,
            charge,
            output: false,
            output_tokens: Tokens::ZERO,
            armed: Some(check),
        });
        if self.settings.policy.predicts_hits() {
            self.remember(&entry.request, index);
        }
        self.requests.insert(id, entry);
        self.outputs.push_back(Output::Dispatch { id, replica: decision.replica, decision });
    }

    /// The replica at `index` is sent a prompt, and will hold it.
    fn remember(&mut self, request: &Request, index: usize) {
        let (parameters, replica) = (&self.settings.policy_parameters, &self.fleet[index]);
        let report = replica.reported.last.map(|(report, _)| report);
        let reported = || {
            let report = report?;
            Some(Tokens(report.blocks?.saturating_mul(report.block_size?.into())))
        };
        let size = request.prompt.block_size();
        let default_size = u64::from(BlockSize::DEFAULT.0.get());
        let capacity = match (parameters.prefix_index_blocks, self.settings.policy) {
            (Some(blocks), _) => Tokens(blocks.saturating_mul(default_size)),
            (None, Policy::ApproximateTree) => Tokens(parameters.tree.characters_max / CHARACTERS_PER_TOKEN),
            (None, _) => reported().unwrap_or(Tokens(KV_BLOCKS_UNKNOWN * default_size)),
        };
        let capacity = usize::try_from(capacity.to_full_blocks(size).0).unwrap_or(usize::MAX);
        self.prefixes.insert(replica.slot, request.prompt.prompt_hashes(), capacity);
    }

    /// The tokens that a request means before any of its answer came.
    fn charge(&self, request: &Request) -> Tokens {
        request.prompt.tokens() + self.expected_answer(request)
    }

    /// The answer as long as it is expected: as answers usually are, but never beyond its cap.
    pub(super) fn expected_answer(&self, request: &Request) -> Tokens {
        Tokens(self.usual.answer.get()).min(request.output_cap)
    }

    /// Replicas that fail requests but are healthy by their last check, where no replica is ready: one client whose requests fail
    /// everywhere must not take the pool from the others, whose requests may well succeed.
    pub(super) fn last_resort(&self, entry: &Entry) -> impl Iterator<Item = usize> {
        let model = entry.request.model;
        let any_ready =
            self.fleet.iter().any(|replica| replica.state == ReplicaState::Ready && replica.lists(model));
        self.fleet.iter().enumerate().filter_map(move |(index, replica)| {
            let is_failing =
                replica.state == ReplicaState::SetAside && replica.cause == Some(SetAsideCause::Failing);
            let may_answer = is_failing && replica.health.is_well() && replica.lists(model);
            (!any_ready && may_answer && !is_tried(replica, entry)).then_some(index)
        })
    }

    /// No replica can take the request now: lets it wait where one may come, and refuses it otherwise.
    pub(super) fn hold(&mut self, id: RequestId, mut entry: Entry, now: Time) {
        let limit = entry.request.wait_limit.unwrap_or(Duration::MAX).min(self.settings.wait_max);
        let retry_after = self.retry_after(now);
        let refusal = if self.is_unknown(&entry.request) {
            Some(Refusal::UnknownModel)
        } else if limit.is_zero() || !self.may_come(&entry) {
            Some(Refusal::NoReadyReplica { retry_after })
        } else if self.waiting.len() >= self.settings.waiting_max {
            Some(Refusal::WaitingFull { retry_after })
        } else {
            None
        };
        if let Some(refusal) = refusal {
            self.outputs.push_back(Output::Refuse { id, refusal });
            return;
        }
        let deadline = now + limit;
        entry.stage = Stage::Waiting { deadline };
        self.timers.set(deadline, Timer::Wait(id));
        self.waiting.insert(entry.ticket, id);
        self.requests.insert(id, entry);
    }

    /// Dispatches what waits, first come first served, where a replica has become able to take it.
    pub(super) fn serve_waiting(&mut self, now: Time) {
        let waiting: Vec<RequestId> = self.waiting.values().copied().collect();
        for id in waiting {
            let Some(entry) = self.requests.get(&id) else { continue };
            if !self.is_ready_elsewhere(entry, true, now) {
                continue;
            }
            let Some(entry) = self.stop_waiting(id) else { continue };
            match self.choose(&entry, now) {
                Some((index, decision)) => self.dispatch(id, entry, index, decision, now),
                None => self.hold(id, entry, now),
            }
        }
    }

    /// A request's wait is over.
    pub(super) fn expire(&mut self, id: RequestId) {
        if self.stop_waiting(id).is_some() {
            self.outputs.push_back(Output::Expire { id });
        }
    }

    /// Takes a request out of the queue; `None` where it does not wait.
    pub(super) fn stop_waiting(&mut self, id: RequestId) -> Option<Entry> {
        let Stage::Waiting { deadline } = self.requests.get(&id)?.stage else { return None };
        let entry = self.requests.remove(&id)?;
        self.waiting.remove(&entry.ticket);
        self.timers.cancel(deadline, Timer::Wait(id));
        Some(entry)
    }

    /// Whether a replica that this request has not tried could take it now, those that push back included or not.
    pub(super) fn is_ready_elsewhere(&self, entry: &Entry, pushed_back: bool, now: Time) -> bool {
        self.fleet.iter().any(|replica| match qualify(replica, entry, now) {
            QUALIFIES => true,
            Verdict::PushedBack => pushed_back,
            Verdict::Chosen
            | Verdict::HigherLoad
            | Verdict::Tied
            | Verdict::LessPrefix
            | Verdict::OverBound
            | Verdict::NotReady(_)
            | Verdict::Tried
            | Verdict::LacksModel => false,
        })
    }

    /// Whether a replica that this request has not tried may become able to take it.
    pub(super) fn may_come(&self, entry: &Entry) -> bool {
        self.fleet.iter().any(|replica| {
            let may_list = replica.models.is_empty() || replica.lists(entry.request.model);
            may_list && replica.may_come() && !is_tried(replica, entry)
        })
    }

    /// Whether the pool's replicas have said what they serve, and it is not this. Those that have not said yet
    /// are taken to be like the others.
    fn is_unknown(&self, request: &Request) -> bool {
        let known = || self.fleet.iter().filter(|replica| replica.state != ReplicaState::Gone);
        known().any(|replica| !replica.models.is_empty())
            && !known().any(|replica| replica.lists(request.model))
    }

    /// When a client without a replica may try again: when the first trial is due, within bounds.
    fn retry_after(&self, now: Time) -> Duration {
        let trials = self.fleet.iter().filter_map(Replica::deadline);
        let next = trials.map(|(at, _)| at.since(now)).min().unwrap_or(RETRY_AFTER_MIN);
        next.clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX)
    }

    /// When a client whose replicas all push back may try again.
    pub(super) fn pushed_back_for(&self, request: &Request, now: Time) -> Duration {
        let replicas = self.fleet.iter().filter(|replica| replica.lists(request.model));
        let ready = replicas.filter(|replica| replica.state == ReplicaState::Ready);
        let ends = ready.map(|replica| replica.push_back.until.since(now));
        ends.filter(|left| !left.is_zero()).min().unwrap_or(RETRY_AFTER_MIN)
    }
}

/// Prompt tokens that need not be computed where so many leading blocks are held. The engine always computes the
/// last token, and so the block it stands in.
/// Source: vLLM 0.11, `v1/core/kv_cache_manager.py`, `get_computed_blocks`.
fn expected_cached(request: &Request, blocks: usize) -> Tokens {
    let size = u64::from(request.prompt.block_size().0.get());
    let last = request.prompt.tokens().0.saturating_sub(1) / size;
    Tokens((blocks as u64).min(last) * size)
}

/// Whether a replica qualifies for an attempt of a request, and if not, why.
fn qualify(replica: &Replica, entry: &Entry, now: Time) -> Verdict {
    if replica.state != ReplicaState::Ready {
        Verdict::NotReady(replica.state)
    } else if !replica.lists(entry.request.model) {
        Verdict::LacksModel
    } else if is_tried(replica, entry) {
        Verdict::Tried
    } else if replica.push_back.until > now {
        Verdict::PushedBack
    } else {
        QUALIFIES
    }
}

/// Whether an attempt was made there, the one under way included.
fn is_tried(replica: &Replica, entry: &Entry) -> bool {
    let under_way = match &entry.stage {
        Stage::Attempt(attempt) => attempt.replica == replica.id,
        Stage::Waiting { .. } => false,
    };
    under_way || entry.tried.contains(&replica.id)
}

/// What a replica is taken to hold that does not report its KV memory, in blocks of 16 tokens.
/// Source: llm-d's default for each pod, 31,250 blocks of 64 tokens.
const KV_BLOCKS_UNKNOWN: u64 = 31_250 * 4;

/// English text and a common vocabulary.
const CHARACTERS_PER_TOKEN: u64 = 4;

/// Less would invite a client's busy loop, more would leave it waiting for a replica that is back.
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);
