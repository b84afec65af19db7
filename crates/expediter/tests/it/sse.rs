//! Event streams: every legal spelling reaches the client with the same payloads, at once, and a
//! stream that broke never looks complete.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::kit::client::{Answer, Progress};
use crate::kit::fixture;
use crate::kit::gateway::{CHAT, Gateway, chat_body};
use crate::kit::h2::H2;
use crate::kit::replica::{Replica, Script, Then};
use crate::kit::script::{self, finish_frame, role_frame, script, split_events, token_frame};
use crate::kit::sse;
use crate::kit::wait::{Signal, median};

/// A stream sent in the given pieces, each a chunk and a write of its own, `pause` apart.
fn in_pieces(pieces: Vec<Vec<u8>>, pause: Duration) -> Script {
    script(move |conn, _| {
        conn.sse_head()?;
        for piece in &pieces {
            conn.chunk(piece)?;
            conn.pause(pause)?;
        }
        conn.last_chunk()?;
        Ok(Then::KeepAlive)
    })
}

fn assert_event_equal(answer: &Answer, file: &[u8], name: &str) {
    assert_eq!((answer.status, answer.progress), (200, Progress::Complete), "{name}: {}", answer.describe());
    assert_eq!(answer.payloads(), sse::payloads(file), "{name}");
    assert_eq!(sse::unfinished(&answer.body), b"", "{name}: bytes after the last event");
    sse::assert_clean(&answer.body);
}

#[test]
fn s01_cut_inside_a_character() {
    let file = fixture("S01.sse");
    let cuts: serde_json::Value = serde_json::from_slice(&fixture("S01.cuts.json")).unwrap();
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    for cut in cuts.as_array().unwrap() {
        let at = usize::try_from(cut["cut_at_byte"].as_u64().unwrap()).unwrap();
        replica.on_post(in_pieces(vec![file[..at].to_vec(), file[at..].to_vec()], Duration::from_millis(20)));
        let answer = gateway.chat_stream();
        assert_event_equal(&answer, &file, &cut.to_string());
        assert!(!answer.text().contains('\u{fffd}'), "{cut}");
    }
    assert_eq!(gateway.wait_records(11).iter().filter(|record| record["outcome"] == "completed").count(), 11);
}

#[test]
fn s01_one_byte_a_write() {
    let file = fixture("S01.sse");
    let replica = Replica::start("m-8b");
    replica.on_post(in_pieces(file.iter().map(|byte| vec![*byte]).collect(), Duration::ZERO));
    let gateway = Gateway::with(&[&replica]).start();
    let answer = gateway.chat_stream();
    assert_event_equal(&answer, &file, "byte by byte");
    assert!(!answer.text().contains('\u{fffd}'));
}

/// The replica sends the next event only after the client has this one: a gateway that holds an
/// event back until more comes does not get past the first. The case's 20 ms are asserted for the
/// median, since a busy machine delays single wake-ups by more.
#[test]
fn s01_whole_events_are_not_held_back() {
    let events = split_events(&fixture("S01.sse"));
    let received: Vec<Signal> = events.iter().map(|_| Signal::new()).collect();
    let sent = Arc::new(Mutex::new(Vec::new()));
    let replica = Replica::start("m-8b");
    replica.on_post({
        let (events, received, sent) = (events.clone(), received.clone(), Arc::clone(&sent));
        script(move |conn, _| {
            conn.sse_head()?;
            for (event, received) in events.iter().zip(&received) {
                let (first, second) = event.split_at(event.len() / 2);
                conn.chunk(first)?;
                conn.pause(Duration::from_millis(20))?;
                sent.lock().unwrap().push(Instant::now());
                conn.chunk(second)?;
                conn.wait(received)?;
            }
            conn.last_chunk()?;
            Ok(Then::KeepAlive)
        })
    });
    let gateway = Gateway::with(&[&replica]).start();
    let mut client = gateway.connect();
    client.post(CHAT, chat_body(true));
    let mut answer = client.begin_answer();
    let mut delays = Vec::new();
    for (n, received) in received.iter().enumerate() {
        client.read_events(&mut answer, n + 1);
        delays.push(Instant::now().saturating_duration_since(sent.lock().unwrap()[n]));
        received.raise();
    }
    client.finish(&mut answer);
    assert_eq!(answer.payloads().len(), events.len());
    assert!(median(&delays) <= Duration::from_millis(20), "{delays:?}");
}

