use std::collections::BTreeMap;
use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;
use crate::FinishReason;
use crate::step_time::Coefficients;
use expediter_types::{BlockSize, Prompt};

/// Four tokens a block, steps of exactly 10 ms.
fn small(usable_blocks: u64, max_num_seqs: u32, max_num_batched_tokens: u64) -> Settings {
    let flat = Coefficients { c0: 10.0, w1: 0.0, g: 0.0, g0: 0.0, a: 0.0, k: 0.0, b: 0.0, pp: 0.0 };
    Settings {
        block_size: BlockSize(NonZeroU32::new(4).unwrap()),
        blocks: Blocks(usable_blocks + 1),
        max_num_seqs,
        max_num_batched_tokens: Tokens(max_num_batched_tokens),
        coefficients: flat,
        host_overhead: Duration::ZERO,
        noise_sigma: 0.0,
        ..Settings::default()
    }
}

/// A request whose prompt is the first `prompt` tokens of a text; equal texts share blocks.
#[derive(Clone, Copy, Debug)]
struct Ask {
    id: u64,
    text: u32,
    prompt: u32,
    output: u32,
}

fn ask(id: u64, text: u32, prompt: u32, output: u32) -> Ask {
    Ask { id, text, prompt, output }
}

fn request(ask: Ask, settings: &Settings) -> Request {
    let tokens: Vec<u32> = (0..ask.prompt + ask.output).map(|place| ask.text * 10_000 + place).collect();
    let (prompt, output) = tokens.split_at(ask.prompt as usize);
    Request {
        id: RequestId(ask.id),
        prompt: Prompt::with_continuation(prompt, output, settings.block_size, 0),
        output: Tokens(u64::from(ask.output)),
        ends_with: FinishReason::Length,
        adapter: None,
        priority: 0,
    }
}

/// Runs until all is done and writes one line a step: each sequence of the batch with its tokens, the queue,
/// blocks in use and resident, and what ended (`id*`).
fn schedule(settings: Settings, asks: &[Ask]) -> Vec<String> {
    let mut engine = Engine::new(settings);
    for one in asks {
        let request = request(*one, engine.settings());
        engine.arrive(request, Time::ZERO).unwrap();
    }
    let (mut rng, mut now, mut lines) = (Prng::new(0), Time::ZERO, Vec::new());
    while let Some(step) = engine.begin_step(now, &mut rng) {
        let running = engine.scheduler.sequences();
        let batch: Vec<String> =
            running.iter().map(|one| format!("{}:{}", one.request.id.0, one.scheduled.0)).collect();
        let queue: Vec<String> = engine.scheduler.waiting().ids().iter().map(|id| id.0.to_string()).collect();
        let stats = engine.stats();
        let mut parts = vec![format!("run {}", batch.join(" "))];
        if !queue.is_empty() {
            parts.push(format!("wait {}", queue.join(" ")));
        }
        parts.push(format!("use {} of {}", stats.in_use.0, stats.resident.0));
        now += step.duration;
        let ended = engine.end_step(now).into_iter().filter(|progress| progress.end.is_some());
        parts.extend(ended.map(|progress| format!("{}*", progress.id.0)));
        lines.push(parts.join(" | "));
        assert!(lines.len() < 1_000, "the schedule does not end");
    }
    lines
}

#[track_caller]
fn assert_schedule(settings: Settings, asks: &[Ask], expected: &[&str]) {
    assert_eq!(schedule(settings, asks), expected);
}

#[test]
fn a_decode_takes_its_token_before_a_prompt_is_cut_to_what_is_left() {
    assert_schedule(
        small(16, 8, 8),
        &[ask(1, 1, 4, 4), ask(2, 2, 14, 2)],
        &[
            "run 1:4 2:4 | use 2 of 2",
            "run 1:1 2:7 | use 5 of 5",
            "run 1:1 2:3 | use 6 of 6",
            "run 1:1 2:1 | use 6 of 6 | 1* | 2*",
        ],
    );
}

