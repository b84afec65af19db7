//! Which replica each policy picks.

use std::time::Duration;

use expediter_types::{Prompt, ReplicaId, Tokens};

use super::pool::{Pool, request};
use crate::{Decision, Policy, ProbeFailure, Request, Settings, UnknownPolicy, Verdict};

const BY_LOAD: [Policy; 4] =
    [Policy::LeastRequests, Policy::PowerOfTwo, Policy::PeakEwma, Policy::LeastTokens];

fn settings(policy: Policy) -> Settings {
    Settings { policy, ramp: Duration::ZERO, ..Settings::default() }
}

fn prompt(tokens: u64) -> Request {
    Request { prompt: Prompt::opaque(Tokens(tokens)), ..request() }
}

/// A pool of as many replicas as `prompts` has entries, with requests of those prompt lengths in flight at each.
fn loaded(policy: Policy, prompts: &[&[u64]]) -> Pool {
    let mut pool = Pool::ready(prompts.len() as u32, settings(policy));
    for (replica, prompts) in (0..).zip(prompts) {
        let others = (0..).map(ReplicaId).take(pool.dispatcher.replicas(pool.now).len());
        let others: Vec<ReplicaId> = others.filter(|other| *other != ReplicaId(replica)).collect();
        for other in &others {
            pool.dispatcher.drain(*other, None, pool.now);
        }
        while pool.output().is_some() {}
        for tokens in *prompts {
            assert_eq!(pool.arrive_with(prompt(*tokens)).1, ReplicaId(replica));
        }
        for other in &others {
            pool.dispatcher.undrain(*other, pool.now);
        }
    }
    pool
}

fn decide(pool: &mut Pool, request: Request) -> Decision {
    let id = pool.send(request);
    pool.decision(id)
}

#[test]
fn the_least_load_wins_by_the_measure_of_the_policy() {
    use Policy::{LeastRequests, LeastTokens};
    type Fleet = &'static [&'static [u64]];
    let cases: [(&str, Policy, Fleet, u64, u32); 6] = [
        ("fewest requests", LeastRequests, &[&[9, 9], &[9_000], &[9, 9, 9]], 9, 1),
        ("fewest tokens", LeastTokens, &[&[9, 9], &[9_000], &[9, 9, 9]], 9, 0),
        ("a long prompt avoids tokens, not requests", LeastTokens, &[&[9; 9], &[9_000]], 9_000, 0),
        ("an idle replica before any other", LeastTokens, &[&[1], &[], &[1]], 9, 1),
        ("as many requests: fewer tokens", LeastTokens, &[&[800], &[700], &[900]], 100, 1),
        ("as many tokens each, and fewer requests", LeastTokens, &[&[500, 600], &[1_200]], 100, 1),
    ];
    for (name, policy, fleet, tokens, expected) in cases {
        let decision = decide(&mut loaded(policy, fleet), prompt(tokens));
        assert_eq!(decision.replica, ReplicaId(expected), "{name}: {:?}", decision.candidates);
        for candidate in &decision.candidates {
            let expected =
                if candidate.replica == decision.replica { Verdict::Chosen } else { Verdict::HigherLoad };
            assert_eq!(candidate.verdict, expected, "{name}");
        }
    }
}

#[test]
fn round_robin_goes_round_by_id_and_leaves_out_who_does_not_qualify() {
    let mut pool = Pool::ready(4, settings(Policy::RoundRobin));
    let turns: Vec<u32> = (0..6).map(|_| pool.arrive().1.0).collect();
    assert_eq!(turns, [0, 1, 2, 3, 0, 1]);
    for _ in 0..2 {
        pool.unhealthy(ReplicaId(2), ProbeFailure::Refused);
    }
    let turns: Vec<u32> = (0..4).map(|_| pool.arrive().1.0).collect();
    assert_eq!(turns, [3, 0, 1, 3]);
}

#[test]
fn random_reaches_everybody_alike() {
    let mut pool = Pool::ready(3, settings(Policy::Random));
    let mut shares = [0; 3];
    for _ in 0..3_000 {
        shares[pool.arrive().1.0 as usize] += 1;
    }
    assert!(shares.iter().all(|share| (900..1_100).contains(share)), "{shares:?}");
}

