//! A stream on its way: events from the replica's socket to the client's, as they come.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use expediter_core::Failure;
use expediter_types::{Time, Tokens};
use expediter_wire::answer::BodyDecoder;

use super::attempt::failure_of_read;
use super::feed::{Feed, FeedEnd};
use super::handler::Exchange;
use super::settlement::{Outcome, Settlement};
use crate::client_io::{Client, ClientGone};
use crate::fleet::{AttemptOutcome, Replica};
use crate::lazy_timer::LazyTimer;
use crate::settings::Limits;
use crate::upstream::Connection;

/// The replica's side of a stream whose first event was let through.
pub(super) struct Source {
    pub(super) connection: Connection,
    pub(super) decoder: BodyDecoder,
    pub(super) keep_alive: bool,
    pub(super) feed: Feed,
}

/// The body of a streamed answer. Dropping it, as the HTTP library does when the client is gone, closes the
/// replica's connection, which is the abort.
pub(crate) struct Relay {
    exchange: Arc<Exchange>,
    client: Arc<dyn Client>,
    replica: Arc<Replica>,
    settlement: Settlement,
    /// `None` once the answer is over.
    source: Option<Source>,
    last_bytes: Time,
    last_progress: Time,
    last_asked: Time,
    limits: Limits,
    limit_timer: LazyTimer,
}

impl Relay {
    pub(super) fn new(
        exchange: Arc<Exchange>,
        client: Arc<dyn Client>,
        replica: Arc<Replica>,
        mut settlement: Settlement,
        source: Source,
    ) -> Self {
        let now = exchange.fleet.clock.now();
        let limits = exchange.fleet.settings.load().limits;
        settlement.first_output(now);
        Self {
            exchange,
            client,
            replica,
            settlement,
            source: Some(source),
            last_bytes: now,
            last_progress: now,
            last_asked: now,
            limits,
            limit_timer: LazyTimer::default(),
        }
    }

    /// The next bytes for the client; `None` at the end.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, ClientGone>>> {
        loop {
            let Some(source) = &mut self.source else { return Poll::Ready(None) };
            if let Some(bytes) = source.feed.take_out() {
                self.last_asked = self.last_bytes;
                self.note_progress();
                return Poll::Ready(Some(Ok(bytes)));
            }
            if let Some(end) = source.feed.end().cloned() {
                let drained = end != FeedEnd::Complete || self.poll_drained(cx).is_ready();
                self.conclude(&end);
                if !drained {
                    // The client has all of it. What is left is the replica's end mark; it is not waited for.
                    tracing::trace!(replica = &*self.replica.name, "answer complete before its end mark");
                }
                return Poll::Ready(None);
            }
            if self.client.poll_gone(cx).is_ready() {
                self.source = None;
                return Poll::Ready(Some(Err(ClientGone)));
            }
            if self.poll_source(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Whether the client has taken nothing for `limits.client_stall`, or the whole answer's time or that of a
    /// drained replica is over while it takes nothing. For whoever watches a relay that is not polled.
    pub(super) fn is_stalled(&mut self, cx: &mut Context<'_>) -> bool {
        let now = self.exchange.fleet.clock.now();
        let unasked = now.since(self.last_asked);
        let answer_is_late = self
            .limits
            .answer
            .is_some_and(|limit| now.since(self.settlement.opening.arrived) > limit + GRACE);
        unasked > self.limits.client_stall
            || (unasked > GRACE
                && (answer_is_late
                    || self.settlement.opening.flight.poll_cut(cx, self.replica.id).is_ready()))
    }

    /// Reads once, or notices that nothing comes any more. Ready where the feed has changed.
    fn poll_source(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(Source { connection, decoder, feed, .. }) = &mut self.source else { return Poll::Ready(()) };
        match connection.poll_body(cx, decoder, |data| feed.push(data)) {
            Poll::Ready(Ok(done)) => {
                self.last_bytes = self.exchange.fleet.clock.now();
                if done {
                    feed.close();
                }
                Poll::Ready(())
            }
            Poll::Ready(Err(error)) => {
                feed.break_off(failure_of_read(&error), format!("The answer broke off: {error}."));
                Poll::Ready(())
            }
            Poll::Pending => {
                self.last_asked = Time(u64::MAX);
                if self.settlement.opening.flight.poll_cut(cx, self.replica.id).is_ready() {
                    let message = "The replica is drained, and its time for running answers is over.";
                    feed.break_off(Failure::Silent, message.to_owned());
                    return Poll::Ready(());
                }
                self.poll_limits(cx)
            }
        }
    }

    fn poll_limits(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let limits = &self.limits;
        let gap_end = self.last_bytes + limits.gap;
        let answer_end = limits.answer.map(|limit| self.settlement.opening.arrived + limit);
        let deadline = answer_end.map_or(gap_end, |end| end.min(gap_end));
        let deadline_instant = self.exchange.fleet.clock.instant(deadline);
        std::task::ready!(self.limit_timer.poll_passed(cx, deadline_instant));
        if let Some(source) = &mut self.source {
            let message = if deadline == gap_end {
                format!("The replica sent nothing for {} ms.", limits.gap.as_millis())
            } else {
                "The answer took longer than `limits.answer_ms`.".to_owned()
            };
            source.feed.break_off(Failure::Silent, message);
        }
        Poll::Ready(())
    }

    /// Reads the end mark behind a complete answer where it is there already, so that the connection can be
    /// used again.
    fn poll_drained(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(Source { connection, decoder, .. }) = &mut self.source else { return Poll::Ready(()) };
        while !decoder.is_done() {
            match connection.poll_body(cx, decoder, |_| {}) {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }

    /// Tells the dispatcher how far the answer is: by time, never by token.
    fn note_progress(&mut self) {
        if self.last_bytes.since(self.last_progress) >= PROGRESS_INTERVAL {
            self.last_progress = self.last_bytes;
            if let Some(source) = &self.source {
                self.settlement.opening.flight.progress(Tokens(source.feed.events()));
            }
        }
    }

    fn conclude(&mut self, end: &FeedEnd) {
        let Some(source) = self.source.take() else { return };
        let settlement = &mut self.settlement;
        settlement.usage = source.feed.usage();
        settlement.events = source.feed.events();
        match end {
            FeedEnd::Complete => {
                settlement.opening.flight.finish();
                settlement.attempt_ends(AttemptOutcome::Answered);
                settlement.ends(Outcome::Completed, 200, None);
                if source.keep_alive && source.decoder.is_done() {
                    self.exchange.keep(&self.replica, source.connection);
                }
            }
            FeedEnd::Rejected { .. } | FeedEnd::Broken { .. } => {
                let failure = match end {
                    FeedEnd::Broken { failure, .. } => *failure,
                    FeedEnd::Rejected { .. } | FeedEnd::Complete => Failure::Malformed,
                };
                settlement.opening.flight.fail(failure);
                settlement.attempt_ends(super::attempt::outcome_of(failure));
                settlement.ends(Outcome::UpstreamFailure, 200, Some("replica_failed"));
            }
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // The client left: what was counted up to here still belongs into the record.
        if let Some(source) = &self.source {
            self.settlement.usage = source.feed.usage();
            self.settlement.events = source.feed.events();
        }
    }
}

/// How long a relay that is asked for bytes may take to see for itself that a limit has passed.
const GRACE: std::time::Duration = std::time::Duration::from_secs(1);

/// Often enough for the dispatcher's view of what is left to do, seldom enough to cost nothing.
const PROGRESS_INTERVAL: std::time::Duration = std::time::Duration::from_millis(250);
