//! What the published policies pick, with the numbers they published.

use std::time::Duration;

use expediter_types::{BlockSize, EngineReport, Prompt, ReplicaId, RequestId, Tokens};

use super::pool::{Pool, request};
use crate::{
    Decision, Failure, Policy, PolicyParameters, ProbeFailure, Request, ScorerWeights, Settings,
    StickyParameters, TreeParameters, Verdict,
};

const PREDICTING: [Policy; 5] = [
    Policy::LeastPendingTokens,
    Policy::ApproximateTree,
    Policy::LMetric,
    Policy::Weighted,
    Policy::StickyUntilSaturated,
];

fn settings(policy: Policy) -> Settings {
    Settings { policy, ramp: Duration::ZERO, waiting_max: 10_000, ..Settings::default() }
}

fn pool(policy: Policy, replicas: u32) -> Pool {
    Pool::ready(replicas, settings(policy))
}

/// A prompt of `tokens`, of which `shared` are those that every prompt of the same `group` begins with.
fn prompt(group: u32, shared: u32, tokens: u32, rest: u32) -> Request {
    let ids = (0..tokens).map(|at| if at < shared { at * 1_000 + group } else { at * 1_000 + rest + 500 });
    let ids: Vec<u32> = ids.collect();
    Request { prompt: Prompt::from_token_ids(&ids, BlockSize::DEFAULT, 0), ..request() }
}

/// A prompt that shares nothing with any other of another number.
fn unique(number: u32, tokens: u32) -> Request {
    prompt(number, tokens, tokens, 0)
}

/// Sends a request while all other replicas are drained.
fn place(pool: &mut Pool, replica: u32, request: Request) -> RequestId {
    let count = pool.dispatcher.replicas(pool.now).len() as u32;
    let others: Vec<ReplicaId> = (0..count).filter(|other| *other != replica).map(ReplicaId).collect();
    for other in &others {
        pool.dispatcher.drain(*other, None, pool.now);
    }
    while pool.output().is_some() {}
    let (id, at) = pool.arrive_with(request);
    assert_eq!(at, ReplicaId(replica));
    for other in &others {
        pool.dispatcher.undrain(*other, pool.now);
    }
    id
}

fn decide(pool: &mut Pool, request: Request) -> Decision {
    let id = pool.send(request);
    let decision = pool.decision(id);
    pool.dispatcher.leave(id, pool.now);
    decision
}

fn verdicts(decision: &Decision) -> Vec<Verdict> {
    decision.candidates.iter().map(|candidate| candidate.verdict).collect()
}

#[test]
fn pending_tokens_are_the_uncached_ones_without_a_first_token() {
    use Verdict::{Chosen, HigherLoad, Tied};
    let mut pool = pool(Policy::LeastPendingTokens, 3);
    let first = place(&mut pool, 0, unique(1, 1_600));
    place(&mut pool, 1, unique(2, 320));
    place(&mut pool, 2, unique(3, 480));
    let pending = |pool: &Pool, replica| pool.view(ReplicaId(replica)).pending_prefill.0;
    assert_eq!([0, 1, 2].map(|replica| pending(&pool, replica)), [1_600, 320, 480]);
    assert_eq!(verdicts(&decide(&mut pool, unique(4, 100))), [HigherLoad, Chosen, HigherLoad]);
    pool.dispatcher.first_output(first, pool.now);
    pool.dispatcher.progress(first, Tokens(10), pool.now);
    assert_eq!(pending(&pool, 0), 0, "its prompt is computed");
    let again = place(&mut pool, 0, unique(1, 1_600));
    assert_eq!(pending(&pool, 0), 16, "all but the block of the last token is cached");
    pool.dispatcher.leave(again, pool.now);
    assert_eq!(pending(&pool, 0), 0);
    // Nothing is pending anywhere; replica 0 has one request in flight, the others none.
    for replica in [1, 2] {
        for id in [2, 3].map(RequestId) {
            pool.dispatcher.leave(id, pool.now);
        }
        assert_eq!(pending(&pool, replica), 0);
    }
    let decision = decide(&mut pool, unique(1, 1_600));
    assert_eq!(verdicts(&decision)[0], Tied, "equal tokens: fewest requests in flight, whatever is cached");
}

/// Requests in flight at each of eight replicas after `count` prompts that begin alike.
fn bounded(count: u32) -> (Pool, Vec<u64>) {
    let mut pool = pool(Policy::PrefixHashBounded, 8);
    for number in 0..count {
        pool.arrive_with(prompt(7, 32, 64, number));
    }
    let mut loads: Vec<u64> = pool.dispatcher.replicas(pool.now).iter().map(|view| view.in_flight).collect();
    loads.sort_unstable();
    (pool, loads)
}

