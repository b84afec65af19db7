mod golden;
mod property;

use std::num::NonZeroU32;

use super::*;
use crate::step_time::Coefficients;
use crate::{FinishReason, LoraSettings, QueueLimit};
use expediter_types::{BlockHash, BlockSize, Prompt};

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
    adapter: Option<u32>,
    priority: i32,
}

fn ask(id: u64, text: u32, prompt: u32, output: u32) -> Ask {
    Ask { id, text, prompt, output, adapter: None, priority: 0 }
}

fn request(ask: Ask, settings: &Settings) -> Request {
    let tokens: Vec<u32> = (0..ask.prompt + ask.output).map(|place| ask.text * 10_000 + place).collect();
    let (prompt, output) = tokens.split_at(ask.prompt as usize);
    let adapter = ask.adapter.map(ModelId);
    Request {
        id: RequestId(ask.id),
        prompt: Prompt::with_continuation(prompt, output, settings.block_size, BlockHash::salt(adapter, 0)),
        output: Tokens(u64::from(ask.output)),
        ends_with: FinishReason::Length,
        adapter,
        priority: ask.priority,
    }
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
    let with_adapter = Ask { adapter: Some(1), ..ask(5, 1, 2, 1) };
    assert_eq!(arrive(&mut engine, with_adapter), Err(ArriveError::Adapter));
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

#[test]
fn a_refusal_is_counted_by_its_limit() {
    let limits = Settings {
        max_num_queued_reqs: Some(3),
        max_num_queued_tokens: Some(Tokens(10)),
        ..small(16, 8, 64)
    };
    let mut engine = Engine::new(limits);
    assert_eq!(engine.check_queue(4), Err(QueueLimit::Requests), "a request of four sequences");
    for (one, expected) in [(ask(1, 1, 12, 5), Ok(())), (ask(2, 2, 1, 5), Err(QueueLimit::Tokens))] {
        let request = request(one, engine.settings());
        let expected = expected.map_err(|limit| ArriveError::QueueFull { limit });
        assert_eq!(engine.arrive(request, Time::ZERO), expected);
    }
    assert_eq!((engine.stats().refused_by_requests, engine.stats().refused_by_tokens), (1, 1));
    engine.abort(RequestId(1));
    assert_eq!(engine.stats().prefill_backlog, Tokens::ZERO);
}

#[test]
fn a_restart_leaves_nothing_but_the_settings() {
    let (mut engine, mut rng) = (Engine::new(small(16, 8, 64)), Prng::new(0));
    let one = request(ask(1, 1, 8, 5), engine.settings());
    engine.arrive(one, Time::ZERO).unwrap();
    engine.begin_step(Time::ZERO, &mut rng);
    engine.end_step(Time::from_millis(10));
    engine.begin_step(Time::from_millis(10), &mut rng);
    engine.restart();
    assert_eq!(engine.stats(), Engine::new(small(16, 8, 64)).stats());
    assert_eq!(engine.end_step(Time::from_millis(20)), [], "the step is lost");
}

#[test]
fn adapters_that_run_and_wait_are_told_apart() {
    let lora = Some(LoraSettings::default());
    let (mut engine, mut rng) = (Engine::new(Settings { lora, ..small(16, 8, 64) }), Prng::new(0));
    for (id, adapter) in [(1, Some(5)), (2, Some(6)), (3, Some(6)), (4, None), (5, Some(5))] {
        let one = request(Ask { adapter, ..ask(id, 1, 8, 5) }, engine.settings());
        engine.arrive(one, Time::ZERO).unwrap();
    }
    assert_eq!((engine.stats().waiting_adapters, engine.stats().deferred), (2, 0));
    let step = engine.begin_step(Time::ZERO, &mut rng).unwrap();
    assert!(step.adapter_load > Duration::from_millis(300) && step.adapter_load < step.duration);
    assert_eq!((engine.running_adapters(), engine.waiting_adapters()), (vec![ModelId(5)], vec![ModelId(6)]));
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.deferred), (3, 2, 2));
    assert_eq!((stats.running_adapters, stats.waiting_adapters), (1, 1));
    engine.end_step(Time::ZERO + step.duration);
    engine.abort(RequestId(2));
    assert_eq!(engine.stats().deferred, 1);
}
