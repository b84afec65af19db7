//! One attempt at one replica: connect, send, and wait for the first output. Up to here nothing was sent on to
//! the client, so that another replica may be tried.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use expediter_core::Failure;
use expediter_wire::answer::{AnswerHead, BodyDecoder, BodyFraming};
use expediter_wire::completion::inspect_answer;
use expediter_wire::request::Pieces;
use expediter_wire::sse::{Finish, Usage};
use http::{HeaderMap, HeaderValue, header};

use super::feed::{Feed, FeedEnd, failure_of_error};
use super::handler::Exchange;
use super::heads::request_head;
use super::relay::Source;
use crate::fleet::{AttemptOutcome, Flight, Replica};
use crate::upstream::{Connection, ReadError};

/// What is sent, to whichever replica.
pub(super) struct Outgoing {
    /// Path and query.
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) request_id: HeaderValue,
    pub(super) body: Pieces,
    /// Whether the client did not ask for the usage chunk, so that it is not sent on.
    pub(super) hides_usage: bool,
    /// Choices that a complete answer ends.
    pub(super) choices: u64,
}

/// What a replica gave that goes to the client.
pub(super) enum Given {
    /// A whole answer.
    Answer(WholeAnswer),
    /// A stream; its first event is judged and good.
    Stream(Box<(AnswerHead, Source)>),
}

/// A whole answer of a replica.
pub(super) struct WholeAnswer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) usage: Option<Usage>,
}

/// Why an attempt gave nothing, and the replica's own words if it had any.
pub(super) struct Failed {
    pub(super) failure: Failure,
    pub(super) detail: String,
    pub(super) answer: Option<Box<WholeAnswer>>,
}

impl Failed {
    fn new(failure: Failure, detail: impl Into<String>) -> Self {
        Self { failure, detail: detail.into(), answer: None }
    }
}

/// Makes an attempt. Ends early where the dispatcher gives it up; the dropped connection is the abort.
pub(super) async fn attempt(
    exchange: &Exchange,
    flight: &Flight,
    replica: &Arc<Replica>,
    outgoing: &Outgoing,
) -> Result<Given, Failed> {
    let mut tried = pin!(try_replica(exchange, replica, outgoing));
    poll_fn(|cx| {
        if let Poll::Ready(given) = tried.as_mut().poll(cx) {
            return Poll::Ready(given);
        }
        ready!(flight.poll_abandoned(cx, replica.id));
        Poll::Ready(Err(Failed::new(Failure::Silent, "the replica gave no output in time")))
    })
    .await
}

async fn try_replica(
    exchange: &Exchange,
    replica: &Arc<Replica>,
    outgoing: &Outgoing,
) -> Result<Given, Failed> {
    let limits = exchange.fleet.settings.load().limits;
    let length = outgoing.body.iter().map(Bytes::len).sum();
    let head = request_head(replica, &outgoing.path, &outgoing.headers, &outgoing.request_id, length);
    let mut request: smallvec::SmallVec<[Bytes; 6]> = smallvec::SmallVec::new();
    request.push(head);
    request.extend(outgoing.body.iter().cloned());

    let (connection, head) = send(exchange, replica, &request, limits.connect).await?;
    if (200..300).contains(&head.status) && is_event_stream(&head.headers) {
        let event_bytes_max = usize::try_from(limits.event_bytes_max).unwrap_or(usize::MAX);
        let feed = Feed::new(event_bytes_max, outgoing.hides_usage, outgoing.choices);
        return first_event(connection, head, feed).await;
    }
    let answer_bytes_max = usize::try_from(limits.answer_bytes_max).unwrap_or(usize::MAX);
    let answer = collect(exchange, replica, connection, head, answer_bytes_max).await?;
    judge(answer)
}

