//! The client of the demo's own requests. Each has a connection of its own, so that dropping the answer is what
//! it is for a browser that is closed.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// An answer whose body has yet to come.
pub(crate) struct Answer {
    status: StatusCode,
    body: Incoming,
    /// Drives the connection, and closes it when dropped.
    _connection: JoinSet<()>,
}

impl Answer {
    /// The next piece of the body; none at its proper end.
    pub(crate) async fn piece(&mut self) -> Result<Option<Bytes>> {
        while let Some(frame) = self.body.frame().await {
            if let Ok(data) = frame.context("the answer was cut")?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// The whole body, which must be text.
    pub(crate) async fn text(self) -> Result<String> {
        let body = self.body.collect().await.context("the answer was cut")?.to_bytes();
        Ok(String::from_utf8(body.to_vec())?)
    }
}

/// A GET, with the admin token where there is one.
pub(crate) async fn get(address: SocketAddr, path: &str, token: Option<&str>) -> Result<Answer> {
    let mut request = Request::get(path).header(HOST, address.to_string());
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    send(address, request.body(Full::default())?).await
}

/// A POST of JSON.
pub(crate) async fn post(address: SocketAddr, path: &str, body: String) -> Result<Answer> {
    let request = Request::post(path)
        .header(HOST, address.to_string())
        .header(CONTENT_TYPE, "application/json")
        .body(Full::from(body))?;
    send(address, request).await
}

/// Returns with the head of an answer that says 200; every other one is an error that tells what it says.
async fn send(address: SocketAddr, request: Request<Full<Bytes>>) -> Result<Answer> {
    let stream = TcpStream::connect(address).await.context("cannot connect")?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let mut tasks = JoinSet::new();
    // How the connection ends shows in the answer.
    tasks.spawn(async move { _ = connection.await });
    let (head, body) = sender.send_request(request).await.context("no answer")?.into_parts();
    let answer = Answer { status: head.status, body, _connection: tasks };
    if answer.status != StatusCode::OK {
        let status = answer.status;
        let body = answer.text().await?;
        bail!("{status}: {}", error_message(&body).unwrap_or(body));
    }
    Ok(answer)
}

/// What an error of the API says, be it a body or the data of an event.
pub(crate) fn error_message(json: &str) -> Option<String> {
    let body: Value = serde_json::from_str(json).ok()?;
    body["error"]["message"].as_str().map(str::to_owned)
}
