//! Where requests go: load that counts at once, failures that do not look like room, old good news,
//! newcomers.

#![allow(clippy::float_cmp, reason = "counts are whole numbers")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::kit::client::Client;
use crate::kit::gateway::{CHAT, Gateway, chat_body};
use crate::kit::replica::{Kind, Replica, Request, Script, Then};
use crate::kit::script::{self, held, script};
use crate::kit::wait::{PATIENCE, RaiseOnDrop, Signal, eventually, median};

/// Answers whole after `time`.
fn after(time: Duration) -> Script {
    script(move |conn, _| {
        conn.pause(time)?;
        conn.answer(200, "application/json", script::completion("cc-1", "ok", "stop", 9, 1))?;
        Ok(Then::KeepAlive)
    })
}

fn counts(replicas: &[Replica]) -> Vec<usize> {
    replicas.iter().map(|replica| replica.requests().len()).collect()
}

/// A chat body whose prompt has about `bytes` bytes and is unlike any other.
fn prompt_body(nth: usize, bytes: usize) -> String {
    let text = format!("{nth} {}", "word ".repeat(bytes / 5));
    json!({"model": "m-8b", "messages": [{"role": "user", "content": text}], "max_tokens": 16}).to_string()
}

/// Sends `bodies` in a burst while every replica holds its answers, and returns how many went where.
fn burst(policy: &str, bodies: &[String]) -> Vec<usize> {
    let replicas = [Replica::start("m-8b"), Replica::start("m-8b"), Replica::start("m-8b")];
    let go = Signal::new();
    for replica in &replicas {
        replica.on_post(held(&go));
    }
    let gateway =
        Gateway::with(&[&replicas[0], &replicas[1], &replicas[2]]).set("pools.m-8b.policy", policy).start();
    let mut clients: Vec<Client> = bodies.iter().map(|_| gateway.connect()).collect();
    for (client, body) in clients.iter_mut().zip(bodies) {
        client.post(CHAT, body);
    }
    eventually(PATIENCE, "all have arrived at replicas", || {
        counts(&replicas).iter().sum::<usize>() == bodies.len()
    });
    go.raise();
    for client in &mut clients {
        assert_eq!(client.read_answer().status, 200);
    }
    gateway.wait_idle();
    counts(&replicas)
}

fn assert_each(counts: &[usize], share: usize, tolerance: usize, what: &str) {
    let fits = counts.iter().all(|count| count.abs_diff(share) <= tolerance);
    assert!(fits, "{what}: {counts:?}, each should be {share} ± {tolerance}");
}

/// The replicas hold their heads until the whole burst is there, rather than for 2 s: so no answer
/// comes in between on a slow machine either.
#[test]
fn p01_load_counts_when_it_is_sent() {
    let bodies: Vec<String> = (0..30).map(|nth| prompt_body(nth, 100)).collect();
    assert_each(&burst("least_tokens", &bodies), 10, 2, "30 alike");
}

#[test]
fn p01_three_hundred() {
    let bodies: Vec<String> = (0..300).map(|nth| prompt_body(nth, 100)).collect();
    assert_each(&burst("least_tokens", &bodies), 100, 10, "300 alike");
}

/// Half of the prompts have 5 kB, half 500 kB, in two orders. Each is sent when the one before it has
/// arrived: of a burst the short ones would come first, since a long one takes the client a while to
/// send, and the order would be another one at each run.
#[test]
fn p01_mixed_sizes() {
    let orders: [fn(usize) -> bool; 2] = [|nth| nth.is_multiple_of(2), |nth| nth * 7 % 10 < 5];
    for (policy, is_long) in
        [("least_tokens", orders[0]), ("least_tokens", orders[1]), ("least_requests", orders[1])]
    {
        for (n, share, tolerance) in [(30, 10, 2), (300, 100, 10)] {
            let body = |nth| prompt_body(nth, if is_long(nth) { 500_000 } else { 5_000 });
            let counts = one_by_one(policy, n, body);
            assert_each(&counts, share, tolerance, &format!("{n} mixed, {policy}"));
        }
    }
}

