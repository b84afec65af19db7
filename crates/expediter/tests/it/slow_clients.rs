//! Clients that take their time: heads that never end, bodies that dribble, heads that are too large.

#![allow(clippy::float_cmp, reason = "counts are whole numbers")]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::kit::client::{Client, End};
use crate::kit::gateway::{CHAT, Gateway, chat_body};
use crate::kit::replica::Replica;
use crate::kit::wait::eventually;

/// What a slow client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Silent,
    Head,
    Body,
}

struct Slow {
    stream: TcpStream,
    kind: Kind,
    opened: Instant,
    closed: Option<Instant>,
    answer: Vec<u8>,
}

impl Slow {
    fn open(gateway: &Gateway, kind: Kind) -> Self {
        let mut stream = TcpStream::connect(gateway.address).expect("the gateway accepts");
        if kind == Kind::Body {
            let head = format!("POST {CHAT} HTTP/1.1\r\nhost: g\r\ncontent-length: 1000\r\n\r\n");
            stream.write_all(head.as_bytes()).expect("a head");
        }
        stream.set_nonblocking(true).expect("nonblocking");
        Self { stream, kind, opened: Instant::now(), closed: None, answer: Vec::new() }
    }

    /// Looks whether it was closed, and sends its next byte.
    fn step(&mut self, send: bool) {
        let mut bytes = [0; 512];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => break,
                Ok(n) => self.answer.extend_from_slice(&bytes[..n]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if send && self.kind != Kind::Silent {
                        // A refusal to take it shows in the next read.
                        let _ = self.stream.write(b"x");
                    }
                    return;
                }
                Err(_) => break,
            }
        }
        self.closed = Some(Instant::now());
    }
}

/// Files that this process may have open, within what the case asks for.
fn sockets() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap_or("");
    let files: usize = line.split_whitespace().nth(3).and_then(|soft| soft.parse().ok()).unwrap_or(1024);
    // The gateway has as many, and both have other files open.
    files.saturating_sub(300).min(2000)
}

/// The 90th percentile of some latencies.
fn p90(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() * 9 / 10]
}

/// The steps of a normal client at 20 requests a second.
fn normal(gateway: &Gateway, requests: usize) -> Vec<Duration> {
    let mut client = gateway.connect();
    let body = chat_body(false);
    let began = Instant::now();
    (0..requests)
        .map(|n| {
            let due = began + Duration::from_millis(50) * u32::try_from(n).expect("few");
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let sent = Instant::now();
            client.post(CHAT, &body);
            assert_eq!(client.read_answer().status, 200, "the normal client has no failures");
            sent.elapsed()
        })
        .collect()
}

