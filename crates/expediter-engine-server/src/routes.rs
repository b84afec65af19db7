//! Which path and method mean what, and the answers that need no engine.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{HeaderValue, LOCATION};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use serde_json::json;

use crate::connection::Connection;
use crate::error::ErrorAnswer;
use crate::fault::{Fault, FaultOrder};
use crate::generate;
use crate::replica::Shared;
use crate::reply::{self, Content, Cut, Reply};
use crate::request::{self, Endpoint, Model};

/// Answers one request of a connection.
pub(crate) async fn answer(
    shared: Arc<Shared>,
    connection: Connection,
    request: Request<Incoming>,
) -> Result<Response<Reply>, Cut> {
    let busy = connection.busy();
    let response = route(&shared, connection, request).await?;
    Ok(response.map(|content| Reply::new(content, busy)))
}

async fn route(
    shared: &Arc<Shared>,
    connection: Connection,
    request: Request<Incoming>,
) -> Result<Response<Content>, Cut> {
    let path = request.uri().path().to_owned();
    let Some((path, allow)) = ROUTES.iter().find(|(known, _)| *known == path) else {
        return Ok(unknown(shared, &path));
    };
    if *path != FAULT && shared.fault() == Fault::Hang {
        return std::future::pending().await;
    }
    let (get, post) = (request.method() == Method::GET, request.method() == Method::POST);
    if !(get && allow.contains("GET") || post && allow.contains("POST")) {
        return Ok(reply::not_allowed(allow));
    }
    match *path {
        "/v1/chat/completions" => return generate::answer(shared, Endpoint::Chat, connection, request).await,
        "/v1/completions" => {
            return generate::answer(shared, Endpoint::Completions, connection, request).await;
        }
        "/tokenize" => return tokenize(shared, request).await,
        FAULT if post => return set_fault(shared, request).await,
        _ => {}
    }
    Ok(match *path {
        "/health" | "/ping" if shared.fault() == Fault::Unhealthy => {
            reply::empty(StatusCode::SERVICE_UNAVAILABLE)
        }
        "/health" | "/ping" => reply::empty(StatusCode::OK),
        "/version" => json_value(&json!({ "version": "0.32.0" })),
        "/load" => json_value(&json!({ "server_load": shared.in_flight.load(Ordering::Relaxed) })),
        "/v1/models" => reply::json(StatusCode::OK, models(shared)),
        "/metrics" => {
            let text = "text/plain; version=1.0.0; charset=utf-8";
            reply::response(StatusCode::OK, Some(text), Content::Whole(Full::new(shared.metrics().into())))
        }
        _ => fault(shared.fault()),
    })
}

/// A path that is not served; a slash too many leads to the path without it.
fn unknown(shared: &Shared, path: &str) -> Response<Content> {
    let without = path.strip_suffix('/').filter(|path| ROUTES.iter().any(|(known, _)| known == path));
    let location =
        without.and_then(|path| HeaderValue::try_from(format!("http://{}{path}", shared.address)).ok());
    let Some(location) = location else {
        return reply::error(ErrorAnswer::detail(StatusCode::NOT_FOUND, "Not Found"));
    };
    let mut response = reply::empty(StatusCode::TEMPORARY_REDIRECT);
    response.headers_mut().insert(LOCATION, location);
    response
}

fn models(shared: &Shared) -> String {
    let (model, created) = (&shared.settings.model, shared.clock.unix().as_secs());
    let name = serde_json::to_string(model).expect("a string is valid JSON");
    let permission = shared.request_ids(1).0;
    format!(
        r#"{{"object":"list","data":[{{"id":{name},"object":"model","created":{created},"owned_by":"vllm","root":{name},"parent":null,"max_model_len":{},"permission":[{{"id":"modelperm-{permission:016x}","object":"model_permission","created":{created},"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}}]}}]}}"#,
        shared.settings.max_model_len.0
    )
}

async fn tokenize(shared: &Shared, request: Request<Incoming>) -> Result<Response<Content>, Cut> {
    let body = read(request).await?;
    let model = Model { name: &shared.settings.model, max_model_len: shared.settings.max_model_len };
    Ok(match request::tokenize(&body, model) {
        Ok(found) => {
            let answer = TokenizeAnswer {
                count: found.ids.len(),
                max_model_len: model.max_model_len.0,
                tokens: found.ids,
                token_strs: found.text,
            };
            reply::json(StatusCode::OK, serde_json::to_vec(&answer).expect("text and numbers are valid JSON"))
        }
        Err(error) => reply::error(error),
    })
}

#[derive(Serialize)]
struct TokenizeAnswer {
    count: usize,
    max_model_len: u64,
    tokens: Vec<u32>,
    token_strs: Option<Vec<String>>,
}

async fn set_fault(shared: &Arc<Shared>, request: Request<Incoming>) -> Result<Response<Content>, Cut> {
    let body = read(request).await?;
    let order: FaultOrder = match serde_json::from_slice(&body) {
        Ok(order) => order,
        Err(error) => return Ok(bad_fault(&error.to_string())),
    };
    if let Some(mistake) = order.fault.mistake() {
        return Ok(bad_fault(mistake));
    }
    match order.for_ms {
        Some(ms) => shared.set_fault_for(order.fault, Duration::from_millis(ms)).await,
        None => shared.set_fault(order.fault).await,
    }
    Ok(fault(shared.fault()))
}

fn fault(fault: Fault) -> Response<Content> {
    reply::json(StatusCode::OK, serde_json::to_vec(&fault).expect("a fault is valid JSON"))
}

fn bad_fault(mistake: &str) -> Response<Content> {
    reply::error(ErrorAnswer::detail(StatusCode::BAD_REQUEST, mistake))
}

fn json_value(value: &serde_json::Value) -> Response<Content> {
    reply::json(StatusCode::OK, value.to_string())
}

async fn read(request: Request<Incoming>) -> Result<Bytes, Cut> {
    match request.into_body().collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(_) => Err(Cut),
    }
}

/// Our own: no engine has it.
const FAULT: &str = "/fault";

/// Every path, with the methods that it takes as the header `allow` says them.
const ROUTES: [(&str, &str); 10] = [
    ("/health", "GET"),
    ("/ping", "GET, POST"),
    ("/version", "GET"),
    ("/load", "GET"),
    ("/metrics", "GET"),
    ("/v1/models", "GET"),
    ("/tokenize", "POST"),
    ("/v1/chat/completions", "POST"),
    ("/v1/completions", "POST"),
    (FAULT, "GET, POST"),
];
