//! Usage records: one a request, whoever ended it, with counts whose origin is known.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::kit::client::Progress;
use crate::kit::fixture;
use crate::kit::gateway::{CHAT, COMPLETIONS, Gateway, chat_body, tokens_body};
use crate::kit::replica::{Replica, Script, Then};
use crate::kit::script::{self, finish_frame, role_frame, script, text_frame, token_frame};
use crate::kit::sse;
use crate::kit::wait::let_pass;

/// Ten tokens of a completion and then silence until the peer leaves.
fn ten_tokens() -> Script {
    script(|conn, _| {
        conn.sse_head()?;
        for n in 0..10 {
            conn.event(&text_frame("cmpl-1", &format!("t{n} "), None))?;
            conn.pause(Duration::from_millis(2))?;
        }
        Ok(Then::Hold)
    })
}

fn leave_after_ten_tokens(gateway: &Gateway) {
    let mut client = gateway.connect();
    client.post(COMPLETIONS, tokens_body(40, 500, true));
    let mut answer = client.begin_answer();
    client.read_events(&mut answer, 10);
    client.close();
}

fn assert_cancelled(record: &Value, replica: &Replica, output: std::ops::RangeInclusive<u64>) {
    assert_eq!(record["outcome"], "cancelled", "{record}");
    assert_eq!(record["input_tokens"], 40, "{record}");
    assert!(record["output_tokens"].as_u64().is_some_and(|tokens| output.contains(&tokens)), "{record}");
    assert_eq!(record["counted"], "gateway", "{record}");
    assert_eq!((&record["model"], &record["pool"]), (&json!("m-8b"), &json!("m-8b")), "{record}");
    assert_eq!(
        record["replica"].as_str().map(|url| url.trim_end_matches('/')),
        Some(&*replica.url()),
        "{record}"
    );
}

#[test]
fn u01_the_client_left_and_the_tokens_were_made() {
    let replica = Replica::start("m-8b");
    replica.on_post(ten_tokens());
    let gateway = Gateway::with(&[&replica]).start();
    leave_after_ten_tokens(&gateway);
    assert_cancelled(&gateway.wait_record(), &replica, 9..=11);
    gateway.wait_idle();
}

#[test]
fn u01_the_client_left_before_a_whole_answer() {
    let replica = Replica::start("m-8b");
    replica.on_post(script::silent());
    let gateway = Gateway::with(&[&replica]).start();
    let mut client = gateway.connect();
    client.post(COMPLETIONS, tokens_body(40, 500, false));
    replica.wait_requests(1);
    let_pass(Duration::from_secs(1));
    client.close();
    let record = gateway.wait_record();
    assert_eq!((&record["outcome"], &record["input_tokens"]), (&json!("cancelled"), &json!(40)), "{record}");
    assert!(record["output_tokens"].is_null(), "what was made is unknown: {record}");
    assert!(record["total_ms"].as_f64().is_some_and(|ms| ms >= 900.0), "{record}");
}

#[test]
fn u01_a_hundred_leave_at_once() {
    let replica = Replica::start("m-8b");
    replica.on_post(ten_tokens());
    let gateway = Gateway::with(&[&replica]).start();
    thread::scope(|scope| (0..100).for_each(|_| drop(scope.spawn(|| leave_after_ten_tokens(&gateway)))));
    let records = gateway.wait_records(100);
    for record in &records {
        assert_cancelled(record, &replica, 9..=11);
    }
    let mut ids: Vec<String> = records.iter().map(|record| record["request_id"].to_string()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 100, "each request has its own record");
    gateway.wait_idle();
}

#[test]
fn u01_no_record_is_lost_when_the_gateway_stops_right_after() {
    let replica = Replica::start("m-8b");
    replica.on_post(ten_tokens());
    let mut gateway = Gateway::with(&[&replica]).start();
    thread::scope(|scope| (0..50).for_each(|_| drop(scope.spawn(|| leave_after_ten_tokens(&gateway)))));
    gateway.stop();
    let records = gateway.records();
    assert_eq!(records.len(), 50);
    assert!(records.iter().all(|record| record["outcome"] == "cancelled"), "{records:#?}");
}

/// Streams that are cut by the end of the gateway itself have a record as well. The limit for them
/// is half a second here.
#[test]
fn streams_that_a_stop_cuts_have_records_too() {
    let replica = Replica::start("m-8b");
    replica.on_post(ten_tokens());
    let mut gateway = Gateway::with(&[&replica]).set("limits.stop_ms", 500).start();
    let mut client = gateway.connect();
    client.post(COMPLETIONS, tokens_body(40, 500, true));
    let mut answer = client.begin_answer();
    client.read_events(&mut answer, 10);
    gateway.stop();
    client.finish(&mut answer);
    assert!(!answer.text().contains("[DONE]"), "{}", answer.describe());
    let records = gateway.records();
    assert_eq!(records.len(), 1, "{records:#?}");
    assert!(
        records[0]["output_tokens"].as_u64().is_some_and(|tokens| (9..=11).contains(&tokens)),
        "{records:#?}"
    );
}

