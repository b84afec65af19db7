//! Which path and method mean what.

mod develop;
mod faults;
mod models;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use expediter_types::Prng;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderValue, LOCATION, VARY};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;

use crate::connection::Connection;
use crate::error::ErrorAnswer;
use crate::fault::Fault;
use crate::generate;
use crate::replica::Shared;
use crate::reply::{self, Content, Cut, Reply};
use crate::request::{self, Endpoint};
use crate::settings::Settings;

/// Answers one request of a connection.
pub(crate) async fn answer(
    shared: Arc<Shared>,
    connection: Connection,
    request: Request<Incoming>,
) -> Result<Response<Reply>, Cut> {
    let busy = connection.busy();
    let request_id = shared.settings.request_id_headers.then(|| request_id(&shared, &request));
    let mut response = if may_pass(&shared.settings, &request) {
        route(&shared, connection, request).await?
    } else {
        let mut response = reply::error(ErrorAnswer::unauthorized());
        response.headers_mut().remove(VARY);
        response
    };
    if let Some(id) = request_id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    Ok(response.map(|content| Reply::new(content, busy)))
}

/// Whether the request has a key where one is needed. What lies outside `/v1` is open to all, as in the real engine.
fn may_pass(settings: &Settings, request: &Request<Incoming>) -> bool {
    let is_guarded = request.uri().path().starts_with("/v1") && request.method() != Method::OPTIONS;
    if settings.api_keys.is_empty() || !is_guarded {
        return true;
    }
    let given =
        request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let key = given.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    key.is_some_and(|(_, key)| settings.api_keys.iter().any(|known| known == key))
}

/// The client's own, or a new one.
fn request_id(shared: &Shared, request: &Request<Incoming>) -> HeaderValue {
    let own = request.headers().get(REQUEST_ID).cloned();
    own.unwrap_or_else(|| {
        let mut rng = Prng::new(shared.seed ^ shared.request_ids(1).0);
        let id = format!("{:016x}{:016x}", rng.bits(), rng.bits());
        HeaderValue::try_from(id).expect("digits are valid in headers")
    })
}

const REQUEST_ID: &str = "x-request-id";

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
    EventSources,
    LoadAdapter,
    UnloadAdapter,
    Sleep,
    WakeUp,
    IsSleeping,
    IsPaused,
    ResetPrefixCache,
    /// Our own, as the next: no engine has it.
    Fault,
    Faults,
}

impl Route {
    fn of(path: &str, settings: &Settings) -> Option<Self> {
        let route = match path {
            "/health" | "/ping" => Self::Health,
            "/version" => Self::Version,
            "/load" => Self::Load,
            "/metrics" => Self::Metrics,
            "/v1/models" => Self::Models,
            "/tokenize" => Self::Tokenize,
            "/v1/chat/completions" => Self::Generate(Endpoint::Chat),
            "/v1/completions" => Self::Generate(Endpoint::Completions),
            "/kv_event_sources" => Self::EventSources,
            "/v1/load_lora_adapter" if settings.adapters.runtime_updates => Self::LoadAdapter,
            "/v1/unload_lora_adapter" if settings.adapters.runtime_updates => Self::UnloadAdapter,
            "/sleep" if settings.dev_mode => Self::Sleep,
            "/wake_up" if settings.dev_mode => Self::WakeUp,
            "/is_sleeping" if settings.dev_mode => Self::IsSleeping,
            "/is_paused" if settings.dev_mode => Self::IsPaused,
            "/reset_prefix_cache" if settings.dev_mode => Self::ResetPrefixCache,
            "/fault" => Self::Fault,
            "/faults" => Self::Faults,
            _ => return None,
        };
        Some(route)
    }

    /// The methods that the path takes, as the header `allow` says them.
    fn methods(self, path: &str) -> &'static str {
        match self {
            Self::Health if path == "/ping" => "GET, POST",
            Self::Health
            | Self::Version
            | Self::Load
            | Self::Metrics
            | Self::Models
            | Self::EventSources
            | Self::IsSleeping
            | Self::IsPaused => "GET",
            Self::Tokenize
            | Self::Generate(_)
            | Self::LoadAdapter
            | Self::UnloadAdapter
            | Self::Sleep
            | Self::WakeUp
            | Self::ResetPrefixCache
            | Self::Faults => "POST",
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
    let Some(route) = Route::of(path, &shared.settings) else { return Ok(unknown(shared, path)) };
    if !matches!(route, Route::Fault | Route::Faults) && shared.fault() == Fault::Hang {
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
        Route::Models => reply::json(StatusCode::OK, models::list(shared)),
        Route::Tokenize => tokenize(shared, request).await?,
        Route::Generate(endpoint) => generate::answer(shared, endpoint, connection, request).await?,
        Route::EventSources => reply::json(StatusCode::OK, models::event_sources(shared)),
        Route::LoadAdapter => models::changed(shared.adapters.load(&read(request).await?, &shared.settings)),
        Route::UnloadAdapter => models::changed(shared.adapters.unload(&read(request).await?)),
        Route::Sleep => develop::sleep(shared, &request).await?,
        Route::WakeUp => develop::wake_up(shared).await?,
        Route::IsSleeping => develop::is_sleeping(shared).await?,
        Route::IsPaused => reply::json(StatusCode::OK, r#"{"is_paused":false}"#),
        Route::ResetPrefixCache => develop::reset_prefix_cache(shared).await?,
        Route::Fault if request.method() == Method::POST => faults::set(shared, &read(request).await?).await,
        Route::Fault => faults::show(shared.fault()),
        Route::Faults => faults::follow(shared, &read(request).await?),
    })
}

/// A path that is not served; a slash too many leads to the path without it.
fn unknown(shared: &Shared, path: &str) -> Response<Content> {
    let without = path.strip_suffix('/').filter(|path| Route::of(path, &shared.settings).is_some());
    let location =
        without.and_then(|path| HeaderValue::try_from(format!("http://{}{path}", shared.address)).ok());
    let Some(location) = location else {
        return reply::error(ErrorAnswer::detail(StatusCode::NOT_FOUND, "Not Found"));
    };
    let mut response = reply::empty(StatusCode::TEMPORARY_REDIRECT);
    response.headers_mut().insert(LOCATION, location);
    response
}

async fn tokenize(shared: &Shared, request: Request<Incoming>) -> Result<Response<Content>, Cut> {
    let body = read(request).await?;
    let model = shared.model();
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

async fn read(request: Request<Incoming>) -> Result<Bytes, Cut> {
    match request.into_body().collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(_) => Err(Cut),
    }
}
