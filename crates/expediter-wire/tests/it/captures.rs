//! Everything that was recorded from real engines.

use std::fs;
use std::path::{Path, PathBuf};

use expediter_wire::kv_events::{
    BlockStored, Encoding, ExtraKey, Hash, KvEvent, KvEventBatch, decode, encode,
};
use expediter_wire::metrics::parse_metrics;
use expediter_wire::models::parse_models;
use expediter_wire::request::{Endpoint, ScanError, scan};
use expediter_wire::sse::{Choices, EventKind, EventSplitter, Finish, Inspection, Usage, inspect};

use crate::invariants;
use crate::invariants::answer::End;

/// A capture: its name from the version's folder on, and its bytes.
type Capture = (String, Vec<u8>);

/// All captures with this extension, of both versions.
fn captures(extension: &str) -> Vec<Capture> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let folders = ["v0.32.0", "v0.16.0"].map(|version| entries(&root.join(version)));
    let files = folders.iter().flatten().flat_map(|folder| entries(folder));
    let wanted = files.filter(|file| file.extension().is_some_and(|found| found == extension));
    let captures: Vec<Capture> = wanted
        .map(|file| {
            let name = file.strip_prefix(&root).unwrap().display().to_string();
            (name, fs::read(&file).unwrap())
        })
        .collect();
    assert!(captures.len() > 5, "the captures are there");
    captures
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    entries
}

fn capture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)).unwrap()
}

/// A stream with heartbeats, whose recording was stopped early.
const CUT_STREAM: &str = "v0.32.0/optional/sse-keep-alive-while-queued.resp";

/// The body of a captured answer.
fn body(name: &str) -> Vec<u8> {
    invariants::answer::check(&capture(name), &[]).expect("a good head").1
}

#[test]
fn every_answer_decodes_whole_whatever_the_pieces() {
    let mut count = 0;
    for (name, mut answer) in captures("resp") {
        if answer.is_empty() {
            continue;
        }
        while answer.starts_with(b"HTTP/1.1 1") {
            let interim = answer.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
            answer.drain(..interim);
        }
        for lengths in [&[1][..], &[7], &[64, 1, 3], &[255]] {
            let read = invariants::answer::check(&answer, lengths);
            let (_, _, end) = read.unwrap_or_else(|| panic!("{name}: no head"));
            // Two answers to HEAD have a length and no body; one recording was stopped early.
            let expected =
                if name.ends_with("_head.resp") || name == CUT_STREAM { End::Cut } else { End::Complete(0) };
            assert_eq!(end, expected, "{name}");
        }
        count += 1;
    }
    assert!(count > 400, "{count}");
}

#[test]
fn every_stream_splits_alike_whatever_the_pieces() {
    let mut count = 0;
    for (name, answer) in captures("resp") {
        let Some((head, body, _)) = invariants::answer::check(&answer, &[]) else { continue };
        let is_stream = head
            .headers
            .get("content-type")
            .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        if !is_stream || body.len() > 20_000 {
            continue;
        }
        for lengths in [&[100][..], &[255, 1, 20]] {
            invariants::sse::check(&body, lengths);
        }
        for payload in invariants::sse::payloads_of(&body) {
            invariants::frame::check(&payload);
        }
        let mut splitter = EventSplitter::new(1 << 20);
        let mut comments = 0;
        splitter
            .push(&body, |event| match event.kind() {
                EventKind::Data(payload) => assert!(!inspect(&payload, true).unparsed, "{name}"),
                EventKind::Comment => comments += 1,
                EventKind::Empty => panic!("{name}: an engine sent an event without data"),
            })
            .unwrap();
        assert_eq!(splitter.tail().is_empty(), name != CUT_STREAM, "{name}");
        assert_eq!(comments > 0, name == CUT_STREAM, "{name}: heartbeats");
        count += 1;
    }
    assert!(count > 40, "{count}");
}

#[test]
fn every_whole_answer_reads_as_serde_json_reads_it() {
    for (_, answer) in captures("resp") {
        if let Some((_, body, _)) = invariants::answer::check(&answer, &[]) {
            invariants::frame::check(&body);
        }
    }
}

