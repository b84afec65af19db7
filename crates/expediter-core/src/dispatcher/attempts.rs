//! What becomes of a request at a replica: output, an end, a failure, silence.

use std::time::Duration;

use expediter_types::{RequestId, Time, Tokens};

use super::{Attempt, Dispatcher, Entry, Output, Stage};
use crate::failure::Failure;
use crate::refusal::Refusal;
use crate::replica::{ReplicaState, SetAsideCause};
use crate::silence;
use crate::timers::Timer;

impl Dispatcher {
    /// The first output of the attempt came from the replica: an event of a stream, or a whole answer.
    pub fn first_output(&mut self, id: RequestId, now: Time) {
        self.output(id, Tokens::ZERO, now);
    }

    /// The answer has grown to `output_tokens`, or merely goes on. To be told by time, a few times a second.
    pub fn progress(&mut self, id: RequestId, output_tokens: Tokens, now: Time) {
        self.output(id, output_tokens, now);
    }

    /// The request was answered in full. It is settled.
    pub fn finish(&mut self, id: RequestId, now: Time) {
        self.output(id, Tokens::ZERO, now);
        let Some((_, attempt)) = self.take_attempt(id) else { return };
        if attempt.output_tokens > Tokens::ZERO {
            self.usual.answer.follow(attempt.output_tokens.0);
        }
        if let Some(index) = self.index(attempt.replica) {
            let replica = &mut self.fleet[index];
            replica.breaker.succeed(attempt.nth, &self.settings.breaker, now);
            replica.unproven &= attempt.since < replica.ready_since;
        }
        self.release(attempt);
    }

    /// The attempt failed. With output sent on, the request is settled: nothing is repeated. Without, it is
    /// dispatched to another replica, waits for one, or is refused.
    pub fn fail(&mut self, id: RequestId, failure: Failure, now: Time) {
        let Some((mut entry, attempt)) = self.take_attempt(id) else { return };
        self.judge(&attempt, failure, now);
        entry.tried.push(attempt.replica);
        let output = attempt.output;
        self.release(attempt);
        if !output {
            self.retry(id, entry, failure, now);
        }
    }

    /// The client is gone, or the request was settled otherwise. That never counts against the replica.
    pub fn leave(&mut self, id: RequestId, _now: Time) {
        if self.stop_waiting(id).is_none()
            && let Some((_, attempt)) = self.take_attempt(id)
        {
            self.release(attempt);
        }
    }

    fn output(&mut self, id: RequestId, output_tokens: Tokens, now: Time) {
        let Some(entry) = self.requests.get(&id) else { return };
        let expected = self.expected_answer(&entry.request);
        let Some(Entry { request, stage: Stage::Attempt(attempt), .. }) = self.requests.get_mut(&id) else {
            return;
        };
        if let Some(at) = attempt.armed.take() {
            self.timers.cancel(at, Timer::Silence(id));
        }
        let first = !attempt.output;
        attempt.output = true;
        attempt.output_tokens = attempt.output_tokens.max(output_tokens);
        let Ok(index) = self.fleet.binary_search_by_key(&attempt.replica, |known| known.id) else { return };
        let replica = &mut self.fleet[index];
        replica.last_life = Some(now);
        replica.ledger.end_prefill(&mut attempt.charge);
        if first {
            replica.push_back.accept();
            if request.stream {
                let ttft = now.since(attempt.since);
                replica.ttft.observe(ttft, now);
                self.usual.ttft.follow(u64::try_from(ttft.as_nanos()).unwrap_or(u64::MAX));
            }
        }
        let to_come = expected.saturating_sub(attempt.output_tokens).max(TO_COME_MIN);
        let context = Tokens(request.prompt.tokens().0 / CONTEXT_SHARE);
        replica.ledger.recharge(&mut attempt.charge, context + to_come);
    }

    /// Takes a request at a replica out; `None` where it is not at one.
    fn take_attempt(&mut self, id: RequestId) -> Option<(Entry, Attempt)> {
        if matches!(self.requests.get(&id)?.stage, Stage::Waiting { .. }) {
            return None;
        }
        let mut entry = self.requests.remove(&id)?;
        match std::mem::replace(&mut entry.stage, Stage::Waiting { deadline: Time::ZERO }) {
            Stage::Attempt(attempt) => {
                if let Some(at) = attempt.armed {
                    self.timers.cancel(at, Timer::Silence(id));
                }
                Some((entry, attempt))
            }
            Stage::Waiting { .. } => None,
        }
    }

    /// Gives an attempt's charge back. A replica that waited for its last request is let go.
    fn release(&mut self, attempt: Attempt) {
        let Some(index) = self.index(attempt.replica) else { return };
        let replica = &mut self.fleet[index];
        replica.ledger.release(attempt.charge);
        if replica.ledger.requests() == 0 {
            self.end_if_idle(index);
        }
    }

    /// Counts a failure against its replica by the table. An attempt that began before the replica last became
    /// ready speaks of the time before.
    fn judge(&mut self, attempt: &Attempt, failure: Failure, now: Time) {
        let Some(index) = self.index(attempt.replica) else { return };
        let replica = &mut self.fleet[index];
        if let Failure::Overloaded { retry_after } = failure {
            replica.push_back.refuse(retry_after, now);
        }
        let verdict = failure.verdict();
        if !verdict.counts {
            return;
        }
        replica.failed += 1;
        if attempt.since < replica.ready_since {
            return;
        }
        let broken =
            replica.breaker.fail(failure, attempt.nth, replica.dispatched, &self.settings.breaker, now);
        let broken = broken.or(replica.unproven.then_some(SetAsideCause::Failing));
        // One silent attempt proves nothing against a replica that speaks to others.
        let speaks = replica.last_life.is_some_and(|life| now.since(life) <= self.settings.silence.limit_max);
        let at_once = verdict.sets_aside.filter(|cause| *cause != SetAsideCause::Silent || !speaks);
        if let Some(cause) = at_once.or(broken) {
            replica.set_aside(cause, &self.settings, now);
            if cause.means_loss() {
                self.prefixes.forget(replica.slot);
            }
            self.rearm(index);
        }
    }

