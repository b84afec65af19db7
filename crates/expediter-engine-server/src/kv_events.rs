//! What the engine says of its prefix cache, as a real one publishes it: the events of a step with the tokens of
//! their blocks, over ZeroMQ.

mod publisher;
mod sockets;

use std::collections::HashMap;
use std::sync::Arc;

use expediter_engine_sim::KvEvent as EngineEvent;
use expediter_types::{BlockHash, RequestId};
use expediter_wire::kv_events::{BlockRemoved, BlockStored, ExtraKey, Hash, KvEvent, KvEventBatch};

use crate::adapters::Served;
use crate::settings::HashForm;

pub(crate) use publisher::Publisher;
pub(crate) use sockets::{Gate, Socket, serve};

/// What a request is made of, for the events of its blocks.
#[derive(Debug)]
pub(crate) struct Content {
    /// Those of the prompt, then all that it will produce.
    pub(crate) ids: Vec<u32>,
    pub(crate) adapter: Option<Arc<Served>>,
    pub(crate) cache_salt: Option<String>,
    pub(crate) session: Option<String>,
}

/// Turns events of the engine into those that are published.
#[derive(Debug)]
pub(crate) struct Translation {
    block_size: u32,
    hashes: HashForm,
    contents: HashMap<RequestId, Arc<Content>>,
    /// Requests that have left. Their blocks may still occur in the events of the step under way.
    left: Vec<RequestId>,
}

impl Translation {
    pub(crate) fn new(block_size: u32, hashes: HashForm) -> Self {
        Self { block_size, hashes, contents: HashMap::new(), left: Vec::new() }
    }

    pub(crate) fn arrive(&mut self, id: RequestId, content: Arc<Content>) {
        self.contents.insert(id, content);
    }

    pub(crate) fn leave(&mut self, id: RequestId) {
        self.left.push(id);
    }

    /// The batch of a step that has ended; `None` where there is nothing to publish.
    pub(crate) fn batch(
        &mut self,
        events: impl Iterator<Item = EngineEvent>,
        timestamp: f64,
    ) -> Option<KvEventBatch> {
        let events: Vec<KvEvent> = events.filter_map(|event| self.event(event)).collect();
        for id in self.left.drain(..) {
            self.contents.remove(&id);
        }
        let batch = KvEventBatch { timestamp, events, data_parallel_rank: Some(0), unknown_events: 0 };
        (!batch.events.is_empty()).then_some(batch)
    }

    fn event(&self, event: EngineEvent) -> Option<KvEvent> {
        match event {
            EngineEvent::Stored { parent, hashes, request, first_block, adapter: _ } => {
                self.stored(parent, &hashes, request, first_block).map(KvEvent::BlockStored)
            }
            EngineEvent::Removed { hash } => Some(KvEvent::BlockRemoved(BlockRemoved {
                block_hashes: vec![self.hash(hash)],
                medium: Some(MEDIUM.to_owned()),
                group_idx: Some(0),
            })),
            EngineEvent::Cleared => Some(KvEvent::AllBlocksCleared),
        }
    }

    fn stored(
        &self,
        parent: Option<BlockHash>,
        hashes: &[BlockHash],
        request: RequestId,
        first_block: usize,
    ) -> Option<BlockStored> {
        let content = self.contents.get(&request);
        debug_assert!(content.is_some(), "whose blocks are stored is known until the step has ended");
        let content = content?;
        let adapter = content.adapter.as_deref();
        let size = self.block_size as usize;
        let keys = |block: usize| {
            let mut keys: Vec<ExtraKey> = Vec::new();
            keys.extend(adapter.map(|served| ExtraKey::Text(served.adapter.name.clone())));
            // The salt of the first block sets all after it apart.
            let salt = content.cache_salt.clone().filter(|_| block == 0);
            keys.extend(salt.map(ExtraKey::Text));
            (!keys.is_empty()).then_some(keys)
        };
        Some(BlockStored {
            block_hashes: hashes.iter().map(|hash| self.hash(*hash)).collect(),
            parent_block_hash: parent.map(|hash| self.hash(hash)),
            token_ids: content.ids[first_block * size..(first_block + hashes.len()) * size].to_vec(),
            block_size: self.block_size,
            lora_id: adapter.map(|served| served.id.0.into()),
            medium: Some(MEDIUM.to_owned()),
            lora_name: adapter.map(|served| served.adapter.name.clone()),
            extra_keys: Some((first_block..first_block + hashes.len()).map(keys).collect()),
            group_idx: Some(0),
            kv_cache_spec_kind: Some("full_attention".to_owned()),
            session_id: content.session.clone(),
        })
    }

    fn hash(&self, hash: BlockHash) -> Hash {
        match self.hashes {
            HashForm::Int => Hash::Int(hash.0),
            // The low bits stand at the end, as in a real hash; before them anything that follows from the hash.
            HashForm::Bytes32 => {
                let part = |number| hash.then_number(number).0.to_be_bytes();
                Hash::Bytes([part(0), part(1), part(2), hash.0.to_be_bytes()].concat().into())
            }
        }
    }
}

const MEDIUM: &str = "GPU";