#[test]
fn every_request_that_an_engine_served_scans_and_splices() {
    let (mut served, mut refused) = (0, 0);
    for (name, request) in captures("req") {
        let Some(head_end) = request.windows(4).position(|end| end == b"\r\n\r\n") else { continue };
        let (head, body) =
            (String::from_utf8_lossy(&request[..head_end]).into_owned(), &request[head_end + 4..]);
        let endpoint = match head.split(' ').nth(1) {
            Some("/v1/chat/completions") => Endpoint::Chat,
            Some("/v1/completions") => Endpoint::Completions,
            _ => continue,
        };
        // Chunked requests, and one whose body is not kept in full.
        if !head.starts_with("POST")
            || !head.to_ascii_lowercase().contains(&format!("content-length: {}", body.len()))
        {
            continue;
        }
        invariants::request::check(body);
        let answer = capture(&name.replace(".req", ".resp"));
        // The engine of 0.16.0 answered everything with 500 after one of the requests had killed it.
        let is_served = answer.starts_with(b"HTTP/1.1 200") || answer.starts_with(b"HTTP/1.0 200");
        match scan(body, endpoint) {
            Ok(_) => {}
            Err(error) => {
                refused += 1;
                assert!(!is_served, "{name}: {error}");
                assert!(
                    [&b"HTTP/1.1 400"[..], b"HTTP/1.1 500"].iter().any(|status| answer.starts_with(status)),
                    "{name}: {error}, the engine: {}",
                    answer[..30].escape_ascii()
                );
            }
        }
        served += usize::from(is_served);
    }
    assert!(served > 100 && refused >= 10, "{served} served, {refused} refused");
}

/// Capture, usage merged over the stream, frames without a choice, choices that ended.
type StreamCase = (&'static str, Option<Usage>, usize, &'static [(u32, Finish)]);

#[test]
fn usage_and_finish_of_recorded_streams() {
    let usage = |prompt, completion, cached| {
        Some(Usage {
            prompt_tokens: Some(prompt),
            completion_tokens: Some(completion),
            cached_tokens: cached,
        })
    };
    let cases: [StreamCase; 9] = [
        ("v0.32.0/generate/chat_stream.resp", None, 0, &[(0, Finish::Other)]),
        ("v0.32.0/generate/chat_stream_usage.resp", usage(25, 6, Some(0)), 1, &[(0, Finish::Other)]),
        (
            "v0.32.0/generate/chat_stream_usage_continuous.resp",
            usage(25, 6, Some(0)),
            1,
            &[(0, Finish::Other)],
        ),
        (
            "v0.32.0/generate/chat_cached_3_stream_usage.resp",
            usage(159, 2, Some(128)),
            1,
            &[(0, Finish::Other)],
        ),
        (
            "v0.32.0/generate/chat_n2_stream.resp",
            usage(25, 8, Some(0)),
            1,
            &[(0, Finish::Other), (1, Finish::Other)],
        ),
        ("v0.32.0/generate/comp_stream_usage.resp", usage(4, 6, Some(0)), 1, &[(0, Finish::Other)]),
        ("v0.16.0/generate/chat_stream_usage.resp", usage(25, 6, Some(16)), 1, &[(0, Finish::Other)]),
        ("v0.16.0/generate/comp_stream_usage.resp", usage(4, 6, None), 1, &[(0, Finish::Other)]),
        (
            "v0.16.0/generate/chat_stream_usage_continuous.resp",
            usage(25, 6, Some(16)),
            1,
            &[(0, Finish::Other)],
        ),
    ];
    for (name, expected, usage_only, finishes) in cases {
        let frames: Vec<Inspection> =
            invariants::sse::payloads_of(&body(name)).iter().map(|payload| inspect(payload, false)).collect();
        let mut usage = None;
        for later in frames.iter().filter_map(|frame| frame.usage) {
            usage.get_or_insert(later).merge(later);
        }
        assert_eq!(usage, expected, "{name}");
        assert_eq!(
            frames.iter().filter(|frame| frame.choices == Choices::Empty).count(),
            usage_only,
            "{name}"
        );
        let found: Vec<(u32, Finish)> =
            frames.iter().flat_map(|frame| frame.finishes.iter().copied()).collect();
        assert_eq!(found, finishes, "{name}");
        assert!(frames.last().is_some_and(|frame| frame.done), "{name}");
        assert!(frames.iter().all(|frame| frame.error.is_none()), "{name}");
    }
}

