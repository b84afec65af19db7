//! Error answers with the bodies of vLLM 0.32.0.

use bytes::Bytes;
use hyper::StatusCode;
use serde::Serialize;

/// An answer that is no generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ErrorAnswer {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

#[derive(Serialize)]
struct Envelope<'a> {
    error: Inner<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: u16,
}

impl ErrorAnswer {
    /// The usual shape. `kind` is the `type`.
    pub(crate) fn new(status: StatusCode, kind: &str, param: Option<&str>, message: &str) -> Self {
        let envelope = Envelope { error: Inner { message, kind, param, code: status.as_u16() } };
        Self { status, body: serde_json::to_vec(&envelope).expect("strings are valid JSON").into() }
    }

    /// Understood, and not to be done. Where `param` stands in the message is for the caller to say.
    pub(crate) fn bad_request(param: Option<&str>, message: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequestError", param, message)
    }

    /// A body that does not have the form of the request, as pydantic says it.
    pub(crate) fn validation(kind: &str, location: &str, message: &str, input: &str) -> Self {
        let message = format!(
            "1 validation error:\n  {{'type': '{kind}', 'loc': '{location}', 'msg': '{message}', 'input': '{input}'}}"
        );
        Self::new(StatusCode::BAD_REQUEST, "Bad Request", Some(location), &message)
    }

    /// What `json.loads` says of a body that is no JSON.
    pub(crate) fn json_invalid(position: usize, reason: &str) -> Self {
        let location = format!("body.{position}");
        let message = format!(
            "1 validation error:\n  {{'type': 'json_invalid', 'loc': '{location}', 'msg': 'JSON decode error', \
             'input': '<dict of 0 items>', 'ctx': {{'error': '{reason}'}}}}"
        );
        Self::new(StatusCode::BAD_REQUEST, "Bad Request", Some(&location), &message)
    }

    pub(crate) fn unsupported_media_type() -> Self {
        let message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed";
        Self::new(StatusCode::BAD_REQUEST, "Bad Request", None, message)
    }

    pub(crate) fn unknown_model(asked: &str, served: &str) -> Self {
        let message = format!("The model `{asked}` does not exist. Valid aliases: {served}.");
        Self::new(StatusCode::NOT_FOUND, "NotFoundError", Some("model"), &message)
    }

    /// What clients hear when the engine's own process is lost.
    pub(crate) fn engine_lost() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError", None, ENGINE_LOST)
    }

    /// What clients hear when the queue has no room.
    pub(crate) fn queue_full() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "Service Unavailable", None, QUEUE_FULL)
    }

    /// What a process that drains says to new text.
    pub(crate) fn draining() -> Self {
        let message = "cannot schedule new futures after shutdown";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError", None, message)
    }

    /// The shape of the key check, unlike all others.
    pub(crate) fn unauthorized() -> Self {
        Self { status: StatusCode::UNAUTHORIZED, body: Bytes::from_static(br#"{"error":"Unauthorized"}"#) }
    }

    /// The shape of the web framework, for what never reaches the engine.
    pub(crate) fn detail(status: StatusCode, detail: &str) -> Self {
        Self { status, body: serde_json::json!({ "detail": detail }).to_string().into() }
    }
}

/// `engine_lost` as an event inside a stream that has begun. Unlike everything else it has spaces.
pub(crate) fn engine_lost_event() -> String {
    event(ENGINE_LOST, "InternalServerError", 500)
}

/// `queue_full` as such an event.
pub(crate) fn queue_full_event() -> String {
    event(QUEUE_FULL, "Service Unavailable", 503)
}

fn event(message: &str, kind: &str, code: u16) -> String {
    format!(
        "data: {{\"error\": {{\"message\": \"{message}\", \"type\": \"{kind}\", \"param\": null, \"code\": {code}}}}}\n\n"
    )
}

const ENGINE_LOST: &str = "EngineCore encountered an issue. See stack trace (above) for the root cause.";
const QUEUE_FULL: &str = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.";
