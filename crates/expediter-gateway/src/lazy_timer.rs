//! A timer for limits that are seldom reached.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::time::{Instant, Sleep};

/// A deadline that mostly moves into the future: the timer is made when it is first waited for, and set again
/// only when it fires early or when the deadline has moved nearer. A stream that keeps moving pays almost
/// nothing for its limit.
#[derive(Default)]
pub(crate) struct LazyTimer(Option<Pin<Box<Sleep>>>);

impl LazyTimer {
    /// Ready once `deadline` has passed.
    pub(crate) fn poll_passed(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        let timer = self.0.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if deadline < timer.deadline() {
            timer.as_mut().reset(deadline);
        }
        loop {
            ready!(timer.as_mut().poll(cx));
            if deadline <= timer.deadline() {
                return Poll::Ready(());
            }
            timer.as_mut().reset(deadline);
        }
    }
}