#[test]
fn whoever_does_not_fit_stops_all_behind() {
    // 2 needs three blocks where two are left; 3 would fit and waits all the same.
    assert_schedule(
        small(4, 8, 64),
        &[ask(1, 1, 8, 1), ask(2, 2, 12, 1), ask(3, 3, 4, 1)],
        &["run 1:8 | wait 2 3 | use 2 of 2 | 1*", "run 2:12 3:4 | use 4 of 4 | 2* | 3*"],
    );
}

#[test]
fn no_more_sequences_than_places() {
    assert_schedule(
        small(16, 2, 64),
        &[ask(1, 1, 3, 1), ask(2, 2, 3, 2), ask(3, 3, 3, 1)],
        &["run 1:3 2:3 | wait 3 | use 2 of 2 | 1*", "run 2:1 3:3 | use 2 of 2 | 2* | 3*"],
    );
}

#[test]
fn a_preempted_sequence_comes_before_all_that_wait() {
    // In the last but one step 2 and 3 would fit in either order; 2 has the head of the queue.
    assert_schedule(
        small(3, 2, 64),
        &[ask(1, 1, 4, 3), ask(2, 2, 4, 3), ask(3, 3, 4, 1)],
        &[
            "run 1:4 2:4 | wait 3 | use 2 of 2",
            "run 1:1 | wait 2 3 | use 2 of 3",
            "run 1:1 | wait 2 3 | use 2 of 3 | 1*",
            "run 2:1 3:4 | use 3 of 3 | 3*",
            "run 2:1 | use 2 of 3 | 2*",
        ],
    );
}

#[test]
fn in_a_step_that_preempts_nobody_is_admitted() {
    let settings = Settings { enable_prefix_caching: false, reserve_full_sequence: false, ..small(6, 8, 9) };
    assert_schedule(
        settings,
        &[ask(1, 1, 8, 5), ask(2, 2, 16, 1)],
        &[
            "run 1:8 2:1 | use 3 of 3",
            "run 1:1 2:8 | use 6 of 6",
            // 2 wants a fourth block and frees its three: a first chunk of it would fit again, but has to wait.
            "run 1:1 | wait 2 | use 3 of 3",
            "run 1:1 2:8 | use 5 of 5",
            "run 1:1 | wait 2 | use 3 of 3 | 1*",
            "run 2:9 | use 3 of 3",
            "run 2:7 | use 4 of 4 | 2*",
        ],
    );
}

#[test]
fn without_a_cache_a_preempted_sequence_computes_all_it_had() {
    assert_schedule(
        Settings { enable_prefix_caching: false, ..small(3, 8, 64) },
        &[ask(1, 1, 4, 3), ask(2, 2, 4, 3)],
        &[
            "run 1:4 2:4 | use 2 of 2",
            "run 1:1 | wait 2 | use 2 of 2",
            "run 1:1 | wait 2 | use 2 of 2 | 1*",
            "run 2:5 | use 2 of 2",
            "run 2:1 | use 2 of 2 | 2*",
        ],
    );
}

#[test]
fn the_last_of_the_batch_is_preempted_and_computed_again() {
    // Both decode into a second block, and only one is left: 2 goes back. Its first block stays in the cache,
    // but it needs two and one is free, so it returns when 1 has ended, and computes what is not cached.
    assert_schedule(
        small(3, 8, 64),
        &[ask(1, 1, 4, 3), ask(2, 2, 4, 3)],
        &[
            "run 1:4 2:4 | use 2 of 2",
            "run 1:1 | wait 2 | use 2 of 3",
            "run 1:1 | wait 2 | use 2 of 3 | 1*",
            "run 2:1 | use 2 of 3",
            "run 2:1 | use 2 of 3 | 2*",
        ],
    );
}

#[test]
fn only_whole_blocks_are_found_and_never_the_whole_prompt() {
    assert_schedule(
        small(16, 1, 64),
        &[ask(1, 1, 8, 1), ask(2, 1, 8, 1), ask(3, 1, 11, 1), ask(4, 2, 8, 1)],
        &[
            "run 1:8 | wait 2 3 4 | use 2 of 2 | 1*",
            // The second block is computed again, and kept beside the first of its kind.
            "run 2:4 | wait 3 4 | use 2 of 3 | 2*",
            "run 3:3 | wait 4 | use 3 of 4 | 3*",
            "run 4:8 | use 2 of 5 | 4*",
        ],
    );
}

