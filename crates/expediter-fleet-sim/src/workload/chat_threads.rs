//! Chat threads that grow: each prompt is everything before it and a new message.

use std::collections::VecDeque;

use expediter_types::{ModelId, Prng, Tokens};

use super::Workload;
use super::capacity::content_rng;
use super::closed_loop::{Ask, Clients, ClosedLoop, Source};
use super::content::Stream;
use super::draw::shuffle;
use super::error::{WorkloadError, check, check_count};
use super::lengths::scale;

/// Threads whose prompts grow by the same factor from turn to turn. Prompts are sent turn by turn, those of one
/// turn in a drawn order, by clients that take whatever is next: with more clients than threads, two prompts of
/// one thread may be open at once, as when prompts are cut from finished conversations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChatThreads {
    /// Who sends.
    pub clients: Clients,
    /// Threads.
    pub threads: u32,
    /// Prompts cut from each thread.
    pub turns: u32,
    /// How many times as long as the last one a prompt is.
    pub growth: f64,
    /// Mean tokens of a prompt.
    pub prompt_mean: f64,
    /// Mean tokens of an answer; answers grow as prompts do.
    pub output_mean: f64,
    /// Standard deviation of the logarithm of a thread's length: threads are not alike.
    pub spread: f64,
    /// The model asked for.
    pub model: ModelId,
}

impl ChatThreads {
    /// The benchmark of `KubeAI`'s prefix hash: 8,000 prompts of 800 threads, 832 tokens in and 76 out on average.
    /// Growth and spread are chosen here: 1.3 a turn leaves room for the answer and a message twice as long.
    /// Source: kubeai.org, `benchmarks/prefix-aware-load-balancing` (2025-02).
    pub const fn new(clients: Clients, model: ModelId) -> Self {
        Self {
            clients,
            threads: 800,
            turns: 10,
            growth: 1.3,
            prompt_mean: 832.0,
            output_mean: 76.0,
            spread: 0.5,
            model,
        }
    }

    /// The closed loop; a request's tenant is its thread. It ends when all prompts are sent.
    pub fn start(&self, seed: u64) -> Result<impl Workload + use<>, WorkloadError> {
        self.check()?;
        let mut rng = content_rng(seed);
        let prompts = self.prompts(&mut rng);
        ClosedLoop::new(Prompts(prompts), self.clients, self.model, rng)
    }

    fn check(&self) -> Result<(), WorkloadError> {
        check_count("threads", u64::from(self.threads))?;
        check_count("turns", u64::from(self.turns))?;
        check_count("threads × turns", u64::from(self.threads) * u64::from(self.turns))?;
        let lengths = [("prompt_mean", self.prompt_mean), ("output_mean", self.output_mean)];
        for (field, tokens) in lengths {
            check((1.0..=1e6).contains(&tokens), field, tokens, "a number of tokens from 1 to 1,000,000")?;
        }
        // The next prompt holds this one and its answer.
        let least = 1.0 + self.output_mean / self.prompt_mean;
        let holds = self.growth > least && self.growth <= 10.0;
        check(holds, "growth", self.growth, "more than 1 + `output_mean` ÷ `prompt_mean`, at most 10")?;
        check((0.0..=2.0).contains(&self.spread), "spread", self.spread, "a number from 0 to 2")
    }

    fn prompts(&self, rng: &mut Prng) -> VecDeque<Cut> {
        let growths: Vec<f64> = (0..self.turns)
            .scan(1.0, |growth, _| Some(std::mem::replace(growth, *growth * self.growth)))
            .collect();
        let first = self.prompt_mean * f64::from(self.turns) / growths.iter().sum::<f64>();
        // The mean of a lognormal draw is above its median; the last term takes that back.
        let mut size = || (self.spread * rng.normal() - self.spread * self.spread / 2.0).exp();
        let sizes: Vec<f64> = (0..self.threads).map(|_| first * size()).collect();
        let mut cuts = VecDeque::new();
        for growth in growths {
            let mut turn: Vec<Cut> =
                (0..).zip(&sizes).map(|(thread, size)| self.cut(thread, size * growth)).collect();
            shuffle(&mut turn, rng);
            cuts.extend(turn);
        }
        cuts
    }

    fn cut(&self, thread: u32, tokens: f64) -> Cut {
        let factor = self.output_mean / self.prompt_mean;
        let length = |factor: f64| scale(Tokens(1_000), tokens * factor / 1_000.0, Tokens(1_000_000));
        Cut { thread, prompt: length(1.0), output: length(factor) }
    }
}

/// A thread up to one of its messages.
struct Cut {
    thread: u32,
    prompt: Tokens,
    output: Tokens,
}

struct Prompts(VecDeque<Cut>);

impl Source for Prompts {
    fn ask(&mut self, _client: usize, _rng: &mut Prng) -> Option<Ask> {
        let Cut { thread, prompt, output } = self.0.pop_front()?;
        let prompt = Stream::unique(u64::from(thread)).prompt(prompt, output);
        Some(Ask { tenant: thread, prompt, output, output_cap: output })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::testing::{answer_in_turn, ideal_hit_ratio, mean};

    #[test]
    fn threads_have_the_published_means() {
        let threads = ChatThreads::new(Clients::new(1_600, 200.0), ModelId(0));
        let requests = answer_in_turn(&mut threads.start(3).unwrap(), 10_000);
        assert_eq!(requests.len(), 8_000);
        let prompt = mean(requests.iter().map(|request| request.prompt.tokens()));
        let output = mean(requests.iter().map(|request| request.output));
        assert!((prompt / 832.0 - 1.0).abs() < 0.05, "{prompt} tokens a prompt");
        assert!((output / 76.0 - 1.0).abs() < 0.05, "{output} tokens an answer");
        // A prompt of mean length 832 knows the last one (÷ 1.3) and its answer, but for a partial block.
        let ratio = ideal_hit_ratio(&requests);
        assert!((0.70..0.84).contains(&ratio), "ideal hit ratio {ratio}");
    }

    #[test]
    fn mistakes_name_their_field() {
        let good = ChatThreads::new(Clients::new(8, 200.0), ModelId(0));
        let cases = [
            (ChatThreads { growth: 1.05, ..good }, "`growth` is 1.05"),
            (ChatThreads { threads: 0, ..good }, "`threads` is 0"),
            (ChatThreads { prompt_mean: f64::NAN, ..good }, "`prompt_mean` is NaN"),
            (ChatThreads { clients: Clients::new(8, 0.0), ..good }, "`start_rate` is 0"),
        ];
        for (settings, expected) in cases {
            let error = settings.start(0).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
