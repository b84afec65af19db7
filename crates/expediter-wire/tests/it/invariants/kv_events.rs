//! A batch of KV events of any bytes.

use expediter_wire::kv_events::{Encoding, KvEvent, KvEventBatch, decode, encode};

/// Reads a batch; what was read is written and read again.
pub(crate) fn check(payload: &[u8]) {
    let Ok(batch) = decode(payload) else { return };
    let size: usize = batch.events.iter().map(least_bytes).sum();
    assert!(size <= payload.len(), "nothing comes of nothing");
    for encoding in [Encoding::Mixed, Encoding::Maps] {
        let known = KvEventBatch { unknown_events: 0, ..batch.clone() };
        assert_eq!(decode(&encode(&batch, encoding)), Ok(known), "{encoding:?}");
    }
    assert_eq!(decode(&encode(&batch, Encoding::Arrays)), Ok(in_arrays(&batch)));
}

/// What arrays say of a batch.
pub(crate) fn in_arrays(batch: &KvEventBatch) -> KvEventBatch {
    let mut batch = KvEventBatch { unknown_events: 0, ..batch.clone() };
    for event in &mut batch.events {
        match event {
            KvEvent::BlockStored(event) => {
                event.extra_keys = None;
                event.group_idx = None;
                event.kv_cache_spec_kind = None;
                event.session_id = None;
            }
            KvEvent::BlockRemoved(event) => event.group_idx = None,
            KvEvent::AllBlocksCleared => {}
        }
    }
    batch
}

fn least_bytes(event: &KvEvent) -> usize {
    match event {
        KvEvent::BlockStored(event) => {
            event.block_hashes.len() + event.token_ids.len() + event.extra_keys.as_ref().map_or(0, Vec::len)
        }
        KvEvent::BlockRemoved(event) => event.block_hashes.len(),
        KvEvent::AllBlocksCleared => 1,
    }
}