#[test]
fn s02_frames_that_carry_no_data() {
    let file = fixture("S02.sse");
    let replica = Replica::start("m-8b");
    replica.on_post(script::sse(file.clone()));
    let gateway = Gateway::with(&[&replica]).start();
    let answer = gateway.chat_stream();
    assert_event_equal(&answer, &file, "S02");
    assert_eq!(sse::text(&answer.body), "one two");
    for forbidden in ["retry:", "id:", "event:", "data:\n", "data: \n"] {
        assert!(!answer.text().lines().any(|line| format!("{line}\n").starts_with(forbidden)), "{forbidden}");
    }
}

/// The case's 40 s of silence are 3 s here: the gateway has no heartbeat of its own, and if it gets
/// one, its period is to be set below a second here.
#[test]
fn s02_silence_brings_no_frames_of_our_own_but_comments() {
    let replica = Replica::start("m-8b");
    replica.on_post(script(|conn, _| {
        conn.pause(Duration::from_millis(1500))?;
        conn.sse_head()?;
        conn.event(&role_frame("cc-1"))?;
        conn.pause(Duration::from_secs(3))?;
        for payload in [token_frame("cc-1", "one two"), finish_frame("cc-1", "stop"), "[DONE]".to_owned()] {
            conn.event(&payload)?;
        }
        conn.last_chunk()?;
        Ok(Then::KeepAlive)
    }));
    let gateway = Gateway::with(&[&replica]).start();
    let answer = gateway.chat_stream();
    sse::assert_clean(&answer.body);
    assert_eq!(sse::text(&answer.body), "one two");
    assert_eq!(answer.payloads().last().map(String::as_str), Some("[DONE]"));
}

#[test]
fn s03_usage_that_is_not_the_end() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let body = json!({"model": "m-8b", "messages": [{"role": "user", "content": "hi"}], "stream": true,
                      "stream_options": {"include_usage": true}});
    let cases = [("S03a.sse", "alpha beta", 252), ("S03b.sse", "a b c d", 5)];
    for (n, (name, text, output)) in cases.into_iter().enumerate() {
        replica.on_post(script::sse(fixture(name)));
        let answer = gateway.post(CHAT, &body.to_string());
        assert_event_equal(&answer, &fixture(name), name);
        assert_eq!(sse::text(&answer.body), text, "{name}");
        let record = gateway.wait_records(n + 1).remove(n);
        assert_eq!(
            (&record["input_tokens"], &record["output_tokens"]),
            (&json!(20), &json!(output)),
            "{name}"
        );
        assert_eq!(
            (&record["counted"], &record["outcome"]),
            (&json!("engine"), &json!("completed")),
            "{name}"
        );
    }
}

#[test]
fn s04_the_replica_dies_in_the_middle() {
    let whole = sse::payloads(&fixture("S04.sse"));
    let clean = script(|conn, _| {
        conn.sse_head()?;
        conn.chunk(fixture("S04.sse"))?;
        conn.last_chunk()?;
        Ok(Then::KeepAlive)
    });
    let cases = [
        ("FIN", script::sse_cut(fixture("S04.sse"), Then::Fin)),
        ("RST", script::sse_cut(fixture("S04.sse"), Then::Reset)),
        ("final chunk", clean),
    ];
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    for (n, (name, script)) in cases.into_iter().enumerate() {
        replica.on_post(script);
        let mut client = gateway.connect();
        client.post(CHAT, chat_body(true));
        let answer = client.read_answer();
        assert_eq!(answer.status, 200, "{name}: {}", answer.describe());
        let error = sse::assert_ends_in_error(&answer.body, &whole);
        assert_eq!(error["code"], "replica_failed", "{name}");
        assert!(!answer.payloads().contains(&"[DONE]".to_owned()), "{name}");
        assert!(!answer.text().contains("\"finish_reason\":\""), "{name}: a made-up finish reason");
        let records = gateway.wait_records(2 * n + 1);
        let record = &records[2 * n];
        assert_eq!(record["outcome"], "upstream_failure", "{name}: {record}");
        // Two tokens; the role frame before them may count as a frame.
        assert!(matches!(record["output_tokens"].as_u64(), Some(2 | 3)), "{name}: {record}");
        assert_eq!(record["counted"], "gateway", "{name}: {record}");
        gateway.wait_idle();

        // The client's connection either goes on as HTTP/1.1 or is closed.
        replica.on_post(script::good("cc-1", &["ok"]));
        let sent = answer.progress == Progress::Complete && client.try_send(post(&chat_body(false))).is_ok();
        let next = if sent { client.try_begin_answer().ok() } else { None };
        match next {
            Some(mut next) => {
                client.finish(&mut next);
                assert_eq!((next.status, next.json()["id"].as_str()), (200, Some("cc-1")), "{name}");
            }
            None => assert_eq!(gateway.chat().status, 200, "{name}"),
        }
        gateway.wait_records(2 * n + 2);
    }
}

