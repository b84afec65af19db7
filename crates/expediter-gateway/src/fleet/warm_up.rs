//! Sends a replica one tiny request: the proof that it generates, before a user's request is risked on it.

use std::sync::Arc;

use bytes::Bytes;
use expediter_core::ProbeResult;
use expediter_wire::completion::inspect_answer;
use expediter_wire::sse::Finish;

use super::{Fleet, Pool, Replica};
use crate::upstream::ProbeClient;

/// Asks for one token and tells the dispatcher whether it came.
pub(super) async fn warm_up(fleet: Arc<Fleet>, pool: Arc<Pool>, replica: Arc<Replica>) {
    let settings = fleet.settings.load_full();
    let mut client = ProbeClient::new(replica.target.clone());
    let key = replica.engine_key();
    let answered = client.post(
        "/v1/completions",
        key.as_deref(),
        body(&pool.model),
        settings.limits.connect,
        settings.probe.warm_up_timeout,
    );
    let answered = tokio::select! {
        () = replica.gone.cancelled() => return,
        answered = answered => answered,
    };
    let works = match &answered {
        Ok((status, body)) => generates(*status, body),
        Err(_) => false,
    };
    if !works {
        let status = answered.as_ref().map_or(0, |(status, _)| *status);
        let error = answered.err().map(|error| error.to_string());
        tracing::warn!(pool = &*pool.name, replica = &*replica.name, status, error, "warm-up failed");
    }
    pool.tell(|dispatcher, now| dispatcher.probe(replica.id, ProbeResult::WarmUp(works), now));
}

fn body(model: &str) -> Bytes {
    serde_json::json!({ "model": model, "prompt": "ping", "max_tokens": 1, "temperature": 0 })
        .to_string()
        .into()
}

/// An answer proves it, and so does the engine's own judgement that this request is none of its kind, or that
/// it wants a key that only the clients have. An answer that the engine cut short proves the opposite.
fn generates(status: u16, body: &[u8]) -> bool {
    match status {
        200 => {
            let answer = inspect_answer(body);
            answer.error.is_none() && !answer.finishes.iter().any(|(_, finish)| *finish == Finish::Abort)
        }
        400 | 401 | 403 | 413 | 422 => true,
        _ => false,
    }
}
