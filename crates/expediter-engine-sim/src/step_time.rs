//! How long a forward pass takes.

use std::time::Duration;

use expediter_types::{Prng, Tokens};

/// What one step computes, in the terms that its time depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Batch {
    /// New tokens of prompts, and of recomputed sequences.
    pub prefill_tokens: Tokens,
    /// Prompts, or parts of prompts, that these tokens belong to.
    pub prefill_chunks: u32,
    /// Sequences that produce one token each.
    pub decodes: u32,
    /// Sum over the chunks of `q*c + q*q/2`, for q new tokens over c tokens computed before or found cached:
    /// the area of the attention matrix.
    pub area: f64,
    /// Context lengths of the decodes, added up. A shared prefix counts once a sequence.
    pub context: Tokens,
}

impl Batch {
    /// Tokens that go through the dense layers.
    pub fn tokens(&self) -> Tokens {
        self.prefill_tokens + Tokens(u64::from(self.decodes))
    }

    /// Adds a chunk of `new` tokens over `computed` earlier ones.
    pub fn add_prefill(&mut self, new: Tokens, computed: Tokens) {
        let (q, c) = (new.0 as f64, computed.0 as f64);
        self.prefill_tokens += new;
        self.prefill_chunks += 1;
        self.area += q * c + q * q / 2.0;
    }

    /// Adds a sequence that decodes one token at a context of `context` tokens.
    pub fn add_decode(&mut self, context: Tokens) {
        self.decodes += 1;
        self.context += context;
    }
}

/// Coefficients of the step time, in milliseconds a unit:
/// `c0 + max(w1*T, g*T - g0) + a*A + k*K + b*B + pp*P` for T tokens, area A, context K, B decodes, P chunks.
/// The maximum is the roofline: few tokens wait for the weights, many for the tensor cores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coefficients {
    /// A step with nothing in it.
    pub c0: f64,
    /// A token while the weights' stream dominates.
    pub w1: f64,
    /// A token while the tensor cores dominate.
    pub g: f64,
    /// Where the line of `g` meets the axis, so that it crosses that of `w1` near 120 tokens.
    pub g0: f64,
    /// A unit of attention area.
    pub a: f64,
    /// A token of decode context.
    pub k: f64,
    /// A decode sequence.
    pub b: f64,
    /// A prefill chunk.
    pub pp: f64,
}

impl Coefficients {
    /// The time of a step on the device, without noise and without work of the host.
    pub fn step_time(&self, batch: &Batch) -> Duration {
        let tokens = batch.tokens().0 as f64;
        let dense = (self.w1 * tokens).max(self.g * tokens - self.g0);
        let attention = self.a * batch.area + self.k * batch.context.0 as f64;
        let sequences = self.b * f64::from(batch.decodes) + self.pp * f64::from(batch.prefill_chunks);
        Duration::from_secs_f64((self.c0 + dense + attention + sequences).max(0.0) / 1e3)
    }
}

/// Lognormal noise on a step: without it replicas fall into lock step, and percentiles look cleaner than life.
pub(crate) fn with_noise(step: Duration, sigma: f64, rng: &mut Prng) -> Duration {
    step.mul_f64((sigma * rng.normal()).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile;

    const OVERHEAD_MS: f64 = 0.5;

    fn ms(profile: Profile, batches: &[Batch]) -> f64 {
        let of = |batch| profile.coefficients().step_time(batch).as_secs_f64() * 1e3 + OVERHEAD_MS;
        batches.iter().map(of).sum()
    }

    fn prefill(chunks: &[(u64, u64)]) -> Vec<Batch> {
        let one = |(new, computed): &(u64, u64)| {
            let mut batch = Batch::default();
            batch.add_prefill(Tokens(*new), Tokens(*computed));
            batch
        };
        chunks.iter().map(one).collect()
    }

    fn decodes(count: u32) -> Batch {
        let mut batch = Batch::default();
        (0..count).for_each(|_| batch.add_decode(Tokens(2_000)));
        batch
    }

    /// Name, steps, ms on 8B TP1, on 70B TP2, on 70B TP4.
    type Case = (&'static str, Vec<Batch>, [Option<f64>; 3]);

    /// The table "Typical values" of the calibration, which rounds to whole or tenths of milliseconds.
    #[test]
    fn typical_steps_take_their_published_time() {
        let mut mixed = decodes(64);
        mixed.add_prefill(Tokens(304), Tokens(1_536));
        let mut cold = decodes(64);
        cold.add_prefill(Tokens(1_984), Tokens(0));
        let mut long = decodes(64);
        long.add_prefill(Tokens(1_984), Tokens(30_000));
        let cases: Vec<Case> = vec![
            ("304 over 1,536 cached", prefill(&[(304, 1_536)]), [Some(30.0), Some(135.0), Some(77.0)]),
            ("1,800 cold", prefill(&[(1_800, 0)]), [Some(134.0), Some(649.0), Some(361.0)]),
            ("3,000 cold", prefill(&[(2_048, 0), (952, 2_048)]), [Some(233.0), Some(1_108.0), Some(617.0)]),
            ("4,000 cold", prefill(&[(2_048, 0), (1_952, 2_048)]), [Some(314.0), Some(1_477.0), Some(819.0)]),
            ("1 decode", vec![decodes(1)], [Some(11.6), Some(48.6), Some(28.2)]),
            ("8 decodes", vec![decodes(8)], [Some(13.0), Some(51.3), Some(29.7)]),
            ("32 decodes", vec![decodes(32)], [Some(17.8), Some(60.6), Some(34.8)]),
            ("64 decodes", vec![decodes(64)], [Some(24.2), Some(73.1), Some(41.7)]),
            ("128 decodes", vec![decodes(128)], [Some(37.3), Some(101.4), Some(57.1)]),
            ("64 decodes, 304 over 1,536", vec![mixed], [Some(45.0), None, None]),
            ("64 decodes, 1,984 cold", vec![cold], [Some(163.0), None, None]),
            ("64 decodes, 1,984 over 30,000", vec![long], [Some(392.0), None, None]),
        ];
        let profiles = [Profile::Llama3_8bTp1A100, Profile::Llama3_70bTp2A100, Profile::Llama3_70bTp4A100];
        for (name, batches, expected) in cases {
            for (profile, expected) in profiles.into_iter().zip(expected) {
                let Some(expected) = expected else { continue };
                let modelled = ms(profile, &batches);
                let off = (modelled / expected - 1.0).abs();
                assert!(off < 0.03, "{name} on {profile}: {modelled:.1} ms, published {expected}");
            }
        }
    }

    #[test]
    fn noise_scatters_around_one() {
        let mut rng = Prng::new(3);
        let step = Duration::from_millis(10);
        let draws: Vec<f64> = (0..10_000)
            .map(|_| with_noise(step, 0.03, &mut rng).as_secs_f64() / step.as_secs_f64())
            .collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let deviation = (draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64).sqrt();
        assert!((mean - 1.0).abs() < 0.002, "mean {mean}");
        assert!((deviation - 0.03).abs() < 0.002, "deviation {deviation}");
    }
}
