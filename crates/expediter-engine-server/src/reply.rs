//! The body of an answer.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, SERVER, VARY};
use hyper::{Response, StatusCode};

use crate::connection::Busy;
use crate::error::ErrorAnswer;
use crate::events::EventStream;

/// The connection is to end here, without the end of its answer.
#[derive(Debug, thiserror::Error)]
#[error("cut by a fault")]
pub(crate) struct Cut;

/// What an answer sends.
#[derive(Debug)]
pub(crate) enum Content {
    /// All of it is known.
    Whole(Full<Bytes>),
    /// Events as they come.
    Events(Box<EventStream>),
}

/// An answer's body. The connection counts as busy until it is dropped.
#[derive(Debug)]
pub(crate) struct Reply {
    content: Content,
    _busy: Busy,
}

impl Reply {
    pub(crate) fn new(content: Content, busy: Busy) -> Self {
        Self { content, _busy: busy }
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match &mut self.get_mut().content {
            Content::Whole(body) => Pin::new(body).poll_frame(cx).map_err(|never: Infallible| match never {}),
            Content::Events(events) => {
                events.poll_event(cx).map(|event| event.map(|event| event.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Whole(body) => body.is_end_stream(),
            Content::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(body) => body.size_hint(),
            Content::Events(_) => SizeHint::default(),
        }
    }
}

/// An answer with the headers that all have.
pub(crate) fn response(
    status: StatusCode,
    content_type: Option<&'static str>,
    content: Content,
) -> Response<Content> {
    let mut response = Response::new(content);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(SERVER, HeaderValue::from_static("uvicorn"));
    if let Some(content_type) = content_type {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    headers.insert(VARY, HeaderValue::from_static("Origin"));
    response
}

/// A JSON document.
pub(crate) fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<Content> {
    response(status, Some("application/json"), Content::Whole(Full::new(body.into())))
}

/// No body.
pub(crate) fn empty(status: StatusCode) -> Response<Content> {
    response(status, None, Content::Whole(Full::default()))
}

/// The wrong method.
pub(crate) fn not_allowed(allow: &'static str) -> Response<Content> {
    let mut response = error(ErrorAnswer::detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed"));
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    response
}

pub(crate) fn error(error: ErrorAnswer) -> Response<Content> {
    json(error.status, error.body)
}
