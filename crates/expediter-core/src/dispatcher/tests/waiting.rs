//! Waiting for a replica to become ready.

use std::time::Duration;

use expediter_types::{ModelId, ReplicaId};

use super::pool::{Pool, request};
use crate::{Failure, Output, ProbeFailure, ProbeResult, Refusal, Request, Settings};

const A: ReplicaId = ReplicaId(0);

fn joining(settings: Settings) -> Pool {
    let mut pool = Pool::empty(settings);
    pool.dispatcher.join(A, pool.now);
    pool
}

#[test]
fn an_empty_pool_refuses_at_once() {
    let mut pool = Pool::empty(Settings::default());
    let id = pool.send(request());
    assert_eq!(pool.refusal(id), Refusal::NoReadyReplica { retry_after: Duration::from_secs(1) });
}

#[test]
fn what_waits_is_served_in_order_when_a_replica_becomes_ready() {
    let mut pool = joining(Settings::default());
    let ids: Vec<_> = (0..5).map(|_| pool.send(request())).collect();
    assert_eq!(pool.dispatcher.waiting(), 5);
    pool.dispatcher.leave(ids[2], pool.now);
    assert_eq!(pool.dispatcher.waiting(), 4);
    pool.pass(9_999);
    pool.healthy(A);
    pool.warm_up(A, true);
    for id in [ids[0], ids[1], ids[3], ids[4]] {
        assert_eq!(pool.decision(id).replica, A);
    }
    assert_eq!(pool.output(), None);
    assert_eq!(pool.dispatcher.waiting(), 0);
}

#[test]
fn a_wait_ends_at_the_requests_limit_or_the_pools() {
    // (the request's limit, when it expires), in ms; the pool's limit is 10 s.
    for (limit, end) in [(None, 10_000), (Some(3_000), 3_000), (Some(60_000), 10_000)] {
        let mut pool = joining(Settings::default());
        let id = pool.send(Request { wait_limit: limit.map(Duration::from_millis), ..request() });
        pool.pass(end - 1);
        assert_eq!(pool.output(), None, "{limit:?}");
        assert_eq!(pool.dispatcher.poll_timeout().map(|(_, reason)| reason), Some("wait limit"));
        pool.pass(1);
        assert_eq!(pool.output(), Some(Output::Expire { id }), "{limit:?}");
        assert_eq!(pool.dispatcher.waiting(), 0);
    }
    let mut pool = joining(Settings::default());
    let id = pool.send(Request { wait_limit: Some(Duration::ZERO), ..request() });
    assert!(matches!(pool.refusal(id), Refusal::NoReadyReplica { .. }), "not at all");
}

#[test]
fn the_queue_is_bounded() {
    let mut pool = joining(Settings { waiting_max: 2, ..Settings::default() });
    let first = pool.send(request());
    pool.send(request());
    let third = pool.send(request());
    assert!(matches!(pool.refusal(third), Refusal::WaitingFull { .. }));
    pool.dispatcher.leave(first, pool.now);
    pool.send(request());
    assert_eq!(pool.output(), None);
}

#[test]
fn a_model_is_unknown_only_once_a_replica_has_said_what_it_serves() {
    let mut pool = joining(Settings::default());
    let unknown = || Request { model: ModelId(99), ..request() };
    pool.send(unknown());
    assert_eq!(pool.output(), None, "nobody has said");
    pool.join_ready(1);
    let id = pool.send(unknown());
    assert_eq!(pool.refusal(id), Refusal::UnknownModel);
    pool.unhealthy(ReplicaId(1), ProbeFailure::Refused);
    pool.unhealthy(ReplicaId(1), ProbeFailure::Refused);
    let id = pool.send(unknown());
    assert_eq!(
        pool.refusal(id),
        Refusal::UnknownModel,
        "what a replica listed is still known when it is set aside"
    );
}

#[test]
fn a_failed_attempt_waits_for_an_untried_replica_and_stands_before_later_arrivals() {
    let mut pool = Pool::ready(2, Settings::default());
    let b = ReplicaId(1);
    let (early, replica) = pool.arrive();
    assert_eq!(replica, A);
    for replica in [A, b] {
        pool.unhealthy(replica, ProbeFailure::Refused);
        pool.unhealthy(replica, ProbeFailure::Refused);
    }
    let late = pool.send(request());
    pool.fail(early, Failure::Death);
    assert_eq!(pool.dispatcher.waiting(), 2);
    pool.healthy(A);
    pool.warm_up(A, true);
    assert_eq!(pool.decision(late).replica, A, "the early one was there already");
    pool.healthy(b);
    pool.warm_up(b, true);
    assert_eq!(pool.decision(early).replica, b);
}

#[test]
fn what_waits_for_a_model_is_served_as_soon_as_a_ready_replica_lists_it() {
    let (model, b) = (ModelId(99), ReplicaId(1));
    let mut pool = Pool::ready(2, Settings::default());
    pool.dispatcher.probe(b, ProbeResult::Healthy { models: vec![model] }, pool.now);
    pool.unhealthy(b, ProbeFailure::Refused);
    pool.unhealthy(b, ProbeFailure::Refused);
    let id = pool.send(Request { model, ..request() });
    assert_eq!(pool.output(), None, "the only one that lists it may come back");
    pool.dispatcher.probe(A, ProbeResult::Healthy { models: vec![model] }, pool.now);
    assert_eq!(pool.decision(id).replica, A);
}
