//! Batches of KV events whose content is known.

use expediter_wire::kv_events::{BlockRemoved, BlockStored, ExtraKey, Hash, KvEvent, KvEventBatch};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

pub(crate) fn batch() -> impl Strategy<Value = KvEventBatch> {
    (0.0..2e9_f64, vec(event(), 0..6), of(0_u32..9)).prop_map(|(timestamp, events, data_parallel_rank)| {
        KvEventBatch { timestamp, events, data_parallel_rank, unknown_events: 0 }
    })
}

fn event() -> impl Strategy<Value = KvEvent> {
    prop_oneof![
        4 => stored().prop_map(KvEvent::BlockStored),
        3 => removed().prop_map(KvEvent::BlockRemoved),
        1 => Just(KvEvent::AllBlocksCleared),
    ]
}

fn stored() -> impl Strategy<Value = BlockStored> {
    let blocks = (vec(hash(), 0..5), of(hash()), vec(any::<u32>(), 0..40), 1_u32..600);
    let adapter = (of(any::<i64>()), of("[a-z-]{0,40}"), of(vec(of(vec(key(), 0..3)), 0..5)));
    let rest = (of("GPU|CPU"), of(0_u32..3), of("full_attention|sliding_window"), of("sess-[0-9]"));
    (blocks, adapter, rest).prop_map(
        |(
            (block_hashes, parent_block_hash, token_ids, block_size),
            (lora_id, lora_name, extra_keys),
            (medium, group_idx, kv_cache_spec_kind, session_id),
        )| BlockStored {
            block_hashes,
            parent_block_hash,
            token_ids,
            block_size,
            lora_id,
            medium,
            lora_name,
            extra_keys,
            group_idx,
            kv_cache_spec_kind,
            session_id,
        },
    )
}

fn removed() -> impl Strategy<Value = BlockRemoved> {
    (vec(hash(), 0..5), of("GPU|CPU"), of(0_u32..3))
        .prop_map(|(block_hashes, medium, group_idx)| BlockRemoved { block_hashes, medium, group_idx })
}

fn hash() -> impl Strategy<Value = Hash> {
    prop_oneof![
        any::<u64>().prop_map(Hash::Int),
        any::<[u8; 32]>().prop_map(|bytes| Hash::Bytes(bytes.into()))
    ]
}

/// Packed ones: a number, and a pair.
fn key() -> impl Strategy<Value = ExtraKey> {
    prop_oneof![
        "[a-z]{0,9}".prop_map(ExtraKey::Text),
        (0_u8..128).prop_map(|number| ExtraKey::Packed([number].into())),
        (0_u8..128).prop_map(|number| ExtraKey::Packed([0x92, number, 0xc0].into())),
    ]
}
