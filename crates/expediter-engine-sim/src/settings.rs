//! What an engine is and how fast it is.

use std::time::Duration;

use expediter_types::{BlockSize, Blocks, Tokens};

use crate::profile::{Calibration, Profile};
use crate::step_time::Coefficients;

/// What an engine is and how fast it is. The defaults are those of vLLM 0.32.0 for an A100.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Tokens in a KV block.
    pub block_size: BlockSize,
    /// KV blocks as the engine reports them; one of them, the null block, is never used.
    pub blocks: Blocks,
    /// Sequences in the batch at once, at most.
    pub max_num_seqs: u32,
    /// Tokens in a step at most.
    pub max_num_batched_tokens: Tokens,
    /// Tokens of one prompt in a step at most, while there are other requests to starve.
    pub long_prefill_token_threshold: Option<Tokens>,
    /// Who goes first, and who is put back.
    pub scheduling: Scheduling,
    /// Whether a request is admitted only where blocks for all its known tokens are free
    /// (`scheduler_reserve_full_isl`); otherwise those of its next chunk are enough, and it may preempt others
    /// later.
    pub reserve_full_sequence: bool,
    /// Requests in the engine, waiting and running, above which it refuses.
    pub max_num_queued_reqs: Option<u32>,
    /// Prompt tokens of requests without a first token, from which on it refuses. A single prompt may exceed it.
    pub max_num_queued_tokens: Option<Tokens>,
    /// Adapters; `None` where only the base model is served.
    pub lora: Option<LoraSettings>,
    /// What a step costs on the device.
    pub coefficients: Coefficients,
    /// Work of the host that async scheduling does not hide, added to every step.
    pub host_overhead: Duration,
    /// Standard deviation of the logarithm of a step's noise.
    pub noise_sigma: f64,
    /// Whether blocks of earlier requests are found again.
    pub enable_prefix_caching: bool,
    /// Whether changes of the prefix cache are told.
    pub kv_events: bool,
}

impl Settings {
    /// The defaults with the coefficients and the memory of a profile.
    pub fn of(profile: Profile) -> Self {
        Self::calibrated(profile.calibration())
    }

    /// The defaults with the coefficients and the memory of a calibration.
    pub fn calibrated(calibration: &Calibration) -> Self {
        Self {
            block_size: BlockSize::DEFAULT,
            blocks: calibration.blocks,
            max_num_seqs: 256,
            max_num_batched_tokens: Tokens(2_048),
            long_prefill_token_threshold: None,
            scheduling: Scheduling::Fcfs,
            reserve_full_sequence: true,
            max_num_queued_reqs: None,
            max_num_queued_tokens: None,
            lora: None,
            coefficients: calibration.coefficients,
            host_overhead: Duration::from_micros(500),
            noise_sigma: 0.03,
            enable_prefix_caching: true,
            kv_events: false,
        }
    }

    /// The longest sequence that fits when it is alone.
    pub fn capacity(&self) -> Tokens {
        Tokens(self.blocks.0.saturating_sub(1).saturating_mul(u64::from(self.block_size.0.get())))
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::of(Profile::default())
    }
}

/// `--scheduling-policy`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheduling {
    /// In order of arrival. When blocks run out, the last to be admitted is put back to the head of the queue.
    #[default]
    Fcfs,
    /// In order of priority, then of arrival. When blocks run out, the least urgent is put back.
    Priority,
}

/// Adapters on one replica. The times are assumptions, within the ranges that calibrations of the field give.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraSettings {
    /// Adapters in one step at most, each in a slot on the device.
    pub max_loras: u32,
    /// Adapters kept in the host's memory, those in slots among them; `None`: as many as `max_loras`.
    pub max_cpu_loras: Option<u32>,
    /// The rank that adapters and slots have.
    pub rank: u32,
    /// Bytes of an adapter for each unit of its rank. The default is all linear layers of Llama-3-8B in 2 bytes:
    /// 81,920 a layer, 32 layers.
    pub bytes_per_rank: u64,
    /// How many times as long a step takes with an adapter in its batch. 1.1 to 1.5 are on record: vLLM issue 10062
    /// (A100, late 2024), vLLM pull request 15655 (TPU).
    pub step_factor: f64,
    /// Copying an adapter from the host into a slot, apart from its bytes.
    pub host_load: Duration,
    /// Bytes a second from the host into a slot: `PCIe` 4.
    pub host_load_bytes_per_second: f64,
    /// The least time to bring an adapter from disk or network to the host.
    pub disk_load_min: Duration,
    /// The most time for that; each load draws from the range evenly.
    pub disk_load_max: Duration,
}

impl Default for LoraSettings {
    fn default() -> Self {
        Self {
            max_loras: 1,
            max_cpu_loras: None,
            rank: 16,
            bytes_per_rank: 81_920 * 32 * 2,
            step_factor: 1.2,
            host_load: Duration::from_millis(5),
            host_load_bytes_per_second: 20e9,
            disk_load_min: Duration::from_millis(300),
            disk_load_max: Duration::from_secs(2),
        }
    }
}

impl LoraSettings {
    /// Bytes of one adapter, or of its slot.
    pub const fn adapter_bytes(&self) -> u64 {
        self.bytes_per_rank * self.rank as u64
    }

    /// KV blocks of `block_bytes` each that the slots take from the cache.
    pub const fn slot_blocks(&self, block_bytes: u64) -> Blocks {
        Blocks((self.adapter_bytes() * self.max_loras as u64).div_ceil(block_bytes))
    }

    /// From the host's memory into a slot.
    pub fn host_load_time(&self) -> Duration {
        self.host_load
            + Duration::from_secs_f64(self.adapter_bytes() as f64 / self.host_load_bytes_per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_has_the_size_that_the_field_reports() {
        // Rank 16: 84 MB; eight slots cost 320 blocks of 2 MiB. Rank 64: 336 MB and 1,280 blocks.
        for (rank, megabytes, blocks) in [(16, 84.0, 320), (64, 336.0, 1_280)] {
            let lora = LoraSettings { rank, max_loras: 8, ..LoraSettings::default() };
            let bytes = lora.adapter_bytes() as f64 / 1e6;
            assert!((bytes / megabytes - 1.0).abs() < 0.01, "rank {rank}: {bytes} MB");
            assert_eq!(lora.slot_blocks(2 << 20), Blocks(blocks), "rank {rank}");
        }
        let time = LoraSettings::default().host_load_time().as_secs_f64() * 1e3;
        assert!((time - 9.2).abs() < 0.1, "{time} ms");
    }
}