/// 2,000 sockets (fewer where the process may not open as many). The limits are shortened: heads and
/// the grace of bodies from 10 s to 2 s; a byte comes each 500 ms instead of each 5 s.
#[test]
fn z03_slow_and_endless_heads() {
    let replica = Replica::start("m-8b");
    let gateway = Arc::new(Gateway::with(&[&replica]).set("limits.head_ms", 2000).start());
    let mut before = normal(&gateway, 40);
    let stop = Arc::new(AtomicBool::new(false));
    let attackers = {
        let (gateway, stop) = (Arc::clone(&gateway), Arc::clone(&stop));
        thread::spawn(move || {
            let kinds = [Kind::Silent, Kind::Head, Kind::Body];
            let mut slow: Vec<Slow> =
                (0..sockets()).map(|n| Slow::open(&gateway, kinds[n % kinds.len()])).collect();
            let mut last_byte = Instant::now();
            while !stop.load(Ordering::SeqCst) && slow.iter().any(|one| one.closed.is_none()) {
                let send = last_byte.elapsed() >= Duration::from_millis(500);
                if send {
                    last_byte = Instant::now();
                }
                for one in slow.iter_mut().filter(|one| one.closed.is_none()) {
                    one.step(send);
                }
                thread::sleep(Duration::from_millis(20));
            }
            slow
        })
    };
    // While they are there, no request whose body is not complete holds anything.
    eventually(Duration::from_secs(10), "they have come", || {
        gateway.metric("expediter_connections", &[]) > 100.0
    });
    let mut during = normal(&gateway, 60);
    assert_eq!(gateway.metric("expediter_waiting", &[]), 0.0);
    assert!(gateway.metric("expediter_in_flight", &[]) <= 1.0);
    // 2 s, and what a busy machine needs for two thousand sockets, three times over.
    eventually(Duration::from_secs(30), "all slow sockets are closed", || attackers.is_finished());
    stop.store(true, Ordering::SeqCst);
    let slow = attackers.join().expect("the attackers");
    for one in &slow {
        let closed = one.closed.unwrap_or_else(|| panic!("a {:?} socket is still open", one.kind));
        let lived = closed - one.opened;
        assert!(lived < Duration::from_secs(15), "a {:?} socket lived {lived:?}", one.kind);
        // Not before the limit either; a slow start of this loop only makes it longer.
        assert!(lived > Duration::from_millis(1500), "a {:?} socket lived {lived:?}", one.kind);
        let answer = String::from_utf8_lossy(&one.answer);
        if one.kind == Kind::Body {
            assert!(answer.starts_with("HTTP/1.1 408"), "a slow body is told: {answer:?}");
            assert!(answer.contains("body_timeout"), "{answer:?}");
        } else {
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer:?}");
        }
    }
    assert_eq!(replica.requests().len(), 100, "the normal client's requests and no other");
    // The case: p99 rises by less than 50 ms. Of few requests on a busy machine: p90, three times that.
    let (quiet, busy) = (p90(&mut before), p90(&mut during));
    assert!(busy < quiet + Duration::from_millis(150), "p90 rose from {quiet:?} to {busy:?}");
    assert_eq!(gateway.chat().status, 200);
    gateway.wait_records(101);
}

/// Heads that are too large: 431, and the connection closes. The answer arrives although the client
/// was still sending.
#[test]
fn z03_oversize_heads() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let many = (0..10_000).map(|n| format!("x-{n}: {n}\r\n")).collect::<Vec<_>>().concat();
    let heads = [
        (
            "a header line of 1 MB",
            format!("POST {CHAT} HTTP/1.1\r\nhost: g\r\nx-a: {}\r\n\r\n", "a".repeat(1 << 20)),
        ),
        ("10,000 headers", format!("POST {CHAT} HTTP/1.1\r\nhost: g\r\n{many}\r\n")),
        ("a name of 1 MB", format!("POST {CHAT} HTTP/1.1\r\nhost: g\r\n{}: 1\r\n\r\n", "a".repeat(1 << 20))),
        ("a target of 1 MB", format!("GET /{} HTTP/1.1\r\nhost: g\r\n\r\n", "a".repeat(1 << 20))),
        ("a method of 1 MB", format!("{} / HTTP/1.1\r\nhost: g\r\n\r\n", "A".repeat(1 << 20))),
    ];
    let before = gateway.resident_bytes();
    for (name, head) in heads {
        let mut client = gateway.connect();
        let _ = client.try_send(&head);
        match client.try_begin_answer() {
            Ok(mut answer) => {
                client.finish(&mut answer);
                let expected: &[u16] = if name.contains("target") || name.contains("method") {
                    &[400, 414, 431]
                } else {
                    &[431]
                };
                assert!(expected.contains(&answer.status), "{name}: {}", answer.describe());
            }
            Err(end) => panic!("{name}: {end:?} instead of an answer"),
        }
        client.wait_end();
    }
    assert!(gateway.resident_bytes() < before + (50 << 20));
    assert!(replica.requests().is_empty());
    // A head of a size that people have (a long token, many cookies) passes.
    let mut client = gateway.connect();
    let body = chat_body(false);
    let cookies = (0..50).map(|n| format!("x-{n}: {}\r\n", "c".repeat(500))).collect::<Vec<_>>().concat();
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\nhost: g\r\n{cookies}content-length: {}\r\n\r\n{body}",
        body.len()
    ));
    assert_eq!(client.read_answer().status, 200);
}

