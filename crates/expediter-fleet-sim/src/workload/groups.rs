//! Groups of prompts that share a long prefix, as the benchmarks of cache-aware routers send them.

use expediter_types::{Arrival, ModelId, Time, Tokens};

use super::arrivals::{Arrivals, Gaps};
use super::capacity::content_rng;
use super::content::{Prefix, Stream};
use super::draw::shuffle;
use super::error::{WorkloadError, check_count};
use super::rate::Rate;

/// A set of distinct prompts, `prompts` for each of `groups`, sent in a drawn order.
#[derive(Clone, Debug, PartialEq)]
pub struct Groups {
    /// When requests come.
    pub arrivals: Arrivals,
    /// Groups; each has a prefix of its own.
    pub groups: u32,
    /// Prompts of each group.
    pub prompts: u32,
    /// Tokens that the prompts of a group begin with.
    pub prefix: Tokens,
    /// Tokens of a prompt after that.
    pub question: Tokens,
    /// Tokens of an answer.
    pub output: Tokens,
    /// The most tokens that a client asks for.
    pub output_cap: Tokens,
    /// In which order prompts come.
    pub order: Order,
    /// How often the whole set is sent; `None` for as long as `arrivals` go on.
    pub rounds: Option<u32>,
    /// The model asked for.
    pub model: ModelId,
}

/// In which order the prompts of all groups come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Drawn once, then the same in every round.
    Shuffled,
    /// One group after the other.
    Grouped,
}

impl Groups {
    /// The B2B workload of llm-d's precise prefix routing: 150 customers with system prompts of 6,000 tokens, 5
    /// users each with questions of 1,200, Poisson arrivals at `rate` per second. 1,000 tokens are asked for, 245
    /// come: the published tokens per second over requests per second.
    /// Source: llm-d.ai/blog/kvcache-wins-you-can-see (2025-09-24); the order is that of inference-perf's
    /// `SharedPrefixDataGenerator`, which shuffles the set once and cycles through it.
    pub fn b2b(rate: Rate, model: ModelId) -> Self {
        Self {
            arrivals: Arrivals { rate, gaps: Gaps::Poisson },
            groups: 150,
            prompts: 5,
            prefix: Tokens(6_000),
            question: Tokens(1_200),
            output: Tokens(245),
            output_cap: Tokens(1_000),
            order: Order::Shuffled,
            rounds: None,
            model,
        }
    }

    /// `SGLang`'s `generated-shared-prefix` defaults, sent all at once: 64 groups of 16 prompts, 2,048 + 128 tokens
    /// in, 256 out. Source: `SGLang` v0.4 release blog (lmsys.org, 2024-12-04) and sgl-project/sglang PR 1990.
    pub const fn shared_prefix(order: Order, model: ModelId) -> Self {
        Self {
            arrivals: Arrivals::at_once(),
            groups: 64,
            prompts: 16,
            prefix: Tokens(2_048),
            question: Tokens(128),
            output: Tokens(256),
            output_cap: Tokens(256),
            order,
            rounds: Some(1),
            model,
        }
    }

    /// llm-d's 37 % capacity benchmark of a 70B: 83 groups of 3 prompts, 8,000 + 1,000 tokens in, 1,000 out, at
    /// constant gaps. Source: llm-d-kv-cache-manager `benchmarking/37-capacity`.
    pub const fn large_prefix(rate: Rate, model: ModelId) -> Self {
        Self {
            arrivals: Arrivals { rate, gaps: Gaps::Constant },
            groups: 83,
            prompts: 3,
            prefix: Tokens(8_000),
            question: Tokens(1_000),
            output: Tokens(1_000),
            output_cap: Tokens(1_000),
            order: Order::Shuffled,
            rounds: None,
            model,
        }
    }

    /// The rates of the published B2B run: a warm-up at 15 per second, then 3 to 60. The blog gives each stage 20
    /// to 38 s; the slow ones are taken as the long ones here.
    pub fn b2b_stages() -> Rate {
        Rate::stages(&[
            (15.0, 50),
            (3.0, 38),
            (10.0, 30),
            (15.0, 30),
            (20.0, 30),
            (22.0, 28),
            (25.0, 26),
            (30.0, 24),
            (35.0, 22),
            (40.0, 20),
            (43.0, 20),
            (46.0, 20),
            (49.0, 20),
            (52.0, 20),
            (55.0, 20),
            (57.0, 20),
            (60.0, 20),
        ])
    }