#[test]
fn errors_of_recorded_answers() {
    let cases = [
        ("v0.32.0/errors/err_unknown_model.resp", Some(404), "The model `nope` does not exist."),
        ("v0.32.0/admission/adm_chat_refused.resp", Some(503), "The engine is currently busy"),
        ("v0.32.0/apikey/key_missing.resp", None, "Unauthorized"),
        ("v0.16.0/errors/err_stream_string.resp", Some(500), "EngineCore encountered an issue."),
    ];
    for (name, code, message) in cases {
        let error = expediter_wire::completion::inspect_answer(&body(name)).error.expect(name);
        assert_eq!(error.code, code, "{name}");
        assert!(error.message.starts_with(message), "{name}: {}", error.message);
    }
}

#[test]
fn recorded_metrics_pages() {
    // (page, running, waiting, KV usage, block size, blocks, started at)
    let cases = [
        ("v0.32.0/metrics/idle-default-flags.txt", 0, 0, 0.0, 128, 16_384, 1.796_065_720_87e9),
        (
            "v0.32.0/metrics/lora-server-burst-during.txt",
            8,
            4,
            0.000_488_288_700_694_283_8,
            32,
            65_536,
            1.796_064_745_84e9,
        ),
        ("v0.16.0/metrics/after-mixed-traffic.txt", 0, 0, 0.0, 16, 131_072, 1.796_066_492_87e9),
    ];
    for (name, running, waiting, kv_usage, block_size, blocks, started_at) in cases {
        let reading = parse_metrics(&capture(name));
        let report = reading.report;
        assert_eq!((report.running, report.waiting), (Some(running), Some(waiting)), "{name}");
        assert_eq!(report.kv_usage, Some(kv_usage), "{name}");
        assert_eq!((report.block_size, report.blocks), (Some(block_size), Some(blocks)), "{name}");
        assert_eq!((report.preemptions, report.started_at), (Some(0), Some(started_at)), "{name}");
        assert_eq!((reading.engines, reading.malformed_lines), (1, 0), "{name}");
    }
    for (name, page) in captures("txt") {
        if name.contains("/metrics/") {
            invariants::metrics::check(&page);
            assert_eq!(parse_metrics(&page).malformed_lines, 0, "{name}");
        }
    }
    let progress = |name: &str| parse_metrics(&capture(name)).report.progress;
    let (before, during) =
        ("v0.32.0/metrics/lora-server-burst-before.txt", "v0.32.0/metrics/lora-server-burst-during.txt");
    assert_ne!(progress(before), progress(during));
}

#[test]
fn recorded_model_lists() {
    let ids = |name: &str| -> Vec<(String, Option<String>, Option<u64>)> {
        let models = parse_models(&body(name)).unwrap();
        models.into_iter().map(|model| (model.id, model.parent, model.max_model_len)).collect()
    };
    let base = ("tiny".to_owned(), None, Some(8192));
    let adapter = ("lora-0".to_owned(), Some("tiny".to_owned()), None);
    assert_eq!(ids("v0.32.0/misc/models.resp"), std::slice::from_ref(&base));
    assert_eq!(ids("v0.16.0/misc/models.resp"), [base.clone(), adapter.clone()]);
    assert_eq!(ids("v0.32.0/lora/lora_models_before.resp"), [base, adapter]);
    assert!(parse_models(&body("v0.32.0/apikey/key_models_missing.resp")).is_err());
}

