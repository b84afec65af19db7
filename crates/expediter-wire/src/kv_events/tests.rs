use super::*;

fn batch(event: KvEvent) -> KvEventBatch {
    KvEventBatch { timestamp: 1.5, events: vec![event], data_parallel_rank: Some(0), unknown_events: 0 }
}

fn removed(hash: Hash) -> KvEvent {
    KvEvent::BlockRemoved(BlockRemoved {
        block_hashes: vec![hash],
        medium: Some("GPU".into()),
        group_idx: Some(0),
    })
}

#[test]
fn what_is_no_batch_is_said_to_be_none() {
    let event = |event: &[u8]| [&b"\x92\x00\x91"[..], event].concat();
    let hashes = |hash: &[u8]| event(&[&b"\x92\xacBlockRemoved\x91"[..], hash].concat());
    let cases: [(&str, Vec<u8>, &str); 17] = [
        ("nothing", vec![], "cut short: what stands at byte 0 does not fit into what is left"),
        ("a number", vec![7], "byte 0 does not begin a batch"),
        ("text", b"\xa3abc".to_vec(), "byte 0 does not begin a batch"),
        ("an unused marker", vec![0xc1], "byte 0 does not begin MessagePack"),
        ("no events", b"\x91\x00".to_vec(), "the event at byte 0 lacks `events`"),
        ("time as text", b"\x92\xa1x\x90".to_vec(), "byte 1 does not begin a time"),
        ("events as text", b"\x92\x00\xa1x".to_vec(), "byte 2 does not begin a list of events"),
        ("a promise of events", b"\x92\x00\xdd\xff\xff\xff\xff".to_vec(), "cut short: what stands at byte 2"),
        ("an event that is a number", event(b"\x05"), "byte 3 does not begin an event"),
        ("an event of no kind", event(b"\x90"), "the event at byte 3 lacks `type`"),
        ("a kind that is a number", event(b"\x91\x05"), "byte 4 does not begin text"),
        ("no hashes", event(b"\x91\xacBlockRemoved"), "the event at byte 3 lacks `block_hashes`"),
        ("a hash as text", hashes(b"\xa1x"), "byte 18 does not begin a block hash"),
        ("an empty hash", hashes(b"\xc4\x00"), "byte 18 does not begin a block hash"),
        ("more after it", b"\x92\x00\x90\x00".to_vec(), "the batch ends at byte 3, but more follows"),
        (
            "deep",
            [&b"\x93\x00\x90"[..], &[0x91; 64], b"\x00"].concat(),
            "byte 3 does not begin a whole number",
        ),
        (
            "deep and unknown",
            [&b"\x94\x00\x90\x00"[..], &[0x91; 64], b"\x00"].concat(),
            "nested too deeply at byte 20",
        ),
    ];
    for (name, bytes, message) in cases {
        let error = decode(&bytes).expect_err(name).to_string();
        assert!(error.starts_with(message), "{name}: {error}");
    }
    let error = decode(&vec![0; BATCH_BYTES_MAX + 1]).unwrap_err();
    assert_eq!(error, KvEventsError::TooLarge { bytes: BATCH_BYTES_MAX + 1 });
}

#[test]
fn what_is_unknown_is_passed_over() {
    let cases: [(&str, &[u8], KvEventBatch); 5] = [
        (
            "a kind of event",
            b"\x93\xcb\x3f\xf8\0\0\0\0\0\0\x92\x92\xa6Copied\x01\x81\xa4type\xa5Moved\x00",
            KvEventBatch { events: vec![], unknown_events: 2, ..batch(KvEvent::AllBlocksCleared) },
        ),
        (
            "elements at the end",
            b"\x95\xcb\x3f\xf8\0\0\0\0\0\0\x91\x92\xb0AllBlocksCleared\xc0\x00\x81\x01\x02\xd4\x05\x06",
            batch(KvEvent::AllBlocksCleared),
        ),
        (
            "members before the kind, and names that are no text",
            b"\x92\xcb\x3f\xf8\0\0\0\0\0\0\x91\x83\x07\x08\xa1x\x91\xc0\xa4type\xb0AllBlocksCleared",
            KvEventBatch { data_parallel_rank: None, ..batch(KvEvent::AllBlocksCleared) },
        ),
        (
            "a time that is a whole number, a rank that is nil",
            b"\x93\x05\x90\xc0",
            KvEventBatch { timestamp: 5.0, ..KvEventBatch::default() },
        ),
        (
            "a hash below zero",
            b"\x93\xcb\x3f\xf8\0\0\0\0\0\0\x91\x84\xa4type\xacBlockRemoved\xacblock_hashes\x91\xd0\xb3\xa6medium\xa3GPU\xa9group_idx\x00\x00",
            batch(removed(Hash::Int(77_u64.wrapping_neg()))),
        ),
    ];
    for (name, bytes, expected) in cases {
        assert_eq!(decode(bytes), Ok(expected), "{name}");
    }
}

#[test]
fn both_forms_of_a_hash_agree_in_the_low_bits() {
    let mut bytes = [7; 32];
    bytes[24..].copy_from_slice(&0x0123_4567_89ab_cdef_u64.to_be_bytes());
    assert_eq!(Hash::Bytes(bytes.into()).low_bits(), 0x0123_4567_89ab_cdef);
    assert_eq!(Hash::Int(5).low_bits(), 5);
    assert_eq!(Hash::Bytes([1, 2].into()).low_bits(), 0x0102);
}

#[test]
fn frames_are_read_in_both_forms() {
    let published = Published { topic: b"kv@x", sequence: 258, payload: b"p" };
    let frames = published.frames();
    assert_eq!(frames[1], [0, 0, 0, 0, 0, 0, 1, 2]);
    assert_eq!(Published::read(&frames), Ok(published));
    assert_eq!(Published::read(&frames[..2]), Err(FramesError::Count(2)));
    assert_eq!(Published::read(&[&b"t"[..], b"123", b"p"]), Err(FramesError::Sequence(3)));

    assert_eq!(Replay::read(&Replay { from: 3 }.frames()), Ok(Replay { from: 3 }));
    assert_eq!(Replay::read(&[&b""[..], b"\x00\x10"]), Ok(Replay { from: 16 }), "as the engine reads it");
    assert_eq!(Replay::read(&[&b""[..], &[1; 9]]), Err(FramesError::Sequence(9)));
    assert_eq!(Replay::read(&[&[0; 8]]), Err(FramesError::Count(1)));

    for (form, count) in [(ReplayForm::WithTopic, 4), (ReplayForm::WithoutTopic, 3)] {
        for reply in [ReplayReply::Batch { sequence: 9, payload: b"p" }, ReplayReply::End] {
            let frames = reply.frames(form, b"kv@x");
            assert_eq!((frames.len(), ReplayReply::read(&frames)), (count, Ok(reply)));
        }
    }
    let end = ReplayReply::End.frames(ReplayForm::WithTopic, b"kv@x");
    assert_eq!(end, [vec![], vec![], vec![255; 8], vec![]]);
}
