//! Routes of the development mode.

use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use tokio::sync::oneshot;

use crate::driver::{Develop, Input};
use crate::replica::Shared;
use crate::reply::{self, Content, Cut};

/// Level 1 where the query names none. `mode=keep` keeps what is in the engine; otherwise it is given up.
pub(super) async fn sleep(shared: &Shared, request: &Request<Incoming>) -> Result<Response<Content>, Cut> {
    let query = request.uri().query().unwrap_or_default();
    let value = |wanted: &str| {
        query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .find(|(name, _)| *name == wanted)
            .map(|(_, value)| value)
    };
    let level = value("level").and_then(|level| level.parse().ok()).unwrap_or(1);
    tell(shared, Develop::Sleep { level, keep: value("mode") == Some("keep") }).await?;
    Ok(reply::empty(StatusCode::OK))
}

pub(super) async fn wake_up(shared: &Shared) -> Result<Response<Content>, Cut> {
    tell(shared, Develop::WakeUp).await?;
    Ok(reply::empty(StatusCode::OK))
}

pub(super) async fn is_sleeping(shared: &Shared) -> Result<Response<Content>, Cut> {
    let sleeps = tell(shared, Develop::IsSleeping).await?;
    Ok(reply::json(StatusCode::OK, format!(r#"{{"is_sleeping":{sleeps}}}"#)))
}

pub(super) async fn reset_prefix_cache(shared: &Shared) -> Result<Response<Content>, Cut> {
    let success = tell(shared, Develop::ResetPrefixCache).await?;
    Ok(reply::json(StatusCode::OK, format!(r#"{{"success":{success}}}"#)))
}

async fn tell(shared: &Shared, order: Develop) -> Result<bool, Cut> {
    let (answer, answered) = oneshot::channel();
    _ = shared.inputs.send(Input::Develop { order, answer });
    // An error means that the replica is being shut down; then this connection is, too.
    answered.await.map_err(|_| Cut)
}
