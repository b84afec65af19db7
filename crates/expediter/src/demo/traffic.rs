//! Sends the traffic: real HTTP over loopback through the gateway, and a look at every answer.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::asks::{Ask, Asks};
use super::http;

/// What became of the requests so far, as their clients see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) sent: u64,
    /// In full, and as a client can read it.
    pub(crate) answered: u64,
    /// The client left before the end.
    pub(crate) left: u64,
    pub(crate) failed: u64,
    /// The last failure.
    pub(crate) last_failure: Option<String>,
}

/// Sends requests until it is dropped; then every client leaves.
pub(crate) async fn run(gateway: SocketAddr, asks: Asks, tally: watch::Sender<Tally>) {
    let mut clients = JoinSet::new();
    let mut due = Instant::now();
    for ask in asks {
        // A process that was suspended does not make up for what it has missed.
        due = due.max(Instant::now()) + ask.after;
        loop {
            tokio::select! {
                () = sleep_until(due) => break,
                Some(ended) = clients.join_next() => tally.send_modify(|tally| tally.count(ended)),
            }
        }
        if clients.len() < CLIENTS_MAX {
            clients.spawn(client(gateway, ask));
            tally.send_modify(|tally| tally.sent += 1);
        }
    }
}

/// Many times what is usual: only a fleet that has stopped answering has so many wait.
const CLIENTS_MAX: usize = 256;

#[derive(Debug)]
enum Ended {
    Answered,
    Left,
}

impl Tally {
    fn count(&mut self, ended: Result<Result<Ended>, tokio::task::JoinError>) {
        let failure = match ended {
            Ok(Ok(Ended::Answered)) => return self.answered += 1,
            Ok(Ok(Ended::Left)) => return self.left += 1,
            Ok(Err(error)) => format!("{error:#}"),
            Err(error) => error.to_string(),
        };
        self.failed += 1;
        self.last_failure = Some(failure);
    }
}

async fn client(gateway: SocketAddr, ask: Ask) -> Result<Ended> {
    match ask.leaves_after {
        Some(patience) => timeout(patience, converse(gateway, ask)).await.unwrap_or(Ok(Ended::Left)),
        None => converse(gateway, ask).await,
    }
}

async fn converse(gateway: SocketAddr, ask: Ask) -> Result<Ended> {
    let mut answer = http::post(gateway, ask.path, ask.body).await?;
    if ask.stream {
        let mut last = Vec::new();
        while let Some(piece) = answer.piece().await? {
            last.extend_from_slice(&piece);
            last.drain(..last.len().saturating_sub(TAIL));
        }
        ensure!(last.ends_with(DONE), "{}", why_it_ended(&last));
    } else {
        let body: Value = serde_json::from_str(&answer.text().await?)?;
        let reason = &body["choices"][0]["finish_reason"];
        ensure!(reason == "length" || reason == "stop", "an answer ended with finish_reason {reason}");
    }
    Ok(Ended::Answered)
}

/// What the end of a stream tells that did not end well.
fn why_it_ended(tail: &[u8]) -> String {
    let tail = String::from_utf8_lossy(tail);
    let last_event = tail.rsplit("data: ").next().unwrap_or_default();
    http::error_message(last_event).unwrap_or_else(|| "A stream ended without `[DONE]`.".to_owned())
}

const DONE: &[u8] = b"data: [DONE]\n\n";
/// Bytes of a stream's end that tell how it ended: an error event is longer than `[DONE]`.
const TAIL: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_tells_why_it_ended() {
        let no_done = "A stream ended without `[DONE]`.";
        let cases = [
            ("", no_done),
            ("data: {\"choices\":[]}\n\n", no_done),
            (
                "data: {\"choices\":[]}\n\ndata: {\"error\":{\"message\":\"It broke off.\"}}\n\n",
                "It broke off.",
            ),
        ];
        for (tail, expected) in cases {
            assert_eq!(why_it_ended(tail.as_bytes()), expected, "{tail}");
        }
    }
}
