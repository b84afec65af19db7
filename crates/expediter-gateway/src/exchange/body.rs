//! The body of an answer to a client.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::handler::Begun;
use super::relay::Relay;
use super::watched::WatchedRelay;
use crate::client_io::ClientGone;

/// The body of an answer. The request counts as in progress until it is dropped.
pub(crate) struct AnswerBody {
    content: Content,
    _begun: Option<Begun>,
}

enum Content {
    /// The whole body; `None` once it was taken.
    Whole(Option<Bytes>),
    /// Events from a replica.
    Stream(Box<Relay>),
    /// The same for an HTTP/2 client, whose library asks for bytes only while the client takes some.
    Watched(WatchedRelay),
}

impl AnswerBody {
    pub(super) fn whole(body: impl Into<Bytes>) -> Self {
        Self { content: Content::Whole(Some(body.into())), _begun: None }
    }

    pub(super) fn stream(relay: Relay) -> Self {
        Self { content: Content::Stream(Box::new(relay)), _begun: None }
    }

    pub(super) fn watched(relay: WatchedRelay) -> Self {
        Self { content: Content::Watched(relay), _begun: None }
    }

    /// The same, ending the request when it is dropped.
    pub(super) fn ending(self, begun: Begun) -> Self {
        Self { _begun: Some(begun), ..self }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = ClientGone;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ClientGone>>> {
        match &mut self.get_mut().content {
            Content::Whole(body) => {
                Poll::Ready(body.take().filter(|body| !body.is_empty()).map(|body| Ok(Frame::data(body))))
            }
            Content::Stream(relay) => relay.poll_next(cx).map(|next| next.map(|next| next.map(Frame::data))),
            Content::Watched(relay) => relay.poll_next(cx).map(|next| next.map(|next| next.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Whole(body) => body.as_ref().is_none_or(Bytes::is_empty),
            Content::Stream(_) | Content::Watched(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(body) => SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64)),
            Content::Stream(_) | Content::Watched(_) => SizeHint::default(),
        }
    }
}
