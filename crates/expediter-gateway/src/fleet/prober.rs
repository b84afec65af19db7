//! Asks replicas how they are: health and models on one connection, metrics on another, so that a scrape that
//! hangs delays nothing.

use std::sync::Arc;
use std::time::Duration;

use expediter_core::ProbeFailure;
use expediter_types::Prng;
use expediter_wire::metrics::parse_metrics;
use expediter_wire::models::{ModelsError, ServedModel, parse_models};
use tokio::time::MissedTickBehavior;

use super::{Fleet, Member};
use crate::upstream::{ProbeClient, ProbeError, Target};

/// Checks `member` at the configured interval until it leaves the fleet.
pub(super) async fn watch_health(fleet: Arc<Fleet>, member: Arc<Member>) {
    let target = Target::new(member.url.clone(), member.pinned.clone(), &fleet.tls_roots);
    let mut client = ProbeClient::new(target);
    // Told once, not at every check.
    let mut last_error: Option<String> = None;
    loop {
        let probe = fleet.settings.load().probe;
        let health = tokio::select! {
            () = member.left.cancelled() => return,
            health = check(&mut client, &fleet, &member, probe.timeout) => health,
        };
        match health {
            Err(error) if error.is_local() => tracing::warn!(replica = %member.url, %error, "cannot ask"),
            Err(error) => {
                let text = error.to_string();
                if last_error.as_ref() != Some(&text) {
                    tracing::warn!(replica = %member.url, error = text, "health check failed");
                    last_error = Some(text);
                }
                fleet.take_health(&member, Err(error.failure()));
            }
            Ok(models) => {
                if last_error.take().is_some() {
                    tracing::info!(replica = %member.url, "health check good again");
                }
                fleet.take_health(&member, Ok(models));
            }
        }
        tokio::select! {
            () = member.left.cancelled() => return,
            () = tokio::time::sleep(probe.interval) => {}
        }
    }
}

/// One check: `/health` answers 200, then `/v1/models` lists something. Both are asked each time: a port that is
/// open, or a model that is listed, says little without the other.
async fn check(
    client: &mut ProbeClient,
    fleet: &Fleet,
    member: &Member,
    limit: Duration,
) -> Result<Vec<ServedModel>, Unhealthy> {
    let key = member.seat().and_then(|seat| seat.replica.engine_key());
    let connect = fleet.settings.load().limits.connect;
    let (status, _) = client.get("/health", None, connect, limit).await?;
    if status != 200 {
        return Err(Unhealthy::Status(status));
    }
    let (status, body) = client.get("/v1/models", key.as_deref(), connect, limit).await?;
    if let (401 | 403, None, Some(seat)) = (status, &key, member.seat()) {
        // Only the clients have the engine's key. The configuration says what it serves.
        return Ok(vec![ServedModel { id: seat.pool.model.to_string(), parent: None, max_model_len: None }]);
    }
    if status != 200 {
        return Err(Unhealthy::Status(status));
    }
    let models = parse_models(&body)?;
    if models.is_empty() { Err(Unhealthy::NoModel) } else { Ok(models) }
}

/// Why a check found nothing good.
#[derive(Debug, thiserror::Error)]
enum Unhealthy {
    #[error(transparent)]
    Probe(#[from] ProbeError),
    #[error("status {0}")]
    Status(u16),
    #[error(transparent)]
    Models(#[from] ModelsError),
    #[error("no model is listed")]
    NoModel,
}

impl Unhealthy {
    /// Whether it says nothing of the replica.
    fn is_local(&self) -> bool {
        matches!(self, Self::Probe(ProbeError::Connect(error)) if error.is_local())
    }

    fn failure(&self) -> ProbeFailure {
        match self {
            Self::Probe(ProbeError::Connect(_)) => ProbeFailure::Refused,
            Self::Probe(ProbeError::Timeout | ProbeError::Closed) => ProbeFailure::Silent,
            Self::Probe(ProbeError::Malformed) | Self::Models(_) => ProbeFailure::Malformed,
            Self::Status(status) => ProbeFailure::Status(*status),
            Self::NoModel => ProbeFailure::NoModel,
        }
    }
}

/// Reads the metrics of `member` on a regular beat until it leaves the fleet. A reading that fails is only
/// late: its age is known, and an old one is not believed.
pub(super) async fn read_reports(fleet: Arc<Fleet>, member: Arc<Member>) {
    let target = Target::new(member.url.clone(), member.pinned.clone(), &fleet.tls_roots);
    let mut client = ProbeClient::new(target);
    let mut period = fleet.settings.load().probe.report;
    let mut beat = beat(period, fleet.next_phase());
    loop {
        tokio::select! {
            () = member.left.cancelled() => return,
            _ = beat.tick() => {}
        }
        let settings = fleet.settings.load_full();
        if settings.probe.report != period {
            period = settings.probe.report;
            beat = self::beat(period, fleet.next_phase());
        }
        let Some(seat) = member.seat() else { continue };
        let read = client.get("/metrics", None, settings.limits.connect, settings.probe.timeout).await;
        let Ok((200, body)) = read else { continue };
        let reading = parse_metrics(&body);
        if reading.malformed_lines > 0 {
            seat.replica.series.malformed_reports.inc();
        }
        seat.pool.tell(|dispatcher, now| dispatcher.report(seat.replica.id, &reading.report, now));
    }
}

/// Beats of many replicas are spread over the period, so that they do not all come at once.
fn beat(period: Duration, phase: f64) -> tokio::time::Interval {
    let mut beat = tokio::time::interval_at(tokio::time::Instant::now() + period.mul_f64(phase), period);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beat
}

impl Fleet {
    fn next_phase(&self) -> f64 {
        Prng::new(self.fresh_id(self.next_request())).unit()
    }
}
