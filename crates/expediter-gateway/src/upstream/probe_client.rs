//! Small requests of the gateway's own to one replica.

use std::future::poll_fn;
use std::task::ready;
use std::time::Duration;

use bytes::Bytes;
use expediter_wire::answer::BodyDecoder;

use super::{ConnectError, Connection, Target};
use crate::settings::Secret;

/// One connection to a replica, kept open between requests.
pub(crate) struct ProbeClient {
    target: Target,
    connection: Option<Connection>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeError {
    /// Not even a connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Nothing, or not all of it, in time.
    #[error("no answer in time")]
    Timeout,
    /// The connection ended within the answer.
    #[error("the connection was closed within the answer")]
    Closed,
    /// No HTTP, or an answer that is too large.
    #[error("the answer is malformed")]
    Malformed,
}

/// The largest answer read: many times a large engine's metrics.
const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;

impl ProbeClient {
    pub(crate) fn new(target: Target) -> Self {
        Self { target, connection: None }
    }

    /// `GET path`: status and body, within `limit` in all.
    pub(crate) async fn get(
        &mut self,
        path: &str,
        key: Option<&Secret>,
        connect: Duration,
        limit: Duration,
    ) -> Result<(u16, Bytes), ProbeError> {
        let head = self.head("GET", path, key, "");
        self.exchange(&[head], connect, limit).await
    }

    /// `POST path` with a JSON body, marked as the gateway's own.
    pub(crate) async fn post(
        &mut self,
        path: &str,
        key: Option<&Secret>,
        body: Bytes,
        connect: Duration,
        limit: Duration,
    ) -> Result<(u16, Bytes), ProbeError> {
        let more = format!(
            "content-type: application/json\r\ncontent-length: {}\r\nx-expediter-probe: warm-up\r\n",
            body.len()
        );
        let head = self.head("POST", path, key, &more);
        self.exchange(&[head, body], connect, limit).await
    }

    fn head(&self, method: &str, path: &str, key: Option<&Secret>, more: &str) -> Bytes {
        let authorization =
            key.map(|key| format!("authorization: Bearer {}\r\n", key.reveal())).unwrap_or_default();
        let (prefix, authority) = (self.target.url.prefix(), &self.target.authority);
        format!(
            "{method} {prefix}{path} HTTP/1.1\r\nhost: {authority}\r\naccept: */*\r\naccept-encoding: identity\r\n\
             user-agent: expediter\r\n{authorization}{more}\r\n"
        )
        .into()
    }

    async fn exchange(
        &mut self,
        request: &[Bytes],
        connect: Duration,
        limit: Duration,
    ) -> Result<(u16, Bytes), ProbeError> {
        tokio::time::timeout(limit, self.exchange_unlimited(request, connect))
            .await
            .unwrap_or(Err(ProbeError::Timeout))
    }

    async fn exchange_unlimited(
        &mut self,
        request: &[Bytes],
        connect: Duration,
    ) -> Result<(u16, Bytes), ProbeError> {
        if let Some(kept) = self.connection.take().filter(Connection::is_quiet)
            && let Ok(answer) = self.exchange_over(kept, request).await
        {
            return Ok(answer);
        }
        let connection = Connection::new(self.target.connect(connect).await?);
        self.exchange_over(connection, request).await
    }

    async fn exchange_over(
        &mut self,
        mut connection: Connection,
        request: &[Bytes],
    ) -> Result<(u16, Bytes), ProbeError> {
        connection.send(request).await.map_err(|_| ProbeError::Closed)?;
        let head = connection.read_head().await.map_err(|error| match error {
            super::ReadError::Malformed(_) | super::ReadError::TooManyInterim => ProbeError::Malformed,
            super::ReadError::ClosedUnanswered | super::ReadError::Truncated => ProbeError::Closed,
        })?;
        let mut decoder = BodyDecoder::new(head.body);
        let mut body = Vec::new();
        poll_fn(|cx| {
            loop {
                let done =
                    ready!(connection.poll_body(cx, &mut decoder, |data| body.extend_from_slice(data)));
                match done {
                    Ok(true) => return std::task::Poll::Ready(Ok(())),
                    Ok(false) if body.len() > ANSWER_BYTES_MAX => {
                        return std::task::Poll::Ready(Err(ProbeError::Malformed));
                    }
                    Ok(false) => {}
                    Err(_) => return std::task::Poll::Ready(Err(ProbeError::Closed)),
                }
            }
        })
        .await?;
        if head.keep_alive && connection.is_quiet() {
            self.connection = Some(connection);
        }
        Ok((head.status, body.into()))
    }
}
