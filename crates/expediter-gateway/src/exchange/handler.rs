//! A request's way through the stages: receive, resolve, dispatch, attempt, relay.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use bytes::Bytes;
use expediter_core::Request as CoreRequest;
use expediter_types::{Prompt, Time, Tokens};
use expediter_wire::request::{Cap, Edit, Endpoint, RequestScan, ScanError, scan, splice};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header};
use hyper::body::Incoming;
use tokio_util::task::TaskTracker;

use super::attempt::{Failed, Given, Outgoing, WholeAnswer, attempt, is_json, outcome_of};
use super::body::AnswerBody;
use super::heads::answer_headers;
use super::models_list::models_list;
use super::prompt::prompt;
use super::receive::{BodyLimits, NoBody, receive};
use super::relay::Relay;
use super::request_id::{X_REQUEST_ID, request_id, trace_id};
use super::settlement::{Opening, Outcome, Settlement};
use super::watched::WatchedRelay;
use crate::client_io::{Client, ClientGone};
use crate::fleet::{AttemptOutcome, Fleet, Order, Replica, Route, Unresolved};
use crate::metrics::{CodeLabels, Label, RequestLabels, UNKNOWN_POOL, status_class};
use crate::problem::{Problem, add_retry_after};
use crate::upstream::{Connection, IdlePool};
use crate::usage::UsageWriter;

/// What all requests of a shard share.
pub(crate) struct Exchange {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) usage: Arc<UsageWriter>,
    /// Locked only by this shard's own thread.
    idle: Mutex<IdlePool>,
    /// The shard's own; they end with their streams.
    tasks: TaskTracker,
}

impl Exchange {
    pub(crate) fn new(fleet: Arc<Fleet>, usage: Arc<UsageWriter>, tasks: TaskTracker) -> Self {
        Self { fleet, usage, idle: Mutex::new(IdlePool::default()), tasks }
    }

    /// A kept connection to `replica` that is still good.
    pub(super) fn take_idle(&self, replica: &Replica) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.take(replica.id, self.fleet.clock.now())
    }

    /// Keeps a connection whose answer was read to its end.
    pub(super) fn keep(&self, replica: &Replica, connection: Connection) {
        if connection.is_quiet() && !replica.gone.is_cancelled() {
            let now = self.fleet.clock.now();
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).put(replica.id, connection, now);
        }
    }

    /// Closes kept connections that have become too old. Call about once a second.
    pub(crate) fn sweep(&self) {
        let now = self.fleet.clock.now();
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).sweep(now);
    }
}

/// Answers one request. Ends early, with an error that closes the connection, where the client left.
pub(crate) async fn handle(
    exchange: Arc<Exchange>,
    client: Arc<dyn Client>,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, ClientGone> {
    client.begin();
    let guard = Begun(Arc::clone(&client));
    let mut answered = pin!(answer(exchange, &client, request));
    let response = poll_fn(|cx| {
        if let Poll::Ready(response) = answered.as_mut().poll(cx) {
            return Poll::Ready(response);
        }
        // Dropping `answered` is the abort.
        client.poll_gone(cx).map(|()| Err(ClientGone))
    })
    .await?;
    Ok(response.map(|body| body.ending(guard)))
}

/// Marks the client's connection as idle again when the answer, or the attempt to give one, is over.
pub(crate) struct Begun(Arc<dyn Client>);

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.end();
    }
}