/// The same towards clients that do not read chunks: over HTTP/2, and over HTTP/1.0 until close.
#[test]
fn s04_towards_http2_and_http1_0_clients() {
    let whole = sse::payloads(&fixture("S04.sse"));
    let replica = Replica::start("m-8b");
    replica.on_post(script::sse_cut(fixture("S04.sse"), Then::Reset));
    let gateway = Gateway::with(&[&replica]).start();
    let mut client = H2::connect(gateway.address);
    let answer = client.post(CHAT, &chat_body(true));
    assert_eq!((answer.status, &answer.error), (200, &None));
    sse::assert_ends_in_error(&answer.body, &whole);

    let request = post(&chat_body(true));
    let request = String::from_utf8(request).unwrap().replacen("HTTP/1.1", "HTTP/1.0", 1);
    let mut client = gateway.connect();
    client.send(request);
    let answer = client.read_answer();
    assert_eq!((answer.status, answer.header("transfer-encoding")), (200, None), "{}", answer.describe());
    sse::assert_ends_in_error(&answer.body, &whole);
    assert!(gateway.wait_records(2).iter().all(|record| record["outcome"] == "upstream_failure"));
}

fn post(body: &str) -> Vec<u8> {
    crate::kit::client::post_bytes(CHAT, &[], body.as_bytes())
}

/// `S05.sse` with its long string grown so that the line has about `bytes` bytes.
fn s05_grown_to(bytes: usize) -> Vec<u8> {
    let file = fixture("S05.sse");
    let pattern = b"0123456789abcdef";
    let at = crate::kit::replica::find(&file, pattern).expect("the long string");
    let more = pattern.repeat(bytes.saturating_sub(file.len()) / pattern.len());
    [&file[..at], &more, &file[at..]].concat()
}

#[test]
fn s05_one_very_long_line() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    for bytes in [70_000, 1_500_000, 8_000_000] {
        let file = s05_grown_to(bytes);
        replica.on_post(in_pieces(file.chunks(1400).map(<[u8]>::to_vec).collect(), Duration::ZERO));
        let before = gateway.resident_bytes();
        let answer = gateway.chat_stream();
        let after = gateway.resident_bytes();
        assert_eq!(answer.progress, Progress::Complete);
        assert!(answer.payloads() == sse::payloads(&file), "{bytes}: the payloads differ");
        assert!(answer.text().contains("\"finish_reason\":\"tool_calls\""), "{bytes}");
        // Below a megabyte the allocator's own steps are larger than the line.
        if bytes > 1_000_000 {
            let grown = after.saturating_sub(before);
            assert!(grown <= 4 * bytes as u64, "{bytes}: memory grew by {grown}");
        }
    }
}

#[test]
fn s05_a_line_beyond_the_cap_is_an_error_event_and_no_quiet_stop() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).set("limits.event_bytes_max", 1_048_576).start();
    let file = s05_grown_to(1_500_000);
    replica.on_post(in_pieces(file.chunks(1400).map(<[u8]>::to_vec).collect(), Duration::ZERO));
    let answer = gateway.chat_stream();
    let role = sse::payloads(&file)[..1].to_vec();
    sse::assert_ends_in_error(&answer.body, &role);
    assert_eq!(gateway.wait_record()["outcome"], "upstream_failure");
}

#[test]
fn every_legal_spelling_of_an_event_stream_arrives() {
    let plain = fixture("S01.sse");
    let text = String::from_utf8(plain.clone()).unwrap();
    // JSON allows a line break after a comma, so these lines join to the same value.
    let multi_line = text.replace(",\"choices\"", ",\ndata: \"choices\"");
    let cases: [(&str, String); 10] = [
        ("CRLF", text.replace('\n', "\r\n")),
        ("CR", text.replace('\n', "\r")),
        ("a byte order mark", format!("\u{feff}{text}")),
        ("no space after the colon", text.replace("data: ", "data:")),
        ("several data lines", multi_line),
        ("comments between", text.replace("data: {", ": c\n\ndata: {").replace("\n\n", "\n\n\n\n")),
        ("a comment inside each event", text.replace("data: {", ": data: no\ndata: {")),
        ("named events", text.replace("data: {", "event: message\ndata: {")),
        ("unknown fields", text.replace("data: {", "datax: 1\nfoo\ndata: {")),
        ("mixed ends of line", text.replacen("\n\n", "\r\n\n", 1).replacen("}\n\n", "}\r\r\n", 1)),
    ];
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    for (name, stream) in cases {
        let stream = stream.into_bytes();
        let sizes = [("one chunk", stream.len()), ("small writes", 7)];
        for (how, size) in sizes {
            replica.on_post(in_pieces(stream.chunks(size).map(<[u8]>::to_vec).collect(), Duration::ZERO));
            assert_event_equal(&gateway.chat_stream(), &stream, &format!("{name}, {how}"));
        }
    }
    assert!(gateway.wait_records(20).iter().all(|record| record["outcome"] == "completed"));
}