/// As [`burst`], in this order exactly.
fn one_by_one(policy: &str, n: usize, body: impl Fn(usize) -> String) -> Vec<usize> {
    let replicas = [Replica::start("m-8b"), Replica::start("m-8b"), Replica::start("m-8b")];
    let (go, arrived) = (Signal::new(), Arc::new(AtomicUsize::new(0)));
    for replica in &replicas {
        let (held, arrived) = (held(&go), Arc::clone(&arrived));
        replica.on_post(script(move |conn, request| {
            arrived.fetch_add(1, Ordering::SeqCst);
            held(conn, request)
        }));
    }
    let gateway =
        Gateway::with(&[&replicas[0], &replicas[1], &replicas[2]]).set("pools.m-8b.policy", policy).start();
    let mut clients: Vec<Client> = (0..n).map(|_| gateway.connect()).collect();
    for (nth, client) in clients.iter_mut().enumerate() {
        client.post(CHAT, body(nth));
        let deadline = Instant::now() + PATIENCE;
        while arrived.load(Ordering::SeqCst) <= nth {
            assert!(Instant::now() < deadline, "request {nth} does not arrive");
            thread::sleep(Duration::from_micros(200));
        }
    }
    go.raise();
    for client in &mut clients {
        assert_eq!(client.read_answer().status, 200);
    }
    gateway.wait_idle();
    counts(&replicas)
}

/// Half of the prompts are a hundred times as long: the default policy spreads the work evenly too.
#[test]
fn tokens_are_spread_evenly() {
    let replicas = [Replica::start("m-8b"), Replica::start("m-8b"), Replica::start("m-8b")];
    let go = Signal::new();
    for replica in &replicas {
        replica.on_post(held(&go));
    }
    let gateway = Gateway::with(&[&replicas[0], &replicas[1], &replicas[2]]).start();
    let sizes: Vec<usize> = (0..180).map(|nth| if nth % 2 == 0 { 200_000 } else { 2_000 }).collect();
    let mut clients: Vec<Client> = sizes.iter().map(|_| gateway.connect()).collect();
    for (nth, client) in clients.iter_mut().enumerate() {
        client.post(CHAT, prompt_body(nth, sizes[nth]));
    }
    eventually(PATIENCE, "all there", || {
        let whole = |replica: &Replica| {
            replica.requests().iter().filter(|request| request.complete_at.is_some()).count()
        };
        replicas.iter().map(whole).sum::<usize>() == sizes.len()
    });
    go.raise();
    let bytes_of =
        |replica: &Replica| replica.requests().iter().map(|request| request.body.len()).collect::<Vec<_>>();
    let work: Vec<usize> = replicas.iter().map(|replica| bytes_of(replica).iter().sum()).collect();
    let long: Vec<usize> = replicas
        .iter()
        .map(|replica| bytes_of(replica).iter().filter(|bytes| **bytes > 100_000).count())
        .collect();
    let (least, most) = (work.iter().min().unwrap(), work.iter().max().unwrap());
    assert!(most - least <= 250_000, "bytes of prompts at each replica: {work:?}");
    assert_each(&long, 30, 2, "long prompts");
    for client in &mut clients {
        assert_eq!(client.read_answer().status, 200);
    }
    gateway.wait_idle();
}

/// What each policy makes of 90 requests at once at three replicas.
#[test]
fn every_policy_spreads() {
    let bodies: Vec<String> = (0..90).map(|nth| prompt_body(nth, 100)).collect();
    // Tolerances of the draws are beyond four standard deviations (4.5 of 30 for `random`).
    for (policy, tolerance) in [
        ("round_robin", 0),
        ("least_requests", 1),
        ("least_tokens", 2),
        ("power_of_two", 9),
        ("peak_ewma", 12),
        ("random", 20),
    ] {
        assert_each(&burst(policy, &bodies), 30, tolerance, policy);
    }
}

