//! Reports written by hand, and what they amount to.

use super::*;
use crate::report::{ReplicaReport, Sample};

const SLO: Slo = Slo {
    ttft: Duration::from_millis(400),
    tpot: Duration::from_millis(50),
    prompt_max: Tokens(4_000),
    ttft_share: 0.75,
    tpot_share: 0.5,
};

/// A request by its prompt, its output, its time to first token and its whole time in ms, and its end.
type Row = (u64, u64, Option<u64>, u64, End);

fn record((prompt, output, ttft, total, end): Row) -> RequestRecord {
    RequestRecord {
        arrived: Time::from_millis(1_000),
        pool: 0,
        tenant: 0,
        prompt: Tokens(prompt),
        ideal: Tokens(prompt / 2),
        cached: Tokens(prompt / 4),
        expected: Tokens(prompt / 5),
        output: Tokens(output),
        ttft: ttft.map(Duration::from_millis),
        total: Duration::from_millis(total),
        attempts: 1,
        end,
    }
}

fn report(rows: &[Row]) -> Report {
    Report {
        requests: rows.iter().copied().map(record).collect(),
        samples: Vec::new(),
        pools: vec![pool("a", &[3, 1])],
        warm_up: Duration::ZERO,
        measured: Duration::from_secs(2),
        simulated: Duration::from_secs(5),
        history: 0,
    }
}

fn pool(name: &str, dispatched: &[u64]) -> PoolReport {
    let replica = |dispatched: &u64| ReplicaReport {
        dispatched: *dispatched,
        preemptions: 2,
        ..ReplicaReport::default()
    };
    PoolReport { name: name.to_owned(), replicas: dispatched.iter().map(replica).collect() }
}

/// In time and at pace: 100 ms, then 10 tokens in 90 ms.
const GOOD: Row = (1_000, 10, Some(100), 190, End::Answered);

#[test]
fn objectives_count_what_a_client_got() {
    let cases: [(&str, &[Row], [f64; 3], bool); 11] = [
        // [within TTFT, within TPOT, goodput a second over 2 s], sustains
        ("nothing arrived", &[], [1.0, 1.0, 0.0], false),
        ("all well", &[GOOD, GOOD], [1.0, 1.0, 1.0], true),
        ("at the limits", &[(4_000, 2, Some(400), 450, End::Answered)], [1.0, 1.0, 0.5], true),
        ("a slow start", &[GOOD, (10, 10, Some(401), 500, End::Answered)], [0.5, 1.0, 0.5], false),
        (
            "a slow start of a long prompt",
            &[(4_001, 10, Some(9_000), 9_090, End::Answered)],
            [1.0, 1.0, 0.5],
            true,
        ),
        ("a slow pace", &[GOOD, (10, 2, Some(100), 151, End::Answered)], [1.0, 0.5, 0.5], true),
        ("one token has no pace", &[(10, 1, Some(100), 9_000, End::Answered)], [1.0, 1.0, 0.5], true),
        ("refused", &[GOOD, (10, 0, None, 1, End::Refused("full"))], [0.5, 0.5, 0.5], false),
        ("refused, its prompt long", &[GOOD, (9_000, 0, None, 1, End::Expired)], [1.0, 0.5, 0.5], false),
        ("cut after a good start", &[GOOD, (10, 5, Some(10), 20, End::Cut)], [0.5, 0.5, 0.5], false),
        ("one in four unanswered", &[GOOD, GOOD, GOOD, (10, 0, None, 5, End::Open)], [0.75, 0.75, 1.5], true),
    ];
    for (name, rows, expected, sustains) in cases {
        let summary = Summary::of(&report(rows), &SLO);
        let found = [summary.within_ttft, summary.within_tpot, summary.goodput_per_second];
        assert_eq!((found, summary.sustains), (expected, sustains), "{name}");
    }
}

