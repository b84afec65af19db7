//! The errors that the gateway itself answers with, in the shape of `OpenAI`'s. One place turns each into a status.

use std::time::Duration;

use bytes::Bytes;
use expediter_core::{Failure, Refusal};
use expediter_wire::error::error_body;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

/// Why a request is not answered by a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    /// Stable and machine-readable; also the label of the refusal's counter.
    pub(crate) code: &'static str,
    kind: &'static str,
    message: String,
    param: Option<&'static str>,
    retry_after: Option<Duration>,
    /// The methods that the route takes, as the `Allow` header lists them.
    allow: Option<&'static str>,
}

impl Problem {
    /// The codes of requests that reached a pool.
    pub(crate) const POOL_CODES: [&str; 8] = [
        "no_ready_replica",
        "model_not_found",
        "waiting_full",
        "retry_budget",
        "attempts_spent",
        "poison",
        "overloaded",
        "first_output_timeout",
    ];

    /// The request itself is wrong.
    pub(crate) fn invalid(
        code: &'static str,
        message: impl Into<String>,
        param: Option<&'static str>,
    ) -> Self {
        Self::new(StatusCode::BAD_REQUEST, INVALID, code, message).with_param(param)
    }

    /// No pool, alias or adapter has this name.
    pub(crate) fn model_not_found(model: &str) -> Self {
        // What a client sent is repeated to it only in a bounded form.
        let shown: String = model.chars().take(128).collect();
        let message = format!("The model `{shown}` does not exist. `GET /v1/models` lists those that do.");
        Self::new(StatusCode::NOT_FOUND, INVALID, "model_not_found", message).with_param(Some("model"))
    }

