//! Inputs that broke other gateways.

use std::fs;
use std::path::Path;

use expediter_wire::kv_events::{Encoding, Hash, KvEvent, KvEventsError, decode, encode};
use expediter_wire::metrics::parse_metrics;
use expediter_wire::request::{Endpoint, ScanError, scan};
use expediter_wire::sse::{EventKind, EventSplitter, Usage, inspect};

use crate::invariants;

fn input(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/cases").join(name)).unwrap()
}

const STREAMS: [&str; 10] = [
    "C03.sse",
    "R01-A.sse",
    "R01-B.sse",
    "S01.sse",
    "S02.sse",
    "S03a.sse",
    "S03b.sse",
    "S04.sse",
    "U02a.sse",
    "U02b.sse",
];

#[test]
fn streams_split_alike_whatever_the_pieces() {
    for name in STREAMS {
        let stream = input(name);
        for cut in 1..=255 {
            let lengths: Vec<u8> = [cut].into_iter().chain([255; 8]).collect();
            invariants::sse::check(&stream, &lengths);
        }
        invariants::sse::check(&stream, &[1]);
        for spelling in [&b"\r\n"[..], b"\r"] {
            let lines: Vec<&[u8]> = stream.split(|byte| *byte == b'\n').collect();
            invariants::sse::check(&lines.join(spelling), &[1]);
            invariants::sse::check(&lines.join(spelling), &[3, 50]);
        }
        for payload in invariants::sse::payloads_of(&stream) {
            invariants::frame::check(&payload);
        }
    }
    invariants::sse::check(&input("S05.sse"), &[255; 255]);
}

#[test]
fn an_event_is_handed_on_with_its_last_byte_and_not_before() {
    let stream = input("S01.sse");
    let mut splitter = EventSplitter::new(1 << 20);
    for (at, byte) in stream.iter().enumerate() {
        let mut events = 0;
        splitter.push(&[*byte], |_| events += 1).unwrap();
        let ends = stream[..=at].ends_with(b"\n\n");
        assert_eq!(events, usize::from(ends), "at byte {at}");
    }
}

#[test]
fn events_without_data_are_told_from_payloads_and_comments() {
    let (mut data, mut comments, mut empty, mut ids) = (0, 0, 0, 0);
    let mut splitter = EventSplitter::new(1 << 20);
    splitter
        .push(&input("S02.sse"), |event| {
            match event.kind() {
                EventKind::Data(_) => data += 1,
                EventKind::Comment => comments += 1,
                EventKind::Empty => empty += 1,
            }
            ids += u32::from(event.has_id());
        })
        .unwrap();
    assert_eq!((data, comments, empty, ids), (5, 4, 4, 1));
}

#[test]
fn usage_is_merged_over_a_stream() {
    let usage = |prompt, completion, cached| Usage {
        prompt_tokens: Some(prompt),
        completion_tokens: Some(completion),
        cached_tokens: cached,
    };
    let zero =
        String::from_utf8(input("U02a.sse")).unwrap().replace("\"cached_tokens\":48", "\"cached_tokens\":0");
    let cases = [
        ("a preview first", input("S03a.sse"), usage(20, 252, None)),
        ("running totals", input("S03b.sse"), usage(20, 5, None)),
        ("unasked", input("C03.sse"), usage(9, 2, None)),
        ("details later", input("U02a.sse"), usage(64, 2, Some(48))),
        ("details earlier", input("U02b.sse"), usage(64, 2, Some(48))),
        ("zero is known", zero.into_bytes(), usage(64, 2, Some(0))),
    ];
    for (name, stream, expected) in cases {
        let mut merged = Usage::default();
        for payload in invariants::sse::payloads_of(&stream) {
            if let Some(usage) = inspect(&payload, false).usage {
                merged.merge(usage);
            }
        }
        assert_eq!(merged, expected, "{name}");
    }
}

#[test]
fn a_stream_that_breaks_off_leaves_its_half_event_in_the_tail() {
    let stream = input("S04.sse");
    let mut splitter = EventSplitter::new(1 << 20);
    let mut events = 0;
    splitter.push(&stream, |_| events += 1).unwrap();
    assert_eq!(events, 3);
    assert!(splitter.tail().starts_with(b"data: {") && !splitter.tail_is_done());
}

