//! How replicas move through their states.

use std::time::Duration;

use expediter_types::{ModelId, ReplicaId, Time};

use super::pool::{MODEL, Pool, request};
use crate::{
    Failure, Output, Policy, ProbeFailure, ProbeResult, Refusal, ReplicaState, SetAsideCause, Settings,
    Verdict,
};

const A: ReplicaId = ReplicaId(0);
const B: ReplicaId = ReplicaId(1);
const READY: (ReplicaState, Option<SetAsideCause>) = (ReplicaState::Ready, None);

fn set_aside(cause: SetAsideCause) -> (ReplicaState, Option<SetAsideCause>) {
    (ReplicaState::SetAside, Some(cause))
}

#[test]
fn a_replica_joins_by_health_then_model_then_warm_up() {
    let mut pool = Pool::empty(Settings::default());
    pool.dispatcher.join(A, pool.now);
    for failure in [ProbeFailure::Refused, ProbeFailure::Silent, ProbeFailure::Status(503)] {
        pool.unhealthy(A, failure);
        assert_eq!(pool.state(A).0, ReplicaState::Joining, "{failure:?}");
    }
    pool.dispatcher.probe(A, ProbeResult::Healthy { models: Vec::new() }, pool.now);
    assert_eq!(pool.state(A).0, ReplicaState::Joining, "healthy without a model is not enough");
    assert_eq!(pool.output(), None);
    pool.healthy(A);
    assert_eq!(pool.state(A).0, ReplicaState::Warming);
    pool.warm_up(A, false);
    assert_eq!(pool.state(A).0, ReplicaState::Warming);
    pool.pass(4_999);
    assert_eq!(pool.output(), None);
    pool.pass(1);
    pool.warm_up(A, true);
    assert_eq!(pool.state(A), READY);
}

#[test]
fn without_warm_up_a_listed_model_is_enough() {
    let mut pool = Pool::empty(Settings { warm_up: false, ..Settings::default() });
    pool.dispatcher.join(A, pool.now);
    pool.healthy(A);
    assert_eq!(pool.state(A), READY);
    assert_eq!(pool.output(), None);
}

#[test]
fn a_warm_up_that_is_never_answered_ends_by_itself_and_its_late_answer_is_ignored() {
    let mut pool = Pool::empty(Settings::default());
    pool.dispatcher.join(A, pool.now);
    pool.healthy(A);
    assert_eq!(pool.output(), Some(Output::WarmUp { replica: A }));
    pool.healthy(A);
    assert_eq!(pool.output(), None, "one at a time");
    assert_eq!(pool.dispatcher.poll_timeout(), Some((Time::from_millis(11_001), "trial limit")));
    pool.pass(11_000);
    pool.dispatcher.probe(A, ProbeResult::WarmUp(true), pool.now);
    assert_eq!(pool.state(A).0, ReplicaState::Warming);
    pool.pass(5_000);
    pool.warm_up(A, true);
    assert_eq!(pool.state(A), READY);
}

#[test]
fn failed_probes_set_a_ready_replica_aside_after_as_many_as_their_kind_needs() {
    use ProbeFailure::{Malformed, NoModel, Refused, Silent, Status};
    let cases: [(&str, &[ProbeFailure], Option<SetAsideCause>); 10] = [
        ("one refusal is chance", &[Refused], None),
        ("two are not", &[Refused, Refused], Some(SetAsideCause::Health)),
        ("of any kind", &[Status(503), Refused], Some(SetAsideCause::Health)),
        ("a status other than 200", &[Status(500), Status(302)], Some(SetAsideCause::Health)),
        ("two without an answer may be busy", &[Silent, Silent], None),
        ("three are not", &[Silent, Silent, Silent], Some(SetAsideCause::Health)),
        ("silence does not add to refusal", &[Silent, Refused, Silent], None),
        ("no model once", &[NoModel], None),
        ("no model twice", &[NoModel, NoModel], Some(SetAsideCause::NoModel)),
        ("garbage twice", &[Malformed, NoModel], Some(SetAsideCause::NoModel)),
    ];
    for (name, probes, expected) in cases {
        let mut pool = Pool::ready(1, Settings::default());
        for probe in probes {
            pool.unhealthy(A, *probe);
        }
        assert_eq!(pool.state(A), expected.map_or(READY, set_aside), "{name}");
    }
}

#[test]
fn a_replica_that_streams_is_not_set_aside_for_probes_it_leaves_unanswered() {
    let mut pool = Pool::ready(1, Settings::default());
    let (id, _) = pool.arrive();
    for _ in 0..10 {
        pool.pass(1_000);
        pool.dispatcher.progress(id, expediter_types::Tokens(1), pool.now);
        pool.unhealthy(A, ProbeFailure::Silent);
    }
    assert_eq!(pool.state(A), READY);
    pool.pass(3_001);
    pool.unhealthy(A, ProbeFailure::Silent);
    assert_eq!(pool.state(A), set_aside(SetAsideCause::Health), "no output for more than three seconds");
}

