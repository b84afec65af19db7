//! Who may serve: replicas that are open and not loaded, alive and dead, busy and alive, and those
//! whose words about themselves are of no use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::kit::gateway::{CHAT, Gateway, chat_body};
use crate::kit::replica::{Kind, Replica, Script, Then};
use crate::kit::script::{self, script};
use crate::kit::sse;
use crate::kit::wait::{PATIENCE, RaiseOnDrop, Signal, eventually, median};

fn after(time: Duration) -> Script {
    script(move |conn, _| {
        conn.pause(time)?;
        conn.answer(200, "application/json", script::completion("cc-1", "ok", "stop", 9, 1))?;
        Ok(Then::KeepAlive)
    })
}

/// Ten requests a second until `stop`; statuses and latencies.
fn ten_a_second(gateway: &Gateway, stop: &AtomicBool) -> Vec<(u16, Duration)> {
    thread::scope(|scope| {
        let mut requests = Vec::new();
        while !stop.load(Ordering::SeqCst) {
            requests.push(scope.spawn(|| {
                let sent = Instant::now();
                (gateway.chat().status, sent.elapsed())
            }));
            thread::sleep(Duration::from_millis(100));
        }
        requests.into_iter().map(|request| request.join().expect("a request")).collect()
    })
}

fn lists(gateway: &Gateway, model: &str) -> bool {
    let list = gateway.get("/v1/models").json();
    list["data"].as_array().expect("a list").iter().any(|entry| entry["id"] == model)
}

/// Three that join, one for each variant, each for 3 s instead of 20; probes each 500 ms. Each lists an
/// adapter that nobody else has.
#[test]
fn d01_port_open_and_model_not_loaded() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    let (mute, unhealthy, empty) = (Replica::start("m-8b"), Replica::start("m-8b"), Replica::start("m-8b"));
    for replica in [&a, &b, &mute, &unhealthy, &empty] {
        replica.on_post(after(Duration::from_millis(150)));
    }
    let with_adapter = |name: &str| {
        script::answer(
            200,
            "application/json",
            json!({"object": "list", "data": [{"id": "m-8b"}, {"id": name, "parent": "m-8b"}]}).to_string(),
        )
    };
    mute.on_get("/v1/models", with_adapter("ad-mute"));
    unhealthy.on_get("/v1/models", with_adapter("ad-unhealthy"));
    mute.on_accept(Some(Arc::new(|conn| Err(conn.until_gone()))));
    unhealthy.on_get("/health", script::error(503, "Service Unavailable", "loading"));
    empty.on_get("/v1/models", script::models(&[]));
    let gateway = Gateway::with(&[&a, &b, &mute, &unhealthy, &empty])
        .set("probe.interval_ms", 500)
        .set("ramp_ms", 1000)
        .wait_for(2)
        .start();
    let stop = AtomicBool::new(false);
    let (answers, flipped) = thread::scope(|scope| {
        let ends = RaiseOnDrop(&stop);
        let load = scope.spawn(|| ten_a_second(&gateway, &stop));
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until {
            for adapter in ["ad-mute", "ad-unhealthy", "ad-empty"] {
                assert!(!lists(&gateway, adapter), "{adapter} is listed, and nobody ready has it");
            }
            thread::sleep(Duration::from_millis(50));
        }
        for joining in [&mute, &unhealthy, &empty] {
            assert!(joining.requests().is_empty() && joining.requests_of(Kind::WarmUp).is_empty());
            assert_eq!(gateway.replica(joining)["state"], "joining");
        }
        let flipped = Instant::now();
        mute.on_accept(None);
        unhealthy.on_get("/health", script::answer(200, "text/plain", ""));
        empty.on_get("/v1/models", with_adapter("ad-empty"));
        for adapter in ["ad-mute", "ad-unhealthy", "ad-empty"] {
            eventually(PATIENCE, "its adapter is listed", || lists(&gateway, adapter));
        }
        for joining in [&mute, &unhealthy, &empty] {
            joining.wait_requests(1);
        }
        drop(ends);
        (load.join().expect("the load"), flipped)
    });
    assert!(answers.iter().all(|(status, _)| *status == 200));
    // Probing those that hang delays nobody.
    let times: Vec<Duration> = answers.iter().map(|(_, time)| *time).collect();
    assert!(median(&times) < Duration::from_millis(400), "{:?}", median(&times));
    for joined in [&mute, &unhealthy, &empty] {
        let first = joined.requests()[0].head_at - flipped;
        // Within two probe periods, three times that on a busy machine, and up to 1 s for the probe that
        // hangs still.
        assert!(first < Duration::from_secs(4), "traffic after {first:?}");
        let warm_up = joined.requests_of(Kind::WarmUp)[0].head_at;
        assert!(warm_up > flipped && warm_up < joined.requests()[0].head_at);
    }
}

