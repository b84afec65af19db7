//! What a simulated step costs on the machine that simulates it:
//! `cargo run --release -p expediter-engine-sim --example step_cost`
//!
//! A sequence-token is one sequence in one step. The fleet simulator needs 64 engines at 30 times real time on one
//! core: with about 40 sequences in steps of 30 ms that is 64,000 steps and 2.6 million sequence-tokens a second.

use std::hint::black_box;
use std::time::Duration;

use expediter_engine_sim::{Engine, FinishReason, Progress, Request, Settings, Stats};
use expediter_types::{BlockHash, Blocks, Prng, Prompt, RequestId, Time, Tokens};

fn main() {
    decodes();
    mix();
    overload();
    full_cache();
}

/// A request of the reference mix: one of 16 shared prefixes of 1,536 tokens, 304 tokens of its own, 300 to produce.
fn reference(id: u64, rng: &mut Prng) -> Request {
    let shared = BlockHash::root(rng.below(16) as u64);
    let own = BlockHash::root(1_000 + id);
    let hashes: Vec<BlockHash> =
        (0..115).map(|place| if place < 96 { shared } else { own }.then_number(place)).collect();
    let prompt = Prompt::from_hashes(Tokens(1_840), Settings::default().block_size, hashes);
    let (id, output) = (RequestId(id), Tokens(300));
    Request { id, prompt, output, ends_with: FinishReason::Length, adapter: None, priority: 0 }
}

/// An engine that is driven as fast as it goes.
struct Bench {
    engine: Engine,
    rng: Prng,
    now: Time,
    progress: Vec<Progress>,
    next: u64,
}

impl Bench {
    fn new(settings: Settings) -> Self {
        let engine = Engine::new(settings);
        Self { engine, rng: Prng::new(1), now: Time::ZERO, progress: Vec::new(), next: 0 }
    }

    fn arrive(&mut self) {
        let request = reference(self.next, &mut self.rng);
        self.next += 1;
        self.engine.arrive(request, self.now).expect("it fits");
    }

    fn step(&mut self) {
        let Some(step) = self.engine.begin_step(self.now, &mut self.rng) else { return };
        self.now += step.duration;
        self.engine.end_step_into(self.now, &mut self.progress);
        black_box(&self.progress);
    }

    /// Runs so many steps, with `before` each, and prints what one of them costs.
    fn measure(&mut self, name: &str, steps: u32, mut before: impl FnMut(&mut Self)) {
        let (virtual_start, mut tokens, mut spent) = (self.now, 0_u64, Duration::ZERO);
        for _ in 0..steps {
            before(self);
            spent += timed(|| self.step());
            tokens += self.engine.stats().running;
        }
        let nanoseconds = spent.as_nanos() as f64;
        let speed = self.now.since(virtual_start).as_secs_f64() / spent.as_secs_f64();
        let Stats { running, waiting, .. } = self.engine.stats();
        report(&format!(
            "{name}: {:.0} ns a step, {:.1} ns a sequence-token, {speed:.0} x real time ({running} running, {waiting} waiting)",
            nanoseconds / f64::from(steps),
            nanoseconds / tokens as f64,
        ));
    }
}

/// 64 sequences that only decode.
fn decodes() {
    let mut bench = Bench::new(Settings::default());
    (0..64).for_each(|_| bench.arrive());
    while bench.engine.stats().generation_tokens < Tokens(64 * 20) {
        bench.step();
    }
    bench.measure("64 decodes", 200, |_| {});
}

/// As many requests as the engine takes, one following another.
fn mix() {
    let mut bench = Bench::new(Settings { max_num_seqs: 64, ..Settings::default() });
    let refill = |bench: &mut Bench| {
        while bench.engine.stats().running + bench.engine.stats().waiting < 65 {
            bench.arrive();
        }
    };
    (0..2_000).for_each(|_| {
        refill(&mut bench);
        bench.step();
    });
    bench.measure("1,840/300, 64 places kept full", 20_000, refill);
}

/// Far more waiting than can ever run, with as many aborts as arrivals.
fn overload() {
    let mut bench = Bench::new(Settings::default());
    let arrivals = timed(|| (0..100_000).for_each(|_| bench.arrive()));
    report(&format!("arrive: {} ns, building the prompt included", arrivals.as_nanos() / 100_000));
    (0..2_000).for_each(|_| bench.step());
    bench.measure("overload, 100,000 waiting", 5_000, |_| {});
    let aborts = timed(|| (0..10_000).for_each(|id| bench.engine.abort(RequestId(40_000 + id * 5))));
    report(&format!("abort of one who waits: {} ns", aborts.as_nanos() / 10_000));
}

/// The head of the queue does not fit, step after step.
fn full_cache() {
    let mut bench = Bench::new(Settings { blocks: Blocks(4_000), ..Settings::default() });
    (0..50_000).for_each(|_| bench.arrive());
    (0..2_000).for_each(|_| bench.step());
    bench.measure("4,000 blocks, the head waits for room", 5_000, |_| {});
}

#[expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "it measures the simulation itself")]
fn timed(work: impl FnOnce()) -> Duration {
    let start = std::time::Instant::now();
    work();
    start.elapsed()
}

#[expect(clippy::print_stdout, reason = "it is what the example is for")]
fn report(line: &str) {
    println!("{line}");
}
