//! How the dispatcher's orders reach the request they are for.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use expediter_core::{Decision, Refusal};
use expediter_types::ReplicaId;

use super::Replica;

/// What a request's task must do next.
pub(crate) enum Order {
    /// Send it to this replica.
    Dispatch { replica: Arc<Replica>, decision: Decision },
    /// Answer with this refusal.
    Refuse(Refusal),
    /// Answer that no replica became ready in time.
    Expire,
    /// The attempt at this replica is silent: close it, and say that it failed.
    Abandon(ReplicaId),
    /// The replica's drain has reached its limit: end the attempt, whatever came of it, and say that it failed.
    Cut(ReplicaId),
}

/// The orders for one request: filled under the pool's lock, emptied by the request's own task. Few orders
/// ever wait in it: a request gets its next one only after it has acted on the last.
#[derive(Default)]
pub(crate) struct Mailbox(Mutex<Inside>);

#[derive(Default)]
struct Inside {
    orders: VecDeque<Order>,
    waker: Option<Waker>,
}

impl Mailbox {
    pub(super) fn deliver(&self, order: Order) {
        let mut inside = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inside.orders.push_back(order);
        if let Some(waker) = inside.waker.take() {
            waker.wake();
        }
    }

    pub(crate) fn poll_order(&self, cx: &mut Context<'_>) -> Poll<Order> {
        let mut inside = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(order) = inside.orders.pop_front() {
            return Poll::Ready(order);
        }
        match &mut inside.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            empty => *empty = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}
