//! What went wrong for others, in virtual time. Each test bears the name of its case.

use std::time::Duration;

use expediter_types::{EngineReport, Prng, Prompt, Time, Tokens};

use super::pool::request;
use super::world::{Answer, End, Script, World};
use crate::{Failure, Policy, ProbeFailure, ReplicaState, Request, Settings};

fn seconds(now: Time) -> u64 {
    now.0 / 1_000_000_000
}

fn good(end: u64) -> Answer {
    Answer::Good { first: Duration::from_millis(end / 2), end: Duration::from_millis(end) }
}

fn prompt(tokens: u64) -> Request {
    Request { prompt: Prompt::opaque(Tokens(tokens)), ..request() }
}

#[test]
fn p01_a_burst_is_spread_evenly_because_load_counts_from_the_dispatch() {
    let mut rng = Prng::new(3);
    // 5 kB and 500 kB of text.
    let mut mixed = |_| if rng.below(2) == 0 { prompt(1_250) } else { prompt(125_000) };
    let bursts: [(&str, Vec<Request>); 8] = [
        ("30 alike", vec![request(); 30]),
        ("300 alike", vec![request(); 300]),
        ("30 different", (0..30).map(|index| prompt(50 + index)).collect()),
        ("300 different", (0..300).map(|index| prompt(50 + index)).collect()),
        (
            "30 short and long",
            (0..30).map(|index| prompt(if index % 2 == 0 { 1_250 } else { 125_000 })).collect(),
        ),
        ("300 short and long, as drawn", (0..300).map(&mut mixed).collect()),
        // Long bodies take longer to arrive: a burst is sorted by the time it reaches the dispatcher.
        (
            "150 short, then 150 long",
            (0..300).map(|n| prompt(if n < 150 { 1_250 } else { 125_000 })).collect(),
        ),
        (
            "50 long, 150 short, 100 long",
            (0..300).map(|n| prompt(if (50..200).contains(&n) { 1_250 } else { 125_000 })).collect(),
        ),
    ];
    for (name, burst) in bursts {
        for policy in [Policy::LeastTokens, Policy::LeastRequests, Policy::PeakEwma, Policy::RoundRobin] {
            let scripts = (0..3).map(|_| Script::good(2_000, 2_500)).collect();
            let mut world = World::new(Settings { policy, ..Settings::default() }, scripts);
            world.run(20_000);
            let count = burst.len();
            world.send(20_000, 20.0 / count as f64, burst.clone());
            world.run(120_000);
            world.assert_all_finished();
            for replica in 0..3 {
                let share = world.dispatches(replica, 0, 120_000);
                let even = count / 3;
                let slack = even / if count == 30 { 5 } else { 10 };
                assert!(share.abs_diff(even) <= slack, "{name}, {policy}: {share} at {replica}");
            }
        }
    }
}

#[test]
fn p02_fast_failure_does_not_look_like_free_capacity() {
    let script = Script {
        answer: Box::new(|now| match seconds(now) {
            20..40 => Answer::Fails {
                after: Duration::from_millis(1),
                failure: Failure::ServerError { status: 500 },
            },
            40..60 => Answer::Fails { after: Duration::from_micros(100), failure: Failure::Connect },
            _ => good(1_000),
        }),
        health: Box::new(|now| matches!(seconds(now), 40..60).then_some(ProbeFailure::Refused)),
        report: Box::new(|_| None),
    };
    let mut world =
        World::new(Settings::default(), vec![script, Script::good(500, 1_000), Script::good(500, 1_000)]);
    world.send(1_000, 50.0, vec![request(); 20 * 120]);
    world.run(130_000);
    world.assert_all_finished();
    let (failing, closed) = (world.dispatches(0, 20_000, 40_000), world.dispatches(0, 40_000, 60_000));
    assert!((1..=10).contains(&failing), "{failing} while it fails");
    assert!(closed <= 10, "{closed} while its port is closed");
    let trials = world.trials(0, 20_000, 60_000);
    assert!(trials.windows(2).all(|pair| pair[1].since(pair[0]) >= Duration::from_secs(5)), "{trials:?}");
    let share = world.dispatches(0, 90_000, 120_000);
    assert!((180..=220).contains(&share), "{share} of 600 once it is back");
}

#[test]
fn p05_old_good_news_is_no_load() {
    let report = |running, kv| EngineReport {
        running: Some(running),
        waiting: Some(0),
        kv_usage: Some(kv),
        ..EngineReport::default()
    };
    let mut scripts: Vec<Script> = (0..3).map(|_| Script::good(300, 3_000)).collect();
    scripts[0].report = Box::new(move |now| (seconds(now) < 20).then(|| report(0, 0.0)));
    for script in &mut scripts[1..] {
        script.report = Box::new(move |_| Some(report(4, 0.5)));
    }
    let mut world = World::new(Settings::default(), scripts);
    world.send(20_000, 100.0, vec![request(); 300]);
    world.run(60_000);
    world.assert_all_finished();
    let share = world.dispatches(0, 20_000, 60_000);
    assert!(share <= 120, "{share} of 300");
    let views = world.dispatcher.replicas(world.now);
    assert!(!views[0].fresh && views[0].report_age > Some(Duration::from_secs(30)));
    assert!(views[1].fresh);
}