/// A chunk boundary of the body means nothing: events are glued and cut at will, also in one write
/// with the head, and also like TLS records.
#[test]
fn chunks_and_events_need_not_agree() {
    let file = fixture("S01.sse");
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunks =
        |size: usize| -> Vec<u8> { file.chunks(size).flat_map(crate::kit::replica::chunked).collect() };
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    for (chunk, write) in [(usize::MAX, usize::MAX), (100, 1 << 20), (5, 16), (300, 129), (1, 3)] {
        let bytes = [&head[..], &chunks(chunk.min(file.len())), b"0\r\n\r\n"].concat();
        replica.on_post(script(move |conn, _| {
            conn.send_pieces(&bytes, write.min(bytes.len()), Duration::from_micros(100))?;
            Ok(Then::KeepAlive)
        }));
        assert_event_equal(&gateway.chat_stream(), &file, &format!("chunks of {chunk}, writes of {write}"));
    }
}

/// Chunk extensions and trailers are legal, and are the replica's own affair.
#[test]
fn chunk_extensions_and_trailers_do_not_reach_the_events() {
    let file = fixture("S01.sse");
    let replica = Replica::start("m-8b");
    replica.on_post({
        let file = file.clone();
        script(move |conn, _| {
            conn.sse_head()?;
            for event in split_events(&file) {
                conn.send(format!("{:X};ext=\"a;b\"\r\n", event.len()))?;
                conn.send(&event)?;
                conn.send("\r\n")?;
            }
            conn.send("0\r\nx-trailer: 1\r\n\r\n")?;
            Ok(Then::KeepAlive)
        })
    });
    let gateway = Gateway::with(&[&replica]).start();
    assert_event_equal(&gateway.chat_stream(), &file, "extensions");
    assert_event_equal(&gateway.chat_stream(), &file, "extensions, again");
}

/// By the rules a last event without its empty line is dropped. The gateway may end it, or call the
/// stream broken; it must not pass on a half event.
#[test]
fn a_last_event_without_an_empty_line_is_ended_or_an_error() {
    let file = fixture("S01.sse");
    let all = sse::payloads(&file);
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    for cut in [1, 2] {
        replica.on_post(in_pieces(vec![file[..file.len() - cut].to_vec()], Duration::ZERO));
        let answer = gateway.chat_stream();
        assert_eq!(sse::unfinished(&answer.body), b"", "cut {cut}");
        if answer.payloads() != all {
            sse::assert_ends_in_error(&answer.body, &all[..all.len() - 1]);
        }
    }
}

#[test]
fn done_without_a_finish_reason_is_no_complete_answer() {
    let replica = Replica::start("m-8b");
    let frames = [role_frame("cc-1"), token_frame("cc-1", "cut"), "[DONE]".to_owned()];
    replica.on_post(script::sse(script::stream_of(&frames)));
    let gateway = Gateway::with(&[&replica]).start();
    let answer = gateway.chat_stream();
    sse::assert_ends_in_error(&answer.body, &frames[..2]);
    assert_eq!(gateway.wait_record()["outcome"], "upstream_failure");
}

/// With `n` choices each has to finish: one that did says nothing of the other.
#[test]
fn a_stream_that_ends_with_one_of_two_choices_unfinished_is_no_complete_answer() {
    let second = json!({"id": "cc-1", "object": "chat.completion.chunk", "created": 1, "model": "m-8b",
        "choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": null}]});
    let frames =
        [role_frame("cc-1"), token_frame("cc-1", "a"), second.to_string(), finish_frame("cc-1", "stop")];
    let done = [&frames[..], &["[DONE]".to_owned()]].concat();
    let mut body: serde_json::Value = serde_json::from_str(&chat_body(true)).unwrap();
    body["n"] = json!(2);
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    for (name, script) in [
        ("FIN", script::sse_cut(script::stream_of(&frames), Then::Fin)),
        ("[DONE]", script::sse(script::stream_of(&done))),
    ] {
        replica.on_post(script);
        let answer = gateway.post(CHAT, &body.to_string());
        assert!(!answer.payloads().contains(&"[DONE]".to_owned()), "{name}: {}", answer.describe());
        sse::assert_ends_in_error(&answer.body, &frames);
    }
}