async fn answer(
    exchange: Arc<Exchange>,
    client: &Arc<dyn Client>,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, ClientGone> {
    let id = exchange.fleet.next_request();
    let shown_id = request_id(request.headers(), || exchange.fleet.fresh_id(id));
    let outcome = match route(request.method(), request.uri()) {
        Ok(Target::Completion(endpoint)) => {
            complete(&exchange, client, request, endpoint, id, &shown_id).await
        }
        Ok(Target::Models) => Ok(json(StatusCode::OK, models_list(&exchange.fleet))),
        Ok(Target::Live) => Ok(text(StatusCode::OK, "live\n")),
        Ok(Target::Ready) if exchange.fleet.is_ready() => Ok(text(StatusCode::OK, "ready\n")),
        Ok(Target::Ready) => Ok(text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n")),
        Err(problem) => Err(Stop::Problem { problem: Box::new(problem), pool: None, unread: true }),
    };
    let mut response = match outcome {
        Ok(response) => response,
        Err(Stop::ClientGone) => return Err(ClientGone),
        Err(Stop::Problem { problem, pool, unread }) => {
            if unread {
                client.linger();
            }
            refuse(&exchange, *problem, pool)
        }
    };
    response.headers_mut().insert(X_REQUEST_ID, shown_id);
    Ok(response)
}

/// What a path leads to.
enum Target {
    Completion(Endpoint),
    Models,
    Live,
    Ready,
}

fn route(method: &Method, uri: &Uri) -> Result<Target, Problem> {
    let target = match uri.path() {
        "/v1/chat/completions" => Target::Completion(Endpoint::Chat),
        "/v1/completions" => Target::Completion(Endpoint::Completions),
        "/v1/models" => Target::Models,
        "/livez" => Target::Live,
        "/readyz" => Target::Ready,
        _ => return Err(Problem::route_not_found()),
    };
    let reads = *method == Method::GET || *method == Method::HEAD;
    match target {
        Target::Completion(_) if *method != Method::POST => Err(Problem::method_not_allowed("POST")),
        Target::Models | Target::Live | Target::Ready if !reads => {
            Err(Problem::method_not_allowed("GET, HEAD"))
        }
        Target::Completion(_) | Target::Models | Target::Live | Target::Ready => Ok(target),
    }
}

/// Why a request does not reach a replica.
enum Stop {
    ClientGone,
    Problem {
        problem: Box<Problem>,
        pool: Option<Label>,
        /// Whether the client may still be sending its body.
        unread: bool,
    },
}

impl From<Problem> for Stop {
    fn from(problem: Problem) -> Self {
        Self::Problem { problem: Box::new(problem), pool: None, unread: false }
    }
}

fn refuse(exchange: &Exchange, problem: Problem, pool: Option<Label>) -> Response<AnswerBody> {
    let metrics = &exchange.fleet.metrics;
    // What reached a pool is counted when it is settled.
    let label = pool.unwrap_or_else(|| {
        let pool = Label::new(UNKNOWN_POOL);
        let status_class = status_class(problem.status.as_u16());
        let labels = RequestLabels { pool: pool.clone(), outcome: Outcome::Refused.as_str(), status_class };
        metrics.requests.get_or_create(&labels).inc();
        pool
    });
    metrics.refusals.get_or_create(&CodeLabels { pool: label, code: problem.code }).inc();
    problem.into_response().map(AnswerBody::whole)
}

async fn complete(
    exchange: &Arc<Exchange>,
    client: &Arc<dyn Client>,
    request: Request<Incoming>,
    endpoint: Endpoint,
    id: expediter_types::RequestId,
    shown_id: &HeaderValue,
) -> Result<Response<AnswerBody>, Stop> {
    let arrived = exchange.fleet.clock.now();
    let (parts, body) = request.into_parts();
    if !is_unencoded(&parts.headers) {
        return Err(Stop::Problem {
            problem: Box::new(Problem::unsupported_encoding()),
            pool: None,
            unread: true,
        });
    }
    let limits = exchange.fleet.settings.load().limits;
    let body_limits = BodyLimits {
        bytes_max: limits.body_bytes_max,
        bytes_per_second_min: limits.body_bytes_per_second_min,
        grace: limits.head,
    };
    let body = receive(body, body_limits).await.map_err(|error| match error {
        NoBody::ClientGone => Stop::ClientGone,
        NoBody::Problem(problem) => Stop::Problem { problem: Box::new(problem), pool: None, unread: true },
    })?;
    client.body_received();
    let scan = scan_body(&body, endpoint).await.map_err(|error| {
        Problem::invalid(error.code(), format!("The request cannot be read: {error}."), error.param())
    })?;
    let model = scan.model_name();
    let route =
        exchange.fleet.resolve_or_wait(model, id).await.map_err(|unresolved| match (unresolved, model) {
            (Unresolved::NotYet, _) => Problem::unreached(),
            (Unresolved::Unknown, Some(model)) => Problem::model_not_found(model),
            (Unresolved::Unknown, None) => {
                Problem::invalid("model_required", "The request names no model.", Some("model"))
            }
        })?;
    let outgoing = outgoing(&parts.uri, parts.headers, shown_id, &body, &scan, &route);
    let prompt = prompt(&exchange.fleet, &route, &scan, &body);
    let settlement = open(exchange, id, arrived, &outgoing, (&scan, prompt), route);
    let mut response = dispatch(exchange, client, settlement, &outgoing).await?;
    if scan.stream && parts.version < Version::HTTP_11 {
        // Without chunks only the connection's end can end a stream.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// Whether the body is sent as it is. Codings have no case, and may stand in several lines (RFC 9110 §8.4.1).
fn is_unencoded(headers: &HeaderMap) -> bool {
    headers.get_all(header::CONTENT_ENCODING).iter().all(|coding| {
        let coding = coding.as_bytes().trim_ascii();
        coding.is_empty() || coding.eq_ignore_ascii_case(b"identity")
    })
}

/// Scans a body; a large one away from the IO threads, which must not stand still.
async fn scan_body(body: &Bytes, endpoint: Endpoint) -> Result<RequestScan, ScanError> {
    if body.len() < SCAN_INLINE_BYTES_MAX {
        return scan(body, endpoint);
    }
    let shared = body.clone();
    match tokio::task::spawn_blocking(move || scan(&shared, endpoint)).await {
        Ok(scanned) => scanned,
        // The scanner does not panic; the runtime is going down.
        Err(_) => Err(ScanError::Syntax { offset: 0 }),
    }
}

/// About half a millisecond of scanning.
const SCAN_INLINE_BYTES_MAX: usize = 512 * 1024;

fn outgoing(
    uri: &Uri,
    headers: HeaderMap,
    request_id: &HeaderValue,
    body: &Bytes,
    scan: &RequestScan,
    route: &Route,
) -> Outgoing {
    let renamed = scan.model.as_ref().filter(|model| !model.value.is_empty() && *model.value != *route.model);
    let edit = Edit { model: renamed.map(|_| &*route.model), include_usage: scan.stream };
    Outgoing {
        path: uri.path_and_query().map_or_else(|| uri.path().to_owned(), |path| path.as_str().to_owned()),
        headers,
        request_id: request_id.clone(),
        body: splice(body, scan, &edit),
        hides_usage: scan.stream && !scan.asks_usage(),
        choices: choices(scan),
    }
}

fn open(
    exchange: &Arc<Exchange>,
    id: expediter_types::RequestId,
    arrived: Time,
    outgoing: &Outgoing,
    (scan, prompt): (&RequestScan, Prompt),
    route: Route,
) -> Settlement {
    let cap = match scan.output_cap() {
        Cap::Tokens(tokens) => tokens,
        // vLLM's own default for completions; a chat may fill what is left of the context.
        Cap::Absent | Cap::Null if scan.endpoint == Endpoint::Completions => 16,
        Cap::Absent | Cap::Null | Cap::Other => CHAT_CAP_DEFAULT,
    };
    let flight = route.pool.arrive(
        id,
        CoreRequest {
            model: route.model_id,
            prompt,
            output_cap: Tokens(cap.saturating_mul(choices(scan))),
            stream: scan.stream,
            wait_limit: None,
        },
    );
    let counted_by_client = scan.prompt.bytes == 0 && scan.prompt.token_ids > 0;
    let opening = Opening {
        pool: route.pool,
        flight,
        arrived,
        request_id: outgoing.request_id.clone(),
        trace_id: trace_id(&outgoing.headers).map(str::to_owned),
        model: scan.model.as_ref().map(|model| model.value.clone()),
        served_model: route.model,
        stream: scan.stream,
        input_tokens: counted_by_client.then_some(scan.prompt.token_ids),
    };
    Settlement::new(Arc::clone(exchange), opening)
}

/// Choices in a complete answer: so many for each prompt of the batch.
fn choices(scan: &RequestScan) -> u64 {
    u64::from(scan.n).saturating_mul(u64::from(scan.prompt.prompts)).max(1)
}

/// What a chat without a cap is taken to allow: larger than most answers, smaller than any context.
const CHAT_CAP_DEFAULT: u64 = 4096;

/// Follows the dispatcher's orders until there is an answer.
async fn dispatch(
    exchange: &Arc<Exchange>,
    client: &Arc<dyn Client>,
    mut settlement: Settlement,
    outgoing: &Outgoing,
) -> Result<Response<AnswerBody>, Stop> {
    let mut last: Option<Failed> = None;
    loop {
        let (replica, decision) = match settlement.opening.flight.next_order().await {
            Order::Dispatch { replica, decision } => (replica, decision),
            Order::Refuse(refusal) => return refused(exchange, settlement, last, &refusal),
            Order::Expire => {
                let problem = Problem::expired();
                settlement.ends(Outcome::Refused, problem.status.as_u16(), Some(problem.code));
                return Err(stop(problem, &settlement));
            }
            Order::Abandon(_) | Order::Cut(_) => continue,
        };
        tracing::debug!(
            request_id = settlement.opening.request_id.to_str().unwrap_or_default(),
            replica = &*replica.name,
            attempt = decision.attempt,
            ?decision,
            "dispatched"
        );
        settlement.attempt_begins(&replica, exchange.fleet.clock.now());
        let tried = attempt(exchange, &settlement.opening.flight, &replica, outgoing).await;
        let mut response = match tried {
            Ok(Given::Answer(answer)) => whole(&mut settlement, answer, outgoing),
            Ok(Given::Stream(given)) => {
                let (head, source) = *given;
                let mut response = Response::new(());
                *response.status_mut() = status(head.status);
                *response.headers_mut() = answer_headers(head.headers, &outgoing.request_id);
                let relay = Relay::new(
                    Arc::clone(exchange),
                    Arc::clone(client),
                    Arc::clone(&replica),
                    settlement,
                    source,
                );
                expose(exchange, &mut response, &replica, &decision);
                let body = if client.is_h2() {
                    AnswerBody::watched(WatchedRelay::new(relay, &exchange.tasks))
                } else {
                    AnswerBody::stream(relay)
                };
                return Ok(response.map(|()| body));
            }
            Err(failed) => {
                tracing::info!(
                    request_id = settlement.opening.request_id.to_str().unwrap_or_default(),
                    replica = &*replica.name,
                    failure = failed.failure.code(),
                    detail = failed.detail,
                    "attempt failed"
                );
                settlement.attempt_ends(outcome_of(failed.failure));
                settlement.opening.flight.fail(failed.failure);
                last = Some(failed);
                continue;
            }
        };
        expose(exchange, &mut response, &replica, &decision);
        return Ok(response);
    }
}

fn stop(problem: Problem, settlement: &Settlement) -> Stop {
    Stop::Problem {
        problem: Box::new(problem),
        pool: Some(settlement.opening.pool.label.clone()),
        unread: false,
    }
}

/// No replica is left to try. A replica's own answer, where there is one, says more than ours would.
fn refused(
    exchange: &Exchange,
    mut settlement: Settlement,
    last: Option<Failed>,
    refusal: &expediter_core::Refusal,
) -> Result<Response<AnswerBody>, Stop> {
    let outcome = if last.is_some() { Outcome::Failed } else { Outcome::Refused };
    let (detail, answer) = last.map_or((None, None), |failed| (Some(failed.detail), failed.answer));
    if let Some(answer) = answer.filter(|answer| is_json(&answer.headers)) {
        settlement.ends(outcome, answer.status, Some(refusal.code()));
        let labels = CodeLabels { pool: settlement.opening.pool.label.clone(), code: refusal.code() };
        exchange.fleet.metrics.refusals.get_or_create(&labels).inc();
        let mut response = reply(*answer, &settlement.opening.request_id);
        add_retry_after(response.status(), response.headers_mut(), refusal);
        return Ok(response);
    }
    let problem = Problem::from_refusal(refusal, detail.as_deref());
    settlement.ends(outcome, problem.status.as_u16(), Some(problem.code));
    Err(stop(problem, &settlement))
}

/// A whole answer of a replica: settled here, sent as it is.
fn whole(settlement: &mut Settlement, answer: WholeAnswer, outgoing: &Outgoing) -> Response<AnswerBody> {
    settlement.opening.flight.answered();
    if let Some(usage) = answer.usage {
        settlement.usage = usage;
    }
    let rejected = (400..500).contains(&answer.status);
    settlement.attempt_ends(if rejected { AttemptOutcome::Rejected } else { AttemptOutcome::Answered });
    settlement.ends(Outcome::Completed, answer.status, None);
    reply(answer, &outgoing.request_id)
}

fn reply(answer: WholeAnswer, request_id: &HeaderValue) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::whole(answer.body));
    *response.status_mut() = status(answer.status);
    *response.headers_mut() = answer_headers(answer.headers, request_id);
    response
}

fn status(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap_or(StatusCode::BAD_GATEWAY)
}

/// Tells which replica answered, and why it, where the settings want that shown.
fn expose<B>(
    exchange: &Exchange,
    response: &mut Response<B>,
    replica: &Replica,
    decision: &expediter_core::Decision,
) {
    let expose = exchange.fleet.settings.load().expose;
    if expose.replica_header
        && let Ok(name) = HeaderValue::from_str(&replica.name)
    {
        response.headers_mut().insert(HeaderName::from_static("x-expediter-replica"), name);
    }
    if expose.decision_header {
        let candidates: Vec<String> = decision
            .candidates
            .iter()
            .map(|candidate| {
                format!("{}:{:.1}:{}", candidate.replica, candidate.load, candidate.verdict.as_str())
            })
            .collect();
        let text =
            format!("policy={};attempt={};{}", decision.policy, decision.attempt, candidates.join(","));
        if let Ok(value) = HeaderValue::from_str(&text) {
            response.headers_mut().insert(HeaderName::from_static("x-expediter-decision"), value);
        }
    }
}

fn json(status: StatusCode, body: Vec<u8>) -> Response<AnswerBody> {
    typed(status, "application/json", body)
}

fn text(status: StatusCode, body: &'static str) -> Response<AnswerBody> {
    typed(status, "text/plain; charset=utf-8", body)
}

fn typed(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::whole(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
