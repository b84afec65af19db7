//! What follows when an attempt fails.

use std::time::Duration;

use expediter_types::ReplicaId;

use super::pool::{Pool, request};
use crate::{Failure, Output, Policy, Refusal, ReplicaState, SetAsideCause, Settings, Verdict};

/// Every kind of failure, and what its verdict is: (counts, retry, death, sets aside at once).
const TABLE: [(Failure, bool, bool, bool, Option<SetAsideCause>); 11] = [
    (Failure::Connect, true, true, false, None),
    (Failure::Death, true, true, true, None),
    (Failure::Silent, true, true, false, Some(SetAsideCause::Silent)),
    (Failure::ServerError { status: 500 }, true, true, false, None),
    (Failure::ServerError { status: 501 }, false, false, false, None),
    (Failure::ServerError { status: 503 }, true, true, false, None),
    (Failure::ServerError { status: 505 }, false, false, false, None),
    (Failure::Overloaded { retry_after: None }, false, true, false, None),
    (Failure::Overloaded { retry_after: Some(Duration::from_secs(2)) }, false, true, false, None),
    (Failure::Lost, true, true, true, Some(SetAsideCause::Lost)),
    (Failure::Malformed, true, true, false, None),
];

#[test]
fn the_table_of_failures() {
    for (failure, counts, retry, death, sets_aside) in TABLE {
        let verdict = failure.verdict();
        assert_eq!(
            (verdict.counts, verdict.retry, verdict.death, verdict.sets_aside),
            (counts, retry, death, sets_aside),
            "{failure:?}"
        );
    }
}

#[test]
fn every_failure_without_output_does_what_the_table_says() {
    for (failure, counts, retry, _, sets_aside) in TABLE {
        let mut pool = Pool::ready(2, Settings::default());
        let (id, first) = pool.arrive();
        pool.fail(id, failure);
        if retry {
            let decision = pool.decision(id);
            assert_ne!(decision.replica, first, "{failure:?}");
            assert_eq!(decision.attempt, 2, "{failure:?}");
            let set_aside = Verdict::NotReady(ReplicaState::SetAside);
            let expected = if sets_aside.is_some() { set_aside } else { Verdict::Tried };
            assert_eq!(decision.candidates[first.0 as usize].verdict, expected, "{failure:?}");
        } else {
            assert_eq!(pool.refusal(id), Refusal::AttemptsSpent { last: failure });
        }
        let view = pool.view(first);
        assert_eq!(view.failed, u64::from(counts), "{failure:?}");
        assert_eq!(view.cause, sets_aside, "{failure:?}");
        assert_eq!(view.in_flight, 0, "{failure:?}");
    }
}

#[test]
fn no_failure_after_output_is_repeated() {
    for (failure, ..) in TABLE {
        let mut pool = Pool::ready(2, Settings::default());
        let (id, replica) = pool.arrive();
        pool.dispatcher.first_output(id, pool.now);
        pool.fail(id, failure);
        assert_eq!(pool.output(), None, "{failure:?}");
        assert_eq!(pool.view(replica).in_flight, 0, "{failure:?}");
    }
}

#[test]
fn a_replica_that_cuts_every_stream_after_its_first_token_is_set_aside() {
    let mut pool = Pool::ready(1, Settings::default());
    for _ in 0..5 {
        assert_eq!(pool.state(ReplicaId(0)).0, ReplicaState::Ready);
        let (id, _) = pool.arrive();
        pool.dispatcher.first_output(id, pool.now);
        pool.fail(id, Failure::Death);
    }
    assert_eq!(pool.state(ReplicaId(0)).1, Some(SetAsideCause::Failing));
}

#[test]
fn failures_in_a_row_are_broken_by_an_answer_but_their_share_counts() {
    let mut pool = Pool::ready(1, Settings::default());
    let fail = |pool: &mut Pool| {
        let (id, _) = pool.arrive();
        pool.dispatcher.first_output(id, pool.now);
        pool.fail(id, Failure::Malformed);
    };
    for _ in 0..9 {
        fail(&mut pool);
        let (id, _) = pool.arrive();
        pool.answer(id);
    }
    let (id, _) = pool.arrive();
    pool.answer(id);
    assert_eq!(pool.state(ReplicaId(0)).0, ReplicaState::Ready, "9 of 19: too few to say");
    fail(&mut pool);
    assert_eq!(pool.state(ReplicaId(0)).1, Some(SetAsideCause::Failing), "10 of 20");
}