#[test]
fn the_ring_keeps_a_prefix_together_up_to_the_bound() {
    // The bound with n in flight: 1.25 × (n + 1) / 8. It is below 1 up to the sixth request, so that all stay with
    // the first on the ring; with 100 in flight nobody may have more than 1.25 × 100 / 8 = 15.6.
    for (count, most) in [(1, 1), (6, 6), (100, 15), (800, 125)] {
        let (_, loads) = bounded(count);
        assert_eq!(loads[7], most, "{count}: {loads:?}");
    }
    let (_, loads) = bounded(800);
    assert_eq!(
        loads.iter().filter(|load| **load >= 124).count(),
        6,
        "one neighbour after the other: {loads:?}"
    );
}

#[test]
fn the_ring_passes_over_the_full_and_says_so() {
    let (mut pool, _) = bounded(100);
    let decision = decide(&mut pool, prompt(7, 32, 64, 1_000));
    assert!(verdicts(&decision).contains(&Verdict::OverBound));
    for candidate in &decision.candidates {
        let bound = 1.25 * 101.0 / 8.0;
        if candidate.verdict == Verdict::OverBound {
            assert!(candidate.load + 1.0 > bound, "{candidate:?}");
        } else if candidate.verdict == Verdict::Chosen {
            assert!(candidate.load + 1.0 <= bound, "{candidate:?}");
        }
    }
}

#[test]
fn the_ring_knows_the_first_blocks_and_what_salts_them() {
    let mut pool = pool(Policy::PrefixHashBounded, 8);
    let owner = |pool: &mut Pool, request| decide(pool, request).replica;
    let groups: Vec<ReplicaId> = (0..50).map(|group| owner(&mut pool, prompt(group, 32, 32, 0))).collect();
    for (group, expected) in (0..).zip(&groups) {
        assert_eq!(owner(&mut pool, prompt(group, 32, 640, 9)), *expected, "the rest of the prompt");
    }
    assert!((0..8).all(|id| groups.contains(&ReplicaId(id))), "groups spread: {groups:?}");
    let salted = |group: u32| {
        let ids: Vec<u32> = (0..32).map(|at| at * 1_000 + group).collect();
        Request { prompt: Prompt::from_token_ids(&ids, BlockSize::DEFAULT, 5), ..request() }
    };
    let of_other = (0..50).map(|group| owner(&mut pool, salted(group)));
    let same = of_other.zip(&groups).filter(|(a, b)| a == *b).count();
    assert!(same < 20, "another adapter is another key: {same} of 50 alike");
    let mut turns: Vec<u32> = (0..8).map(|_| pool.arrive().1.0).collect();
    turns.sort_unstable();
    assert_eq!(turns, [0, 1, 2, 3, 4, 5, 6, 7], "without hashes: fewest requests in flight");
}

#[test]
fn the_ring_is_the_same_with_one_replica_less() {
    let mut pool = pool(Policy::PrefixHashBounded, 8);
    let owners = |pool: &mut Pool| -> Vec<ReplicaId> {
        (0..60).map(|group| decide(pool, prompt(group, 32, 32, 0)).replica).collect()
    };
    let before = owners(&mut pool);
    pool.dispatcher.remove(ReplicaId(3), pool.now);
    let after = owners(&mut pool);
    for (before, after) in before.iter().zip(&after) {
        assert!(before == after || *before == ReplicaId(3), "{before} to {after}");
    }
}

#[test]
fn the_tree_has_two_modes() {
    use Verdict::{Chosen, HigherLoad, LessPrefix};
    // (name, requests at replica 0, at replica 1, shared tokens of 160, the verdicts)
    let cases: [(&str, u32, u32, u32, [Verdict; 2]); 7] = [
        ("a match of more than 0.3 wins", 5, 0, 64, [Chosen, LessPrefix]),
        ("a match of 0.3 does not", 5, 0, 48, [HigherLoad, Chosen]),
        ("64 more is balanced", 64, 0, 160, [Chosen, LessPrefix]),
        ("65 more is not", 65, 0, 160, [HigherLoad, Chosen]),
        ("1.5 times as many is balanced", 195, 130, 160, [Chosen, LessPrefix]),
        ("more than 1.5 times is not", 196, 130, 160, [HigherLoad, Chosen]),
        ("without a match the fewest", 0, 3, 0, [Chosen, HigherLoad]),
    ];
    for (name, zero, one, shared, expected) in cases {
        let mut pool = pool(Policy::ApproximateTree, 2);
        let first = place(&mut pool, 0, prompt(1, shared, 160, 1));
        pool.answer(first);
        for number in 0..zero {
            place(&mut pool, 0, unique(10_000 + number, 16));
        }
        for number in 0..one {
            place(&mut pool, 1, unique(20_000 + number, 16));
        }
        let decision = decide(&mut pool, prompt(1, shared, 160, 2));
        assert_eq!(verdicts(&decision), expected, "{name}: {:?}", decision.candidates);
    }
}