    fn retry(&mut self, id: RequestId, mut entry: Entry, failure: Failure, now: Time) {
        let verdict = failure.verdict();
        entry.deaths += u32::from(verdict.death);
        let overloaded = matches!(failure, Failure::Overloaded { .. });
        let attempts = u32::try_from(entry.tried.len()).unwrap_or(u32::MAX);
        let refusal = if entry.deaths > DEATHS_RETRIED_MAX {
            Refusal::Poison
        } else if !verdict.retry || attempts >= self.settings.attempts_max {
            self.spent(&entry, failure, now)
        } else if self.is_ready_elsewhere(&entry, !overloaded, now)
            || self.last_resort(&entry).next().is_some()
        {
            if self.budget.withdraw(&self.settings, now)
                && let Some((index, decision)) = self.choose(&entry, now)
            {
                return self.dispatch(id, entry, index, decision, now);
            }
            Refusal::RetryBudget { last: failure }
        } else if !overloaded && self.may_come(&entry) {
            if self.budget.withdraw(&self.settings, now) {
                return self.hold(id, entry, now);
            }
            Refusal::RetryBudget { last: failure }
        } else {
            self.spent(&entry, failure, now)
        };
        self.outputs.push_back(Output::Refuse { id, refusal });
    }

    /// The refusal where no other attempt is made. Back-pressure stays back-pressure towards the client.
    fn spent(&self, entry: &Entry, failure: Failure, now: Time) -> Refusal {
        match failure {
            Failure::Overloaded { .. } => {
                Refusal::Overloaded { retry_after: self.pushed_back_for(&entry.request, now) }
            }
            Failure::Connect
            | Failure::Death
            | Failure::Silent
            | Failure::ServerError { .. }
            | Failure::Lost
            | Failure::Malformed => Refusal::AttemptsSpent { last: failure },
        }
    }

    /// Looks at an attempt without output. It is given up at its limit, or as soon as its replica's silence
    /// means death and another replica can take the request; else it is looked at again.
    pub(super) fn check_silence(&mut self, id: RequestId, now: Time) {
        let Some(Entry { stage: Stage::Attempt(attempt), request, .. }) = self.requests.get(&id) else {
            return;
        };
        let (replica, limit) = (attempt.replica, attempt.since + self.settings.first_output_limit);
        let Some(index) = self.index(replica) else { return };
        let deadline = silence::deadline(&self.fleet[index], request, attempt.since, &self.settings, now);
        let silent = deadline <= now;
        if silent && self.may_move(id, now) {
            self.fleet[index].set_aside(SetAsideCause::Silent, &self.settings, now);
            self.rearm(index);
        } else if now < limit {
            let next = if silent { now + RECHECK } else { deadline.max(now + RECHECK_MIN) };
            return self.arm_silence(id, next.min(limit));
        }
        self.disarm_silence(id);
        self.outputs.push_back(Output::Abandon { id, replica });
    }

    /// Whether a request at a replica could make another attempt elsewhere.
    fn may_move(&mut self, id: RequestId, now: Time) -> bool {
        let Some(entry) = self.requests.get(&id) else { return false };
        let attempts = u32::try_from(entry.tried.len()).unwrap_or(u32::MAX).saturating_add(1);
        attempts < self.settings.attempts_max
            && self.is_ready_elsewhere(entry, true, now)
            && self.budget.allows(&self.settings, now)
    }

    fn arm_silence(&mut self, id: RequestId, at: Time) {
        if let Some(Entry { stage: Stage::Attempt(attempt), .. }) = self.requests.get_mut(&id) {
            attempt.armed = Some(at);
            self.timers.set(at, Timer::Silence(id));
        }
    }

    fn disarm_silence(&mut self, id: RequestId) {
        if let Some(Entry { stage: Stage::Attempt(attempt), .. }) = self.requests.get_mut(&id) {
            attempt.armed = None;
        }
    }

    /// Whether the replica at `index` has nothing left to do, and what follows.
    pub(super) fn end_if_idle(&mut self, index: usize) {
        match self.fleet[index].state {
            ReplicaState::Draining => self.answer_drain(index),
            ReplicaState::Gone => self.forget(index),
            ReplicaState::Joining | ReplicaState::Warming | ReplicaState::Ready | ReplicaState::SetAside => {}
        }
    }
}

/// A request whose attempt ended in a replica's death gets one more: the second death is no chance.
const DEATHS_RETRIED_MAX: u32 = 1;

/// What a request that outlives its expectation still counts for: it is there, and may go on for long.
const TO_COME_MIN: Tokens = Tokens(32);

/// Once its prompt is computed, a sixteenth of it stands for what attending to it costs in every step.
const CONTEXT_SHARE: u64 = 16;

/// How often a silent replica is looked at again while there is no other for its requests.
const RECHECK: Duration = Duration::from_secs(1);

/// Keeps a deadline that was just missed from firing over and over at one moment.
const RECHECK_MIN: Duration = Duration::from_millis(1);