    /// The rates of the published 70B run: a warm-up at 9 per second, then 3 to 20, each for 210 down to 50 s.
    pub fn large_prefix_stages() -> Rate {
        Rate::stages(&[
            (9.0, 30),
            (3.0, 210),
            (4.0, 180),
            (5.0, 150),
            (6.0, 130),
            (8.0, 110),
            (10.0, 90),
            (12.0, 75),
            (15.0, 60),
            (20.0, 50),
        ])
    }

    /// The requests. A prompt that comes again is the same prompt; its tenant is its group.
    pub fn start(&self, seed: u64) -> Result<impl Iterator<Item = Arrival> + use<>, WorkloadError> {
        self.check()?;
        let mut set: Vec<(u32, Stream)> = (0..self.groups)
            .flat_map(|group| {
                let prefix = Prefix::new(u64::from(group), self.prefix, 0);
                (0..self.prompts).map(move |prompt| (group, Stream::after(&prefix, u64::from(prompt))))
            })
            .collect();
        if self.order == Order::Shuffled {
            shuffle(&mut set, &mut content_rng(seed));
        }
        let (model, output, output_cap) = (self.model, self.output, self.output_cap);
        let tokens = self.prefix + self.question;
        let make = move |(at, index): (Time, usize)| {
            let (tenant, stream) = &set[index];
            let prompt = stream.prompt(tokens, output);
            Arrival { at, model, tenant: *tenant, prompt, output, output_cap }
        };
        let size = self.groups as usize * self.prompts as usize;
        let total = self.rounds.map_or(usize::MAX, |rounds| size * rounds as usize);
        Ok(self.arrivals.start(seed)?.zip((0..size).cycle()).take(total).map(make))
    }

    fn check(&self) -> Result<(), WorkloadError> {
        check_count("groups", u64::from(self.groups))?;
        check_count("prompts", u64::from(self.prompts))?;
        check_count("groups × prompts", u64::from(self.groups) * u64::from(self.prompts))?;
        check_count("rounds", u64::from(self.rounds.unwrap_or(1)))?;
        check_count("question", self.question.0)?;
        check_count("output", self.output.0)?;
        check_count("prefix", self.prefix.0)?;
        if self.arrivals.gaps == Gaps::AtOnce && self.rounds.is_none() {
            return Err(WorkloadError::Empty { field: "rounds", remedy: "a number where all come at once" });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::testing::ideal_hit_ratio;

    #[test]
    fn the_b2b_set_is_cycled_in_one_order() {
        let b2b = Groups::b2b(Rate::Constant(20.0), ModelId(3));
        let arrivals: Vec<Arrival> = b2b.start(1).unwrap().take(1_500).collect();
        let prompts: Vec<_> = arrivals.iter().map(|arrival| &arrival.prompt).collect();
        assert_eq!(prompts[..750], prompts[750..]);
        assert_eq!(prompts[0].prompt_hashes().len(), 450, "7,200 tokens are 450 blocks");
        let mut distinct: Vec<_> = prompts.iter().map(|prompt| prompt.prompt_hashes()).collect();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 750);
        // 150 cold prefixes of 375 blocks and 750 cold questions of 75, among 450 blocks each.
        let expected = 1.0 - f64::from(150 * 375 + 750 * 75) / f64::from(750 * 450);
        assert!((ideal_hit_ratio(&arrivals[..750]) - expected).abs() < 1e-9);
    }

    #[test]
    fn grouped_and_shuffled_sets_hold_the_same_prompts() {
        let of =
            |order| -> Vec<Arrival> { Groups::shared_prefix(order, ModelId(0)).start(5).unwrap().collect() };
        let (mut shuffled, grouped) = (of(Order::Shuffled), of(Order::Grouped));
        assert_eq!((shuffled.len(), grouped.len()), (1_024, 1_024));
        assert!(grouped.iter().all(|arrival| arrival.at == Time::ZERO));
        assert!(grouped.is_sorted_by_key(|arrival| arrival.tenant));
        assert_ne!(shuffled, grouped);
        shuffled.sort_by_key(|arrival| arrival.tenant);
        let firsts =
            |list: &[Arrival]| -> Vec<_> { list.iter().map(|arrival| arrival.prompt.hashes()[0]).collect() };
        assert_eq!(firsts(&shuffled), firsts(&grouped));
    }

    #[test]
    fn stages_end_the_run() {
        let count = |rate, seed| Groups::large_prefix(rate, ModelId(0)).start(seed).unwrap().count();
        // 9·30 + 3·210 + 4·180 + 5·150 + 6·130 + 8·110 + 10·90 + 12·75 + 15·60 + 20·50
        assert!(count(Groups::large_prefix_stages(), 1).abs_diff(7_730) <= 1);
    }
}
