//! Ready-made scripts of replicas, and the bodies of a healthy engine.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::replica::{Conn, Gone, Request, Script, Then};
use super::wait::Signal;

/// A script from a closure; saves the caller the `Arc` and the types.
pub fn script(run: impl Fn(&mut Conn, &Request) -> Result<Then, Gone> + Send + Sync + 'static) -> Script {
    Arc::new(run)
}

/// A whole answer with `content-length`; the connection stays.
pub fn answer(status: u16, content_type: &'static str, body: impl Into<Vec<u8>>) -> Script {
    let body = body.into();
    script(move |conn, _| conn.answer(status, content_type, &body).map(|()| Then::KeepAlive))
}

/// An error with the engine's body.
pub fn error(status: u16, kind: &str, message: &str) -> Script {
    answer(status, "application/json", error_body(status, kind, message))
}

/// The engine's error body.
pub fn error_body(status: u16, kind: &str, message: &str) -> String {
    json!({"error": {"message": message, "type": kind, "param": null, "code": status}}).to_string()
}

/// Bytes as they are, then `then`.
pub fn raw(bytes: impl Into<Vec<u8>>, then: Then) -> Script {
    let bytes = bytes.into();
    script(move |conn, _| conn.send(&bytes).map(|()| then))
}

/// A whole answer once `go` is raised.
pub fn held(go: &Signal) -> Script {
    let go = go.clone();
    script(move |conn, _| {
        conn.wait(&go)?;
        conn.answer(200, "application/json", completion("cc-1", "ok", "stop", 9, 1))?;
        Ok(Then::KeepAlive)
    })
}

/// Nothing at all until the peer closes.
pub fn silent() -> Script {
    script(|_, _| Ok(Then::Hold))
}

/// An event stream: each event of `body` as one chunk, the way the engine writes, and a clean end.
pub fn sse(body: impl Into<Vec<u8>>) -> Script {
    let events = split_events(&body.into());
    script(move |conn, _| {
        conn.sse_head()?;
        for event in &events {
            conn.chunk(event)?;
        }
        conn.last_chunk()?;
        Ok(Then::KeepAlive)
    })
}

/// The first chunks of an event stream, then `then` with no final chunk.
pub fn sse_cut(body: impl Into<Vec<u8>>, then: Then) -> Script {
    let events = split_events(&body.into());
    script(move |conn, _| {
        conn.sse_head()?;
        for event in &events {
            conn.chunk(event)?;
        }
        Ok(then)
    })
}

/// A stream of `count` tokens, `period` apart: a role frame with the first one, a usage frame where
/// it was asked for, `[DONE]`.
pub fn tokens(count: usize, period: Duration) -> Script {
    script(move |conn, request| {
        conn.sse_head()?;
        conn.event(&role_frame("cc-1"))?;
        for n in 0..count {
            if n > 0 {
                conn.pause(period)?;
            }
            conn.event(&token_frame("cc-1", &format!("t{n} ")))?;
        }
        conn.event(&finish_frame("cc-1", "stop"))?;
        if wants_usage(request) {
            conn.event(&usage_frame("cc-1", 9, count as u64))?;
        }
        conn.event("[DONE]")?;
        conn.last_chunk()?;
        Ok(Then::KeepAlive)
    })
}

/// A short completion, streamed or not as the request asks; 9 tokens in, one out for each of
/// `texts`.
pub fn good(id: &str, texts: &[&str]) -> Script {
    let id = id.to_owned();
    let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
    script(move |conn, request| {
        if !wants_stream(request) {
            let body = completion(&id, &texts.concat(), "stop", 9, texts.len() as u64);
            conn.answer(200, "application/json", body)?;
            return Ok(Then::KeepAlive);
        }
        conn.sse_head()?;
        conn.event(&role_frame(&id))?;
        for text in &texts {
            conn.event(&token_frame(&id, text))?;
        }
        conn.event(&finish_frame(&id, "stop"))?;
        if wants_usage(request) {
            conn.event(&usage_frame(&id, 9, texts.len() as u64))?;
        }
        conn.event("[DONE]")?;
        conn.last_chunk()?;
        Ok(Then::KeepAlive)
    })
}