#[test]
fn failures_that_lie_back_are_forgotten() {
    // (ms from one failure, and one answer, to the next; whether ten seconds hold enough of them)
    for (gap, expected) in [(600, ReplicaState::SetAside), (1_200, ReplicaState::Ready)] {
        let mut pool = Pool::ready(1, Settings::default());
        for _ in 0..50 {
            if pool.state(ReplicaId(0)).0 == ReplicaState::Ready {
                let (id, _) = pool.arrive();
                pool.dispatcher.first_output(id, pool.now);
                pool.fail(id, Failure::Malformed);
            }
            if pool.state(ReplicaId(0)).0 == ReplicaState::Ready {
                let (id, _) = pool.arrive();
                pool.answer(id);
                pool.pass(gap);
            }
        }
        assert_eq!(pool.state(ReplicaId(0)).0, expected, "every {gap} ms");
    }
}

#[test]
fn a_request_is_never_sent_to_one_replica_twice_nor_more_often_than_it_may() {
    for (replicas, attempts_max, attempts) in
        [(1, 3, 1), (2, 3, 2), (3, 3, 3), (5, 3, 3), (5, 1, 1), (5, 9, 5)]
    {
        let mut pool = Pool::ready(replicas, Settings { attempts_max, ..Settings::default() });
        let (id, first) = pool.arrive();
        let mut tried = vec![first];
        let last = Failure::ServerError { status: 500 };
        for _ in 1..attempts {
            pool.fail(id, last);
            tried.push(pool.decision(id).replica);
        }
        pool.fail(id, last);
        assert_eq!(pool.refusal(id), Refusal::AttemptsSpent { last });
        let made = tried.len();
        tried.sort();
        tried.dedup();
        assert_eq!(tried.len(), made, "{replicas} replicas, at most {attempts_max} attempts");
    }
}

#[test]
fn a_request_that_kills_two_replicas_is_not_given_to_a_third() {
    for deaths in [[Failure::Death, Failure::Death], [Failure::Lost, Failure::Death]] {
        let mut pool = Pool::ready(4, Settings { attempts_max: 4, ..Settings::default() });
        let (id, _) = pool.arrive();
        pool.fail(id, Failure::Connect);
        pool.decision(id);
        pool.fail(id, deaths[0]);
        pool.decision(id);
        pool.fail(id, deaths[1]);
        assert_eq!(pool.refusal(id), Refusal::Poison);
    }
}

