use std::num::NonZeroU32;
use std::time::Duration;

use expediter_core::{Policy, Settings as DispatcherSettings};
use expediter_engine_sim::Settings as EngineSettings;
use expediter_types::{Arrival, BlockHash, BlockSize, ModelId, Prng, Prompt, Time, Tokens};

use super::Simulation;
use crate::report::{End, Report};
use crate::scenario::{Fault, FaultAt, Pool, Scenario, ScenarioError};
use crate::workload::Workload;

fn pool(replicas: u32, policy: Policy) -> Pool {
    Pool {
        name: "pool".to_owned(),
        replicas,
        engine: EngineSettings::default(),
        models: vec![ModelId(0), ModelId(1)],
        dispatcher: DispatcherSettings { policy, ..DispatcherSettings::default() },
    }
}

fn scenario(replicas: u32, policy: Policy) -> Scenario {
    let seconds = Duration::from_secs;
    Scenario {
        warm_up: Duration::ZERO,
        duration: seconds(20),
        drain: seconds(120),
        ..Scenario::of(vec![pool(replicas, policy)])
    }
}

/// Requests with a few prefixes that they share, `rate` a second for 20 s.
fn requests(rate: u64, seed: u64) -> Vec<Arrival> {
    let mut rng = Prng::new(seed);
    let one = |number: u64| {
        let tokens = 200 + rng.below(3_000) as u64;
        let prefix = BlockHash::root(rng.below(6) as u64);
        let (shared, unique) = (40, BlockHash::root(1_000 + number));
        let hash = |block| if block < shared { prefix.then_number(block) } else { unique.then_number(block) };
        let hashes: Vec<BlockHash> = (0..tokens / 16).map(hash).collect();
        Arrival {
            at: Time(number * 1_000_000_000 / rate),
            model: ModelId(0),
            tenant: 0,
            prompt: Prompt::from_hashes(Tokens(tokens), BlockSize::DEFAULT, hashes),
            output: Tokens(1 + rng.below(200) as u64),
            output_cap: Tokens(400),
        }
    };
    (0..20 * rate).map(one).collect()
}

fn run(scenario: &Scenario, requests: Vec<Arrival>, seed: u64) -> Report {
    let mut simulation = Simulation::new(scenario, Box::new(requests.into_iter()), seed).unwrap();
    while simulation.advance(Duration::from_secs(1)) {}
    simulation.report()
}

fn ends(report: &Report, end: End) -> usize {
    report.requests.iter().filter(|record| record.end == end).count()
}

#[test]
fn one_seed_is_one_history_on_every_policy() {
    for policy in Policy::ALL {
        let scenario = Scenario { gateways: 2, ..scenario(4, policy) };
        let run = |seed| run(&scenario, requests(10, 1), seed);
        let (first, again, other) = (run(3), run(3), run(4));
        assert_eq!(first.history, again.history, "{policy}: two histories of one seed");
        assert_eq!(first, again, "{policy}: two reports of one history");
        assert_ne!(first.history, other.history, "{policy}: the seed changes nothing");
        assert_eq!(ends(&first, End::Answered), 200, "{policy}");
    }
}

#[test]
fn a_lone_request_takes_the_time_of_its_way_and_its_steps() {
    let mut scenario = scenario(1, Policy::RoundRobin);
    scenario.pools[0].engine.noise_sigma = 0.0;
    scenario.network_delay = Duration::from_millis(3);
    // 1,800 tokens cold are one step of 134 ms (calibration: typical values), a decode takes 11.6 ms and more.
    let request = Arrival {
        at: Time::from_millis(5_000),
        model: ModelId(0),
        tenant: 0,
        prompt: Prompt::opaque(Tokens(1_800)),
        output: Tokens(11),
        output_cap: Tokens(11),
    };
    let record = run(&scenario, vec![request], 1).requests[0];
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    let (ttft, tpot) = (ms(record.ttft.unwrap()), ms(record.tpot().unwrap()));
    assert!((ttft - (8.0 + 2.0 * 3.0 + 134.0)).abs() < 1.0, "{ttft} ms");
    assert!((tpot - 11.6).abs() < 0.2, "{tpot} ms a token");
    assert_eq!((record.end, record.output, record.attempts), (End::Answered, Tokens(11), 1));
}