/// Runs requests at a steady rate until `stop`, each on a thread of its own, and returns statuses and
/// latencies.
fn steady(gateway: &Gateway, period: Duration, total: usize, body: &str) -> Vec<(u16, Duration)> {
    thread::scope(|scope| {
        let began = Instant::now();
        let requests: Vec<_> = (0..total)
            .map(|nth| {
                let due = began + period * u32::try_from(nth).expect("few");
                thread::sleep(due.saturating_duration_since(Instant::now()));
                scope.spawn(|| {
                    let sent = Instant::now();
                    (gateway.post(CHAT, body).status, sent.elapsed())
                })
            })
            .collect();
        requests.into_iter().map(|request| request.join().expect("a request")).collect()
    })
}

fn between(requests: &[Request], from: Instant, to: Instant) -> usize {
    requests.iter().filter(|request| from <= request.head_at && request.head_at < to).count()
}

/// Shortened: 20 req/s for 15 s instead of 60, answers in 200 ms; trials each 1 s (up to 2 s) instead
/// of 5 s (up to 30 s); the ramp of a replica that comes back is 1 s instead of 10.
#[test]
fn p02_fast_failure_is_no_room() {
    let replicas = [Replica::start("m-8b"), Replica::start("m-8b"), Replica::start("m-8b")];
    let [a, b, c] = &replicas;
    for replica in &replicas {
        replica.on_post(after(Duration::from_millis(200)));
    }
    let gateway = Gateway::with(&[a, b, c])
        .set("breaker.trial_ms", 1000)
        .set("breaker.trial_ms_max", 2000)
        .set("ramp_ms", 1000)
        .start();
    let failing = script::error(500, "InternalServerError", "boom");
    let (bad, closed, healed, end) = (0, 5000, 10_000, 16_000);
    let began = Instant::now();
    let at = |ms: u64| began + Duration::from_millis(ms);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _ends = RaiseOnDrop(&stop);
        scope.spawn(|| {
            a.on_post(failing.clone());
            a.on_warm_up(failing.clone());
            thread::sleep(at(closed).saturating_duration_since(Instant::now()));
            a.close_port();
            // Connections that are kept die with it.
            a.before_body(Some(Arc::new(|_, _| Ok(Some(Then::Reset)))));
            thread::sleep(at(healed).saturating_duration_since(Instant::now()));
            a.before_body(None);
            a.on_post(after(Duration::from_millis(200)));
            a.on_warm_up(script::good("cc-warm-up", &["w"]));
            a.reopen_port();
        });
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                for path in ["/v1/models", "/readyz", "/livez"] {
                    assert_eq!(gateway.get(path).status, 200, "{path} throughout");
                }
                thread::sleep(Duration::from_millis(100));
            }
        });
        let answers = steady(&gateway, Duration::from_millis(50), 320, &chat_body(false));
        let failed = answers.iter().filter(|(status, _)| *status != 200).count();
        assert_eq!(failed, 0, "every failure was retried");
    });
    let requests = a.requests();
    let trials = a.requests_of(Kind::WarmUp);
    let (in_bad, in_closed) =
        (between(&requests, at(bad), at(closed)), between(&requests, at(closed), at(healed)));
    assert!(in_bad <= 10, "{in_bad} requests while it answered 500");
    assert!(in_closed <= 10, "{in_closed} requests while its port was closed");
    // One at 1 s, then each 2 s; and one for each request that came before it was set aside is no trial.
    let tried = between(&trials, at(bad + 500), at(closed));
    assert!(tried <= 5, "{tried} trials in 5 s");
    // The share of one of three is 20 of 60; half of it within the last three seconds.
    let back = between(&requests, at(end - 3000), at(end));
    assert!(back >= 10, "{back} requests in the last 3 s after it healed");
}

