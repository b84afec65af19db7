//! Drives a pool's dispatcher: tells it the time, and does what no request's own task can.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use expediter_core::ReplicaState;
use expediter_types::{ReplicaId, Time};

use super::pool::Effect;
use super::{Fleet, Pool, warm_up};

/// Runs until the fleet stops, or the pool is forgotten and its last request has ended.
pub(super) async fn drive(fleet: Arc<Fleet>, pool: Arc<Pool>) {
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last = fleet.clock.now();
    let (mut last_told, mut states) = (Time::ZERO, BTreeMap::new());
    loop {
        tokio::select! {
            () = fleet.stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        if pool.retired.is_cancelled() && pool.is_idle() {
            return;
        }
        let now = fleet.clock.now();
        let stood_still = now.since(std::mem::replace(&mut last, now)) > STANDSTILL;
        if stood_still {
            // The process was stopped, or starved. What replicas sent meanwhile has to be read before their
            // silence is judged.
            continue;
        }
        if now.since(last_told) >= TELL_INTERVAL {
            last_told = now;
            tell_changes(&pool, &mut states);
        }
        for effect in pool.drive() {
            match effect {
                Effect::WarmUp(replica) => {
                    fleet.tasks.spawn(warm_up::warm_up(Arc::clone(&fleet), Arc::clone(&pool), replica));
                }
                Effect::Drained(replica) => {
                    tracing::info!(pool = &*pool.name, replica = &*replica.name, "drained");
                }
            }
        }
    }
}

/// Writes down which replicas have changed their state since the last time.
fn tell_changes(pool: &Pool, states: &mut BTreeMap<ReplicaId, ReplicaState>) {
    let changes = pool.state_changes(states);
    for (replica, view) in changes {
        let (pool, replica, state) = (&*pool.name, &*replica.name, view.state.as_str());
        if let Some(cause) = view.cause {
            tracing::warn!(pool, replica, state, cause = cause.as_str(), "replica set aside");
        } else {
            tracing::info!(pool, replica, state, "replica changed state");
        }
    }
}

/// Every wait that the dispatcher keeps is far longer than this; a timer for each would cost more than it gains.
const TICK: Duration = Duration::from_millis(20);

/// How often the log looks for replicas that changed their state.
const TELL_INTERVAL: Duration = Duration::from_millis(200);

/// Ten ticks missed in a row.
const STANDSTILL: Duration = Duration::from_millis(200);