/// Under every fault nothing is lost or ends twice, and what can be answered elsewhere is.
#[test]
fn faults_cost_what_they_must_and_no_more() {
    // (fault, most requests that may fail or break off)
    let cases = [
        (Fault::Refuse, 0),
        (Fault::Crash, 30),
        (Fault::Hang, 30),
        (Fault::Freeze, 30),
        (Fault::Slow(4.0), 0),
        (Fault::Status(500), 0),
        (Fault::Status(503), 0),
        (Fault::StaleReports, 0),
        (Fault::Cut(5), 30),
        (Fault::Drain, 0),
        (Fault::Lose, 30),
        (Fault::Join, 0),
    ];
    for (fault, most) in cases {
        let mut scenario = scenario(4, Policy::LeastTokens);
        let at = |ms, fault| FaultAt { at: Time::from_millis(ms), pool: 0, replica: 1, fault };
        scenario.faults = vec![at(6_000, fault), at(14_000, Fault::Heal)];
        let report = run(&scenario, requests(10, 1), 1);
        assert_eq!(report.requests.len(), 200, "{fault:?}");
        assert_eq!(ends(&report, End::Open), 0, "{fault:?}: some never ended");
        let missed = 200 - ends(&report, End::Answered);
        assert!(missed <= most, "{fault:?}: {missed} were not answered");
        assert_eq!(report.history, run(&scenario, requests(10, 1), 1).history, "{fault:?}");
    }
}

#[test]
fn a_crash_breaks_answers_off_and_empties_the_cache() {
    let mut scenario = scenario(1, Policy::RoundRobin);
    let at = |ms, fault| FaultAt { at: Time::from_millis(ms), pool: 0, replica: 0, fault };
    scenario.faults = vec![at(5_300, Fault::Crash), at(7_000, Fault::Heal)];
    let mut all = requests(1, 1);
    // Three times one prompt: cold, cut short while it streams, and after the restart.
    let prompt = all[0].prompt.clone();
    for (request, at) in all.iter_mut().zip([3_000, 5_000, 14_000]) {
        (request.at, request.prompt, request.output) = (Time::from_millis(at), prompt.clone(), Tokens(30));
    }
    all.truncate(3);
    let records = run(&scenario, all, 1).requests;
    assert_eq!([records[0].end, records[1].end, records[2].end], [End::Answered, End::Cut, End::Answered]);
    assert_eq!(records[0].cached, Tokens::ZERO);
    assert!(records[1].cached > Tokens::ZERO, "the second finds what the first left");
    assert_eq!(records[2].cached, Tokens::ZERO, "the third finds a new engine");
    assert!(records[2].ideal > Tokens::ZERO);
}

#[test]
fn larger_blocks_hit_less_and_never_more_than_the_ideal() {
    let hits = |size: u32| {
        let mut scenario = scenario(2, Policy::LMetric);
        scenario.pools[0].engine.block_size.0 = NonZeroU32::new(size).unwrap();
        scenario.pools[0].engine.blocks.0 /= u64::from(size / 16);
        let records = run(&scenario, requests(5, 1), 1).requests;
        assert!(records.iter().all(|record| record.cached <= record.ideal), "blocks of {size}");
        records.iter().map(|record| record.cached.0).sum::<u64>()
    };
    let [small, middle, large] = [16, 32, 256].map(hits);
    assert!(0 < large && large < middle && middle <= small, "{small} {middle} {large}");
}

/// A client that sends its next request a second after the last one ended.
struct Client {
    left: u32,
}