#[test]
fn d01_an_open_port_is_not_a_loaded_model() {
    let joins = [
        ("accepts and answers nothing", ProbeFailure::Silent),
        ("health says 503", ProbeFailure::Status(503)),
        ("healthy without a model", ProbeFailure::NoModel),
    ];
    for (name, failure) in joins {
        let mut scripts: Vec<Script> = (0..3).map(|_| Script::good(100, 500)).collect();
        scripts[2].health = Box::new(move |now| (seconds(now) < 40).then_some(failure));
        let mut world = World::new(Settings::default(), scripts);
        world.send(1_000, 100.0, vec![request(); 10 * 60]);
        world.run(70_000);
        world.assert_all_finished();
        assert_eq!(world.dispatches(2, 0, 40_000), 0, "{name}");
        assert!(world.dispatches(2, 40_000, 42_000) > 0, "{name}: traffic within two probe periods");
    }
}

#[test]
fn d02_a_hung_engine_is_set_aside_and_comes_back() {
    for with_metrics in [true, false] {
        let frozen = |now: Time| EngineReport {
            running: Some(2),
            waiting: Some(0),
            // The engine's counters move with every step, and stand still while it hangs.
            progress: if matches!(seconds(now), 20..100) { 0 } else { now.0 },
            ..EngineReport::default()
        };
        let hung = Script {
            answer: Box::new(|now| if matches!(seconds(now), 20..100) { Answer::Hangs } else { good(1_000) }),
            health: Box::new(|_| None),
            report: Box::new(move |now| with_metrics.then(|| frozen(now))),
        };
        let mut world = World::new(Settings::default(), vec![hung, Script::good(500, 1_000)]);
        world.send(1_000, 100.0, vec![request(); 10 * 180]);
        world.run(200_000);
        world.assert_all_finished();
        let late = world.dispatches(0, 35_000, 100_000);
        assert_eq!(late, 0, "nothing but trials after 15 s");
        let trials = world.trials(0, 20_000, 100_000);
        assert!(!trials.is_empty());
        assert!(
            trials.windows(2).all(|pair| pair[1].since(pair[0]) >= Duration::from_secs(10)),
            "{trials:?}"
        );
        assert!(world.dispatches(0, 150_000, 181_000) > 100, "it has its share again");
    }
}

#[test]
fn d02_a_busy_engine_that_misses_probes_keeps_its_place() {
    let mut busy = Script::good(100, 4_000);
    busy.health = Box::new(|now| (seconds(now) % 10 >= 4).then_some(ProbeFailure::Silent));
    let mut world = World::new(Settings::default(), vec![busy, Script::good(100, 4_000)]);
    world.send(2_000, 100.0, vec![request(); 600]);
    world.run(70_000);
    world.assert_all_finished();
    let share = world.dispatches(0, 2_000, 62_000);
    assert!((270..=330).contains(&share), "{share} of 600");
    assert_eq!(world.trials(0, 0, 60_000).len(), 1, "only the one when it joined");
}

#[test]
fn r02_answers_that_blame_the_request_cost_no_replica_its_place() {
    // A 4xx is an answer: the shell reports output and an end, as for any other.
    let mut world = World::new(Settings::default(), (0..2).map(|_| Script::good(1, 1)).collect());
    world.send(1_000, 1.0, vec![request(); 200]);
    world.run(5_000);
    world.assert_all_finished();
    assert_eq!(world.dispatched.len(), 200);
    assert!(world.dispatcher.replicas(world.now).iter().all(|view| view.state == ReplicaState::Ready));
}

/// The death of a replica with several requests looks like a replica that fails them, until its port refuses: from then
/// on requests wait for it as for any other that is down.
#[test]
fn requests_wait_for_a_pool_that_died_with_many_in_flight() {
    let (death, back) = (Time::from_millis(9_000), Time::from_millis(15_000));
    let answer = move |now: Time| {
        if now < Time::from_millis(5_000) {
            // The warm-up.
            good(10)
        } else if now < death {
            Answer::Fails { after: death.since(now), failure: Failure::Death }
        } else if now < back {
            Answer::Fails { after: Duration::from_millis(1), failure: Failure::Connect }
        } else {
            good(500)
        }
    };
    let health = move |now: Time| (death <= now && now < back).then_some(ProbeFailure::Refused);
    let script = Script { answer: Box::new(answer), health: Box::new(health), report: Box::new(|_| None) };
    let mut world = World::new(Settings::default(), vec![script]);
    world.run(5_000);
    world.send(5_000, 250.0, vec![request(); 80]);
    world.run(60_000);
    let refused = world.ends.values().filter(|end| **end == End::Refused).count();
    // 16 were in flight, and four arrive before the second health check has failed.
    assert!((16..=20).contains(&refused), "{refused} of 80 refused: {:?}", world.ends);
    let finished = world.ends.values().filter(|end| **end == End::Finished).count();
    assert_eq!(finished + refused, 80, "{:?}", world.ends);
}