/// Sends the request and reads the answer's head. A kept connection that turns out to be closed is replaced by
/// a new one, once: the replica had closed it while it was idle and never saw the request.
async fn send(
    exchange: &Exchange,
    replica: &Arc<Replica>,
    request: &[Bytes],
    connect_limit: Duration,
) -> Result<(Connection, AnswerHead), Failed> {
    if let Some(mut kept) = exchange.take_idle(replica) {
        let sent = exchange.fleet.clock.now();
        match send_over(&mut kept, request).await {
            Err(ReadError::ClosedUnanswered) if exchange.fleet.clock.now().since(sent) < IDLE_RACE => {}
            Err(error) => return Err(read_failed(&error)),
            Ok(head) => return Ok((kept, head)),
        }
    }
    let io = replica.target.connect(connect_limit).await;
    let mut connection = Connection::new(io.map_err(|error| {
        // Where this machine is at its limits no replica is at fault, and there is no use in haste.
        let failure =
            if error.is_local() { Failure::Overloaded { retry_after: None } } else { Failure::Connect };
        Failed::new(failure, error.to_string())
    })?);
    let head = send_over(&mut connection, request).await.map_err(|error| read_failed(&error))?;
    Ok((connection, head))
}

/// A close that crosses with a request is there within a round trip. One that comes later is the end of a replica
/// that had the request.
const IDLE_RACE: Duration = Duration::from_millis(250);

async fn send_over(connection: &mut Connection, request: &[Bytes]) -> Result<AnswerHead, ReadError> {
    // A replica may answer, with a refusal say, and close before it has read all of a long body: what it said
    // counts, not that the rest could not be sent.
    let sent = connection.send(request).await;
    match connection.read_head().await {
        Err(ReadError::ClosedUnanswered) if sent.is_err() => Err(ReadError::ClosedUnanswered),
        head => head,
    }
}

fn read_failed(error: &ReadError) -> Failed {
    Failed::new(failure_of_read(error), error.to_string())
}

/// What a broken answer means.
pub(super) fn failure_of_read(error: &ReadError) -> Failure {
    match error {
        ReadError::ClosedUnanswered | ReadError::Truncated => Failure::Death,
        ReadError::Malformed(_) | ReadError::TooManyInterim => Failure::Malformed,
    }
}

/// How an attempt with this failure is counted.
pub(super) fn outcome_of(failure: Failure) -> AttemptOutcome {
    match failure {
        Failure::Connect => AttemptOutcome::ConnectFailed,
        Failure::Death | Failure::Lost => AttemptOutcome::Died,
        Failure::Silent => AttemptOutcome::Silent,
        Failure::ServerError { .. } => AttemptOutcome::ServerError,
        Failure::Overloaded { .. } => AttemptOutcome::Overloaded,
        Failure::Malformed => AttemptOutcome::Malformed,
    }
}

/// Waits for the first event with a payload. An engine sends the head of a stream at once, even while the
/// request waits in its queue: the head says nothing yet.
async fn first_event(connection: Connection, head: AnswerHead, feed: Feed) -> Result<Given, Failed> {
    let decoder = BodyDecoder::new(head.body);
    let mut source = Source { connection, decoder, keep_alive: head.keep_alive, feed };
    poll_fn(|cx| {
        while !source.feed.has_begun() && source.feed.end().is_none() {
            let Source { connection, decoder, feed, .. } = &mut source;
            match ready!(connection.poll_body(cx, decoder, |data| feed.push(data))) {
                Ok(true) => feed.close(),
                Ok(false) => {}
                Err(error) => feed.break_off(failure_of_read(&error), error.to_string()),
            }
        }
        Poll::Ready(())
    })
    .await;
    if source.feed.has_begun() {
        return Ok(Given::Stream(Box::new((head, source))));
    }
    match source.feed.end().cloned() {
        Some(FeedEnd::Rejected { error, payload }) => rejected_stream(head.headers, &error, payload),
        Some(FeedEnd::Broken { failure, message }) => Err(Failed::new(failure, message)),
        Some(FeedEnd::Complete) | None => Err(Failed::new(Failure::Malformed, "the stream had no event")),
    }
}