/// A replica that loads when it is asked for its first token is warmed up, and gets nothing until it
/// has answered.
#[test]
fn a_warm_up_comes_before_the_first_request() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    let go = Signal::new();
    let wait = go.clone();
    b.on_warm_up(script(move |conn, request| {
        conn.wait(&wait)?;
        script::good("w", &["w"])(conn, request)
    }));
    let gateway = Gateway::with(&[&a, &b]).wait_for(1).start();
    for _ in 0..10 {
        assert_eq!(gateway.chat().status, 200);
    }
    assert_eq!(gateway.replica(&b)["state"], "warming");
    assert!(b.requests().is_empty());
    go.raise();
    eventually(PATIENCE, "it is ready", || gateway.replica(&b)["state"] == "ready");
}

/// Health is 200, models are listed, metrics stand still with two running, completions never send a
/// byte. What takes long here is the patience that a silent engine is given: up to 10 s.
#[test]
fn d02_alive_but_dead() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    for replica in [&a, &b] {
        replica.on_post(after(Duration::from_millis(50)));
    }
    let gateway = Gateway::with(&[&a, &b]).set("ramp_ms", 500).start();
    for _ in 0..6 {
        assert_eq!(gateway.chat().status, 200);
    }
    let hung = Instant::now();
    let seen = a.requests().len();
    a.on_get("/metrics", script::answer(200, "text/plain", script::metrics_text(2, 0, 0.1)));
    // So that A looks the better of the two.
    b.on_get("/metrics", script::answer(200, "text/plain", script::metrics_text(8, 1, 0.5)));
    a.on_post(script::silent());
    a.on_warm_up(script::silent());
    let stop = AtomicBool::new(false);
    let (answers, set_aside) = thread::scope(|scope| {
        let ends = RaiseOnDrop(&stop);
        let load = scope.spawn(|| ten_a_second(&gateway, &stop));
        eventually(PATIENCE, "it is set aside", || gateway.replica(&a)["state"] == "set_aside");
        let set_aside = Instant::now();
        let at_risk = a.requests().len();
        thread::sleep(Duration::from_secs(4));
        assert!(a.requests().len() <= at_risk, "requests after it was set aside");
        drop(ends);
        (load.join().expect("the load"), set_aside)
    });
    assert!(set_aside - hung < Duration::from_secs(30), "{:?}", set_aside - hung);
    // Those that were caught were given to B, and succeeded.
    assert!(answers.iter().all(|(status, _)| *status == 200), "{answers:?}");
    for caught in &a.requests()[seen..] {
        assert!(caught.aborted_at.is_some(), "a request that was taken away is aborted");
    }
    let trials: Vec<Instant> =
        a.requests_of(Kind::WarmUp).iter().map(|trial| trial.head_at).filter(|at| *at > set_aside).collect();
    assert!(trials.len() <= 1, "{} trials within 4 s", trials.len());
    // It works again: a trial brings it back.
    for replica in [&a, &b] {
        replica.on_get("/metrics", script::answer(200, "text/plain", script::metrics_text(0, 0, 0.0)));
    }
    a.on_post(after(Duration::from_millis(50)));
    a.on_warm_up(script::good("w", &["w"]));
    eventually(Duration::from_secs(45), "it is back", || gateway.replica(&a)["state"] == "ready");
    let before = a.requests().len();
    eventually(PATIENCE, "it has work", || gateway.chat().status == 200 && a.requests().len() > before);
}