#[test]
fn the_next_turn_finds_the_answer_of_the_last() {
    let settings = small(16, 1, 64);
    // Text 1: six tokens of prompt and six of answer; the next prompt has these twelve and two more. Of the
    // twelve, the last produced token was never computed, so two blocks are known.
    assert_schedule(
        settings,
        &[ask(1, 1, 6, 6), ask(2, 1, 14, 1)],
        &[
            "run 1:6 | wait 2 | use 2 of 2",
            "run 1:1 | wait 2 | use 2 of 2",
            "run 1:1 | wait 2 | use 2 of 2",
            "run 1:1 | wait 2 | use 3 of 3",
            "run 1:1 | wait 2 | use 3 of 3",
            "run 1:1 | wait 2 | use 3 of 3 | 1*",
            "run 2:6 | use 4 of 4 | 2*",
        ],
    );
}

#[test]
fn two_equal_prompts_in_one_step_share_blocks() {
    assert_schedule(
        small(16, 8, 64),
        &[ask(1, 1, 10, 1), ask(2, 1, 10, 1)],
        &["run 1:10 2:2 | use 4 of 4 | 1* | 2*"],
    );
}

#[test]
fn a_request_that_can_never_run_is_turned_away() {
    let mut engine = Engine::new(small(4, 8, 64));
    let arrive = |engine: &mut Engine, one| {
        let request = request(one, engine.settings());
        engine.arrive(request, Time::ZERO)
    };
    assert_eq!(arrive(&mut engine, ask(1, 1, 15, 1)), Ok(()));
    let error = arrive(&mut engine, ask(2, 1, 15, 2)).unwrap_err();
    assert_eq!(error.to_string(), "17 tokens exceed the KV cache of 16 tokens");
    assert_eq!(arrive(&mut engine, ask(3, 1, 0, 2)), Err(ArriveError::Empty));
    assert_eq!(arrive(&mut engine, ask(4, 1, 2, 0)), Err(ArriveError::Empty));
}

#[test]
fn an_abort_in_the_midst_of_a_step_waits_for_its_end() {
    let (mut engine, mut rng) = (Engine::new(small(16, 8, 64)), Prng::new(0));
    for one in [ask(1, 1, 8, 5), ask(2, 2, 8, 5)] {
        let request = request(one, engine.settings());
        engine.arrive(request, Time::ZERO).unwrap();
    }
    assert!(engine.begin_step(Time::ZERO, &mut rng).is_some());
    engine.abort(RequestId(1));
    assert_eq!(engine.stats().running, 2);
    let ids: Vec<u64> = engine.end_step(Time::from_millis(10)).iter().map(|progress| progress.id.0).collect();
    assert_eq!(ids, [2]);
    assert_eq!((engine.stats().running, engine.stats().in_use), (1, Blocks(2)));
    engine.abort(RequestId(2));
    assert_eq!((engine.stats().running, engine.stats().in_use), (0, Blocks(0)));
    assert_eq!(engine.begin_step(Time::ZERO, &mut rng), None);
}

#[test]
fn giving_up_says_so_for_each_request() {
    let (mut engine, mut rng) = (Engine::new(small(16, 1, 64)), Prng::new(0));
    for one in [ask(1, 1, 8, 5), ask(2, 2, 8, 5)] {
        let request = request(one, engine.settings());
        engine.arrive(request, Time::ZERO).unwrap();
    }
    engine.begin_step(Time::ZERO, &mut rng);
    engine.end_step(Time::from_millis(10));
    engine.begin_step(Time::from_millis(10), &mut rng);
    let ended: Vec<_> = engine.abort_all().iter().map(|p| (p.id.0, p.produced.0, p.end)).collect();
    assert_eq!(ended, [(1, 1, Some(FinishReason::Abort)), (2, 0, Some(FinishReason::Abort))]);
    assert_eq!(engine.stats().in_use, Blocks(0));
    assert_eq!(engine.end_step(Time::from_millis(20)), []);
}