#[test]
fn ill_health_waits_for_health_and_is_then_tried_at_once() {
    let mut pool = Pool::ready(2, Settings::default());
    pool.unhealthy(A, ProbeFailure::Refused);
    pool.unhealthy(A, ProbeFailure::Refused);
    pool.pass(300_000);
    assert_eq!(pool.output(), None, "no trial while unhealthy");
    pool.healthy(A);
    pool.warm_up(A, true);
    assert_eq!(pool.state(A), READY);
}

#[test]
fn trials_of_a_failing_replica_lie_further_and_further_apart() {
    let mut pool = Pool::ready(2, Settings::default());
    for _ in 0..5 {
        let id = pool.fail_at(A, Failure::ServerError { status: 500 });
        assert_eq!(pool.decision(id).replica, B);
        pool.answer(id);
    }
    assert_eq!(pool.state(A), set_aside(SetAsideCause::Failing));
    for gap in [5_000, 10_000, 20_000, 30_000, 30_000] {
        pool.pass(gap - 1);
        assert_eq!(pool.output(), None, "before {gap} ms");
        pool.pass(1);
        pool.warm_up(A, false);
    }
    pool.pass(30_000);
    pool.warm_up(A, true);
    assert_eq!(pool.state(A), READY);
}

#[test]
fn a_replica_that_passes_its_trial_and_fails_its_first_request_is_set_aside_again() {
    let mut pool = Pool::ready(2, Settings::default());
    let fail = |pool: &mut Pool| {
        let id = pool.fail_at(A, Failure::Death);
        pool.decision(id);
        pool.answer(id);
    };
    (0..5).for_each(|_| fail(&mut pool));
    pool.pass(5_000);
    pool.warm_up(A, true);
    fail(&mut pool);
    assert_eq!(pool.state(A), set_aside(SetAsideCause::Failing));
    pool.pass(9_999);
    assert_eq!(pool.output(), None, "the trial counts as failed: the gap has doubled");
    pool.pass(1);
    pool.warm_up(A, true);
    // One good answer proves it.
    loop {
        let (id, replica) = pool.arrive();
        pool.answer(id);
        if replica == A {
            break;
        }
    }
    (0..4).for_each(|_| fail(&mut pool));
    assert_eq!(pool.state(A), READY);
}

#[test]
fn two_refused_connections_are_enough_and_health_that_returns_hastens_the_trial() {
    let mut pool = Pool::ready(2, Settings::default());
    for _ in 0..2 {
        let id = pool.fail_at(A, Failure::Connect);
        pool.decision(id);
        pool.answer(id);
    }
    assert_eq!(pool.state(A), set_aside(SetAsideCause::Unreachable));
    pool.pass(500);
    pool.healthy(A);
    assert_eq!(pool.output(), None, "health that never went away changes nothing");
    pool.unhealthy(A, ProbeFailure::Refused);
    pool.pass(500);
    pool.healthy(A);
    pool.warm_up(A, true);
    assert_eq!(pool.state(A), READY);
}

#[test]
fn a_failure_from_before_the_replica_came_back_does_not_count() {
    let mut pool = Pool::ready(2, Settings::default());
    let old: Vec<_> = (0..20).map(|_| pool.arrive()).collect();
    pool.unhealthy(A, ProbeFailure::Refused);
    pool.unhealthy(A, ProbeFailure::Refused);
    pool.pass(1_000);
    pool.healthy(A);
    pool.warm_up(A, true);
    for (id, replica) in old {
        if replica == A {
            pool.dispatcher.first_output(id, pool.now);
            pool.fail(id, Failure::Death);
        }
    }
    assert_eq!(pool.state(A), READY);
    assert_eq!(pool.view(A).failed, 10, "they are still counted in the view");
}

#[test]
fn draining_ends_with_the_last_request_or_at_its_limit() {
    let mut pool = Pool::ready(2, Settings::default());
    pool.dispatcher.drain(A, None, pool.now);
    assert_eq!(pool.output(), Some(Output::Drained { replica: A }), "nothing in flight");

    let (id, replica) = pool.arrive();
    assert_eq!(replica, B);
    pool.dispatcher.drain(B, Some(Duration::from_secs(5)), pool.now);
    assert_eq!(pool.output(), None);
    pool.pass(1_000);
    pool.answer(id);
    assert_eq!(pool.output(), Some(Output::Drained { replica: B }));

    pool.dispatcher.undrain(B, pool.now);
    assert_eq!(pool.state(B), READY);
    let (id, replica) = pool.arrive();
    assert_eq!(replica, B);
    pool.dispatcher.drain(B, Some(Duration::from_secs(2)), pool.now);
    pool.dispatcher.first_output(id, pool.now);
    pool.pass(1_999);
    assert_eq!(pool.output(), None);
    assert_eq!(pool.dispatcher.poll_timeout().map(|(_, reason)| reason), Some("drain limit"));
    pool.pass(1);
    assert_eq!(pool.output(), Some(Output::Cut { id, replica: B }), "its time is over");
    assert_eq!(pool.output(), Some(Output::Drained { replica: B }));
    pool.dispatcher.finish(id, pool.now);
    assert_eq!(pool.output(), None, "told once");

    let id = pool.send(request());
    assert!(matches!(pool.refusal(id), Refusal::NoReadyReplica { .. }), "all are draining");
}

