//! The traffic that capacity is measured with: a share of the requests begins with a prompt that is resident.

use expediter_types::{Arrival, BlockSize, ModelId, Prng, Tokens};

use super::arrivals::Arrivals;
use super::content::{Prefix, Stream};
use super::error::{WorkloadError, check, check_count, check_share};
use super::lengths::Lengths;

/// Requests of which a given share can hit the prefix cache. With `Lengths::Fixed` 1,840 in and 300 out, a hit
/// covers 96 of 115 blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct Capacity {
    /// When requests come.
    pub arrivals: Arrivals,
    /// How long they are.
    pub lengths: Lengths,
    /// The share, among those prompts long enough, that begins with a shared prefix.
    pub hit: f64,
    /// Tokens of a shared prefix. A prompt begins with one only where more than another block follows.
    pub prefix: Tokens,
    /// Shared prefixes, each as likely.
    pub prefixes: u32,
    /// The model asked for.
    pub model: ModelId,
}

impl Capacity {
    /// Poisson arrivals of `lengths` at `rate` per second, where the share `hit` begins with the one system
    /// prompt of 1,536 tokens.
    pub const fn new(rate: f64, lengths: Lengths, hit: f64, model: ModelId) -> Self {
        Self { arrivals: Arrivals::poisson(rate), lengths, hit, prefix: Tokens(1_536), prefixes: 1, model }
    }

    /// The requests; times and contents are drawn apart, so that `hit` does not move arrivals.
    pub fn start(&self, seed: u64) -> Result<impl Iterator<Item = Arrival> + use<>, WorkloadError> {
        self.lengths.check()?;
        check_share("hit", self.hit)?;
        check_count("prefixes", u64::from(self.prefixes))?;
        let tokens = self.prefix.0.saturating_mul(u64::from(self.prefixes));
        let remedy = "at most 100,000,000 tokens over all prefixes";
        check(tokens <= PREFIX_TOKENS_MAX, "prefix", tokens as f64, remedy)?;
        let times = self.arrivals.start(seed)?;
        let prefixes: Vec<Prefix> =
            (0..self.prefixes).map(|number| Prefix::new(u64::from(number), self.prefix, 0)).collect();
        let mut rng = content_rng(seed);
        let (lengths, hit, model) = (self.lengths.clone(), self.hit, self.model);
        let shortest = shortest_with(self.prefix);
        Ok((0..).zip(times).map(move |(number, at)| {
            let (prompt, output) = lengths.draw(&mut rng);
            let (hits, which) = (rng.unit() < hit, rng.below(prefixes.len()));
            let stream = if hits && prompt > shortest {
                Stream::after(&prefixes[which], number)
            } else {
                Stream::unique(number)
            };
            let output_cap = lengths.output_cap();
            Arrival { at, model, tenant: 0, prompt: stream.prompt(prompt, output), output, output_cap }
        }))
    }
}

/// Their hashes take half a byte a token.
const PREFIX_TOKENS_MAX: u64 = 100_000_000;

/// Prompts longer than this begin with a prefix of that length: they have a block of their own after it, which
/// the engine computes in any case.
pub(super) fn shortest_with(prefix: Tokens) -> Tokens {
    prefix + Tokens(u64::from(BlockSize::DEFAULT.0.get()))
}

/// The generator of contents, apart from that of times.
pub(super) fn content_rng(seed: u64) -> Prng {
    Prng::new(seed ^ 0xa54f_f53a_5f1d_36f1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::testing::ideal_hit_ratio;

    const FIXED: Lengths = Lengths::Fixed { prompt: Tokens(1_840), output: Tokens(300) };

    #[test]
    fn the_share_that_hits_is_the_one_asked_for() {
        for hit in [0.0, 0.5, 0.8, 0.95, 1.0] {
            let capacity = Capacity::new(100.0, FIXED, hit, ModelId(0));
            let arrivals: Vec<Arrival> = capacity.start(1).unwrap().take(2_000).collect();
            let ratio = ideal_hit_ratio(&arrivals);
            let expected = hit * 1_536.0 / 1_840.0;
            assert!((ratio - expected).abs() < 0.03, "hit {hit}: {ratio}");
        }
    }

    #[test]
    fn more_prefixes_share_less_between_each_other() {
        let capacity = Capacity { prefixes: 50, ..Capacity::new(100.0, FIXED, 1.0, ModelId(0)) };
        let arrivals: Vec<Arrival> = capacity.start(1).unwrap().take(1_000).collect();
        let mut first: Vec<_> = arrivals.iter().map(|arrival| arrival.prompt.hashes()[0]).collect();
        first.sort_unstable();
        first.dedup();
        assert_eq!(first.len(), 50);
    }

    #[test]
    fn mistakes_name_their_field() {
        let good = Capacity::new(1.0, FIXED, 0.5, ModelId(0));
        let cases = [
            (Capacity { hit: 1.5, ..good.clone() }, "`hit` is 1.5"),
            (Capacity { prefixes: 0, ..good.clone() }, "`prefixes` is 0"),
            (Capacity { prefix: Tokens(1_000_000), prefixes: 200, ..good.clone() }, "`prefix` is 200000000"),
            (Capacity { arrivals: Arrivals::poisson(0.0), ..good.clone() }, "`rate` is 0"),
            (
                Capacity { lengths: Lengths::Fixed { prompt: Tokens(0), output: Tokens(1) }, ..good.clone() },
                "`prompt` is 0",
            ),
            (Capacity { lengths: Lengths::conversation([].into()), ..good }, "`lengths` is empty"),
        ];
        for (capacity, expected) in cases {
            let error = capacity.start(0).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