/// An error as the first event of a 200: the engine's verdict, only later than its head. It becomes the answer
/// that the engine would have given.
fn rejected_stream(
    mut headers: HeaderMap,
    error: &expediter_wire::sse::ErrorFrame,
    payload: Bytes,
) -> Result<Given, Failed> {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let status = error.code.filter(|code| (400..600).contains(code)).unwrap_or(500);
    let answer = WholeAnswer { status, headers, body: payload, usage: None };
    match failure_of_error(error) {
        None => Ok(Given::Answer(answer)),
        Some(failure) => {
            Err(Failed { failure, detail: error.message.clone(), answer: Some(Box::new(answer)) })
        }
    }
}

/// Reads a whole answer. Nothing of it is sent on before it is complete, so that a cut one can be retried.
async fn collect(
    exchange: &Exchange,
    replica: &Arc<Replica>,
    mut connection: Connection,
    head: AnswerHead,
    bytes_max: usize,
) -> Result<WholeAnswer, Failed> {
    let mut decoder = BodyDecoder::new(head.body);
    let mut body = match head.body {
        BodyFraming::Length(length) => {
            Vec::with_capacity(usize::try_from(length).unwrap_or(0).min(RESERVE_MAX))
        }
        BodyFraming::None | BodyFraming::Chunked | BodyFraming::UntilClose => Vec::new(),
    };
    poll_fn(|cx| {
        loop {
            let done = ready!(connection.poll_body(cx, &mut decoder, |data| body.extend_from_slice(data)));
            let done = done.map_err(|error| read_failed(&error))?;
            if body.len() > bytes_max {
                let detail =
                    format!("the answer is larger than {bytes_max} bytes (`limits.answer_bytes_max`)");
                // Every replica would answer alike.
                return Poll::Ready(Err(Failed::new(Failure::ServerError { status: 501 }, detail)));
            }
            if done {
                return Poll::Ready(Ok(()));
            }
        }
    })
    .await?;
    if head.keep_alive {
        exchange.keep(replica, connection);
    }
    Ok(WholeAnswer { status: head.status, headers: head.headers, body: body.into(), usage: None })
}

/// A replica's declared length is believed up to here; beyond it memory is taken as bytes come.
const RESERVE_MAX: usize = 1 << 20;

/// What a whole answer means: one for the client, or a failure.
fn judge(mut answer: WholeAnswer) -> Result<Given, Failed> {
    let failure = match answer.status {
        200 if is_json(&answer.headers) => {
            let said = inspect_answer(&answer.body);
            answer.usage = said.usage;
            if let Some(error) = said.error {
                answer.status = error.code.filter(|code| (400..600).contains(code)).unwrap_or(500);
                failure_of_error(&error)
            } else if said.finishes.iter().any(|(_, finish)| *finish == Finish::Abort) {
                // The text up to here looks complete; it must not reach anybody.
                return Err(Failed::new(
                    Failure::Lost,
                    "the replica went down before the answer was complete",
                ));
            } else if said.complete_json {
                None
            } else {
                return Err(Failed::new(Failure::Malformed, "the replica's answer is no complete JSON"));
            }
        }
        200 if !inspect_answer(&answer.body).complete_json => {
            return Err(Failed::new(Failure::Malformed, "the replica's answer is no JSON"));
        }
        429 | 503 => Some(Failure::Overloaded { retry_after: retry_after(&answer.headers) }),
        status @ 500..=599 => Some(Failure::ServerError { status }),
        200 | 400..=499 => None,
        status => {
            // A redirect is never followed, and no other status answers a completion.
            return Err(Failed::new(
                Failure::Malformed,
                format!("the replica answered with status {status}"),
            ));
        }
    };
    match failure {
        None => Ok(Given::Answer(answer)),
        Some(failure) => {
            let detail = format!("the replica answered with status {}", answer.status);
            Err(Failed { failure, detail, answer: Some(Box::new(answer)) })
        }
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    has_type(headers, "text/event-stream")
}

pub(super) fn is_json(headers: &HeaderMap) -> bool {
    has_type(headers, "application/json")
}

fn has_type(headers: &HeaderMap, wanted: &str) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|found| found.trim().eq_ignore_ascii_case(wanted))
}