#[test]
fn retries_are_a_fifth_of_the_traffic_and_a_reserve() {
    let settings = Settings { retry_per_second_min: 1, policy: Policy::RoundRobin, ..Settings::default() };
    let mut pool = Pool::ready(200, settings);
    let (mut retried, mut refused) = (0, 0);
    for _ in 0..200 {
        let (id, _) = pool.arrive();
        pool.fail(id, Failure::ServerError { status: 500 });
        match pool.output() {
            Some(crate::Output::Dispatch { .. }) => {
                retried += 1;
                pool.answer(id);
            }
            Some(crate::Output::Refuse { refusal: Refusal::RetryBudget { .. }, .. }) => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((retried, refused), (50, 150), "a fifth of 200, and ten seconds' worth of one a second");
    pool.pass(60_000);
    for expected in [true; 10].into_iter().chain([false]) {
        let (id, _) = pool.arrive();
        pool.fail(id, Failure::ServerError { status: 500 });
        let output = pool.output();
        // Eleven arrivals deposit 2.2 more, so the reserve is what is checked to refill.
        let retried = matches!(output, Some(crate::Output::Dispatch { .. }));
        assert!(retried || !expected, "{output:?}");
    }
}

#[test]
fn back_pressure_sends_requests_elsewhere_and_never_counts() {
    let mut pool = Pool::ready(2, Settings::default());
    let full = Failure::Overloaded { retry_after: Some(Duration::from_secs(2)) };
    let (id, first) = pool.arrive();
    pool.fail(id, full);
    let second = pool.decision(id).replica;
    assert_ne!(first, second);
    pool.answer(id);

    let (id, replica) = pool.arrive();
    assert_eq!(replica, second, "the first asked to be left alone");
    pool.pass(500);
    pool.fail(id, full);
    let refusal = Refusal::Overloaded { retry_after: Duration::from_millis(1_500) };
    assert_eq!(pool.refusal(id), refusal, "both are full; the first is free again in 1.5 s");

    let (id, replica) = pool.arrive();
    assert_eq!(replica, first, "a fresh request is better off with the one that is free first");
    pool.answer(id);
    pool.pass(2_000);
    assert_eq!((pool.view(first).failed, pool.view(second).failed), (0, 0));
    assert_eq!(pool.view(first).state, ReplicaState::Ready);
}

#[test]
fn without_a_time_of_its_own_back_pressure_doubles_until_an_answer() {
    let mut pool = Pool::ready(2, Settings::default());
    let a = ReplicaId(0);
    for pause in [250, 500, 1_000, 2_000, 2_000, 2_000] {
        let id = pool.fail_at(a, Failure::Overloaded { retry_after: None });
        pool.decision(id);
        pool.answer(id);
        let verdict_of_a = |pool: &mut Pool| {
            let id = pool.send(request());
            let verdict = pool.decision(id).candidates[0].verdict;
            pool.dispatcher.leave(id, pool.now);
            verdict
        };
        pool.pass(pause - 1);
        assert_eq!(verdict_of_a(&mut pool), Verdict::PushedBack, "{pause} ms");
        pool.pass(1);
        assert_ne!(verdict_of_a(&mut pool), Verdict::PushedBack, "{pause} ms");
    }
    loop {
        let (id, replica) = pool.arrive();
        pool.answer(id);
        if replica == a {
            break;
        }
    }
    let id = pool.fail_at(a, Failure::Overloaded { retry_after: None });
    pool.decision(id);
    pool.pass(250);
    let id = pool.send(request());
    assert_ne!(pool.decision(id).candidates[0].verdict, Verdict::PushedBack);
}

#[test]
fn one_replica_that_is_full_is_an_overload_to_the_client() {
    let mut pool = Pool::ready(1, Settings::default());
    let (id, _) = pool.arrive();
    pool.fail(id, Failure::Overloaded { retry_after: None });
    assert_eq!(pool.refusal(id), Refusal::Overloaded { retry_after: Duration::from_millis(250) });
}

#[test]
fn a_client_that_leaves_counts_against_nobody() {
    let mut pool = Pool::ready(1, Settings::default());
    for output in [false, true] {
        for _ in 0..30 {
            let (id, replica) = pool.arrive();
            if output {
                pool.dispatcher.first_output(id, pool.now);
            }
            pool.dispatcher.leave(id, pool.now);
            pool.dispatcher.leave(id, pool.now);
            pool.fail(id, Failure::Death);
            let view = pool.view(replica);
            assert_eq!((view.in_flight, view.failed, view.state), (0, 0, ReplicaState::Ready));
        }
    }
    assert_eq!(pool.dispatcher.poll_timeout(), None, "no deadline is left behind");
}

#[test]
fn a_client_whose_requests_fail_everywhere_does_not_take_the_pool_from_the_others() {
    let mut pool = Pool::ready(3, Settings::default());
    for _ in 0..20 {
        let (id, _) = pool.arrive();
        loop {
            pool.fail(id, Failure::ServerError { status: 500 });
            match pool.output() {
                Some(Output::Dispatch { .. }) => {}
                other => break assert!(matches!(other, Some(Output::Refuse { .. })), "{other:?}"),
            }
        }
    }
    for replica in 0..3 {
        assert_eq!(pool.state(ReplicaId(replica)), (ReplicaState::SetAside, Some(SetAsideCause::Failing)));
    }
    let (good, _) = pool.arrive();
    pool.answer(good);
}