/// The limits of a connection between requests: the next head's, not the last one's.
#[test]
fn idle_connections_and_second_heads_have_limits_of_their_own() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).set("limits.idle_ms", 1500).set("limits.head_ms", 700).start();
    let body = chat_body(false);
    // Idle for longer than a head may take: still there.
    let mut client = gateway.connect();
    for _ in 0..3 {
        client.post(CHAT, &body);
        assert_eq!(client.read_answer().status, 200);
        thread::sleep(Duration::from_millis(900));
    }
    let began = Instant::now();
    assert_eq!(client.wait_end(), End::Fin, "closed when it was idle for too long");
    assert!(began.elapsed() < Duration::from_secs(5));
    // A second head that stops half way.
    let mut client = gateway.connect();
    client.post(CHAT, &body);
    assert_eq!(client.read_answer().status, 200);
    client.send("POST /v1/chat/comp");
    let began = Instant::now();
    client.wait_end();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    // In the middle of a pipelined one, behind a request that is served for longer than a head may take.
    replica.on_post(crate::kit::script::script(|conn, request| {
        conn.pause(Duration::from_millis(1500))?;
        crate::kit::script::good("cc-1", &["ok"])(conn, request)
    }));
    let mut client = gateway.connect();
    client.post(CHAT, &body);
    client.send("POST /v1/chat/comp");
    assert_eq!(client.read_answer().status, 200, "the one that is served is served to its end");
    client.wait_end();
}

/// A body that keeps the pace of the limit is waited for, however long it takes.
#[test]
fn a_steady_slow_body_is_served() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica])
        .set("limits.head_ms", 1000)
        .set("limits.body_bytes_per_second_min", 100)
        .start();
    let body = chat_body(false) + &" ".repeat(600);
    let mut client: Client = gateway.connect();
    client.send(format!("POST {CHAT} HTTP/1.1\r\nhost: g\r\ncontent-length: {}\r\n\r\n", body.len()));
    for piece in body.as_bytes().chunks(50) {
        client.send(piece);
        thread::sleep(Duration::from_millis(150));
    }
    let answer = client.read_answer();
    assert_eq!(answer.status, 200, "{}", answer.describe());
    // One that does not is told.
    let mut client = gateway.connect();
    client.send(format!("POST {CHAT} HTTP/1.1\r\nhost: g\r\ncontent-length: 5000\r\n\r\n{{"));
    let answer = client.read_answer();
    assert_eq!(answer.status, 408, "{}", answer.describe());
    assert_eq!(answer.error_code(), "body_timeout");
    client.wait_end();
    // Chunked, with a byte a chunk.
    let mut client = gateway.connect();
    client.send(format!("POST {CHAT} HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n"));
    let began = Instant::now();
    while client.ended_within(Duration::from_millis(100)).is_none()
        && began.elapsed() < Duration::from_secs(10)
    {
        let _ = client.try_send("1\r\n \r\n");
    }
    assert!(began.elapsed() < Duration::from_secs(10), "still open");
}

/// Where all places are taken, newcomers wait for one and are then served.
#[test]
fn connections_have_a_limit() {
    let replica = Replica::start("m-8b");
    let gateway =
        Gateway::with(&[&replica]).set("limits.connections_max", 8).set("limits.head_ms", 1500).start();
    // The readiness question has gone by now.
    eventually(Duration::from_secs(10), "no connection", || {
        gateway.metric("expediter_connections", &[]) == 0.0
    });
    let holders: Vec<Client> = (0..8).map(|_| gateway.connect()).collect();
    eventually(Duration::from_secs(10), "all places taken", || {
        gateway.metric("expediter_connections", &[]) == 8.0
    });
    let mut next = gateway.connect();
    next.post(CHAT, chat_body(false));
    assert_eq!(next.read_answer().status, 200, "after those who said nothing were sent away");
    drop(holders);
}