#[test]
fn the_tree_inserts_for_the_chosen_whatever_the_mode() {
    let mut pool = pool(Policy::ApproximateTree, 2);
    let first = place(&mut pool, 0, unique(1, 160));
    pool.answer(first);
    let crowd: Vec<RequestId> =
        (0..65).map(|number| place(&mut pool, 0, unique(10_000 + number, 16))).collect();
    let (moved, to) = pool.arrive_with(unique(1, 160));
    assert_eq!(to, ReplicaId(1), "out of balance");
    pool.answer(moved);
    for id in crowd {
        pool.answer(id);
    }
    let decision = decide(&mut pool, unique(1, 160));
    assert!(decision.candidates[1].prefix_share >= 1.0, "and remembered there");
    assert_eq!(decision.replica, ReplicaId(1), "of two owners the one used last");
}

#[test]
fn lmetric_multiplies_tokens_to_compute_and_batch_size() {
    // (name, what is in flight at each of two replicas as prompt lengths, whether it is still silent; loads)
    type InFlight = &'static [(u32, bool)];
    let cases: [(&str, [InFlight; 2], [f64; 2]); 3] = [
        ("idle ones: the prompt once", [&[], &[]], [160.0, 160.0]),
        ("queued tokens count, and all requests", [&[(320, true)], &[(320, false)]], [960.0, 320.0]),
        ("a batch against a queue", [&[(16, false); 9], &[(640, true)]], [1_600.0, 1_600.0]),
    ];
    for (name, fleet, expected) in cases {
        let mut pool = pool(Policy::LMetric, 2);
        let mut number = 100;
        for (replica, requests) in (0..).zip(fleet) {
            for (tokens, silent) in requests {
                number += 1;
                let id = place(&mut pool, replica, unique(number, *tokens));
                if !silent {
                    pool.dispatcher.first_output(id, pool.now);
                }
            }
        }
        let decision = decide(&mut pool, unique(1, 160));
        let loads: Vec<f64> = decision.candidates.iter().map(|candidate| candidate.load).collect();
        assert_eq!(loads, expected, "{name}");
    }
}

#[test]
fn lmetric_breaks_ties_by_requests() {
    let mut pool = pool(Policy::LMetric, 2);
    for number in 0..9 {
        let id = place(&mut pool, 0, unique(number + 10, 16));
        pool.dispatcher.first_output(id, pool.now);
    }
    place(&mut pool, 1, unique(30, 640));
    // 160 × 10 against (640 + 160) × 2.
    assert_eq!(decide(&mut pool, unique(1, 160)).replica, ReplicaId(1));
}

fn tell(pool: &mut Pool, replica: u32, waiting: u64, kv_usage: f64) {
    let report = EngineReport { waiting: Some(waiting), kv_usage: Some(kv_usage), ..EngineReport::default() };
    pool.dispatcher.report(ReplicaId(replica), &report, pool.now);
}

