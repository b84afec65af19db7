//! Which `LoRA` adapters are on the device and on the host, and what it takes to bring one there.
//!
//! Rules of vLLM's `LRUCacheWorkerLoRAManager` (`vllm/lora/worker_manager.py`, 0.32.0): the worker loads what a batch
//! needs before it computes it, so that the whole batch waits; slots and host cache each drop the least recently
//! used.

use std::time::Duration;

use expediter_types::{ModelId, Prng};

use crate::settings::LoraSettings;

/// Adapters on one replica, least recently used first.
#[derive(Debug, Default)]
pub(crate) struct Adapters {
    slots: Vec<ModelId>,
    host: Vec<ModelId>,
}

impl Adapters {
    /// Brings every adapter of a batch into a slot, and says how long the batch waits for it. The scheduler takes
    /// care that the slots are enough.
    pub(crate) fn activate(&mut self, batch: &[ModelId], lora: &LoraSettings, rng: &mut Prng) -> Duration {
        let slots = lora.max_loras.max(1) as usize;
        let host = lora.max_cpu_loras.map_or(slots, |host| (host as usize).max(slots));
        let mut wait = Duration::ZERO;
        for adapter in batch {
            if !touch(&mut self.host, *adapter) {
                let range = lora.disk_load_max.saturating_sub(lora.disk_load_min);
                wait += lora.disk_load_min + range.mul_f64(rng.unit());
                if self.host.len() >= host {
                    let dropped = self.host.remove(oldest_outside(&self.host, batch));
                    self.slots.retain(|slot| *slot != dropped);
                }
                self.host.push(*adapter);
            }
            if !touch(&mut self.slots, *adapter) {
                wait += lora.host_load_time();
                if self.slots.len() >= slots {
                    self.slots.remove(oldest_outside(&self.slots, batch));
                }
                self.slots.push(*adapter);
            }
        }
        wait
    }
}

/// Makes the adapter the one most recently used, where it is there.
fn touch(adapters: &mut [ModelId], adapter: ModelId) -> bool {
    let Some(place) = adapters.iter().position(|one| *one == adapter) else { return false };
    adapters[place..].rotate_left(1);
    true
}

/// Where the least recently used adapter is that the batch can do without.
fn oldest_outside(adapters: &[ModelId], batch: &[ModelId]) -> usize {
    adapters.iter().position(|adapter| !batch.contains(adapter)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_comes_from_where_it_was_last() {
        let lora = LoraSettings {
            max_loras: 2,
            max_cpu_loras: Some(3),
            bytes_per_rank: 0,
            host_load: Duration::from_millis(5),
            disk_load_min: Duration::from_millis(300),
            disk_load_max: Duration::from_millis(300),
            ..LoraSettings::default()
        };
        let (mut adapters, mut rng) = (Adapters::default(), Prng::new(0));
        // Batch, milliseconds that it waits.
        let steps: [(&[u32], u128); 7] = [
            (&[1, 2], 610),
            (&[1], 0),
            (&[3], 305), // takes the slot of 2, which stays on the host
            (&[1, 3], 0),
            (&[2], 5),      // takes the slot of 1
            (&[4], 305),    // takes the slot of 3, and the place of 1 on the host
            (&[1, 2], 305), // 2 is in its slot still
        ];
        for (batch, expected) in steps {
            let batch: Vec<ModelId> = batch.iter().map(|id| ModelId(*id)).collect();
            assert_eq!(adapters.activate(&batch, &lora, &mut rng).as_millis(), expected, "{batch:?}");
        }
    }

    #[test]
    fn a_load_from_disk_is_drawn_from_its_range() {
        let lora = LoraSettings { bytes_per_rank: 0, ..LoraSettings::default() };
        let (mut adapters, mut rng) = (Adapters::default(), Prng::new(1));
        let waits: Vec<f64> =
            (0..200).map(|id| adapters.activate(&[ModelId(id)], &lora, &mut rng).as_secs_f64()).collect();
        assert!(waits.iter().all(|wait| (0.305..=2.005).contains(wait)));
        assert!(waits.iter().any(|wait| *wait < 0.5) && waits.iter().any(|wait| *wait > 1.8));
    }
}
