//! Faults by order of a test.

use std::sync::Arc;
use std::time::Duration;

use hyper::{Response, StatusCode};

use crate::error::ErrorAnswer;
use crate::fault::{Fault, FaultOrder, FaultScript};
use crate::replica::Shared;
use crate::reply::{self, Content};

/// `POST /fault`: one fault, now.
pub(super) async fn set(shared: &Arc<Shared>, body: &[u8]) -> Response<Content> {
    let order = serde_json::from_slice(body).map_err(|error| error.to_string()).and_then(FaultOrder::read);
    let order = match order {
        Ok(order) => order,
        Err(mistake) => return bad(&mistake),
    };
    match order.for_ms {
        Some(ms) => shared.set_fault_for(order.fault, Duration::from_millis(ms)).await,
        None => _ = shared.set_fault(order.fault).await,
    }
    show(shared.fault())
}

/// `POST /faults`: a script that begins now, in place of the one before.
pub(super) fn follow(shared: &Arc<Shared>, body: &[u8]) -> Response<Content> {
    let script = match FaultScript::parse(&String::from_utf8_lossy(body)) {
        Ok(script) => script,
        Err(error) => return bad(&error.to_string()),
    };
    if let Some((place, _)) = script.replicas().next() {
        return bad(&format!("fault {place} of the script: leave `replica` out, the script is for this one"));
    }
    shared.follow(&script);
    reply::json(StatusCode::OK, format!(r#"{{"faults":{}}}"#, script.len()))
}

pub(super) fn show(fault: Fault) -> Response<Content> {
    reply::json(StatusCode::OK, serde_json::to_vec(&fault).expect("a fault is valid JSON"))
}

fn bad(mistake: &str) -> Response<Content> {
    reply::error(ErrorAnswer::detail(StatusCode::BAD_REQUEST, mistake))
}
