//! A request's hold on a pool's ledger, released exactly once.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use expediter_core::Failure;
use expediter_types::{ReplicaId, RequestId, Tokens};

use super::{Mailbox, Order, Pool};

/// One request that the dispatcher knows of. Dropping it tells the dispatcher that the client left, unless
/// the request was finished or failed for good before.
pub(crate) struct Flight {
    pub(crate) pool: Arc<Pool>,
    id: RequestId,
    mailbox: Arc<Mailbox>,
    open: bool,
}

impl Flight {
    pub(super) fn new(pool: Arc<Pool>, id: RequestId, mailbox: Arc<Mailbox>) -> Self {
        Self { pool, id, mailbox, open: true }
    }

    /// The next order for this request, while no attempt runs.
    pub(crate) async fn next_order(&self) -> Order {
        loop {
            let order = poll_fn(|cx| self.mailbox.poll_order(cx)).await;
            // One to end an attempt has crossed with that attempt's own end.
            if !matches!(order, Order::Abandon(_) | Order::Cut(_)) {
                return order;
            }
        }
    }

    /// Ready where the dispatcher wants the attempt at `replica` closed.
    pub(crate) fn poll_abandoned(&self, cx: &mut Context<'_>, replica: ReplicaId) -> Poll<()> {
        self.poll_order(cx, |order| matches!(order, Order::Abandon(at) | Order::Cut(at) if *at == replica))
    }

    /// Ready where the dispatcher wants the answer from `replica` ended although it has begun.
    pub(crate) fn poll_cut(&self, cx: &mut Context<'_>, replica: ReplicaId) -> Poll<()> {
        self.poll_order(cx, |order| matches!(order, Order::Cut(at) if *at == replica))
    }

    /// Ready with an order that is `wanted`. Others are about something that has ended by itself meanwhile.
    fn poll_order(&self, cx: &mut Context<'_>, wanted: impl Fn(&Order) -> bool) -> Poll<()> {
        loop {
            if wanted(&ready!(self.mailbox.poll_order(cx))) {
                return Poll::Ready(());
            }
        }
    }

    /// The replica's first output is here.
    pub(crate) fn first_output(&self) {
        self.pool.tell(|dispatcher, now| dispatcher.first_output(self.id, now));
    }

    /// So many tokens came in all.
    pub(crate) fn progress(&self, tokens: Tokens) {
        self.pool.tell(|dispatcher, now| dispatcher.progress(self.id, tokens, now));
    }

    /// A whole answer is here at once.
    pub(crate) fn answered(&mut self) {
        self.pool.tell(|dispatcher, now| {
            dispatcher.first_output(self.id, now);
            dispatcher.finish(self.id, now);
        });
        self.open = false;
    }

    /// The request is answered in full.
    pub(crate) fn finish(&mut self) {
        self.pool.tell(|dispatcher, now| dispatcher.finish(self.id, now));
        self.open = false;
    }

    /// The attempt failed. Where nothing came of it yet, an order follows: another replica or a refusal.
    pub(crate) fn fail(&self, failure: Failure) {
        self.pool.tell(|dispatcher, now| dispatcher.fail(self.id, failure, now));
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if self.open {
            self.pool.tell(|dispatcher, now| dispatcher.leave(self.id, now));
        }
        self.pool.close_mailbox(self.id);
    }
}
