//! What must hold whatever comes: drawn requests on drawn settings, checked step by step.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use expediter_types::{BlockHash, BlockSize, Prompt};
use proptest::prelude::*;

use super::super::*;
use crate::sequence::Sequence;
use crate::step_time::Coefficients;
use crate::{FinishReason, LoraSettings, Scheduling};

#[derive(Clone, Debug)]
struct Ask {
    /// Equal texts share blocks; of text 0 nothing is known but its length.
    text: u32,
    prompt: u32,
    output: u32,
    adapter: Option<u32>,
    priority: i32,
}

/// What a client or an operator does between two steps.
#[derive(Clone, Debug)]
enum Act {
    Arrive(Ask),
    Abort(u64),
    /// Aborts after the next step has begun.
    AbortInStep(u64),
    Reset,
    /// Sleeps and wakes up at once: nothing but the KV is lost.
    Nap(u8),
}

fn acts() -> impl Strategy<Value = Vec<Vec<Act>>> {
    let ask = (0..4_u32, 1..40_u32, 1..20_u32, prop::option::of(0..3_u32), -1..2_i32);
    let arrive = ask.prop_map(|(text, prompt, output, adapter, priority)| {
        Act::Arrive(Ask { text, prompt, output, adapter, priority })
    });
    let act = prop_oneof![
        8 => arrive,
        2 => (0..30_u64).prop_map(Act::Abort),
        2 => (0..30_u64).prop_map(Act::AbortInStep),
        1 => Just(Act::Reset),
        1 => (0..2_u8).prop_map(Act::Nap),
    ];
    prop::collection::vec(prop::collection::vec(act, 0..3), 0..40)
}

prop_compose! {
    fn settings()(
        blocks in 9..40_u64,
        max_num_seqs in 1..6_u32,
        budget in 1..50_u64,
        threshold in prop::option::of(1..20_u64),
        max_loras in prop::option::of(1..4_u32),
        is_priority: bool,
        reserve_full_sequence: bool,
        enable_prefix_caching: bool,
    ) -> Settings {
        Settings {
            block_size: BlockSize(NonZeroU32::new(4).unwrap()),
            blocks: Blocks(blocks),
            max_num_seqs,
            max_num_batched_tokens: Tokens(budget),
            long_prefill_token_threshold: threshold.map(Tokens),
            scheduling: if is_priority { Scheduling::Priority } else { Scheduling::Fcfs },
            reserve_full_sequence,
            lora: max_loras.map(|max_loras| LoraSettings { max_loras, ..LoraSettings::default() }),
            coefficients: Coefficients { c0: 10.0, w1: 0.1, g: 0.0, g0: 0.0, a: 0.0, k: 0.0, b: 0.0, pp: 0.0 },
            enable_prefix_caching,
            kv_events: true,
            ..Settings::default()
        }
    }
}

fn request(id: u64, ask: &Ask, settings: &Settings) -> Request {
    let adapter = ask.adapter.filter(|_| settings.lora.is_some()).map(ModelId);
    let tokens: Vec<u32> = (0..ask.prompt + ask.output).map(|place| ask.text * 10_000 + place).collect();
    let (prompt, output) = tokens.split_at(ask.prompt as usize);
    let root = BlockHash::salt(adapter, 0);
    Request {
        id: RequestId(id),
        prompt: match ask.text {
            0 => Prompt::opaque(Tokens(ask.prompt.into())),
            _ => Prompt::with_continuation(prompt, output, settings.block_size, root),
        },
        output: Tokens(ask.output.into()),
        ends_with: FinishReason::Length,
        adapter,
        priority: ask.priority,
    }
}

/// An engine and what is known of it from outside.
struct Watched {
    engine: Engine,
    now: Time,
    arrived: u64,
    /// Tokens still to be produced of each request that is here, and how many it has.
    open: BTreeMap<u64, (u64, u64)>,
    /// How often each hash is cached, by the events.
    cached: BTreeMap<BlockHash, u64>,
    history: Vec<(Time, Progress)>,
}

impl Watched {
    fn act(&mut self, act: &Act, in_step: &mut Vec<u64>) {
        match act {
            Act::Arrive(ask) => {
                let request = request(self.arrived, ask, self.engine.settings());
                if self.engine.arrive(request, self.now).is_ok() {
                    self.open.insert(self.arrived, (u64::from(ask.output), 0));
                }
                self.arrived += 1;
            }
            Act::Abort(id) => {
                self.engine.abort(RequestId(*id));
                self.open.remove(id);
            }
            Act::AbortInStep(id) => in_step.push(*id),
            Act::Reset => {
                assert_eq!(self.engine.reset_prefix_cache(), self.engine.stats().in_use == Blocks(0));
            }
            Act::Nap(level) => {
                self.engine.sleep(*level);
                assert_eq!(self.engine.begin_step(self.now, &mut Prng::new(0)), None);
                self.engine.wake_up();
            }
        }
    }