#[test]
fn undrain_brings_back_only_what_was_fit() {
    let mut pool = Pool::ready(1, Settings::default());
    pool.dispatcher.drain(A, None, pool.now);
    assert_eq!(pool.output(), Some(Output::Drained { replica: A }));
    pool.unhealthy(A, ProbeFailure::Refused);
    pool.dispatcher.undrain(A, pool.now);
    assert_eq!(pool.state(A).0, ReplicaState::Joining);
    pool.healthy(A);
    pool.warm_up(A, true);
    assert_eq!(pool.state(A), READY);
}

#[test]
fn a_removed_replica_is_known_until_its_last_request_ends() {
    let mut pool = Pool::ready(2, Settings::default());
    let (first, replica) = pool.arrive();
    assert_eq!(replica, A);
    pool.dispatcher.remove(A, pool.now);
    assert_eq!(pool.state(A).0, ReplicaState::Gone);
    pool.healthy(A);
    pool.dispatcher.drain(A, None, pool.now);
    pool.dispatcher.undrain(A, pool.now);
    assert_eq!(pool.state(A).0, ReplicaState::Gone, "nothing brings it back");
    let (second, replica) = pool.arrive();
    assert_eq!(replica, B);
    pool.fail(first, Failure::Death);
    assert_eq!(pool.decision(first).replica, B);
    assert_eq!(pool.dispatcher.replicas(pool.now).len(), 1);
    pool.answer(first);
    pool.answer(second);
    pool.dispatcher.remove(B, pool.now);
    assert!(pool.dispatcher.replicas(pool.now).is_empty());
    assert_eq!(pool.dispatcher.poll_timeout(), None);
}

#[test]
fn a_replica_that_comes_back_beside_established_ones_starts_with_a_small_share() {
    let mut pool =
        Pool::ready(2, Settings { policy: Policy::LeastRequests, warm_up: false, ..Settings::default() });
    pool.join_ready(2);
    let share = |pool: &mut Pool| {
        let requests: Vec<_> = (0..100).map(|_| pool.arrive()).collect();
        let share = requests.iter().filter(|(_, replica)| *replica == ReplicaId(2)).count();
        for (id, _) in requests {
            pool.answer(id);
        }
        share
    };
    assert_eq!(share(&mut pool), 5, "a tenth of a full share, which is a weight of 0.1 in 2.1");
    pool.pass(5_000);
    assert_eq!(share(&mut pool), 22, "half-way its weight is 0.55 in 2.55");
    pool.pass(5_000);
    assert_eq!(share(&mut pool), 33);
}

#[test]
fn a_replica_lists_what_its_last_probe_listed() {
    let mut pool = Pool::ready(2, Settings::default());
    let other = ModelId(9);
    let id = pool.send(crate::Request { model: other, ..request() });
    assert_eq!(pool.refusal(id), Refusal::UnknownModel);
    pool.dispatcher.probe(B, ProbeResult::Healthy { models: vec![other, MODEL, other] }, pool.now);
    assert_eq!(pool.view(B).models, [MODEL, other]);
    let id = pool.send(crate::Request { model: other, ..request() });
    let decision = pool.decision(id);
    assert_eq!(decision.replica, B);
    assert_eq!(decision.candidates[0].verdict, Verdict::LacksModel);
}

#[test]
fn health_that_flaps_does_not_hasten_trials_below_their_shortest_gap() {
    let mut pool = Pool::ready(2, Settings::default());
    let mut trials = Vec::new();
    for _ in 0..60 {
        pool.unhealthy(A, ProbeFailure::Refused);
        pool.unhealthy(A, ProbeFailure::Refused);
        pool.pass(500);
        pool.healthy(A);
        if let Some(output) = pool.output() {
            assert_eq!(output, Output::WarmUp { replica: A });
            trials.push(pool.now);
            pool.dispatcher.probe(A, ProbeResult::WarmUp(false), pool.now);
        }
        pool.pass(500);
    }
    assert!(trials.len() > 5, "{trials:?}");
    assert!(trials.windows(2).all(|pair| pair[1].since(pair[0]) >= Duration::from_secs(5)), "{trials:?}");
}

#[test]
fn a_replica_that_broke_while_it_drained_must_prove_itself() {
    let mut pool = Pool::ready(1, Settings::default());
    let (id, _) = pool.arrive();
    pool.dispatcher.drain(A, None, pool.now);
    pool.dispatcher.first_output(id, pool.now);
    pool.fail(id, Failure::Lost);
    assert_eq!(pool.output(), Some(Output::Drained { replica: A }));
    pool.dispatcher.undrain(A, pool.now);
    assert_eq!(pool.state(A).0, ReplicaState::Joining);
}
