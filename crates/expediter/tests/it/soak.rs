//! Everything at once, drawn from a seed: replicas that fail in many ways, clients that leave in
//! many ways. Whatever happens, each answer is the client's own, no broken answer looks complete,
//! each request has one record, and when it is over nothing is in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::kit::client::{Progress, post_bytes};
use crate::kit::gateway::{CHAT, Gateway};
use crate::kit::replica::{Replica, Script, Then};
use crate::kit::script::{self, finish_frame, role_frame, script, token_frame};
use crate::kit::sse;
use crate::kit::wait::let_pass;

/// Numbers that look random and follow from the seed (xorshift64*).
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }
}

/// An answer that says the request's own word five times.
fn echo() -> Script {
    script(|conn, request| {
        let word = word_of(request);
        if !script::wants_stream(request) {
            conn.answer(200, "application/json", script::completion("cc", &word.repeat(5), "stop", 1, 5))?;
            return Ok(Then::KeepAlive);
        }
        conn.sse_head()?;
        conn.event(&role_frame("cc"))?;
        for _ in 0..5 {
            conn.event(&token_frame("cc", &word))?;
            conn.pause(Duration::from_millis(2))?;
        }
        conn.event(&finish_frame("cc", "stop"))?;
        conn.event("[DONE]")?;
        conn.last_chunk()?;
        Ok(Then::KeepAlive)
    })
}

fn word_of(request: &crate::kit::replica::Request) -> String {
    request.json()["messages"][0]["content"].as_str().unwrap_or_default().to_owned()
}

/// The request's own word twice, or half a whole answer, and then the given end.
fn half(then: Then) -> Script {
    let stream = script(move |conn, request| {
        conn.sse_head()?;
        for _ in 0..2 {
            conn.event(&token_frame("cc", &word_of(request)))?;
        }
        Ok(then)
    });
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n{\"id\":";
    script::by_stream(stream, script::raw(head, then))
}

/// Good in most cases; else one of many faults.
fn moody(seed: u64) -> Script {
    let faults: Vec<Script> = vec![
        script::raw("", Then::Reset),
        script::raw("", Then::Fin),
        script::raw("rubbish\r\n\r\n", Then::Fin),
        script::error(500, "InternalServerError", "no"),
        script::error(503, "Service Unavailable", "full"),
        script::error(400, "BadRequestError", "no"),
        half(Then::Reset),
        half(Then::Fin),
        script::raw(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{",
            Then::Reset,
        ),
        script(|conn, _| conn.pause(Duration::from_millis(150)).map(|()| Then::Reset)),
    ];
    let (good, calls) = (echo(), Arc::new(AtomicUsize::new(0)));
    script(move |conn, request| {
        let call = calls.fetch_add(1, Ordering::Relaxed) as u64;
        let mut draws =
            Draws(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (call + 1).wrapping_mul(0xd134_2543_de82_ef95));
        draws.below(2);
        if draws.below(4) > 0 {
            return good(conn, request);
        }
        let fault = usize::try_from(draws.below(faults.len() as u64)).expect("small");
        faults[fault](conn, request)
    })
}

/// One request by a client of some mood, with its word as the request's id. Returns whether it saw
/// that its request was taken.
fn ask(gateway: &Gateway, word: &str, draws: &mut Draws) -> bool {
    let stream = draws.below(3) > 0;
    let messages = [json!({"role": "user", "content": word})];
    let body = json!({"model": "m-8b", "messages": messages, "stream": stream}).to_string();
    let mut client = gateway.connect();
    client.send(post_bytes(CHAT, &[("x-request-id", word)], body.as_bytes()));
    match draws.below(8) {
        0 => {
            client.reset();
            false
        }
        1 => {
            let_pass(Duration::from_millis(draws.below(30)));
            client.close();
            false
        }
        2 => {
            client.send("\r\n");
            let_pass(Duration::from_millis(draws.below(10)));
            client.half_close();
            client.wait_end();
            false
        }
        3 => {
            let mut answer = client.begin_answer();
            client.read_more(&mut answer);
            client.reset();
            true
        }
        _ => {
            let answer = client.read_answer();
            assert_eq!(answer.progress, Progress::Complete, "{word}: {}", answer.describe());
            check(&answer, stream, word);
            true
        }
    }
}

fn check(answer: &crate::kit::client::Answer, stream: bool, word: &str) {
    if answer.status != 200 {
        assert!(answer.json()["error"].is_object(), "{word}: {}", answer.describe());
        return;
    }
    if !stream {
        assert_eq!(answer.json()["choices"][0]["message"]["content"], word.repeat(5), "{word}");
        return;
    }
    let text = sse::text(&answer.body);
    let payloads = answer.payloads();
    if payloads.last().is_some_and(|last| last == "[DONE]") {
        assert_eq!(text, word.repeat(5), "{word}");
    } else {
        assert_eq!(text, word.repeat(2), "{word}: a cut answer of its own");
        sse::assert_ends_in_error(&answer.body, &payloads[..payloads.len() - 1]);
    }
}

#[test]
fn under_faults_nothing_is_lost_and_after_healing_everything_finishes() {
    for seed in [1, 2, 3] {
        eprintln!("seed {seed}");
        let replicas: Vec<Replica> = (0..4).map(|_| Replica::start("m-8b")).collect();
        for (n, replica) in replicas.iter().enumerate() {
            replica.on_post(moody(10 * seed + n as u64));
        }
        let all: Vec<&Replica> = replicas.iter().collect();
        // A breaker that opens would leave the later requests without a replica to fail on.
        let mut gateway = Gateway::with(&all)
            .set("breaker.failures_max", 1000)
            .set("breaker.window_requests_min", 100_000)
            .set("retry.ratio", 1)
            .start();
        let mut taken: Vec<String> = thread::scope(|scope| {
            let gateway = &gateway;
            let workers: Vec<_> = (0..10)
                .map(|worker| {
                    scope.spawn(move || {
                        let mut draws = Draws(seed * 1000 + worker + 1);
                        let words = (0..20).map(|n| format!("w{worker}n{n}-"));
                        words.filter(|word| ask(gateway, word, &mut draws)).collect::<Vec<_>>()
                    })
                })
                .collect();
            workers.into_iter().flat_map(|worker| worker.join().expect("a worker")).collect()
        });
        gateway.wait_idle();
        for replica in &replicas {
            replica.on_post(echo());
        }
        for n in 0..20 {
            let word = format!("healed{n}-");
            let body = json!({"model": "m-8b", "messages": [{"role": "user", "content": word}]}).to_string();
            let mut client = gateway.connect();
            client.send(post_bytes(CHAT, &[("x-request-id", &word)], body.as_bytes()));
            let answer = client.read_answer();
            assert_eq!(answer.status, 200, "{word}: {}", answer.describe());
            taken.push(word);
        }
        gateway.wait_idle();
        gateway.stop();

        let records = gateway.records();
        let mut ids: Vec<&str> = records.iter().filter_map(|record| record["request_id"].as_str()).collect();
        assert_eq!(ids.len(), records.len());
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), records.len(), "two records of one request");
        for word in &taken {
            assert!(ids.contains(&word.as_str()), "no record of {word}");
        }
    }
}