    /// One step, in which `in_step` are aborted; false where there is none.
    fn step(&mut self, in_step: &[u64], rng: &mut Prng) -> bool {
        let before: BTreeSet<RequestId> = running(&self.engine).map(|one| one.request.id).collect();
        let Some(step) = self.engine.begin_step(self.now, rng) else { return false };
        self.check_plan(&step, &before);
        for id in in_step {
            self.engine.abort(RequestId(*id));
            self.open.remove(id);
        }
        self.now += step.duration;
        for progress in self.engine.end_step(self.now) {
            let (output, produced) =
                self.open.get_mut(&progress.id.0).expect("progress of a request that is here");
            *produced += 1;
            assert_eq!(progress.produced.0, *produced, "one token at a time");
            assert!(progress.life.cached.0 < progress.life.prompt.0, "the last token is always computed");
            assert_eq!(progress.life.cached.0 % 4, 0, "whole blocks");
            assert_eq!(progress.end.is_some(), produced == output);
            if progress.end.is_some() {
                self.open.remove(&progress.id.0);
            }
            self.history.push((self.now, progress));
        }
        self.replay_events();
        self.check_stats();
        true
    }

    fn check_plan(&self, step: &Step, before: &BTreeSet<RequestId>) {
        let settings = self.engine.settings();
        assert!(step.batch.tokens() <= settings.max_num_batched_tokens);
        let waiting = self.engine.scheduler.waiting();
        let alone = self.engine.scheduler.running() + waiting.len() == 1;
        let planned = self.engine.scheduler.adapters();
        let limit = settings.lora.as_ref().map_or(usize::MAX, |lora| lora.max_loras as usize);
        assert!(planned.len() <= limit, "too many adapters: {planned:?}");
        for sequence in running(&self.engine) {
            let threshold = settings.long_prefill_token_threshold.filter(|_| !alone);
            assert!(threshold.is_none_or(|threshold| sequence.scheduled <= threshold));
            if before.contains(&sequence.request.id) {
                continue;
            }
            for other in waiting.sequences().filter(|other| other.rank < sequence.rank) {
                let adapter = other.request.adapter;
                let fits = adapter.is_none_or(|one| planned.contains(&one) || planned.len() < limit);
                assert!(!fits, "{:?} overtook {:?}", sequence.request, other.request);
            }
        }
    }

    fn replay_events(&mut self) {
        let events: Vec<KvEvent> = self.engine.kv_events().collect();
        for event in events {
            match event {
                KvEvent::Cleared => self.cached.clear(),
                KvEvent::Removed { hash } => {
                    let count = self.cached.get_mut(&hash).expect("only what is cached is removed");
                    *count -= 1;
                    self.cached.retain(|_, count| *count > 0);
                }
                KvEvent::Stored { parent, hashes, first_block, .. } => {
                    assert_eq!(parent.is_none(), first_block == 0);
                    assert!(
                        parent.is_none_or(|parent| self.cached.contains_key(&parent)),
                        "a chain from its root"
                    );
                    for hash in hashes {
                        *self.cached.entry(hash).or_default() += 1;
                    }
                }
            }
        }
        assert_eq!(self.cached, self.engine.pool.cached_hashes(), "the events tell all of the cache");
    }

    fn check_stats(&self) {
        let stats = self.engine.stats();
        assert!(stats.running <= u64::from(self.engine.settings().max_num_seqs));
        assert_eq!(stats.running + stats.waiting, self.open.len() as u64);
        assert!(stats.deferred <= stats.waiting);
        assert!(stats.in_use <= stats.resident && stats.resident <= stats.blocks);
        let running = running(&self.engine);
        let backlog: Tokens = running
            .chain(self.engine.scheduler.waiting().sequences())
            .filter(|sequence| sequence.produced == Tokens::ZERO)
            .map(|sequence| sequence.life.prompt)
            .sum();
        assert_eq!(stats.prefill_backlog, backlog);
    }
}

fn running(engine: &Engine) -> impl Iterator<Item = &Sequence> {
    engine.scheduler.sequences().iter()
}

/// Plays the acts, checks what must always hold, and returns every step's progress.
fn play(settings: &Settings, acts: &[Vec<Act>], seed: u64) -> Vec<(Time, Progress)> {
    let mut rng = Prng::new(seed);
    let mut watched = Watched {
        engine: Engine::new(settings.clone()),
        now: Time::ZERO,
        arrived: 0,
        open: BTreeMap::new(),
        cached: BTreeMap::new(),
        history: Vec::new(),
    };
    let mut rounds = acts.iter();
    for number in 0.. {
        assert!(number < 20_000, "it goes on for ever: {:?}", watched.open);
        let round = rounds.next();
        let mut in_step = Vec::new();
        round.into_iter().flatten().for_each(|act| watched.act(act, &mut in_step));
        if !watched.step(&in_step, &mut rng) {
            assert!(watched.open.is_empty(), "the engine is idle and {:?} are not done", watched.open);
            if round.is_none() {
                break;
            }
        }
    }
    assert_eq!(watched.engine.stats().in_use, Blocks(0), "whoever ended or left holds nothing");
    watched.history
}

proptest! {
    #[test]
    fn everything_is_produced_in_order_nothing_leaks_and_a_seed_is_one_history(
        settings in settings(),
        acts in acts(),
        seed: u64,
    ) {
        prop_assert_eq!(play(&settings, &acts, seed), play(&settings, &acts, seed));
    }
}