/// B's health is silent once, then twice in a row, then for longer than is forgiven, while its streams
/// flow. Probes each 200 ms with 200 ms of patience, to be done in seconds.
#[test]
fn d02_busy_but_alive() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    for replica in [&a, &b] {
        replica.on_post(script::tokens(160, Duration::from_millis(25)));
    }
    let gateway = Gateway::with(&[&a, &b]).set("probe.interval_ms", 200).set("probe.timeout_ms", 200).start();
    let missed = Arc::new(AtomicUsize::new(0));
    let answered = Arc::new(AtomicUsize::new(0));
    let pattern = [true, false, true, false, false, true, false, false, false, false, false, false, true];
    let (count, good) = (Arc::clone(&missed), Arc::clone(&answered));
    let mut clients: Vec<_> = (0..6)
        .map(|_| {
            let mut client = gateway.connect();
            client.post(CHAT, chat_body(true));
            let mut answer = client.begin_answer();
            client.read_events(&mut answer, 2);
            (client, answer)
        })
        .collect();
    b.on_get(
        "/health",
        script(move |conn, _| {
            let nth = count.fetch_add(1, Ordering::SeqCst);
            if pattern.get(nth).copied().unwrap_or(true) {
                good.fetch_add(1, Ordering::SeqCst);
                return conn.answer(200, "text/plain", "").map(|()| Then::KeepAlive);
            }
            Ok(Then::Hold)
        }),
    );
    let mut states = Vec::new();
    eventually(PATIENCE, "the pattern is through", || {
        states.push(gateway.replica(&b)["state"].clone());
        missed.load(Ordering::SeqCst) >= 13
    });
    assert!(states.iter().all(|state| state == "ready"), "{states:?}");
    for (client, answer) in &mut clients {
        client.finish(answer);
        assert_eq!(answer.payloads().last().map(String::as_str), Some("[DONE]"));
        assert!(sse::text(&answer.body).ends_with("t159 "));
    }
    assert!(b.requests().iter().all(|request| request.aborted_at.is_none()));
}

/// An idle replica that answers no probe is set aside, and comes back.
#[test]
fn an_idle_replica_that_is_silent_is_set_aside() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    let gateway = Gateway::with(&[&a, &b])
        .set("probe.interval_ms", 100)
        .set("probe.timeout_ms", 200)
        .set("breaker.trial_ms", 200)
        .start();
    for silence in [
        script::silent(),
        script::error(503, "x", "y"),
        script::raw("", Then::Reset),
        script::raw("nonsense\r\n\r\n", Then::Fin),
    ] {
        b.on_get("/health", silence);
        eventually(PATIENCE, "it is set aside", || gateway.replica(&b)["state"] == "set_aside");
        assert!(gateway.replica(&b)["cause"].is_string());
        let before = b.requests().len();
        for _ in 0..4 {
            assert_eq!(gateway.chat().status, 200);
        }
        assert_eq!(b.requests().len(), before);
        b.on_get("/health", script::answer(200, "text/plain", ""));
        eventually(PATIENCE, "it is back", || gateway.replica(&b)["state"] == "ready");
    }
}

/// Health that changes at every probe: no request fails, and it is not tried at every turn.
#[test]
fn health_that_flips_at_every_probe() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    for replica in [&a, &b] {
        replica.on_post(after(Duration::from_millis(20)));
    }
    let gateway = Gateway::with(&[&a, &b]).set("probe.interval_ms", 50).start();
    let nth = AtomicUsize::new(0);
    b.on_get(
        "/health",
        script(move |conn, _| {
            let well = nth.fetch_add(1, Ordering::SeqCst).is_multiple_of(2);
            conn.answer(if well { 200 } else { 503 }, "text/plain", "").map(|()| Then::KeepAlive)
        }),
    );
    let warm_ups = b.requests_of(Kind::WarmUp).len();
    let stop = AtomicBool::new(false);
    let answers = thread::scope(|scope| {
        let ends = RaiseOnDrop(&stop);
        let load = scope.spawn(|| ten_a_second(&gateway, &stop));
        thread::sleep(Duration::from_secs(3));
        drop(ends);
        load.join().expect("the load")
    });
    assert!(answers.iter().all(|(status, _)| *status == 200), "{answers:?}");
    let tried = b.requests_of(Kind::WarmUp).len() - warm_ups;
    // Sixty probes; a trial each 5 s unless told otherwise.
    assert!(tried <= 3, "{tried} trials in 3 s");
    assert!(a.requests().len() + b.requests().len() >= answers.len());
}

