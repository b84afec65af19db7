//! Replicas that take requests and say nothing.

use std::time::Duration;

use expediter_types::{Prompt, ReplicaId, RequestId, Time, Tokens};

use super::pool::{Pool, request};
use crate::{Failure, Output, ReplicaState, Request, SetAsideCause, Settings};

const A: ReplicaId = ReplicaId(0);
const B: ReplicaId = ReplicaId(1);

fn abandon(id: RequestId, replica: ReplicaId) -> Output {
    Output::Abandon { id, replica }
}

#[test]
fn silence_is_judged_by_what_is_known_of_the_replica() {
    // (what is known, time to first token seen before, prompt tokens, streamed, fresh reports, limit in ms)
    let cases = [
        ("nothing: the longest limit", None, 1, true, true, 10_001),
        ("nothing, a long prompt", None, 4_000, true, true, 14_000),
        ("a quick replica: the shortest", Some(10), 1, true, true, 1_501),
        ("eight times its worst", Some(1_000), 1, true, true, 8_001),
        ("a slow replica: the longest", Some(5_000), 1, true, true, 10_001),
        ("an answer that comes whole, but the engine's reports would move", Some(10), 1, false, true, 1_501),
        ("a whole answer of up to 100 tokens and nobody who could say", Some(10), 1, false, false, 6_602),
        ("a stream and nobody who could say: 101 tokens are there", Some(10), 1, true, false, 1_602),
    ];
    for (name, ttft, prompt, stream, reports, limit) in cases {
        let mut pool = Pool::ready(2, Settings::default());
        if let Some(ttft) = ttft {
            let (id, replica) = pool.arrive();
            assert_eq!(replica, A);
            pool.pass(ttft);
            pool.answer(id);
            pool.dispatcher.drain(B, None, pool.now);
            pool.output();
        }
        if reports {
            pool.report(0, 0, 0, 5);
        }
        let (id, replica) =
            pool.arrive_with(Request { prompt: Prompt::opaque(Tokens(prompt)), stream, ..request() });
        assert_eq!(replica, A);
        pool.dispatcher.undrain(B, pool.now);
        let sent = pool.now;
        let mut silent_for = 0;
        while pool.output() != Some(abandon(id, A)) {
            // A frozen engine answers with the same counters again and again.
            if reports {
                pool.report(0, 0, 0, 5);
            }
            pool.pass(1);
            silent_for += 1;
            assert!(silent_for < 60_000, "{name}: never abandoned");
        }
        assert_eq!(pool.now.since(sent), Duration::from_millis(limit), "{name}");
        assert_eq!(pool.state(A), (ReplicaState::SetAside, Some(SetAsideCause::Silent)), "{name}");
        pool.fail(id, Failure::Silent);
        assert_eq!(pool.decision(id).replica, B, "{name}");
    }
}

#[test]
fn output_to_anybody_and_reports_that_move_are_signs_of_life() {
    let mut pool = Pool::ready(2, Settings::default());
    let (talks, replica) = pool.arrive();
    assert_eq!(replica, A);
    pool.dispatcher.drain(B, None, pool.now);
    let (_waits, _) = pool.arrive_skipping_drained();
    pool.dispatcher.undrain(B, pool.now);
    for second in 0..60 {
        pool.dispatcher.progress(talks, Tokens(second), pool.now);
        pool.pass(500);
    }
    for second in 0..60 {
        pool.report(0, 2, 0, second);
        pool.pass(500);
    }
    assert_eq!(pool.output(), None);
    assert_eq!(pool.state(A).0, ReplicaState::Ready);
}

#[test]
fn without_another_replica_silence_is_waited_out_up_to_the_limit_of_the_attempt() {
    let mut pool = Pool::ready(1, Settings::default());
    let (id, _) = pool.arrive();
    pool.pass(599_999);
    assert_eq!(pool.output(), None);
    pool.pass(1);
    assert_eq!(pool.output(), Some(abandon(id, A)));
    pool.fail(id, Failure::Silent);
    assert!(matches!(pool.output(), Some(Output::Refuse { .. })));
    assert_eq!(pool.state(A).1, Some(SetAsideCause::Silent));
}

#[test]
fn another_replica_that_becomes_ready_takes_over_within_a_second() {
    let mut pool = Pool::ready(1, Settings::default());
    let (id, _) = pool.arrive();
    pool.pass(100_000);
    pool.join_ready(1);
    pool.pass(1_000);
    assert_eq!(pool.output(), Some(abandon(id, A)));
    pool.fail(id, Failure::Silent);
    assert_eq!(pool.decision(id).replica, B);
}

#[test]
fn a_single_attempt_that_is_silent_for_too_long_counts_but_the_replica_that_speaks_stays() {
    let settings = Settings { first_output_limit: Duration::from_secs(2), ..Settings::default() };
    let mut pool = Pool::ready(2, settings);
    let (speaks, _) = pool.arrive();
    let (_, _) = pool.arrive();
    let (silent, replica) = pool.arrive();
    assert_eq!(replica, A);
    pool.pass(1_000);
    pool.dispatcher.first_output(speaks, pool.now);
    pool.pass(1_000);
    let abandoned = [pool.output(), pool.output()];
    assert!(abandoned.contains(&Some(abandon(silent, A))), "{abandoned:?}");
    pool.fail(silent, Failure::Silent);
    assert_eq!(pool.view(A).failed, 1);
    assert_eq!(pool.state(A).0, ReplicaState::Ready);
}

#[test]
fn output_that_comes_after_all_is_taken() {
    let mut pool = Pool::ready(2, Settings::default());
    let (id, _) = pool.arrive();
    pool.pass(11_000);
    assert_eq!(pool.output(), Some(abandon(id, A)));
    pool.pass(100_000);
    assert_ne!(pool.output(), Some(abandon(id, A)), "told once");
    pool.answer(id);
    assert_eq!(pool.view(A).in_flight, 0);
}

#[test]
fn trials_of_a_silent_replica_are_ten_seconds_apart() {
    let mut pool = Pool::ready(2, Settings::default());
    let (id, _) = pool.arrive();
    let mut trials: Vec<Time> = Vec::new();
    for _ in 0..200_000 {
        pool.pass(1);
        match pool.output() {
            Some(Output::Abandon { .. }) => pool.fail(id, Failure::Silent),
            Some(Output::Dispatch { .. }) => pool.answer(id),
            Some(Output::WarmUp { .. }) => trials.push(pool.now),
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        if pool.now.0.is_multiple_of(1_000_000_000) {
            pool.healthy(A);
        }
    }
    assert!(trials.len() > 4, "{trials:?}");
    let gaps = trials.windows(2).map(|pair| pair[1].since(pair[0]));
    assert!(gaps.into_iter().all(|gap| gap >= Duration::from_secs(10)), "{trials:?}");
}

impl Pool {
    fn arrive_skipping_drained(&mut self) -> (RequestId, ReplicaId) {
        assert!(matches!(self.output(), Some(Output::Drained { .. })));
        self.arrive()
    }
}

#[test]
fn silence_without_a_retry_to_spend_is_waited_out() {
    let settings = Settings { retry_ratio: 0.0, retry_per_second_min: 0, ..Settings::default() };
    let mut pool = Pool::ready(2, settings);
    let (_, replica) = pool.arrive();
    pool.pass(60_000);
    assert_eq!(pool.output(), None);
    assert_eq!(pool.state(replica).0, ReplicaState::Ready);
}
