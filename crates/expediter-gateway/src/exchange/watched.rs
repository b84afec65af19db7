//! A relay whose client may stop asking for bytes without any sign on its connection: an HTTP/2 client gives a
//! window for each stream, and while one is used up the stream's body is not polled. Somebody else has to keep
//! its limits then.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio_util::task::TaskTracker;

use super::relay::Relay;
use crate::client_io::ClientGone;

/// A relay that is given up when nobody has asked it for bytes for too long.
pub(super) struct WatchedRelay(Arc<Mutex<Option<Relay>>>);

impl WatchedRelay {
    /// Watches `relay` in a task of `tasks`, until it is dropped.
    pub(super) fn new(relay: Relay, tasks: &TaskTracker) -> Self {
        let relay = Arc::new(Mutex::new(Some(relay)));
        tasks.spawn(watch(Arc::downgrade(&relay)));
        Self(relay)
    }

    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, ClientGone>>> {
        match &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(relay) => relay.poll_next(cx),
            // It was given up: the stream is reset.
            None => Poll::Ready(Some(Err(ClientGone))),
        }
    }
}

async fn watch(relay: Weak<Mutex<Option<Relay>>>) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        let Some(relay) = relay.upgrade() else { return };
        let mut relay = relay.lock().unwrap_or_else(PoisonError::into_inner);
        let mut cx = Context::from_waker(Waker::noop());
        if relay.as_mut().is_some_and(|relay| relay.is_stalled(&mut cx)) {
            // Dropping it closes the replica's connection and settles the request.
            *relay = None;
        }
        if relay.is_none() {
            return;
        }
    }
}

/// Every limit that it keeps is longer.
const INTERVAL: Duration = Duration::from_secs(1);