#[test]
fn u02_cached_tokens_lost_between_two_usage_chunks() {
    let zero = String::from_utf8(fixture("U02a.sse"))
        .unwrap()
        .replace("\"cached_tokens\":48", "\"cached_tokens\":0");
    let cases = [
        ("U02a", fixture("U02a.sse"), 48),
        ("U02b", fixture("U02b.sse"), 48),
        ("zero", zero.into_bytes(), 0),
    ];
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let mut body: Value = serde_json::from_str(&chat_body(true)).unwrap();
    body["stream_options"] = json!({"include_usage": true});
    for (n, (name, file, cached)) in cases.into_iter().enumerate() {
        replica.on_post(script::sse(file.clone()));
        let answer = gateway.post(CHAT, &body.to_string());
        assert_eq!(answer.payloads(), sse::payloads(&file), "{name}: each usage object as sent");
        let record = &gateway.wait_records(n + 1)[n];
        assert_eq!(
            (&record["input_tokens"], &record["output_tokens"]),
            (&json!(64), &json!(2)),
            "{name}: {record}"
        );
        assert_eq!(
            (&record["cached_tokens"], &record["counted"]),
            (&json!(cached), &json!("engine")),
            "{name}"
        );
    }
}

/// (the `usage` member of a whole answer, the record's input, output and cached tokens)
#[test]
fn u02_unknown_is_not_zero_in_a_whole_answer() {
    let counts = r#""prompt_tokens":64,"completion_tokens":2,"total_tokens":66"#;
    let cases = [
        (format!("{{{counts},\"prompt_tokens_details\":null}}"), json!([64, 2, null])),
        (format!("{{{counts}}}"), json!([64, 2, null])),
        (format!("{{{counts},\"prompt_tokens_details\":{{\"cached_tokens\":null}}}}"), json!([64, 2, null])),
        (format!("{{{counts},\"prompt_tokens_details\":{{\"cached_tokens\":0}}}}"), json!([64, 2, 0])),
        (format!("{{\"prompt_tokens_details\":{{\"cached_tokens\":48}},{counts}}}"), json!([64, 2, 48])),
    ];
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    for (n, (usage, expected)) in cases.into_iter().enumerate() {
        let choices = r#"[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}]"#;
        let body = format!("{{\"id\":\"cc-1\",\"choices\":{choices},\"usage\":{usage}}}");
        replica.on_post(script::answer(200, "application/json", body.clone()));
        assert_eq!(gateway.chat().text(), body);
        let record = &gateway.wait_records(n + 1)[n];
        let found = json!([record["input_tokens"], record["output_tokens"], record["cached_tokens"]]);
        assert_eq!(found, expected, "{usage}: {record}");
        assert_eq!(record["counted"], "engine", "{usage}: {record}");
    }
}

#[test]
fn c03_usage_the_client_did_not_ask_for() {
    let file = fixture("C03.sse");
    let without: Vec<String> =
        sse::payloads(&file).into_iter().filter(|payload| !payload.contains("\"choices\":[]")).collect();
    let replica = Replica::start("m-8b");
    let (asked, silent) = (script::sse(file.clone()), script::sse(script::stream_of(&without)));
    replica.on_post(script(move |conn, request| {
        if script::wants_usage(request) { asked(conn, request) } else { silent(conn, request) }
    }));
    let gateway = Gateway::with(&[&replica]).start();
    // (`stream_options` as sent, whether the usage chunk may reach the client)
    let cases = [
        ("", false),
        ("\"stream_options\":null,", false),
        ("\"stream_options\":{},", false),
        ("\"stream_options\":{\"include_usage\":false},", false),
        ("\"stream_options\":{\"include_usage\":true},", true),
        ("\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true},", true),
        ("\"stream_options\" : { \"x\" : [1.50] , \"include_usage\" : null } ,", false),
        ("\"stream_options\":{\"include_usage\":false,\"x\":\"include_usage\"},", false),
    ];
    for (n, (options, shown)) in cases.into_iter().enumerate() {
        let body = format!(
            "{{\"model\":\"m-8b\",{options}\"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}],\"stream\":true}}"
        );
        let answer = gateway.post(CHAT, &body);
        let expected = if shown { sse::payloads(&file) } else { without.clone() };
        assert_eq!(answer.payloads(), expected, "{options}");
        let record = &gateway.wait_records(n + 1)[n];
        assert_eq!(
            (&record["input_tokens"], &record["output_tokens"]),
            (&json!(9), &json!(2)),
            "{options}: {record}"
        );

        let request = &replica.requests()[n];
        let mut sent: Value = serde_json::from_str(&body).unwrap();
        if !sent["stream_options"].is_object() {
            sent["stream_options"] = json!({});
        }
        sent["stream_options"]["include_usage"] = json!(true);
        assert_eq!(request.json(), sent, "{options}: other members are kept");
    }
    gateway.chat();
    assert!(replica.requests().last().is_some_and(|request| request.json().get("stream_options").is_none()));
}