/// A replica that answers the gateway's tiny question and fails its clients is not let back at full
/// load each time.
#[test]
fn a_replica_that_only_passes_trials_is_not_trusted_again_and_again() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    a.on_post(script::error(500, "InternalServerError", "boom"));
    b.on_post(after(Duration::from_millis(100)));
    let gateway =
        Gateway::with(&[&a, &b]).set("breaker.trial_ms", 500).set("breaker.trial_ms_max", 4000).start();
    let answers = steady(&gateway, Duration::from_millis(50), 160, &chat_body(false));
    assert!(answers.iter().all(|(status, _)| *status == 200));
    let (risked, trials) = (a.requests().len(), a.requests_of(Kind::WarmUp).len());
    // Set aside at 0, back at 0.5, 1.5, 3.5, 7.5 s: five times, at most five failures each.
    assert!(risked <= 25, "{risked} of 160 requests were risked on it, after {trials} trials");
}

/// A replica that refuses each tenth request is worth having.
#[test]
fn a_replica_that_fails_now_and_then_stays() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    let nth = AtomicUsize::new(0);
    a.on_post(script(move |conn, request| {
        if nth.fetch_add(1, Ordering::SeqCst) % 10 == 9 {
            return script::error(500, "InternalServerError", "boom")(conn, request);
        }
        after(Duration::from_millis(20))(conn, request)
    }));
    b.on_post(after(Duration::from_millis(20)));
    let gateway = Gateway::with(&[&a, &b]).start();
    let answers = steady(&gateway, Duration::from_millis(10), 200, &chat_body(false));
    assert!(answers.iter().all(|(status, _)| *status == 200));
    assert_eq!(gateway.replica(&a)["state"], "ready");
    assert!(a.requests().len() >= 60, "{} of 200", a.requests().len());
}

/// Shortened: 10 req/s for 8 s of 1.5 s each, instead of 30 s of 3 s each.
#[test]
fn p05_old_good_news() {
    let replicas = [Replica::start("m-8b"), Replica::start("m-8b"), Replica::start("m-8b")];
    let [a, b, c] = &replicas;
    for replica in &replicas {
        replica.on_post(after(Duration::from_millis(1500)));
    }
    let gateway = Gateway::with(&[a, b, c]).start();
    eventually(PATIENCE, "a report of A", || !gateway.replica(a)["waiting"].is_null());
    a.on_get("/metrics", script::silent());
    for busy in [b, c] {
        busy.on_get("/metrics", script::answer(200, "text/plain", script::metrics_text(4, 0, 0.5)));
    }
    eventually(PATIENCE, "reports of B and C", || {
        [b, c].iter().all(|replica| gateway.replica(replica)["running"] == json!(4))
    });
    let began = Instant::now();
    let answers = steady(&gateway, Duration::from_millis(100), 80, &chat_body(false));
    let ended = Instant::now();
    assert!(answers.iter().all(|(status, _)| *status == 200));
    let total = counts(&replicas).iter().sum::<usize>();
    let of_a = a.requests().len();
    assert!(of_a * 100 <= total * 40, "A got {of_a} of {total}");
    // The age of its last reading is there to see, on both pages.
    let age = gateway.metric("expediter_replica_report_age_seconds", &[("replica", &a.url())]);
    let of_others = gateway.metric("expediter_replica_report_age_seconds", &[("replica", &b.url())]);
    assert!(age > 5.0 && of_others < 3.0, "ages {age} and {of_others}");
    assert!(gateway.replica(a)["report_age_ms"].as_u64().expect("an age") > 5000);
    // Nothing waits for the scrape that hangs: requests take what the replica takes, scrapes are regular.
    let times: Vec<Duration> = answers.iter().map(|(_, time)| *time).collect();
    assert!(median(&times) < Duration::from_millis(1800), "{:?}", median(&times));
    for other in [b, c] {
        let scrapes: Vec<Instant> = other
            .requests_of(Kind::Probe)
            .iter()
            .filter(|probe| probe.path == "/metrics" && began <= probe.head_at && probe.head_at < ended)
            .map(|probe| probe.head_at)
            .collect();
        let gaps: Vec<Duration> = scrapes.windows(2).map(|pair| pair[1] - pair[0]).collect();
        // 200 ms apart unless told otherwise; twice that on a busy machine.
        assert!(median(&gaps) < Duration::from_millis(400), "{:?}", median(&gaps));
    }
}