impl Workload for Client {
    fn next(&mut self) -> Option<Arrival> {
        if self.left == 5 { self.follow_up(0, Time::ZERO) } else { None }
    }

    fn follow_up(&mut self, _nth: u64, now: Time) -> Option<Arrival> {
        self.left = self.left.checked_sub(1)?;
        Some(Arrival { at: now + Duration::from_secs(1), ..requests(1, 1).swap_remove(0) })
    }
}

#[test]
fn a_closed_loop_waits_for_answers() {
    let scenario = scenario(1, Policy::RoundRobin);
    let mut simulation = Simulation::new(&scenario, Box::new(Client { left: 5 }), 1).unwrap();
    while simulation.advance(Duration::from_secs(1)) {}
    let records = simulation.report().requests;
    assert_eq!(records.len(), 5);
    for pair in records.windows(2) {
        let ended = pair[0].arrived + pair[0].total;
        assert_eq!(pair[1].arrived, ended + Duration::from_secs(1));
    }
}

#[test]
fn several_gateways_share_the_requests_and_not_their_views() {
    let one = run(&scenario(4, Policy::RoundRobin), requests(10, 1), 1);
    let three = run(&Scenario { gateways: 3, ..scenario(4, Policy::RoundRobin) }, requests(10, 1), 1);
    let shares = |report: &Report| -> Vec<u64> {
        report.pools[0].replicas.iter().map(|replica| replica.dispatched).collect()
    };
    assert_eq!(shares(&one), [50, 50, 50, 50]);
    assert_eq!(shares(&three).iter().sum::<u64>(), 200);
    assert_ne!(one.history, three.history);
}

#[test]
fn what_cannot_be_simulated_is_refused_with_field_and_remedy() {
    let good = || scenario(2, Policy::RoundRobin);
    let with_pool = |change: &dyn Fn(&mut Pool)| {
        let mut scenario = good();
        change(&mut scenario.pools[0]);
        scenario
    };
    let with_fault = |pool, replica, fault| Scenario {
        faults: vec![FaultAt { at: Time::ZERO, pool, replica, fault }],
        ..good()
    };
    let zero = Duration::ZERO;
    let cases: [(Scenario, &str); 14] = [
        (Scenario { pools: Vec::new(), ..good() }, "pools: there is none"),
        (with_pool(&|pool| pool.replicas = 0), "pool `pool`: replicas is 0"),
        (with_pool(&|pool| pool.replicas = 5_000), "5000 replicas, those that join included, are more"),
        (with_pool(&|pool| pool.models.clear()), "models is empty"),
        (with_pool(&|pool| pool.models.push(ModelId(0))), "named twice"),
        (
            with_pool(&|pool| pool.engine.block_size.0 = NonZeroU32::new(24).unwrap()),
            "block_size 24 is no multiple",
        ),
        (with_pool(&|pool| pool.engine.blocks.0 = 100_000_000), "200000000 KV blocks"),
        (Scenario { gateways: 0, ..good() }, "gateways: 0 is not"),
        (Scenario { duration: zero, ..good() }, "duration: must be longer"),
        (Scenario { warm_up: Duration::from_secs(20), ..good() }, "warm_up: 20s leaves nothing"),
        (with_fault(1, 0, Fault::Crash), "pool 1 does not exist"),
        (with_fault(0, 2, Fault::Crash), "no replica 2"),
        (with_fault(0, 0, Fault::Slow(0.0)), "slow by a factor of 0"),
        (with_fault(0, 0, Fault::Status(200)), "status 200"),
    ];
    for (scenario, expected) in cases {
        let error = scenario.check().unwrap_err().to_string();
        assert!(error.contains(expected), "`{error}` does not say `{expected}`");
    }
    let stranger = requests(1, 1).into_iter().map(|arrival| Arrival { model: ModelId(9), ..arrival });
    let error = Simulation::new(&good(), Box::new(stranger), 1).unwrap_err();
    assert_eq!(error, ScenarioError::UnknownModel(ModelId(9)));
}