#[test]
fn the_weighted_sum_is_that_of_its_scores() {
    // (name, weights of queue, kv and prefix, waiting and usage of each, who holds the prompt, what each lacks)
    type Case = (&'static str, [f64; 3], [(u64, f64); 3], u32, [f64; 3]);
    let cases: [Case; 4] = [
        ("2/2/3", [2.0, 2.0, 3.0], [(0, 0.5), (10, 0.25), (5, 0.0)], 1, [4.0, 2.5, 4.0]),
        (
            "one waiting is as bad as a hundred",
            [2.0, 2.0, 3.0],
            [(1, 0.0), (0, 0.0), (0, 0.0)],
            0,
            [2.0, 3.0, 3.0],
        ),
        ("1/1/1", [1.0, 1.0, 1.0], [(4, 1.0), (0, 0.5), (2, 0.5)], 0, [2.0, 1.5, 2.0]),
        ("load alone", [1.0, 1.0, 0.0], [(3, 0.5), (3, 0.25), (3, 1.0)], 2, [0.5, 0.25, 1.0]),
    ];
    for (name, [queue, kv, prefix], reports, holder, lacks) in cases {
        let mut settings = settings(Policy::Weighted);
        settings.policy_parameters.weights = ScorerWeights { queue, kv, prefix };
        let mut pool = Pool::ready(3, settings);
        let id = place(&mut pool, holder, unique(1, 160));
        pool.answer(id);
        for (replica, (waiting, usage)) in (0..).zip(reports) {
            tell(&mut pool, replica, waiting, usage);
        }
        let decision = decide(&mut pool, unique(1, 160));
        let loads: Vec<f64> = decision.candidates.iter().map(|candidate| candidate.load).collect();
        assert_eq!(loads, lacks, "{name}");
        let chosen = lacks[decision.replica.0 as usize];
        assert!(lacks.iter().all(|other| chosen <= *other), "{name}");
    }
}

#[test]
fn equal_sums_are_drawn_and_stale_reports_are_the_worst() {
    let mut pool = pool(Policy::Weighted, 3);
    let mut shares = [0; 3];
    for number in 0..600 {
        shares[decide(&mut pool, unique(number, 8)).replica.0 as usize] += 1;
    }
    assert!(shares.iter().all(|share| (150..250).contains(share)), "{shares:?}");
    tell(&mut pool, 2, 50, 0.9);
    let decision = decide(&mut pool, unique(1, 8));
    assert_eq!(decision.replica, ReplicaId(2), "what reports is better than what does not");
    assert!(decision.candidates[0].load >= 7.0, "all three weights are lacking");
}

#[test]
fn a_prompt_stays_until_its_replica_is_saturated() {
    use Verdict::{Chosen, HigherLoad, LessPrefix};
    // (name, shared tokens of 160, uncached tokens in flight at the warm and at the cold replica, the verdicts)
    let cases: [(&str, u32, [u32; 2], [Verdict; 2]); 6] = [
        ("warm with 0.8", 128, [20_000, 0], [Chosen, LessPrefix]),
        ("not warm with less", 112, [20_000, 0], [HigherLoad, Chosen]),
        ("not warm, but the match still counts", 112, [64, 0], [Chosen, HigherLoad]),
        ("at the penalty", 160, [286_720, 0], [Chosen, LessPrefix]),
        ("beyond it", 160, [286_736, 0], [HigherLoad, Chosen]),
        ("beyond it, but no more than the coldest", 160, [300_000, 13_280], [Chosen, LessPrefix]),
    ];
    for (name, shared, pending, expected) in cases {
        let mut pool = pool(Policy::StickyUntilSaturated, 2);
        let first = place(&mut pool, 0, prompt(1, shared, 160, 1));
        pool.answer(first);
        for (replica, tokens) in (0..).zip(pending) {
            if tokens > 0 {
                place(
                    &mut pool,
                    replica,
                    Request { prompt: Prompt::opaque(Tokens(tokens.into())), ..request() },
                );
            }
        }
        let decision = decide(&mut pool, prompt(1, shared, 160, 2));
        assert_eq!(verdicts(&decision), expected, "{name}: {:?}", decision.candidates);
    }
}

#[test]
fn among_the_warm_the_least_to_compute_wins() {
    let mut pool = pool(Policy::StickyUntilSaturated, 3);
    for replica in [0, 1] {
        let id = place(&mut pool, replica, unique(1, 1_600));
        pool.answer(id);
    }
    place(&mut pool, 0, unique(2, 320));
    let decision = decide(&mut pool, unique(1, 1_600));
    assert_eq!(decision.replica, ReplicaId(1));
    let loads: Vec<f64> = decision.candidates.iter().map(|candidate| candidate.load).collect();
    assert_eq!(loads, [336.0, 16.0, 1_600.0], "in flight, and what is not cached of the prompt");
    assert_eq!(decision.expected_cached, Tokens(1_584));
}

#[test]
fn parameters_are_obeyed() {
    let chosen = |parameters: PolicyParameters, policy| {
        let mut pool = Pool::ready(2, Settings { policy_parameters: parameters, ..settings(policy) });
        let first = place(&mut pool, 0, prompt(1, 80, 160, 1));
        pool.answer(first);
        place(&mut pool, 0, unique(5, 160));
        decide(&mut pool, prompt(1, 80, 160, 2)).replica.0
    };
    let tree = |tree| PolicyParameters { tree, ..PolicyParameters::default() };
    let sticky = |sticky| PolicyParameters { sticky, ..PolicyParameters::default() };
    let cases = [
        (
            "threshold",
            tree(TreeParameters { cache_threshold: 0.6, ..Default::default() }),
            Policy::ApproximateTree,
            1,
        ),
        (
            "balance",
            tree(TreeParameters { balance_abs: 0, ..Default::default() }),
            Policy::ApproximateTree,
            1,
        ),
        (
            "size",
            tree(TreeParameters { characters_max: 64, ..Default::default() }),
            Policy::ApproximateTree,
            1,
        ),
        ("defaults", PolicyParameters::default(), Policy::ApproximateTree, 0),
        (
            "blocks",
            PolicyParameters { prefix_index_blocks: Some(2), ..Default::default() },
            Policy::ApproximateTree,
            1,
        ),
        (
            "affinity",
            sticky(StickyParameters { affinity_min: 0.5, ..Default::default() }),
            Policy::StickyUntilSaturated,
            0,
        ),
        (
            "saturation",
            sticky(StickyParameters { affinity_min: 0.5, saturation_tokens: 100 }),
            Policy::StickyUntilSaturated,
            1,
        ),
    ];
    for (name, parameters, policy, expected) in cases {
        assert_eq!(chosen(parameters, policy), expected, "{name}");
    }
}

/// Tokens of the prompt that replica 0 is expected to hold after `change`.
fn held_after(policy: Policy, change: impl Fn(&mut Pool)) -> u64 {
    let mut pool = pool(policy, 2);
    let id = place(&mut pool, 0, unique(1, 800));
    pool.answer(id);
    change(&mut pool);
    decide(&mut pool, unique(1, 800)).candidates.first().map_or(0, |candidate| candidate.cached.0)
}

#[test]
fn a_replica_that_lost_its_cache_is_forgotten() {
    let report = |pool: &mut Pool, started_at| {
        let report = EngineReport { started_at, ..EngineReport::default() };
        pool.dispatcher.report(ReplicaId(0), &report, pool.now);
    };
    for policy in PREDICTING {
        let held = |change: &dyn Fn(&mut Pool)| held_after(policy, change);
        assert_eq!(held(&|_| {}), 784, "{policy}: all but the last block");
        let same = |pool: &mut Pool| {
            report(pool, Some(5.0));
            report(pool, None);
            report(pool, Some(5.0));
        };
        assert_eq!(held(&same), 784, "{policy}: the same process");
        let restart = |pool: &mut Pool| {
            report(pool, Some(5.0));
            report(pool, Some(6.0));
        };
        assert_eq!(held(&restart), 0, "{policy}: a restart");
        let remove = |pool: &mut Pool| {
            pool.dispatcher.remove(ReplicaId(0), pool.now);
            pool.join_ready(0);
        };
        assert_eq!(held(&remove), 0, "{policy}: removed");
        let refuse = |pool: &mut Pool| {
            for _ in 0..2 {
                pool.unhealthy(ReplicaId(0), ProbeFailure::Refused);
            }
        };
        assert_eq!(held(&refuse), 0, "{policy}: its port is closed");
        let lose = |pool: &mut Pool| {
            let id = place(pool, 0, unique(9, 16));
            pool.fail(id, Failure::Lost);
            while pool.output().is_some() {}
        };
        assert_eq!(held(&lose), 0, "{policy}: it went down");
        let other_policy = |pool: &mut Pool| {
            pool.dispatcher.set_settings(settings(Policy::Random), pool.now);
            pool.dispatcher.set_settings(settings(policy), pool.now);
        };
        assert_eq!(held(&other_policy), 0, "{policy}: nothing was followed meanwhile");
    }
}

#[test]
fn the_index_is_as_large_as_the_memory_that_is_reported() {
    // (blocks, tokens in each, cached tokens of a prompt of 800 that follows one of 800)
    for (blocks, block_size, expected) in
        [(Some(100), 16, 784), (Some(50), 32, 784), (Some(30), 16, 0), (None, 16, 784)]
    {
        let held = held_after(Policy::LMetric, |pool| {
            let report = EngineReport { blocks, block_size: Some(block_size), ..EngineReport::default() };
            pool.dispatcher.report(ReplicaId(0), &report, pool.now);
            let id = place(pool, 0, unique(2, 800));
            pool.answer(id);
        });
        assert_eq!(held, expected, "{blocks:?} blocks of {block_size}");
    }
}

#[test]
fn prompts_without_hashes_are_compared_by_load() {
    for policy in PREDICTING {
        let mut pool = pool(policy, 3);
        for replica in 0..3 {
            tell(&mut pool, replica, 2 - u64::from(replica), 0.5);
            place(
                &mut pool,
                replica,
                Request { prompt: Prompt::opaque(Tokens(300 - u64::from(replica))), ..request() },
            );
        }
        let decision = decide(&mut pool, request());
        assert_eq!(decision.replica, ReplicaId(2), "{policy}");
        assert_eq!(decision.expected_cached, Tokens::ZERO);
    }
}
