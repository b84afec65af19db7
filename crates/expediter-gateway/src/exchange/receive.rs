//! Reads a request's body, with limits on its size and on its pace.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use crate::problem::Problem;

/// Size and pace that a body must keep.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyLimits {
    pub(super) bytes_max: u64,
    pub(super) bytes_per_second_min: u64,
    /// How long a body may take before its pace counts.
    pub(super) grace: Duration,
}

/// Why there is no body.
#[derive(Debug)]
pub(super) enum NoBody {
    /// The client is told.
    Problem(Problem),
    /// Nobody is left to tell.
    ClientGone,
}

/// The whole body. A request whose body is not complete holds nothing but its own bytes.
pub(super) async fn receive(body: Incoming, limits: BodyLimits) -> Result<Bytes, NoBody> {
    let too_large = || NoBody::Problem(Problem::body_too_large(limits.bytes_max));
    if body.size_hint().lower() > limits.bytes_max {
        return Err(too_large());
    }
    let mut body = pin!(body);
    let mut pace = Pace { limits, received: 0, started: None, timer: None };
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    loop {
        let frame = poll_fn(|cx| match body.as_mut().poll_frame(cx) {
            Poll::Pending => pace.poll_too_slow(cx).map(Err),
            Poll::Ready(frame) => Poll::Ready(Ok(frame)),
        });
        let data = match frame.await {
            Err(TooSlow) => return Err(NoBody::Problem(Problem::body_timeout())),
            Ok(None) => break,
            Ok(Some(Err(_))) => return Err(NoBody::ClientGone),
            // Trailers carry nothing that is read here.
            Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
        };
        pace.received += data.len() as u64;
        if pace.received > limits.bytes_max {
            return Err(too_large());
        }
        if first.is_empty() {
            first = data;
            continue;
        }
        if whole.is_empty() {
            let expected = usize::try_from(body.size_hint().lower()).unwrap_or(0).min(RESERVE_MAX);
            whole.reserve(first.len() + data.len() + expected);
            whole.extend_from_slice(&first);
        }
        whole.extend_from_slice(&data);
    }
    Ok(if whole.is_empty() { first } else { whole.freeze() })
}

/// A client's declared length is believed up to here; beyond it memory is taken as bytes come.
const RESERVE_MAX: usize = 1 << 20;

/// The body's clock. It starts a timer only once a body makes it wait.
struct Pace {
    limits: BodyLimits,
    received: u64,
    started: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

struct TooSlow;

impl Pace {
    fn poll_too_slow(&mut self, cx: &mut Context<'_>) -> Poll<TooSlow> {
        let started = *self.started.get_or_insert_with(Instant::now);
        let earned = Duration::from_secs(self.received / self.limits.bytes_per_second_min.max(1));
        let due = started + self.limits.grace + earned;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
        loop {
            ready!(timer.as_mut().poll(cx));
            if due <= timer.deadline() {
                return Poll::Ready(TooSlow);
            }
            // Bytes came since the timer was set.
            timer.as_mut().reset(due);
        }
    }
}
