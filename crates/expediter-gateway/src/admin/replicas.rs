//! The replica list, and what operators may do with it.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::fleet::{Fleet, Member, Source};
use crate::problem::Problem;
use crate::settings::ReplicaUrl;
use crate::upstream::resolve;

#[derive(Serialize)]
pub(super) struct List {
    replicas: Vec<Shown>,
}

/// A replica as the admin API shows it.
#[derive(Serialize)]
pub(super) struct Shown {
    id: String,
    url: String,
    source: &'static str,
    pool: Option<String>,
    state: &'static str,
    cause: Option<String>,
    in_flight: u64,
    in_flight_tokens: u64,
    dispatched: u64,
    failed: u64,
    running: Option<u64>,
    waiting: Option<u64>,
    kv_usage: Option<f64>,
    first_token_ms: Option<u64>,
    report_age_ms: Option<u64>,
    models: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Addition {
    url: String,
    #[serde(default)]
    pool: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Drain {
    #[serde(default)]
    limit_ms: Option<u64>,
}

pub(super) fn list(fleet: &Fleet) -> List {
    List { replicas: fleet.members().iter().map(|member| show(member)).collect() }
}

pub(super) fn one(fleet: &Fleet, id: &str) -> Result<Shown, Problem> {
    find(fleet, id).map(|member| show(&member))
}

/// Adds a replica. Its address is checked before any connection is made, and only the addresses that were
/// checked are ever connected to.
pub(super) async fn add(fleet: &Arc<Fleet>, body: &[u8]) -> Result<Shown, Problem> {
    let addition: Addition = serde_json::from_slice(body).map_err(|error| {
        Problem::invalid("invalid_json", format!("The body cannot be read: {error}."), None)
    })?;
    let url: ReplicaUrl = addition.url.parse().map_err(|error: crate::settings::ReplicaUrlError| {
        Problem::invalid("invalid_url", format!("{error}; {}.", error.remedy()), Some("url"))
    })?;
    let settings = fleet.settings.load_full();
    if let Some(pool) = &addition.pool
        && !settings.pools.contains_key(pool)
    {
        return Err(Problem::invalid("unknown_pool", "The configuration has no such pool.", Some("pool")));
    }
    let looked_up = tokio::time::timeout(RESOLVE_LIMIT, resolve(&url)).await;
    let addresses = looked_up
        .map_err(|_| {
            Problem::invalid("unresolved_host", "The host's name was not resolved in time.", Some("url"))
        })?
        .map_err(|error| Problem::invalid("unresolved_host", format!("{error}."), Some("url")))?;
    let allowed = |address: &std::net::SocketAddr| {
        let ip = address.ip().to_canonical();
        settings.admin.replica_networks.iter().any(|network| network.contains(&ip))
    };
    if addresses.is_empty() || !addresses.iter().all(allowed) {
        return Err(Problem::invalid(
            "address_not_allowed",
            "The host has an address outside the networks of `admin.replica_networks`.",
            Some("url"),
        ));
    }
    let member = fleet.add_member(url, addition.pool, Source::Admin, Some(addresses.into()));
    tracing::info!(replica = %member.url, "replica added by an operator");
    Ok(show(&member))
}

const RESOLVE_LIMIT: Duration = Duration::from_secs(5);

pub(super) fn remove(fleet: &Fleet, id: &str) -> Result<(), Problem> {
    let member = find(fleet, id)?;
    fleet.remove_member(&member);
    tracing::info!(replica = %member.url, "replica removed by an operator");
    Ok(())
}

pub(super) fn drain(fleet: &Fleet, id: &str, body: &[u8]) -> Result<(), Problem> {
    let drain: Drain = if body.trim_ascii().is_empty() {
        Drain::default()
    } else {
        serde_json::from_slice(body).map_err(|error| {
            Problem::invalid("invalid_json", format!("The body cannot be read: {error}."), None)
        })?
    };
    let member = find(fleet, id)?;
    let limit = drain.limit_ms.map(Duration::from_millis);
    if let Some(seat) = member.seat() {
        seat.pool.tell(|dispatcher, now| dispatcher.drain(seat.replica.id, limit, now));
    }
    tracing::info!(replica = %member.url, "drained by an operator");
    Ok(())
}

pub(super) fn undrain(fleet: &Fleet, id: &str) -> Result<(), Problem> {
    let member = find(fleet, id)?;
    if let Some(seat) = member.seat() {
        seat.pool.tell(|dispatcher, now| dispatcher.undrain(seat.replica.id, now));
    }
    tracing::info!(replica = %member.url, "drain ended by an operator");
    Ok(())
}

fn find(fleet: &Fleet, id: &str) -> Result<Arc<Member>, Problem> {
    fleet.members().into_iter().find(|member| id_of(member) == id).ok_or_else(Problem::replica_not_found)
}

fn id_of(member: &Member) -> String {
    format!("replica-{}", member.id)
}

fn show(member: &Member) -> Shown {
    let source = match member.source {
        Source::Configured => "configured",
        Source::Admin => "admin",
    };
    let seat = member.seat();
    let view = seat.as_ref().and_then(|seat| {
        seat.pool.views().into_iter().find(|(replica, _)| replica.id == seat.replica.id).map(|(_, view)| view)
    });
    let report = view.as_ref().and_then(|view| view.report).unwrap_or_default();
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    Shown {
        id: id_of(member),
        url: member.url.to_string(),
        source,
        pool: seat.as_ref().map(|seat| seat.pool.name.to_string()),
        state: view.as_ref().map_or("joining", |view| view.state.as_str()),
        cause: view.as_ref().and_then(|view| view.cause).map(|cause| cause.as_str().to_owned()),
        in_flight: view.as_ref().map_or(0, |view| view.in_flight),
        in_flight_tokens: view.as_ref().map_or(0, |view| view.in_flight_tokens.0),
        dispatched: view.as_ref().map_or(0, |view| view.dispatched),
        failed: view.as_ref().map_or(0, |view| view.failed),
        running: report.running,
        waiting: report.waiting,
        kv_usage: report.kv_usage,
        first_token_ms: view.as_ref().and_then(|view| view.ttft).map(ms),
        report_age_ms: view.as_ref().and_then(|view| view.report_age).map(ms),
        models: seat.map_or_else(Vec::new, |seat| {
            seat.replica.served().iter().map(|model| model.id.clone()).collect()
        }),
    }
}
