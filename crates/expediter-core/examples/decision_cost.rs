//! What a request costs in the core: nanoseconds of arrival, first output and finish, by pool size and policy.
//!
//! Run with `cargo run --release -p expediter-core --example decision_cost`.
#![expect(clippy::print_stdout, reason = "the figures are the product")]
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "it measures real time")]

use std::hint::black_box;
use std::time::Instant;

use expediter_core::{Dispatcher, Output, Policy, ProbeResult, Request, Settings};
use expediter_types::{ModelId, Prng, Prompt, ReplicaId, RequestId, Time, Tokens};

/// Requests that are in flight all along.
const IN_FLIGHT: u64 = 1_000;
const REQUESTS: u64 = 200_000;

fn main() {
    println!("{:>8}  {:<14}  ns a request", "replicas", "policy");
    for replicas in [1, 8, 64] {
        for policy in Policy::ALL {
            println!("{replicas:>8}  {:<14}  {:>12.0}", policy.as_str(), measure(replicas, policy));
        }
    }
}

fn measure(replicas: u32, policy: Policy) -> f64 {
    let settings = Settings { policy, warm_up: false, ..Settings::default() };
    let mut dispatcher = Dispatcher::new(settings, Prng::new(1));
    for replica in (0..replicas).map(ReplicaId) {
        dispatcher.join(replica, Time::ZERO);
        dispatcher.probe(replica, ProbeResult::Healthy { models: vec![ModelId(0)] }, Time::ZERO);
    }
    let request = Request {
        model: ModelId(0),
        prompt: Prompt::opaque(Tokens(1_800)),
        output_cap: Tokens(256),
        stream: true,
        wait_limit: None,
    };
    let mut started = Instant::now();
    for number in 0..IN_FLIGHT + REQUESTS {
        if number == IN_FLIGHT {
            started = Instant::now();
        }
        // 10,000 requests a second, each 0.1 s in flight.
        let now = Time(number * 100_000);
        dispatcher.arrive(RequestId(number), request.clone(), now);
        let output = dispatcher.poll_output();
        assert!(matches!(output, Some(Output::Dispatch { .. })));
        black_box(output);
        black_box(dispatcher.poll_timeout());
        if number >= IN_FLIGHT {
            dispatcher.first_output(RequestId(number - IN_FLIGHT / 2), now);
            dispatcher.finish(RequestId(number - IN_FLIGHT), now);
        }
    }
    started.elapsed().as_nanos() as f64 / REQUESTS as f64
}