/// What a client does between two steps.
#[derive(Clone, Debug)]
enum Act {
    Arrive(Ask),
    Abort(u64),
    /// Aborts after the next step has begun.
    AbortInStep(u64),
}

fn acts() -> impl Strategy<Value = Vec<Vec<Act>>> {
    let arrive = (0..4_u32, 1..40_u32, 1..20_u32)
        .prop_map(|(text, prompt, output)| Act::Arrive(ask(0, text, prompt, output)));
    let act = prop_oneof![
        4 => arrive,
        1 => (0..30_u64).prop_map(Act::Abort),
        1 => (0..30_u64).prop_map(Act::AbortInStep),
    ];
    prop::collection::vec(prop::collection::vec(act, 0..3), 0..40)
}

/// Plays the acts, checks what must always hold, and returns every step's progress.
fn play(settings: &Settings, acts: &[Vec<Act>], seed: u64) -> Vec<(u64, Progress)> {
    let (mut engine, mut rng) = (Engine::new(settings.clone()), Prng::new(seed));
    let (mut now, mut history) = (Time::ZERO, Vec::new());
    let (mut arrived, mut open) = (0, BTreeMap::<u64, (Ask, u64)>::new());
    let mut rounds = acts.iter();
    loop {
        let round = rounds.next();
        let mut in_step = Vec::new();
        for act in round.into_iter().flatten() {
            match *act {
                Act::Arrive(mut one) => {
                    one.id = arrived;
                    arrived += 1;
                    if engine.arrive(request(one, settings), now).is_ok() {
                        open.insert(one.id, (one, 0));
                    }
                }
                Act::Abort(id) => {
                    engine.abort(RequestId(id));
                    open.remove(&id);
                }
                Act::AbortInStep(id) => in_step.push(id),
            }
        }
        let Some(step) = engine.begin_step(now, &mut rng) else {
            assert!(open.is_empty(), "the engine is idle and {open:?} are not done");
            if round.is_none() {
                break;
            }
            continue;
        };
        assert!(step.batch.tokens() <= settings.max_num_batched_tokens);
        for id in in_step {
            engine.abort(RequestId(id));
            open.remove(&id);
        }
        now += step.duration;
        for progress in engine.end_step(now) {
            let (one, produced) = open.get_mut(&progress.id.0).expect("progress of a request that is here");
            *produced += 1;
            assert_eq!(progress.produced.0, *produced, "one token at a time");
            assert!(progress.life.cached.0 < progress.life.prompt.0, "the last token is always computed");
            assert_eq!(progress.life.cached.0 % u64::from(settings.block_size.0.get()), 0, "whole blocks");
            assert_eq!(progress.end.is_some(), *produced == u64::from(one.output));
            if progress.end.is_some() {
                open.remove(&progress.id.0);
            }
            history.push((now.0, progress));
        }
        let stats = engine.stats();
        assert!(stats.running <= u64::from(settings.max_num_seqs));
        assert_eq!(stats.running + stats.waiting, open.len() as u64);
        assert!(stats.in_use <= stats.resident && stats.resident <= stats.blocks);
    }
    assert_eq!(engine.stats().in_use, Blocks(0), "whoever ended or left holds nothing");
    history
}

proptest! {
    #[test]
    fn everything_is_produced_in_order_nothing_leaks_and_a_seed_is_one_history(
        acts in acts(),
        blocks in 8..40_u64,
        max_num_seqs in 1..6_u32,
        budget in 1..50_u64,
        enable_prefix_caching: bool,
        seed: u64,
    ) {
        let settings =
            Settings { enable_prefix_caching, noise_sigma: 0.03, ..small(blocks, max_num_seqs, budget) };
        prop_assert_eq!(play(&settings, &acts, seed), play(&settings, &acts, seed));
    }
}