    /// No such route.
    pub(crate) fn route_not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, INVALID, "not_found", "No such route.")
    }

    /// The route exists for another method.
    pub(crate) fn method_not_allowed(allowed: &'static str) -> Self {
        let message = format!("This route takes {allowed} only.");
        let problem = Self::new(StatusCode::METHOD_NOT_ALLOWED, INVALID, "method_not_allowed", message);
        Self { allow: Some(allowed), ..problem }
    }

    /// The body is larger than the limit.
    pub(crate) fn body_too_large(limit: u64) -> Self {
        let message =
            format!("The request body is larger than the limit of {limit} bytes (`limits.body_bytes_max`).");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, INVALID, "body_too_large", message)
    }

    /// The body came too slowly.
    pub(crate) fn body_timeout() -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            INVALID,
            "body_timeout",
            "The request body came slower than `limits.body_bytes_per_second_min`.",
        )
    }

    /// The body is encoded in a way that is not understood.
    pub(crate) fn unsupported_encoding() -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            INVALID,
            "unsupported_content_encoding",
            "The request body must be sent without a content encoding.",
        )
    }

    /// The admin API is closed: no token is configured.
    pub(crate) fn admin_closed() -> Self {
        let message =
            "The admin API is closed: set `admin.token`, `admin.token_file` or EXPEDITER_ADMIN_TOKEN.";
        Self::new(StatusCode::FORBIDDEN, INVALID, "admin_closed", message)
    }

    /// No admin token, or a wrong one.
    pub(crate) fn admin_unauthorized() -> Self {
        let message = "Send the admin token as `Authorization: Bearer TOKEN`.";
        Self::new(StatusCode::UNAUTHORIZED, INVALID, "unauthorized", message)
    }

    /// No replica has this id.
    pub(crate) fn replica_not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, INVALID, "replica_not_found", "No replica has this id.")
    }

    /// No replica became ready while the request waited.
    pub(crate) fn expired() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            OVERLOADED,
            "no_ready_replica",
            "No replica became ready while the request waited.",
        )
        .with_retry_after(Duration::from_secs(5))
    }

    /// No replica that was reached serves the model, and there are others.
    pub(crate) fn unreached() -> Self {
        let message = "No replica that could be reached serves this model; others could not be reached yet.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, OVERLOADED, "no_ready_replica", message)
            .with_retry_after(Duration::from_secs(5))
    }

    /// What the dispatcher refuses, as a status. 429 where the client should slow down, 503 where the fleet is
    /// at fault, 502 where replicas failed on this request.
    pub(crate) fn from_refusal(refusal: &Refusal, detail: Option<&str>) -> Self {
        let reason = match *refusal {
            Refusal::NoReadyReplica { .. } => "No replica is ready.",
            Refusal::UnknownModel => "No replica serves this model.",
            Refusal::WaitingFull { .. } => "No replica is ready, and too many requests wait for one.",
            Refusal::RetryBudget { .. } => "The replica failed, and the pool's retries are used up.",
            Refusal::AttemptsSpent { .. } => "Every replica that was tried failed.",
            Refusal::Poison => {
                "Two replicas died while they worked on this request; it is not given to a third."
            }
            Refusal::Overloaded { .. } => "Every replica is overloaded.",
        };
        let message =
            detail.map_or_else(|| reason.to_owned(), |detail| format!("{reason} The last one: {detail}."));
        let code = refusal.code();
        match *refusal {
            Refusal::NoReadyReplica { retry_after } | Refusal::WaitingFull { retry_after } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, OVERLOADED, code, message)
                    .with_retry_after(retry_after)
            }
            Refusal::Overloaded { retry_after } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, OVERLOADED, code, message)
                    .with_retry_after(retry_after)
            }
            Refusal::UnknownModel => {
                Self::new(StatusCode::NOT_FOUND, INVALID, code, message).with_param(Some("model"))
            }
            Refusal::RetryBudget { last: Failure::Silent }
            | Refusal::AttemptsSpent { last: Failure::Silent } => {
                Self::new(StatusCode::GATEWAY_TIMEOUT, UPSTREAM, "first_output_timeout", message)
            }
            Refusal::RetryBudget { .. } | Refusal::AttemptsSpent { .. } | Refusal::Poison => {
                Self::new(StatusCode::BAD_GATEWAY, UPSTREAM, code, message)
            }
        }
    }

    fn new(status: StatusCode, kind: &'static str, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, kind, message: message.into(), param: None, retry_after: None, allow: None }
    }

    fn with_param(self, param: Option<&'static str>) -> Self {
        Self { param, ..self }
    }

    fn with_retry_after(self, retry_after: Duration) -> Self {
        Self { retry_after: Some(retry_after), ..self }
    }

    /// The answer.
    pub(crate) fn into_response(self) -> Response<Bytes> {
        let body = error_body(&self.message, self.kind, self.param, self.code);
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(retry_after) = self.retry_after {
            headers.insert(header::RETRY_AFTER, retry_after_value(retry_after));
        }
        if let Some(allow) = self.allow {
            headers.insert(header::ALLOW, HeaderValue::from_static(allow));
        }
        response
    }

    /// The same as an event inside a stream that has begun.
    pub(crate) fn in_stream(message: &str) -> Bytes {
        let mut event = b"data: ".to_vec();
        event.extend_from_slice(&error_body(message, UPSTREAM, None, "replica_failed"));
        event.extend_from_slice(b"\n\n");
        event.into()
    }
}

/// Whole seconds, rounded up: a client that comes back earlier comes back in vain.
fn retry_after_value(retry_after: Duration) -> HeaderValue {
    HeaderValue::from(u64::try_from(retry_after.as_millis().div_ceil(1000)).unwrap_or(u64::MAX).max(1))
}

/// Tells the client of an engine's own 429 or 503 when to come back, where the engine did not. vLLM does not.
pub(crate) fn add_retry_after(status: StatusCode, headers: &mut HeaderMap, refusal: &Refusal) {
    let is_overload = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    if is_overload && !headers.contains_key(header::RETRY_AFTER) {
        let retry_after = match *refusal {
            Refusal::Overloaded { retry_after }
            | Refusal::NoReadyReplica { retry_after }
            | Refusal::WaitingFull { retry_after } => retry_after,
            Refusal::UnknownModel
            | Refusal::RetryBudget { .. }
            | Refusal::AttemptsSpent { .. }
            | Refusal::Poison => Duration::from_secs(1),
        };
        headers.insert(header::RETRY_AFTER, retry_after_value(retry_after));
    }
}

const INVALID: &str = "invalid_request_error";
const UPSTREAM: &str = "upstream_error";
const OVERLOADED: &str = "overloaded_error";