/// The chunk that is taken out may come in pieces, or glued to its neighbours.
#[test]
fn an_unasked_usage_chunk_is_taken_out_wherever_the_writes_are_cut() {
    let file = fixture("C03.sse");
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let crlf = String::from_utf8(file.clone()).unwrap().replace('\n', "\r\n").into_bytes();
    for (n, (stream, size)) in
        [(file.clone(), 1), (file.clone(), 50), (file.clone(), 1 << 20), (crlf, 33)].into_iter().enumerate()
    {
        let pieces: Vec<Vec<u8>> = stream.chunks(size).map(<[u8]>::to_vec).collect();
        replica.on_post(script(move |conn, _| {
            conn.sse_head()?;
            for piece in &pieces {
                conn.chunk(piece)?;
            }
            conn.last_chunk()?;
            Ok(Then::KeepAlive)
        }));
        let answer = gateway.chat_stream();
        assert_eq!(sse::text(&answer.body), "ok", "pieces of {size}");
        assert!(!answer.text().contains("usage"), "pieces of {size}: {}", answer.describe());
        assert_eq!(answer.payloads().last().map(String::as_str), Some("[DONE]"), "pieces of {size}");
        sse::assert_clean(&answer.body);
        assert_eq!(gateway.wait_records(n + 1)[n]["output_tokens"], 2);
    }
}

/// Usage that rides on a chunk with choices is not the gateway's to take out.
#[test]
fn usage_on_a_chunk_with_choices_stays_also_where_nobody_asked() {
    let replica = Replica::start("m-8b");
    replica.on_post(script::sse(fixture("S03b.sse")));
    let gateway = Gateway::with(&[&replica]).start();
    let answer = gateway.chat_stream();
    assert_eq!(answer.payloads(), sse::payloads(&fixture("S03b.sse")));
    assert_eq!(gateway.wait_record()["output_tokens"], 5);
}

/// An engine without usage, and one whose `usage` is null in every frame: the gateway counts, and
/// says so.
#[test]
fn without_usage_the_gateway_counts_frames_and_says_so() {
    let with_null = |payload: String| payload.replacen('{', "{\"usage\":null,", 1);
    let frames: Vec<String> = [role_frame("cc-1")]
        .into_iter()
        .chain((0..7).map(|n| token_frame("cc-1", &format!("t{n} "))))
        .chain([finish_frame("cc-1", "stop")])
        .collect();
    let done = ["[DONE]".to_owned()];
    let nulls: Vec<String> = frames.iter().cloned().map(with_null).collect();
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    for (n, frames) in [frames, nulls].into_iter().enumerate() {
        replica.on_post(script::sse(script::stream_of(&[&frames[..], &done[..]].concat())));
        let answer = gateway.chat_stream();
        assert_eq!((answer.progress, answer.payloads().len()), (Progress::Complete, frames.len() + 1));
        let record = &gateway.wait_records(n + 1)[n];
        assert_eq!(
            (&record["counted"], &record["outcome"]),
            (&json!("gateway"), &json!("completed")),
            "{record}"
        );
        // Seven tokens; the frames that open and close the message may count.
        assert!(record["output_tokens"].as_u64().is_some_and(|tokens| (7..=9).contains(&tokens)), "{record}");
        assert!(record["cached_tokens"].is_null(), "{record}");
    }
}

/// Running totals are the engine's own count up to where the client left.
#[test]
fn a_client_that_leaves_amid_running_totals_is_billed_by_them() {
    let replica = Replica::start("m-8b");
    let cut = fixture("S03b.sse");
    let events = script::split_events(&cut)[..4].concat();
    replica.on_post(script::sse_cut(events, Then::Hold));
    let gateway = Gateway::with(&[&replica]).start();
    let mut client = gateway.connect();
    client.post(CHAT, chat_body(true));
    let mut answer = client.begin_answer();
    client.read_events(&mut answer, 4);
    client.close();
    let record = gateway.wait_record();
    assert_eq!(record["outcome"], "cancelled", "{record}");
    assert_eq!((&record["input_tokens"], &record["output_tokens"]), (&json!(20), &json!(3)), "{record}");
}