#[test]
fn every_end_is_counted_and_every_rate_is_over_the_measured_time() {
    let rows = [
        GOOD,
        (2_000, 20, Some(300), 1_060, End::Answered),
        (500, 0, None, 1, End::Refused("full")),
        (500, 0, None, 1, End::Refused("full")),
        (500, 0, None, 1, End::Refused("too_long")),
        (500, 0, None, 1, End::Expired),
        (8_000, 5, Some(900), 990, End::Cut),
        (500, 0, None, 1, End::Open),
    ];
    let summary = Summary::of(&report(&rows), &SLO);
    let counts = Counts {
        arrived: 8,
        answered: 2,
        refused: BTreeMap::from([("full", 2), ("too_long", 1)]),
        expired: 1,
        cut: 1,
        open: 1,
    };
    assert_eq!((counts.refused(), counts.unanswered()), (3, 6));
    assert_eq!(summary.counts, counts);
    let rates = [
        (summary.offered_per_second, 4.0),
        (summary.answered_per_second, 1.0),
        (summary.prompt_tokens_per_second, 1_500.0),
        (summary.output_tokens_per_second, 17.5),
        // Of 11,000 prompt tokens that were computed or found.
        (summary.hit_ratio, 0.25),
        (summary.hit_ratio_ideal, 0.5),
        (summary.hit_ratio_expected, 0.2),
    ];
    for (place, (found, expected)) in rates.into_iter().enumerate() {
        assert!((found - expected).abs() < 1e-12, "rate {place}: {found} is not {expected}");
    }
    let ms = |quantiles: Option<Quantiles>| {
        quantiles.map(|found| (found.count, found.p50.as_millis(), found.max.as_millis()))
    };
    assert_eq!(ms(summary.ttft), Some((3, 300, 900)), "TTFT");
    assert_eq!(ms(summary.ttft_within_prompt_max), Some((2, 100, 300)), "TTFT of prompts up to 4,000 tokens");
    assert_eq!(ms(summary.tpot), Some((2, 10, 40)), "TPOT");
    assert_eq!(ms(summary.total), Some((2, 190, 1_060)), "total");
    assert_eq!(summary.preemptions, 4);
    assert_eq!(summary.replica_shares, Some(Shares { min: 0.25, max: 0.75, variation: 0.5 }));
}

#[test]
fn a_pool_is_summed_up_by_itself() {
    let mut run = report(&[GOOD, GOOD, (10, 0, None, 1, End::Expired)]);
    run.pools.push(pool("b", &[7]));
    run.requests[1].pool = 1;
    run.requests[2].pool = 1;
    let sample = |at, usage: [(bool, f32); 3]| Sample {
        at: Time::from_millis(at),
        replicas: usage
            .map(|(present, in_use)| ReplicaSample {
                present,
                in_use,
                resident: 2.0 * in_use,
                ..ReplicaSample::default()
            })
            .to_vec(),
        waiting: 0,
        refused: 0,
        arrived: 0,
        input_tokens: Tokens::ZERO,
        output_tokens: Tokens::ZERO,
    };
    // Only the second lies between the first and the last measured arrival.
    run.samples = vec![
        sample(500, [(true, 0.5), (true, 0.5), (true, 0.5)]),
        sample(1_000, [(true, 0.25), (false, 0.0), (true, 0.5)]),
        sample(1_500, [(true, 0.5), (true, 0.5), (true, 0.5)]),
    ];
    let (all, a, b) =
        (Summary::of(&run, &SLO), Summary::of_pool(&run, 0, &SLO), Summary::of_pool(&run, 1, &SLO));
    let numbers = |one: &Summary| (one.counts.arrived, one.counts.answered, one.preemptions);
    assert_eq!((numbers(&all), numbers(&a), numbers(&b)), ((3, 2, 6), (1, 1, 4), (2, 1, 2)));
    let kv = |one: &Summary| (one.kv_in_use, one.kv_resident);
    assert_eq!((kv(&all), kv(&a), kv(&b)), ((0.375, 0.75), (0.25, 0.5), (0.5, 1.0)));
}
