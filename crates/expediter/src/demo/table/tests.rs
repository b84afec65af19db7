use std::collections::BTreeMap;

use tokio::time::Instant;

use super::*;

fn replica(id: u32, pool: &str) -> Replica {
    Replica {
        id: Some(format!("replica-{id}")),
        url: format!("http://127.0.0.1:4120{id}"),
        pool: Some(pool.to_owned()),
        state: "ready".to_owned(),
        cause: None,
        dispatched: 100 + u64::from(id),
        failed: 0,
        running: Some(3),
        waiting: Some(0),
        kv_usage: Some(0.375),
        first_token_ms: Some(61),
        report_age_ms: Some(150),
    }
}

/// Eight replicas in three pools; the fourth is set aside, and the last has told nothing yet.
fn reading() -> Reading {
    let pools = ["m-8b", "m-8b", "m-8b", "m-8b", "m-32b", "m-32b", "m-70b", "m-70b"];
    let mut replicas: Vec<Replica> = (1..).zip(pools).map(|(id, pool)| replica(id, pool)).collect();
    let aside = &mut replicas[3];
    aside.report_age_ms = Some(9_000);
    (aside.state, aside.cause, aside.failed) = ("set_aside".to_owned(), Some("unreachable".to_owned()), 7);
    let silent = Replica { url: replicas[7].url.clone(), state: "joining".to_owned(), ..Replica::default() };
    replicas[7] = silent;
    let first_token = vec![(0.1, 200.0), (f64::INFINITY, 200.0)];
    let counts = PoolCounts { requests: 200.0, left: 9.0, errors: 2.0, first_token, ..PoolCounts::default() };
    Reading { replicas, pools: BTreeMap::from([("m-8b".to_owned(), counts)]) }
}

fn with_view<T>(notices: &[String], look: impl FnOnce(View<'_>) -> T) -> T {
    let reading = reading();
    let mut history = History::default();
    let start = Instant::now();
    history.push(start, BTreeMap::new());
    history.push(start + Duration::from_secs(20), reading.pools.clone());
    let (clients, operators) = ("127.0.0.1:8080".parse().unwrap(), "127.0.0.1:8081".parse().unwrap());
    let doors = Doors { clients, operators, token: "0123456789abcdef".to_owned() };
    let tally = Tally { sent: 250, answered: 230, left: 9, failed: 2, last_failure: None };
    look(View {
        doors: &doors,
        uptime: Duration::from_secs(62),
        reading: &reading,
        history: &history,
        tally: Some(&tally),
        notices,
    })
}

fn screen(width: usize, height: usize, notices: &[String]) -> Vec<String> {
    let lines = with_view(notices, |view| view.screen(Size { width, height }));
    lines.iter().map(Line::plain).collect()
}

#[test]
fn a_small_terminal_holds_it_all() {
    let lines = screen(80, 24, &[]);
    let expected = [
        "Expediter demo 1:02   http://127.0.0.1:8080  admin http://127.0.0.1:8081",
        "",
        "pool    req/s  TTFT p50  TTFT p99  tokens/s  cached  requests  cancelled  errors",
        "m-8b     10.0     50 ms     99 ms         0       -       200          9       2",
        "m-32b     0.0         -         -         0       -         0          0       0",
        "m-70b     0.0         -         -         0       -         0          0       0",
        "",
        "pool   id        port   state     running waiting    KV            TTFT requests",
        "m-8b   replica-1 :41201 ready           3       0  38 % ███       61 ms      101",
    ];
    assert_eq!(lines[..expected.len()], expected, "{lines:#?}");
    assert_eq!(lines.len(), 24);
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
    for hint in ["curl -N", "Crash replica-1: curl", "/admin/replicas"] {
        assert!(lines.iter().any(|line| line.contains(hint)), "{hint}: {lines:#?}");
    }
    assert!(
        lines[23].starts_with("Clients sent 250 requests: 230 answered, 9 left early, 2 failed."),
        "{lines:#?}"
    );
}

#[test]
fn no_terminal_is_too_small_and_none_overflows() {
    for (width, height) in [(1, 1), (20, 5), (80, 12), (80, 23), (115, 24), (116, 30), (300, 90)] {
        for notices in 0..20 {
            let notices: Vec<String> = (0..notices).map(|n| format!("notice {n}")).collect();
            let lines = screen(width, height, &notices);
            assert!(lines.len() <= height, "{width}x{height} with {} notices: {lines:#?}", notices.len());
        }
    }
}

#[test]
fn the_last_notices_show_where_there_is_room() {
    let notices: Vec<String> = (1..=9).map(|n| format!("notice {n}")).collect();
    for (height, expected) in [(24, 1), (40, NOTICES_MAX)] {
        let lines = screen(120, height, &notices);
        let shown: Vec<&String> = lines.iter().filter(|line| line.starts_with("notice")).collect();
        assert!(
            shown.len() >= expected && shown.last().is_some_and(|last| *last == "notice 9"),
            "{lines:#?}"
        );
    }
}

#[test]
fn a_report_has_no_pictures_and_names_the_cause() {
    let text: Vec<String> = with_view(&[], |view| view.report(None).iter().map(Line::plain).collect());
    assert!(text.iter().all(|line| line.is_ascii()), "{text:#?}");
    assert!(text.iter().any(|line| line.contains("set aside: unreachable")), "{text:#?}");
    assert!(text.iter().any(|line| line.contains(":41208  joining")), "{text:#?}");
    let aside = text.iter().find(|line| line.contains("replica-4")).unwrap();
    let dashes = aside.split_whitespace().filter(|cell| *cell == "-").count();
    assert_eq!(dashes, 3, "running, waiting and KV were told long ago: {aside}");
}

#[test]
fn a_report_fits_the_terminal_that_it_stays_on() {
    let lines: Vec<String> = with_view(&[], |view| view.report(Some(80)).iter().map(Line::plain).collect());
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
}

#[test]
fn numbers_keep_about_three_digits() {
    let cases = [(0.0, "0 ms"), (0.0614, "61 ms"), (0.9994, "999 ms"), (0.9996, "1.00 s"), (61.23, "61.2 s")];
    for (seconds, expected) in cases {
        assert_eq!(time(Duration::from_secs_f64(seconds)), expected);
    }
    for (ratio, expected) in [(0.0, ""), (0.5, "████"), (0.53, "████▎"), (1.0, "████████"), (7.0, "████████")]
    {
        assert_eq!(bar(ratio, 8), expected, "{ratio}");
    }
}
