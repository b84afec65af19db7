//! The operators' listener: metrics, health, and the replica list. Everything that tells or changes more than
//! numbers wants the admin token.

mod replicas;
mod scrape;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::fleet::Fleet;
use crate::problem::Problem;

/// Serves operators until `stop`.
pub(crate) async fn serve_admin(fleet: Arc<Fleet>, listener: TcpListener, stop: CancellationToken) {
    let tasks = TaskTracker::new();
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = async {
            let slot = Arc::clone(&slots).acquire_owned().await;
            (slot, listener.accept().await)
        };
        tokio::select! {
            () = stop.cancelled() => break,
            (slot, accepted) = accepted => match accepted {
                Ok((stream, _)) => {
                    let (fleet, stop) = (Arc::clone(&fleet), stop.clone());
                    tasks.spawn(async move {
                        serve_connection(fleet, stream, stop).await;
                        drop(slot);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "admin accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    tasks.close();
    tasks.wait().await;
}

/// A scraper, a few operators and their dashboards.
const CONNECTIONS_MAX: usize = 64;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const STOP_LIMIT: Duration = Duration::from_secs(1);
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

async fn serve_connection(fleet: Arc<Fleet>, stream: TcpStream, stop: CancellationToken) {
    let service = service_fn(move |request| {
        let fleet = Arc::clone(&fleet);
        async move { Ok::<_, std::convert::Infallible>(answer(&fleet, request).await.map(Full::new)) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            // An operator that does not read must not keep the process from ending.
            tokio::time::timeout(STOP_LIMIT, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "admin connection ended");
    }
}

async fn answer(fleet: &Arc<Fleet>, request: Request<Incoming>) -> Response<Bytes> {
    let path = request.uri().path().to_owned();
    let read = matches!(*request.method(), Method::GET | Method::HEAD);
    match path.as_str() {
        "/metrics" if read => typed(StatusCode::OK, OPEN_METRICS, scrape::metrics(fleet)),
        "/livez" if read => typed(StatusCode::OK, PLAIN, "live\n"),
        "/readyz" if read && fleet.is_ready() => typed(StatusCode::OK, PLAIN, "ready\n"),
        "/readyz" if read => typed(StatusCode::SERVICE_UNAVAILABLE, PLAIN, "not ready\n"),
        "/metrics" | "/livez" | "/readyz" => Problem::method_not_allowed("GET").into_response(),
        _ => match path.strip_prefix("/admin/") {
            None => Problem::route_not_found().into_response(),
            Some(rest) => match authorize(fleet, request.headers()) {
                Err(problem) => problem.into_response(),
                Ok(()) => act(fleet, rest, request).await.unwrap_or_else(Problem::into_response),
            },
        },
    }
}

fn authorize(fleet: &Fleet, headers: &HeaderMap) -> Result<(), Problem> {
    let settings = fleet.settings.load();
    let Some(token) = &settings.admin.token else {
        return Err(Problem::admin_closed());
    };
    let given = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    let (scheme, guess) = given.split_at_checked(BEARER.len()).unwrap_or((given, &[]));
    if scheme.eq_ignore_ascii_case(BEARER) && token.matches(guess.trim_ascii()) {
        Ok(())
    } else {
        Err(Problem::admin_unauthorized())
    }
}

const BEARER: &[u8] = b"Bearer ";

async fn act(fleet: &Arc<Fleet>, rest: &str, request: Request<Incoming>) -> Result<Response<Bytes>, Problem> {
    let method = request.method().clone();
    let mut parts = rest.split('/');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some("replicas"), None, None, None) => match method {
            Method::GET => Ok(json(StatusCode::OK, &replicas::list(fleet))),
            Method::POST => {
                let added = replicas::add(fleet, &body(request).await?).await?;
                Ok(json(StatusCode::CREATED, &added))
            }
            _ => Err(Problem::method_not_allowed("GET, POST")),
        },
        (Some("replicas"), Some(id), None, None) => match method {
            Method::GET => Ok(json(StatusCode::OK, &replicas::one(fleet, id)?)),
            Method::DELETE => {
                replicas::remove(fleet, id)?;
                Ok(typed(StatusCode::NO_CONTENT, PLAIN, ""))
            }
            _ => Err(Problem::method_not_allowed("GET, DELETE")),
        },
        (Some("replicas"), Some(id), Some(verb @ ("drain" | "undrain")), None) if method == Method::POST => {
            if verb == "drain" {
                replicas::drain(fleet, id, &body(request).await?)?;
            } else {
                replicas::undrain(fleet, id)?;
            }
            Ok(json(StatusCode::OK, &replicas::one(fleet, id)?))
        }
        (Some("replicas"), Some(_), Some("drain" | "undrain"), None) => {
            Err(Problem::method_not_allowed("POST"))
        }
        _ => Err(Problem::route_not_found()),
    }
}

async fn body(request: Request<Incoming>) -> Result<Bytes, Problem> {
    let limited = Limited::new(request.into_body(), BODY_BYTES_MAX);
    match tokio::time::timeout(HEAD_TIMEOUT, limited.collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(_)) => Err(Problem::body_too_large(BODY_BYTES_MAX as u64)),
        Err(_) => Err(Problem::body_timeout()),
    }
}

const BODY_BYTES_MAX: usize = 64 * 1024;

fn json(status: StatusCode, value: &impl serde::Serialize) -> Response<Bytes> {
    // Strings and numbers always encode.
    typed(status, "application/json", serde_json::to_vec(value).unwrap_or_default())
}

fn typed(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Bytes> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

const PLAIN: &str = "text/plain; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