#[test]
fn power_of_two_compares_two_draws_with_replacement() {
    // Prompt tokens in flight at each replica; by tokens the one with most requests is the lightest.
    type Case<'a> = (Policy, &'a [&'a [u64]], [i32; 3]);
    let cases: [Case<'_>; 2] = [
        (Policy::PowerOfTwo, &[&[900], &[1, 1], &[1, 1, 1]], [5_000, 3_000, 1_000]),
        (Policy::PowerOfTwoTokens, &[&[900], &[2, 2], &[1, 1, 1]], [1_000, 3_000, 5_000]),
    ];
    for (policy, loads, expected) in cases {
        let mut pool = loaded(policy, loads);
        let mut shares = [0_i32; 3];
        for _ in 0..9_000 {
            let id = pool.send(request());
            let decision = pool.decision(id);
            shares[decision.replica.0 as usize] += 1;
            let compared = decision.candidates.iter().filter(|c| c.verdict == Verdict::HigherLoad).count();
            assert!(compared <= 1, "{:?}", decision.candidates);
            pool.dispatcher.leave(id, pool.now);
        }
        for (share, expected) in shares.into_iter().zip(expected) {
            assert!((share - expected).abs() < 200, "{policy}: {shares:?}");
        }
    }
}

#[test]
fn peak_ewma_fears_the_slow_and_forgives_with_time() {
    let mut pool = Pool::ready(2, settings(Policy::PeakEwma));
    let (slow, _) = pool.arrive();
    let (quick, _) = pool.arrive();
    pool.pass(100);
    pool.answer(quick);
    pool.pass(1_900);
    pool.answer(slow);
    let share = |pool: &mut Pool| {
        let requests: Vec<_> = (0..21).map(|_| pool.arrive()).collect();
        let share = requests.iter().filter(|(_, replica)| *replica == ReplicaId(0)).count();
        for (id, _) in requests {
            pool.dispatcher.leave(id, pool.now);
        }
        share
    };
    assert_eq!(share(&mut pool), 0, "twenty times as slow");
    pool.pass(300_000);
    assert!(share(&mut pool) <= 1, "both fade alike, so the ratio stays");
    let (id, _) = pool.arrive();
    pool.pass(100);
    pool.answer(id);
    assert_eq!(share(&mut pool), 21, "the peak of long ago weighs less than that of a moment ago");
}

#[test]
fn idle_replicas_take_turns_under_every_policy_that_compares() {
    for policy in BY_LOAD {
        let mut pool = Pool::ready(3, settings(policy));
        let mut shares = [0; 3];
        for _ in 0..300 {
            let (id, replica) = pool.arrive();
            shares[replica.0 as usize] += 1;
            pool.dispatcher.leave(id, pool.now);
        }
        assert!(shares.iter().all(|share| (85..=115).contains(share)), "{policy}: {shares:?}");
    }
    let mut pool = Pool::ready(2, settings(Policy::LeastTokens));
    let id = pool.send(request());
    assert_eq!(pool.decision(id).candidates[1].verdict, Verdict::Tied);
}

#[test]
fn traffic_around_the_gateway_is_load_while_its_report_is_fresh() {
    for policy in [Policy::LeastRequests, Policy::PeakEwma, Policy::LeastTokens] {
        let mut pool = Pool::ready(2, settings(policy));
        let decide_and_leave = |pool: &mut Pool| {
            let id = pool.send(request());
            let decision = pool.decision(id);
            pool.dispatcher.leave(id, pool.now);
            decision
        };
        pool.report(0, 3, 2, 1);
        for _ in 0..3 {
            assert_eq!(decide_and_leave(&mut pool).replica, ReplicaId(1), "{policy}");
        }
        pool.pass(1_000);
        assert_eq!(decide_and_leave(&mut pool).replica, ReplicaId(1), "{policy}: just fresh");
        pool.pass(1);
        assert_eq!(decide_and_leave(&mut pool).replica, ReplicaId(0), "{policy}: stale is no load");
        assert!(!pool.view(ReplicaId(0)).fresh);
    }
}

#[test]
fn what_we_sent_ourselves_is_not_counted_twice() {
    let mut pool = loaded(Policy::LeastRequests, &[&[1, 1], &[1, 1, 1]]);
    pool.report(0, 2, 0, 1);
    let decision = decide(&mut pool, request());
    assert_eq!((decision.candidates[0].load, decision.candidates[1].load), (2.0, 3.0));
}

#[test]
fn tokens_in_flight_fall_as_the_answer_goes_on() {
    let mut pool = Pool::ready(1, settings(Policy::LeastTokens));
    let id =
        pool.send(Request { prompt: Prompt::opaque(Tokens(1_600)), output_cap: Tokens(200), ..request() });
    let tokens = |pool: &Pool| pool.view(ReplicaId(0)).in_flight_tokens.0;
    assert_eq!(tokens(&pool), 1_800, "prompt and an answer as long as its cap");
    pool.dispatcher.first_output(id, pool.now);
    assert_eq!(tokens(&pool), 300, "a sixteenth of the prompt, and the answer");
    pool.dispatcher.progress(id, Tokens(150), pool.now);
    assert_eq!(tokens(&pool), 150);
    pool.dispatcher.progress(id, Tokens(5_000), pool.now);
    assert_eq!(tokens(&pool), 132, "it is there, and may go on");
    pool.dispatcher.finish(id, pool.now);
    assert_eq!(tokens(&pool), 0);
}

#[test]
fn an_answer_is_expected_to_be_as_long_as_answers_are() {
    let mut pool = Pool::ready(1, settings(Policy::LeastTokens));
    let uncapped = Request { prompt: Prompt::opaque(Tokens(0)), output_cap: Tokens(u64::MAX), ..request() };
    let expected = |pool: &mut Pool| {
        let (id, _) = pool.arrive_with(uncapped.clone());
        let tokens = pool.view(ReplicaId(0)).in_flight_tokens.0;
        pool.dispatcher.leave(id, pool.now);
        tokens
    };
    assert_eq!(expected(&mut pool), 256, "the prior");
    for _ in 0..200 {
        let (id, _) = pool.arrive();
        pool.dispatcher.progress(id, Tokens(20), pool.now);
        pool.dispatcher.finish(id, pool.now);
    }
    assert!((20..24).contains(&expected(&mut pool)));
}

#[test]
fn a_policy_can_change_while_requests_are_in_flight() {
    let mut pool = loaded(Policy::LeastRequests, &[&[1], &[]]);
    pool.dispatcher.set_settings(settings(Policy::RoundRobin), pool.now);
    assert_eq!(pool.view(ReplicaId(0)).in_flight, 1);
    let id = pool.send(Request { wait_limit: Some(Duration::ZERO), ..request() });
    assert_eq!(pool.decision(id).policy, Policy::RoundRobin);
}

#[test]
fn policies_have_names() {
    for policy in Policy::ALL {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    assert_eq!("fastest".parse::<Policy>(), Err(UnknownPolicy("fastest".to_owned())));
}