/// An engine with `--api-key` tells its models only to those who have the key; where that is the clients alone, the
/// configuration says what it serves.
#[test]
fn an_engine_whose_key_only_its_clients_have_is_served() {
    let replica = Replica::start("m-8b");
    replica.on_get("/v1/models", script::error(401, "Unauthorized", "x"));
    let gateway = Gateway::with(&[&replica]).set("probe.interval_ms", 200).wait_for(1).start();
    assert_eq!(gateway.replica(&replica)["state"], "ready");
}

/// What is no list of this model keeps a replica out, whatever its health says; the right one lets it in.
#[test]
fn models_lists_of_no_use_keep_a_replica_out() {
    let json_of = |body: &str| script::answer(200, "application/json", body);
    let cases: Vec<(&str, Script)> = vec![
        ("garbage", json_of("}{")),
        ("HTML", script::answer(200, "text/html", "<html>It works!</html>")),
        ("nothing", json_of("")),
        ("null", json_of("null")),
        ("no data", json_of(r#"{"object":"list"}"#)),
        ("data of the wrong kind", json_of(r#"{"data":{"id":"m-8b"}}"#)),
        ("ids of the wrong kind", json_of(r#"{"data":[{"id":8}]}"#)),
        ("another model", script::models(&["m-9b"])),
        ("another case", script::models(&["M-8B"])),
        ("a name within a name", script::models(&["xm-8b", "m-8b2"])),
        ("an error with 200", json_of(r#"{"error":"Unauthorized"}"#)),
        (
            "a redirect",
            script::raw(
                "HTTP/1.1 302 Found\r\nlocation: /v1/models?x\r\ncontent-length: 0\r\n\r\n",
                Then::KeepAlive,
            ),
        ),
        (
            "cut",
            script::raw(
                "HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{\"data\":[{\"id\":\"m-8b\"}]}",
                Then::Fin,
            ),
        ),
        (
            "never ending",
            script(|conn, _| {
                conn.send(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{\"data\":[{\"id\":\"m-8b\"}",
                )?;
                loop {
                    conn.send(" ".repeat(10_000))?;
                    conn.pause(Duration::from_millis(5))?;
                }
            }),
        ),
        ("deep", json_of(&format!(r#"{{"data":[{{"id":"m-8b"}}],"x":{}"#, "[".repeat(100_000)))),
        ("no HTTP", script::raw("m-8b\r\n\r\n", Then::Fin)),
        ("no UTF-8", script::answer(200, "application/json", b"{\"data\":[{\"id\":\"m-8b\xff\"}]}".to_vec())),
    ];
    let good = Replica::start("m-8b");
    let replicas: Vec<Replica> = cases
        .iter()
        .map(|(_, list)| {
            let replica = Replica::start("m-8b");
            replica.on_get("/v1/models", Arc::clone(list));
            replica
        })
        .collect();
    let all: Vec<&Replica> = std::iter::once(&good).chain(&replicas).collect();
    let gateway =
        Gateway::with(&all).set("probe.interval_ms", 200).set("probe.timeout_ms", 500).wait_for(1).start();
    thread::sleep(Duration::from_millis(1500));
    for ((name, _), replica) in cases.iter().zip(&replicas) {
        assert_ne!(gateway.replica(replica)["state"], "ready", "{name}");
        assert!(replica.requests().is_empty() && replica.requests_of(Kind::WarmUp).is_empty(), "{name}");
        let asked =
            replica.requests_of(Kind::Probe).iter().filter(|probe| probe.path == "/v1/models").count();
        assert!(asked >= 2, "{name}: it is asked again and again, not once: {asked}");
    }
    assert!(gateway.resident_bytes() < 300 << 20, "{} bytes resident", gateway.resident_bytes());
    for replica in &replicas {
        replica.on_get("/v1/models", script::models(&["x", "m-8b"]));
    }
    gateway.wait_ready(all.len());
}

/// 10 MB of models: read or refused, within bounds, and the others do not feel it.
#[test]
fn a_huge_list_of_models_does_no_harm() {
    let (a, huge) = (Replica::start("m-8b"), Replica::start("m-8b"));
    let names: Vec<serde_json::Value> = (0..150_000)
        .map(|n| json!({"id": format!("adapter-{n}-{}", "x".repeat(40)), "parent": "m-8b"}))
        .collect();
    let data = [vec![json!({"id": "m-8b"})], names].concat();
    let body = json!({"object": "list", "data": data}).to_string();
    assert!(body.len() > 10_000_000);
    huge.on_get("/v1/models", script::answer(200, "application/json", body));
    let gateway = Gateway::with(&[&a, &huge]).set("probe.interval_ms", 500).wait_for(1).start();
    let stop = AtomicBool::new(false);
    let answers = thread::scope(|scope| {
        let ends = RaiseOnDrop(&stop);
        let load = scope.spawn(|| ten_a_second(&gateway, &stop));
        thread::sleep(Duration::from_secs(3));
        drop(ends);
        load.join().expect("the load")
    });
    assert!(answers.iter().all(|(status, _)| *status == 200));
    let times: Vec<Duration> = answers.iter().map(|(_, time)| *time).collect();
    assert!(median(&times) < Duration::from_millis(300), "{:?}", median(&times));
    assert!(gateway.resident_bytes() < 400 << 20, "{} bytes resident", gateway.resident_bytes());
}

/// A replica whose model becomes another one while it runs serves nobody who asked for the first.
#[test]
fn a_replica_that_changes_its_model_serves_its_old_name_no_more() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    let gateway = Gateway::with(&[&a, &b]).set("probe.interval_ms", 100).set("breaker.trial_ms", 200).start();
    b.on_get("/v1/models", script::models(&["m-70b"]));
    eventually(PATIENCE, "it is out", || gateway.replica(&b)["state"] != "ready");
    let before = b.requests().len();
    for _ in 0..10 {
        assert_eq!(gateway.chat().status, 200);
    }
    assert_eq!(b.requests().len(), before);
    b.on_get("/v1/models", script::models(&["m-8b"]));
    eventually(PATIENCE, "it is back", || gateway.replica(&b)["state"] == "ready");

    // One that was found by asking moves to the pool of its new model.
    let c = Replica::start("m-1");
    let gateway = Gateway::empty().args(&[&c.url()]).set("probe.interval_ms", 100).wait_for(1).start();
    let ask = |model: &str| gateway.post(CHAT, &json!({"model": model, "messages": []}).to_string()).status;
    assert_eq!((ask("m-1"), ask("m-2")), (200, 404));
    c.on_get("/v1/models", script::models(&["m-2"]));
    eventually(PATIENCE, "its new name", || ask("m-2") == 200);
    assert_eq!(ask("m-1"), 404, "nobody serves the old name");
    assert!(!lists(&gateway, "m-1") && lists(&gateway, "m-2"));
}

/// A replica that goes while it serves, and is another process when it comes back.
#[test]
fn a_restart_in_place_is_noticed() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    let gateway = Gateway::with(&[&a, &b])
        .set("probe.interval_ms", 100)
        .set("breaker.trial_ms", 300)
        .set("ramp_ms", 500)
        .start();
    b.close_port();
    b.before_body(Some(Arc::new(|_, _| Ok(Some(Then::Reset)))));
    // The probes' own connection lives on; what requests see counts.
    eventually(PATIENCE, "it is out", || {
        assert_eq!(gateway.chat().status, 200);
        gateway.replica(&b)["state"] == "set_aside"
    });
    for _ in 0..10 {
        assert_eq!(gateway.chat().status, 200);
    }
    let warm_ups = b.requests_of(Kind::WarmUp).len();
    b.before_body(None);
    b.reopen_port();
    eventually(PATIENCE, "it is back", || gateway.replica(&b)["state"] == "ready");
    assert!(b.requests_of(Kind::WarmUp).len() > warm_ups, "on a trial");
    let before = b.requests().len();
    eventually(PATIENCE, "it has work", || gateway.chat().status == 200 && b.requests().len() > before);
}
