//! Flags for what the replicas publish of their prefix caches.

use std::net::SocketAddr;

use clap::{Args, ValueEnum};
use expediter_engine_server::{Encoding, HashForm, KvEventsSettings, ReplayForm};

#[derive(Debug, Args)]
#[expect(clippy::struct_field_names, reason = "the names are those of the flags")]
pub(crate) struct KvEventsArgs {
    /// Publish KV events, the first replica at this address, the others at the ports after it.
    #[arg(long, value_name = "ADDRESS")]
    kv_events: Option<SocketAddr>,
    /// Answer for KV events that were published before, by the same rule.
    #[arg(long, value_name = "ADDRESS", requires = "kv_events")]
    kv_events_replay: Option<SocketAddr>,
    /// The topic of KV events.
    #[arg(long, value_name = "TOPIC", default_value = "", requires = "kv_events")]
    kv_events_topic: String,
    /// Batches of KV events that can be asked for again.
    #[arg(long, value_name = "N", default_value_t = KvEventsSettings::default().buffer_steps)]
    kv_events_buffer_steps: usize,
    /// Batches of KV events that wait for a slow subscriber; what comes then is lost to it.
    #[arg(long, value_name = "N", default_value_t = KvEventsSettings::default().hwm)]
    kv_events_hwm: usize,
    /// How KV events are written.
    #[arg(long, value_name = "FORM", default_value = "mixed")]
    kv_events_encoding: EncodingName,
    /// How KV events write block hashes.
    #[arg(long, value_name = "FORM", default_value = "int")]
    kv_events_hashes: HashName,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum EncodingName {
    /// An array with maps inside: vLLM 0.32.0.
    Mixed,
    /// Arrays, and replays without a topic: vLLM 0.16.0.
    Arrays,
    /// Maps.
    Maps,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum HashName {
    /// 64 bits.
    Int,
    /// 32 bytes.
    Bytes32,
}

impl KvEventsArgs {
    pub(crate) fn settings(self) -> Option<KvEventsSettings> {
        let (encoding, replay_form) = match self.kv_events_encoding {
            EncodingName::Mixed => (Encoding::Mixed, ReplayForm::WithTopic),
            EncodingName::Arrays => (Encoding::Arrays, ReplayForm::WithoutTopic),
            EncodingName::Maps => (Encoding::Maps, ReplayForm::WithTopic),
        };
        Some(KvEventsSettings {
            listen: self.kv_events?,
            replay: self.kv_events_replay,
            topic: self.kv_events_topic,
            buffer_steps: self.kv_events_buffer_steps,
            hwm: self.kv_events_hwm,
            encoding,
            hashes: match self.kv_events_hashes {
                HashName::Int => HashForm::Int,
                HashName::Bytes32 => HashForm::Bytes32,
            },
            replay_form,
        })
    }
}