#[test]
fn an_engine_refuses_what_the_scan_refuses() {
    let cases = [
        ("errors/err_malformed_json.req", "invalid_json"),
        ("errors/err_empty_body.req", "invalid_json"),
        ("errors/err_json_array.req", "invalid_json"),
        ("errors/err_json_null.req", "invalid_json"),
        ("errors/err_invalid_utf8.req", "invalid_json"),
        ("errors/err_gzip_body.req", "invalid_json"),
        ("errors/err_deep_json.req", "body_too_deep"),
        ("errors/err_model_int.req", "invalid_model"),
    ];
    for version in ["v0.32.0", "v0.16.0"] {
        for (name, code) in cases {
            let request = capture(&format!("{version}/{name}"));
            let body = request.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
            let refusal = scan(&request[body..], Endpoint::Chat).map_err(ScanError::code);
            assert_eq!(refusal.unwrap_err(), code, "{version}/{name}");
        }
    }
}

/// Written again they are the same bytes, so that neither reader nor writer leaves anything out.
#[test]
fn recorded_kv_events() {
    for (name, payload) in captures("msgpack") {
        invariants::kv_events::check(&payload);
        let encoding = if name.starts_with("v0.16.0/") { Encoding::Arrays } else { Encoding::Mixed };
        let batch = decode(&payload).unwrap();
        assert_eq!((batch.unknown_events, batch.data_parallel_rank), (0, Some(0)), "{name}");
        assert_eq!(encode(&batch, encoding), payload, "{name}");
    }
}

#[test]
fn recorded_kv_events_say_what_the_engine_did() {
    let read = |name: &str| -> KvEventBatch { decode(&capture(name)).unwrap() };
    let stored = |name: &str| -> BlockStored {
        let stored = read(name).events.into_iter().find_map(|event| match event {
            KvEvent::BlockStored(stored) => Some(stored),
            KvEvent::BlockRemoved(_) | KvEvent::AllBlocksCleared => None,
        });
        stored.unwrap_or_else(|| panic!("{name} stores"))
    };
    let first = stored("v0.32.0/kv-events/ints-first.msgpack");
    assert_eq!((first.block_size, first.block_hashes.len(), first.parent_block_hash), (32, 3, None));
    assert_eq!(first.token_ids, (1000..1096).collect::<Vec<u32>>());
    let next = stored("v0.32.0/kv-events/ints-parent.msgpack");
    assert_eq!(next.parent_block_hash.as_ref(), first.block_hashes.first());
    let older = stored("v0.16.0/kv-events/arrays-first.msgpack");
    assert_eq!((older.block_size, older.block_hashes.len(), older.extra_keys), (16, 6, None));
    let bytes = stored("v0.32.0/kv-events/bytes-first.msgpack");
    assert!(bytes.block_hashes.iter().all(|hash| matches!(hash, Hash::Bytes(bytes) if bytes.len() == 32)));

    let adapter = stored("v0.32.0/kv-events/ints-lora-with-salt.msgpack");
    let key = |key: &str| ExtraKey::Text(key.into());
    let adapters = Some(vec![key("lora-0")]);
    let keys = vec![Some(vec![key("lora-0"), key("salt-A")]), adapters.clone(), adapters];
    assert_eq!((adapter.lora_id, adapter.lora_name.as_deref()), (Some(1), Some("lora-0")));
    assert_eq!(adapter.extra_keys, Some(keys));
    let older = stored("v0.16.0/kv-events/arrays-lora-first.msgpack");
    assert_eq!(older.lora_name.as_deref(), Some("lora-0"));

    assert_eq!(read("v0.32.0/kv-events/ints-cleared.msgpack").events[0], KvEvent::AllBlocksCleared);
    let evicting = read("v0.32.0/kv-events/ints-fill-5-320-tokens.msgpack").events;
    let removed: Vec<&KvEvent> =
        evicting.iter().take_while(|event| matches!(event, KvEvent::BlockRemoved(_))).collect();
    assert_eq!((removed.len(), evicting.len()), (2, 3), "removals come first, one hash each");
    assert_eq!(removed[0], removed[1], "what was stored twice is removed twice");
}