/// The engine's own load counts: a replica that others keep busy gets less.
#[test]
fn fresh_news_of_load_counts() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    for replica in [&a, &b] {
        replica.on_post(after(Duration::from_millis(100)));
    }
    a.on_get("/metrics", script::answer(200, "text/plain", script::metrics_text(200, 100, 0.99)));
    let gateway = Gateway::with(&[&a, &b]).start();
    eventually(PATIENCE, "its report", || gateway.replica(&a)["waiting"] == json!(100));
    for _ in 0..20 {
        assert_eq!(gateway.chat().status, 200);
    }
    let (of_a, of_b) = (a.requests().len(), b.requests().len());
    assert!(of_b > of_a, "the busy one got {of_a}, the idle one {of_b}");
}

/// Requests under way at once, at most, from `from` on.
fn peak(requests: &[Request], from: Instant) -> usize {
    let mut edges: Vec<(Instant, i32)> = Vec::new();
    for request in requests.iter().filter(|request| request.head_at >= from) {
        edges.push((request.head_at, 1));
        if let Some(end) = request.answered_at.or(request.aborted_at) {
            edges.push((end, -1));
        }
    }
    edges.sort();
    let mut now = 0;
    let peak = edges.into_iter().map(|(_, step)| {
        now += step;
        now
    });
    usize::try_from(peak.max().unwrap_or(0)).expect("no fewer than none")
}

/// Thirty clients, each with its next request as soon as the last one is answered. A third replica
/// joins: it gets its share and no flood. The ramp is 2 s instead of 10.
#[test]
fn a_newcomer_gets_its_share_and_no_flood() {
    let replicas = [Replica::start("m-8b"), Replica::start("m-8b"), Replica::start("m-8b")];
    let [a, b, c] = &replicas;
    for replica in &replicas {
        replica.on_post(after(Duration::from_millis(100)));
    }
    let gateway = Gateway::with(&[a, b]).set("ramp_ms", 2000).start();
    // The others are established by then.
    thread::sleep(Duration::from_millis(2500));
    let stop = AtomicBool::new(false);
    let (called, joined) = thread::scope(|scope| {
        let _ends = RaiseOnDrop(&stop);
        for _ in 0..30 {
            scope.spawn(|| {
                let mut client = gateway.connect();
                while !stop.load(Ordering::SeqCst) {
                    client.post(CHAT, chat_body(false));
                    assert_eq!(client.read_answer().status, 200);
                }
            });
        }
        thread::sleep(Duration::from_millis(500));
        let called = Instant::now();
        let added = gateway.admin("POST", "/admin/replicas", Some(&json!({"url": c.url(), "pool": "m-8b"})));
        assert_eq!(added.status, 201, "{}", added.describe());
        eventually(PATIENCE, "it is ready", || gateway.replica(c)["state"] == "ready");
        let joined = Instant::now();
        thread::sleep(Duration::from_millis(4500));
        (called, joined)
    });
    let of_c = c.requests();
    let at = |ms: u64| joined + Duration::from_millis(ms);
    let total =
        |from, to| replicas.iter().map(|replica| between(&replica.requests(), from, to)).sum::<usize>();
    // From its first request on; the list of replicas may have said "ready" a little later.
    let first_at = of_c.first().expect("it got work").head_at;
    let half_second = first_at + Duration::from_millis(500);
    let first = between(&of_c, first_at, half_second) as f64 / total(first_at, half_second).max(1) as f64;
    let later = between(&of_c, at(2500), at(4500)) as f64 / total(at(2500), at(4500)).max(1) as f64;
    assert!(first < 0.33, "in its first half second it got {first:.2} of all");
    assert!((0.23..0.43).contains(&later), "after its ramp it got {later:.2} of all");
    // A third of 30 is 10.
    let peak = peak(&of_c, called);
    assert!(peak <= 15, "{peak} at once");
}