/// The first script for streams, the second for whole answers.
pub fn by_stream(stream: Script, whole: Script) -> Script {
    script(
        move |conn, request| if wants_stream(request) { stream(conn, request) } else { whole(conn, request) },
    )
}

/// `/v1/models` that lists these base models.
pub fn models(names: &[&str]) -> Script {
    let data: Vec<_> = names
        .iter()
        .map(|name| {
            json!({"id": name, "object": "model", "created": 1_700_000_000, "owned_by": "vllm", "root": name,
                   "parent": null, "max_model_len": 8192, "permission": []})
        })
        .collect();
    answer(200, "application/json", json!({"object": "list", "data": data}).to_string())
}

/// The gauges of `/metrics` that the gateway reads.
pub fn metrics_text(running: u64, waiting: u64, kv_usage: f64) -> String {
    let labels = r#"{engine="0",model_name="m-8b"}"#;
    format!(
        "# HELP vllm:num_requests_running Number of requests in model execution batches.\n\
         # TYPE vllm:num_requests_running gauge\n\
         vllm:num_requests_running{labels} {running}.0\n\
         # TYPE vllm:num_requests_waiting gauge\n\
         vllm:num_requests_waiting{labels} {waiting}.0\n\
         # TYPE vllm:kv_cache_usage_perc gauge\n\
         vllm:kv_cache_usage_perc{labels} {kv_usage:?}\n"
    )
}

pub fn wants_stream(request: &Request) -> bool {
    request.json()["stream"] == true
}

pub fn wants_usage(request: &Request) -> bool {
    request.json()["stream_options"]["include_usage"] == true
}

/// The frame in which the assistant's role is named and nothing is said.
pub fn role_frame(id: &str) -> String {
    frame(id, &json!({"role": "assistant", "content": ""}), None)
}

pub fn token_frame(id: &str, text: &str) -> String {
    frame(id, &json!({"content": text}), None)
}

pub fn finish_frame(id: &str, reason: &str) -> String {
    frame(id, &json!({}), Some(reason))
}

fn frame(id: &str, delta: &serde_json::Value, finish: Option<&str>) -> String {
    json!({"id": id, "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m-8b",
           "choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}]})
    .to_string()
}

/// A token of `/v1/completions`.
pub fn text_frame(id: &str, text: &str, finish: Option<&str>) -> String {
    json!({"id": id, "object": "text_completion", "created": 1_700_000_000, "model": "m-8b",
           "choices": [{"index": 0, "text": text, "logprobs": null, "finish_reason": finish}]})
    .to_string()
}

/// The frame with empty `choices` that ends a stream with `include_usage`.
pub fn usage_frame(id: &str, input: u64, output: u64) -> String {
    json!({"id": id, "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m-8b", "choices": [],
           "usage": usage(input, output)})
    .to_string()
}

/// A whole chat completion.
pub fn completion(id: &str, text: &str, finish: &str, input: u64, output: u64) -> String {
    json!({"id": id, "object": "chat.completion", "created": 1_700_000_000, "model": "m-8b",
           "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "logprobs": null,
                        "finish_reason": finish}],
           "usage": usage(input, output)})
    .to_string()
}

fn usage(input: u64, output: u64) -> serde_json::Value {
    json!({"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output})
}

/// The stream of these payloads.
pub fn stream_of(payloads: &[String]) -> Vec<u8> {
    payloads.iter().flat_map(|payload| format!("data: {payload}\n\n").into_bytes()).collect()
}

/// Cuts a stream whose events end with `\n\n` into events; an unfinished rest is the last piece.
pub fn split_events(body: &[u8]) -> Vec<Vec<u8>> {
    let mut events = Vec::new();
    let mut rest = body;
    while let Some(end) = super::replica::find(rest, b"\n\n") {
        events.push(rest[..end + 2].to_vec());
        rest = &rest[end + 2..];
    }
    if !rest.is_empty() {
        events.push(rest.to_vec());
    }
    events
}