#[test]
fn bodies_of_cases() {
    for name in ["C01.json", "C02.json", "P03a.json", "P03b.json", "P03c.json", "P03d.json", "Z02.json"] {
        invariants::request::check(&input(name));
    }
    let deep = scan(&input("Z02.json"), Endpoint::Chat).map(|_| ());
    assert!(matches!(deep, Err(ScanError::TooDeep)), "{deep:?}");
}

#[test]
fn adapters_do_not_disturb_the_load() {
    // (page, KV usage): both are idle
    for (name, kv_usage) in [("L01-A.prom", 0.10), ("L01-B.prom", 0.10)] {
        let page = input(name);
        invariants::metrics::check(&page);
        let reading = parse_metrics(&page);
        assert_eq!((reading.report.running, reading.report.waiting), (Some(0), Some(0)), "{name}");
        assert_eq!(reading.report.kv_usage, Some(kv_usage), "{name}");
        assert_eq!((reading.engines, reading.malformed_lines), (1, 0), "{name}");
    }
}

/// K03: positional arrays or maps, integers or bytes, and mixtures of them.
#[test]
fn kv_events_of_every_format_say_the_same() {
    let bytes = |hash: &Hash| matches!(hash, Hash::Bytes(bytes) if bytes.len() == 32);
    let cases: [(&str, u32, bool, Option<u32>); 4] = [
        ("K03a-array-int", 5000, false, None),
        ("K03b-array-bytes", 5100, true, Some(0)),
        ("K03c-map-bytes", 5200, true, Some(0)),
        ("K03e-mixed-int", 5300, false, Some(0)),
    ];
    for (name, first_id, in_bytes, rank) in cases {
        let payload = input(&format!("{name}.msgpack"));
        invariants::kv_events::check(&payload);
        let batch = decode(&payload).unwrap();
        assert_eq!(
            (batch.timestamp, batch.data_parallel_rank, batch.unknown_events),
            (1.0, rank, 0),
            "{name}"
        );
        let [KvEvent::BlockStored(stored)] = &batch.events[..] else { panic!("{name}: {batch:?}") };
        assert_eq!(stored.token_ids, (first_id..first_id + 32).collect::<Vec<u32>>(), "{name}");
        assert_eq!((stored.block_size, stored.block_hashes.len(), &stored.parent_block_hash), (16, 2, &None));
        assert!(stored.block_hashes.iter().all(|hash| bytes(hash) == in_bytes), "{name}");
        for encoding in [Encoding::Mixed, Encoding::Maps, Encoding::Arrays] {
            let again = decode(&encode(&batch, encoding)).unwrap();
            let [KvEvent::BlockStored(again)] = &again.events[..] else { panic!("{name}: {again:?}") };
            assert_eq!((&again.token_ids, &again.block_hashes), (&stored.token_ids, &stored.block_hashes));
        }
    }
    let garbage = decode(&input("K03d-garbage.msgpack")).unwrap_err();
    assert_eq!(garbage, KvEventsError::Truncated { at: 10 });
}

/// K01 and K02: what stood in the caches of the replicas.
#[test]
fn kv_events_of_restarts_and_gaps_can_be_read() {
    let cases = [
        ("K01-A-seq0", "2 stored"),
        ("K01-B-before-seq0", "4 stored"),
        ("K01-B-after-seq0", "1 stored"),
        ("K02-A-seq0", "2 stored 2 stored"),
        ("K02-B-seq0", "4 stored"),
        ("K02-B-seq1", "4 removed"),
        ("K02-B-seq2", "4 stored"),
        ("K02-B-seq3", "1 stored"),
    ];
    for (name, expected) in cases {
        let payload = input(&format!("{name}.msgpack"));
        invariants::kv_events::check(&payload);
        let batch = decode(&payload).unwrap();
        let said: Vec<String> = batch
            .events
            .iter()
            .map(|event| match event {
                KvEvent::BlockStored(event) => format!("{} stored", event.block_hashes.len()),
                KvEvent::BlockRemoved(event) => format!("{} removed", event.block_hashes.len()),
                KvEvent::AllBlocksCleared => "cleared".to_owned(),
            })
            .collect();
        assert_eq!(said.join(" "), expected, "{name}");
        assert_eq!(encode(&batch, Encoding::Mixed), payload, "{name}");
    }
}
