//! The sets of coefficients that ship with the program.

use std::fmt;
use std::str::FromStr;

use expediter_types::Blocks;

use crate::step_time::Coefficients;

/// A model on a number of cards, with the coefficients fitted to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Llama-3-8B on one A100-80GB; fitted to measured kernels (mean error 3.4 %).
    #[default]
    Llama3_8bTp1A100,
    /// Llama-3-70B on two A100-80GB; fitted to measured kernels (mean error 3.1 %).
    Llama3_70bTp2A100,
    /// Llama-3-70B on four A100-80GB; fitted to measured kernels (mean error 2.9 %).
    Llama3_70bTp4A100,
    /// Qwen3-32B on two H100-80GB; set by hand to two published points: 8,192 tokens in 0.40 s, and 11 ms a
    /// token at 3 requests a second.
    Qwen3_32bTp2H100,
}

impl Profile {
    /// Every profile.
    pub const ALL: [Self; 4] =
        [Self::Llama3_8bTp1A100, Self::Llama3_70bTp2A100, Self::Llama3_70bTp4A100, Self::Qwen3_32bTp2H100];

    /// The name as settings spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama3_8bTp1A100 => "llama3_8b_tp1_a100_80g",
            Self::Llama3_70bTp2A100 => "llama3_70b_tp2_a100_80g",
            Self::Llama3_70bTp4A100 => "llama3_70b_tp4_a100_80g",
            Self::Qwen3_32bTp2H100 => "qwen3_32b_tp2_h100",
        }
    }

    /// What a step costs. Sources: Vidur's profiles (dense layers, `microsoft/vidur`, MIT) and aiconfigurator's
    /// (attention, LM head, all-reduce on vLLM 0.14.0, `ai-dynamo/aiconfigurator`, Apache-2.0), 3,000 random
    /// steps a model.
    #[rustfmt::skip] // a table: one row a profile
    pub const fn coefficients(self) -> Coefficients {
        match self {
            Self::Llama3_8bTp1A100 =>  Coefficients { c0: 10.941, w1: 0.028_67, g: 0.067_168, g0: 4.530, a: 3.847e-6, k: 8.319e-5, b: 0.004_08, pp: 0.376 },
            Self::Llama3_70bTp2A100 => Coefficients { c0: 47.713, w1: 0.147_64, g: 0.336_915, g0: 20.686, a: 9.020e-6, k: 1.156_6e-4, b: 0.009_25, pp: 0.857 },
            Self::Llama3_70bTp4A100 => Coefficients { c0: 27.520, w1: 0.089_34, g: 0.186_662, g0: 10.738, a: 4.530e-6, k: 5.923e-5, b: 0.005_57, pp: 0.850 },
            Self::Qwen3_32bTp2H100 =>  Coefficients { c0: 9.7, w1: 0.010, g: 0.043_5, g0: 2.0, a: 1.05e-6, k: 5.3e-5, b: 0.01, pp: 0.3 },
        }
    }

    /// KV blocks of 16 tokens that fit beside the weights at `gpu_memory_utilization` 0.9. The 8B's number is
    /// from a start-up log of vLLM, the others are arithmetic: memory left ÷ KV bytes of a block on one card.
    pub const fn blocks(self) -> Blocks {
        match self {
            Self::Llama3_8bTp1A100 => Blocks(27_853),
            Self::Llama3_70bTp2A100 => Blocks(1_550),
            Self::Llama3_70bTp4A100 => Blocks(30_000),
            // (71.2 - 30.5 - 1.7) GiB ÷ (2 · 64 layers · 4 KV heads · 128 · 2 bytes · 16 tokens).
            Self::Qwen3_32bTp2H100 => Blocks(19_900),
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name of no profile.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no profile; there are {names}", names = Profile::ALL.map(Profile::name).join(", "))]
pub struct UnknownProfile(pub String);

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, UnknownProfile> {
        Self::ALL
            .into_iter()
            .find(|profile| profile.name() == name)
            .ok_or_else(|| UnknownProfile(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_reads_as_it_is_written() {
        for profile in Profile::ALL {
            assert_eq!(profile.to_string().parse(), Ok(profile));
        }
        let error = "gpt".parse::<Profile>().unwrap_err();
        assert!(error.to_string().contains("llama3_8b_tp1_a100_80g"), "{error}");
    }
}
