//! What a request costs in the core: nanoseconds of arrival, first output and finish, by pool size and policy.
//! What a lookup in the index of prefixes and an insertion take is the difference between the two columns.
//!
//! Run with `cargo run --release -p expediter-core --example decision_cost`.
#![expect(clippy::print_stdout, reason = "the figures are the product")]
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "it measures real time")]

use std::hint::black_box;
use std::time::Instant;

use expediter_core::{Dispatcher, Output, Policy, ProbeResult, Request, Settings};
use expediter_types::{
    BlockHash, BlockSize, EngineReport, ModelId, Prng, Prompt, ReplicaId, RequestId, Time, Tokens,
};

/// Requests that are in flight all along.
const IN_FLIGHT: u64 = 1_000;
const REQUESTS: u64 = 200_000;

/// Full blocks of a prompt of 1,840 tokens, and those that prompts of one group share.
const BLOCKS: u64 = 115;
const SHARED: u64 = 96;
const GROUPS: u64 = 500;

fn main() {
    println!("{:>8}  {:<22}  {:>14}  {:>18}", "replicas", "policy", "ns, no hashes", "ns, 115 blocks");
    for replicas in [1, 8, 64] {
        for policy in Policy::ALL {
            let opaque = measure(replicas, policy, |_| Prompt::opaque(Tokens(1_840)));
            let hashed = measure(replicas, policy, prompt);
            println!("{replicas:>8}  {:<22}  {opaque:>14.0}  {hashed:>18.0}", policy.as_str());
        }
    }
}

/// A prompt of one of the groups that ends as no other.
fn prompt(number: u64) -> Prompt {
    let group = number.wrapping_mul(0x9e37_79b9) % GROUPS;
    let mut hash = BlockHash::root(group);
    let hashes: Vec<BlockHash> = (0..BLOCKS)
        .map(|block| {
            hash = hash.then_number(if block < SHARED { block } else { number });
            hash
        })
        .collect();
    Prompt::from_hashes(Tokens(1_840), BlockSize::DEFAULT, hashes)
}

fn measure(replicas: u32, policy: Policy, prompt: impl Fn(u64) -> Prompt) -> f64 {
    let settings = Settings { policy, warm_up: false, ..Settings::default() };
    let mut dispatcher = Dispatcher::new(settings, Prng::new(1));
    for replica in (0..replicas).map(ReplicaId) {
        dispatcher.join(replica, Time::ZERO);
        dispatcher.probe(replica, ProbeResult::Healthy { models: vec![ModelId(0)] }, Time::ZERO);
        // An 8B model on an A100 of 80 GB.
        let report = EngineReport { blocks: Some(26_900), block_size: Some(16), ..EngineReport::default() };
        dispatcher.report(replica, &report, Time::ZERO);
    }
    // Made beforehand, in rounds, so that only the core is measured.
    let mut rounds = Vec::new();
    for round in 0..=REQUESTS / IN_FLIGHT {
        let numbers = round * IN_FLIGHT..(round + 1) * IN_FLIGHT;
        let requests: Vec<Request> = numbers.clone().map(|number| request(prompt(number))).collect();
        let started = Instant::now();
        for (number, request) in numbers.zip(requests) {
            serve(&mut dispatcher, number, request);
        }
        rounds.push(started.elapsed().as_nanos() as f64 / IN_FLIGHT as f64);
    }
    // The second half, when the index is full, and its median: other work of the machine does not count.
    let half = rounds.len() / 2;
    rounds.drain(..half);
    rounds.sort_unstable_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

fn request(prompt: Prompt) -> Request {
    Request { model: ModelId(0), prompt, output_cap: Tokens(256), stream: true, wait_limit: None }
}

fn serve(dispatcher: &mut Dispatcher, number: u64, request: Request) {
    // 10,000 requests a second, each 0.1 s in flight.
    let now = Time(number * 100_000);
    dispatcher.arrive(RequestId(number), request, now);
    let output = dispatcher.poll_output();
    assert!(matches!(output, Some(Output::Dispatch { .. })));
    black_box(output);
    black_box(dispatcher.poll_timeout());
    if number >= IN_FLIGHT {
        dispatcher.first_output(RequestId(number - IN_FLIGHT / 2), now);
        dispatcher.finish(RequestId(number - IN_FLIGHT), now);
    }
}
