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

/// Everything that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Health,
    Version,
    Load,
    Metrics,
    Models,
    Tokenize,
    Generate(Endpoint),
    /// Our own: no engine has it.
    Fault,
}

impl Route {
    fn of(path: &str) -> Option<Self> {
        match path {
            "/health" | "/ping" => Some(Self::Health),
            "/version" => Some(Self::Version),
            "/load" => Some(Self::Load),
            "/metrics" => Some(Self::Metrics),
            "/v1/models" => Some(Self::Models),
            "/tokenize" => Some(Self::Tokenize),
            "/v1/chat/completions" => Some(Self::Generate(Endpoint::Chat)),
            "/v1/completions" => Some(Self::Generate(Endpoint::Completions)),
            "/fault" => Some(Self::Fault),
            _ => None,
        }
    }

    /// The methods that the path takes, as the header `allow` says them.
    fn methods(self, path: &str) -> &'static str {
        match self {
            Self::Health if path == "/ping" => "GET, POST",
            Self::Health | Self::Version | Self::Load | Self::Metrics | Self::Models => "GET",
            Self::Tokenize | Self::Generate(_) => "POST",
            Self::Fault => "GET, POST",
        }
    }
}

async fn route(
    shared: &Arc<Shared>,
    connection: Connection,
    request: Request<Incoming>,
) -> Result<Response<Content>, Cut> {
    let path = request.uri().path();
    let Some(route) = Route::of(path) else { return Ok(unknown(shared, path)) };
    if route != Route::Fault && shared.fault() == Fault::Hang {
        return std::future::pending().await;
    }
    let methods = route.methods(path);
    if !methods.split(", ").any(|method| method == request.method().as_str()) {
        return Ok(reply::not_allowed(methods));
    }
    Ok(match route {
        Route::Health if shared.fault() == Fault::Unhealthy => reply::empty(StatusCode::SERVICE_UNAVAILABLE),
        Route::Health => reply::empty(StatusCode::OK),
        Route::Version => reply::json(StatusCode::OK, r#"{"version":"0.32.0"}"#),
        Route::Load => {
            let in_flight = shared.in_flight.load(Ordering::Relaxed);
            reply::json(StatusCode::OK, format!(r#"{{"server_load":{in_flight}}}"#))
        }
        Route::Metrics => {
            let content = Content::Whole(Full::new(shared.metrics().into()));
            reply::response(StatusCode::OK, Some("text/plain; version=1.0.0; charset=utf-8"), content)
        }
        Route::Models => reply::json(StatusCode::OK, models(shared)),
        Route::Tokenize => tokenize(shared, request).await?,
        Route::Generate(endpoint) => generate::answer(shared, endpoint, connection, request).await?,
        Route::Fault if request.method() == Method::POST => set_fault(shared, request).await?,
        Route::Fault => fault(shared.fault()),
    })
}

/// A path that is not served; a slash too many leads to the path without it.
fn unknown(shared: &Shared, path: &str) -> Response<Content> {
    let without = path.strip_suffix('/').filter(|path| Route::of(path).is_some());
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
        None => _ = shared.set_fault(order.fault).await,
    }
    Ok(fault(shared.fault()))
}

fn fault(fault: Fault) -> Response<Content> {
    reply::json(StatusCode::OK, serde_json::to_vec(&fault).expect("a fault is valid JSON"))
}

fn bad_fault(mistake: &str) -> Response<Content> {
    reply::error(ErrorAnswer::detail(StatusCode::BAD_REQUEST, mistake))
}

async fn read(request: Request<Incoming>) -> Result<Bytes, Cut> {
    match request.into_body().collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(_) => Err(Cut),
    }
}
