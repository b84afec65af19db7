//! A batch to bytes, as engines of several versions write it.

use rmp::encode as pack;

use super::{BlockRemoved, BlockStored, ExtraKey, Hash, KvEvent, KvEventBatch};

/// Which parts of a batch are maps. The form of hashes is that of the values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// An array with maps inside: vLLM 0.32.0.
    #[default]
    Mixed,
    /// Arrays throughout: vLLM 0.16.0. What came later than it, such as extra keys, is left out.
    Arrays,
    /// Maps throughout.
    Maps,
}

/// Writes a batch. In maps, members at their default are left out where vLLM leaves them out.
pub fn encode(batch: &KvEventBatch, encoding: Encoding) -> Vec<u8> {
    let mut writer = Writer(Vec::with_capacity(256));
    let keyed = encoding == Encoding::Maps;
    if keyed {
        writer.map(3);
    } else {
        writer.array(3);
    }
    writer.key("ts", keyed);
    writer.float(batch.timestamp);
    writer.key("events", keyed);
    writer.array(batch.events.len());
    for event in &batch.events {
        match encoding {
            Encoding::Mixed | Encoding::Maps => writer.event_map(event),
            Encoding::Arrays => writer.event_array(event),
        }
    }
    writer.key("data_parallel_rank", keyed);
    writer.optional(batch.data_parallel_rank, Writer::unsigned);
    writer.0
}

/// A vector takes all that is written to it.
struct Writer(Vec<u8>);

const INFALLIBLE: &str = "a vector takes all that is written to it";

impl Writer {
    fn event_map(&mut self, event: &KvEvent) {
        match event {
            KvEvent::BlockStored(event) => self.stored_map(event),
            KvEvent::BlockRemoved(event) => self.removed_map(event),
            KvEvent::AllBlocksCleared => {
                self.map(1);
                self.member("type", "AllBlocksCleared");
            }
        }
    }

    fn stored_map(&mut self, event: &BlockStored) {
        let optional = [
            event.extra_keys.is_some(),
            event.group_idx.is_some(),
            event.kv_cache_spec_kind.is_some(),
            event.session_id.is_some(),
        ];
        self.map(8 + optional.iter().filter(|present| **present).count());
        self.member("type", "BlockStored");
        self.stored_members(event, true);
        if let Some(keys) = &event.extra_keys {
            self.text("extra_keys");
            self.extra_keys(keys);
        }
        if let Some(group) = event.group_idx {
            self.text("group_idx");
            self.unsigned(group);
        }
        if let Some(kind) = &event.kv_cache_spec_kind {
            self.member("kv_cache_spec_kind", kind);
        }
        if let Some(session) = &event.session_id {
            self.member("session_id", session);
        }
    }

    fn removed_map(&mut self, event: &BlockRemoved) {
        self.map(3 + usize::from(event.group_idx.is_some()));
        self.member("type", "BlockRemoved");
        self.removed_members(event, true);
        if let Some(group) = event.group_idx {
            self.text("group_idx");
            self.unsigned(group);
        }
    }

    fn event_array(&mut self, event: &KvEvent) {
        match event {
            KvEvent::BlockStored(event) => {
                self.array(8);
                self.text("BlockStored");
                self.stored_members(event, false);
            }
            KvEvent::BlockRemoved(event) => {
                self.array(3);
                self.text("BlockRemoved");
                self.removed_members(event, false);
            }
            KvEvent::AllBlocksCleared => {
                self.array(1);
                self.text("AllBlocksCleared");
            }
        }
    }

    /// What every version says of stored blocks.
    fn stored_members(&mut self, event: &BlockStored, keyed: bool) {
        self.key("block_hashes", keyed);
        self.hashes(&event.block_hashes);
        self.key("parent_block_hash", keyed);
        self.optional(event.parent_block_hash.as_ref(), Self::hash);
        self.key("token_ids", keyed);
        self.array(event.token_ids.len());
        for id in &event.token_ids {
            self.unsigned(*id);
        }
        self.key("block_size", keyed);
        self.unsigned(event.block_size);
        self.key("lora_id", keyed);
        self.optional(event.lora_id, |writer, id| {
            pack::write_sint(&mut writer.0, id).expect(INFALLIBLE);
        });
        self.key("medium", keyed);
        self.optional(event.medium.as_deref(), Self::text);
        self.key("lora_name", keyed);
        self.optional(event.lora_name.as_deref(), Self::text);
    }

    fn removed_members(&mut self, event: &BlockRemoved, keyed: bool) {
        self.key("block_hashes", keyed);
        self.hashes(&event.block_hashes);
        self.key("medium", keyed);
        self.optional(event.medium.as_deref(), Self::text);
    }

    fn hashes(&mut self, hashes: &[Hash]) {
        self.array(hashes.len());
        for hash in hashes {
            self.hash(hash);
        }
    }

    fn hash(&mut self, hash: &Hash) {
        match hash {
            Hash::Int(bits) => _ = pack::write_uint(&mut self.0, *bits).expect(INFALLIBLE),
            Hash::Bytes(bytes) => pack::write_bin(&mut self.0, bytes).expect(INFALLIBLE),
        }
    }

    fn extra_keys(&mut self, blocks: &[Option<Vec<ExtraKey>>]) {
        self.array(blocks.len());
        for keys in blocks {
            self.optional(keys.as_ref(), |writer, keys| {
                writer.array(keys.len());
                for key in keys {
                    match key {
                        ExtraKey::Text(key) => writer.text(key),
                        ExtraKey::Packed(bytes) => writer.0.extend_from_slice(bytes),
                    }
                }
            });
        }
    }

    /// The name of a member, where members have names.
    fn key(&mut self, name: &str, keyed: bool) {
        if keyed {
            self.text(name);
        }
    }

    fn member(&mut self, name: &str, value: &str) {
        self.text(name);
        self.text(value);
    }

    fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            Some(value) => write(self, value),
            None => pack::write_nil(&mut self.0).expect(INFALLIBLE),
        }
    }

    fn map(&mut self, pairs: usize) {
        pack::write_map_len(&mut self.0, length(pairs)).expect(INFALLIBLE);
    }

    fn array(&mut self, elements: usize) {
        pack::write_array_len(&mut self.0, length(elements)).expect(INFALLIBLE);
    }

    fn text(&mut self, text: &str) {
        pack::write_str(&mut self.0, text).expect(INFALLIBLE);
    }

    fn unsigned(&mut self, value: u32) {
        pack::write_uint(&mut self.0, value.into()).expect(INFALLIBLE);
    }

    fn float(&mut self, value: f64) {
        pack::write_f64(&mut self.0, value).expect(INFALLIBLE);
    }
}

fn length(length: usize) -> u32 {
    u32::try_from(length).expect("a batch is bounded by its reader far below this")
}
