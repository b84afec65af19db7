//! Closed loops of long sessions: code generation, and reasoning with long answers.
//!
//! Sources give a range and a mean; the distribution between them is chosen here: see `draw::between`.

use expediter_types::{ModelId, Prng, Tokens};

use super::Workload;
use super::capacity::content_rng;
use super::closed_loop::{Ask, Clients, ClosedLoop, Source};
use super::content::{Prefix, Stream};
use super::draw::between;
use super::error::{WorkloadError, check, check_count};

/// A least and a greatest number of tokens or turns, and their mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// The least.
    pub min: u64,
    /// The greatest.
    pub max: u64,
    /// The mean, between the two.
    pub mean: u64,
}

impl Range {
    fn check(self, field: &'static str) -> Result<(), WorkloadError> {
        check_count(field, self.min)?;
        check_count(field, self.max)?;
        let holds = self.min == self.max || (self.min < self.mean && self.mean < self.max);
        check(holds, field, self.mean as f64, "a mean between the least and the greatest")
    }

    fn draw(self, rng: &mut Prng) -> u64 {
        between(self.min, self.max, self.mean, rng)
    }
}

/// Sessions with a long context of their own that grows turn by turn: each turn brings everything before it. A
/// client that ends a session begins another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CodeGeneration {
    /// Who sends.
    pub clients: Clients,
    /// Tokens of a session's system prompt.
    pub system: Range,
    /// Turns of a session.
    pub turns: Range,
    /// Tokens that a turn adds to the prompt.
    pub question: Tokens,
    /// Tokens of an answer.
    pub output: Tokens,
    /// The model asked for.
    pub model: ModelId,
}

impl CodeGeneration {
    /// The code generation workload of llm-d's token-aware routing: system prompts of 3,000 to 100,000 tokens
    /// (mean 55,000), 2 to 20 turns (mean 6), each 1,500 in and 800 out; 10 to 100 clients.
    /// Source: llm-d.ai blog, "sticky until saturated" (2026-08-17).
    pub const fn new(clients: u32, model: ModelId) -> Self {
        Self {
            clients: Clients::new(clients, 2.0),
            system: Range { min: 3_000, max: 100_000, mean: 55_000 },
            turns: Range { min: 2, max: 20, mean: 6 },
            question: Tokens(1_500),
            output: Tokens(800),
            model,
        }
    }

    /// The closed loop; a request's tenant is its client.
    pub fn start(&self, seed: u64) -> Result<impl Workload + use<>, WorkloadError> {
        self.system.check("system")?;
        self.turns.check("turns")?;
        check_count("question", self.question.0)?;
        check_count("output", self.output.0)?;
        let open = vec![None; self.clients.count as usize];
        let source = Sessions { settings: *self, open, begun: 0 };
        ClosedLoop::new(source, self.clients, self.model, content_rng(seed))
    }
}

struct Sessions {
    settings: CodeGeneration,
    /// The session of each client.
    open: Vec<Option<Session>>,
    /// Sessions begun so far.
    begun: u64,
}

#[derive(Clone)]
struct Session {
    stream: Stream,
    /// Tokens of context before the next turn's question.
    context: Tokens,
    /// Turns to come.
    turns: u64,
}

impl Source for Sessions {
    fn ask(&mut self, client: usize, rng: &mut Prng) -> Option<Ask> {
        let CodeGeneration { system, turns, question, output, .. } = self.settings;
        let slot = self.open.get_mut(client)?;
        let session = match slot {
            Some(session) if session.turns > 0 => session,
            Some(_) | None => {
                self.begun += 1;
                let stream = Stream::unique(self.begun);
                slot.insert(Session { stream, context: Tokens(system.draw(rng)), turns: turns.draw(rng) })
            }
        };
        session.turns -= 1;
        let tokens = session.context + question;
        session.context = tokens + output;
        let prompt = session.stream.prompt(tokens, output);
        let tenant = u32::try_from(client).unwrap_or(u32::MAX);
        Some(Ask { tenant, prompt, output, output_cap: output })
    }
}

/// Short prompts with long answers: the replicas decode, and placement by prefix gains nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reasoning {
    /// Who sends.
    pub clients: Clients,
    /// Tokens that all prompts begin with.
    pub prefix: Tokens,
    /// Tokens of a prompt after that.
    pub question: Tokens,
    /// Tokens of an answer; the greatest number is what clients ask for.
    pub output: Range,
    /// The model asked for.
    pub model: ModelId,
}

impl Reasoning {
    /// The reasoning workload of llm-d's token-aware routing: 250 shared and 1,000 other tokens in, 8,000 out
    /// (at most 32,000); 50 to 450 clients. Source: llm-d.ai blog, "sticky until saturated" (2026-08-17).
    pub const fn new(clients: u32, model: ModelId) -> Self {
        Self {
            clients: Clients::new(clients, 20.0),
            prefix: Tokens(250),
            question: Tokens(1_000),
            output: Range { min: 1, max: 32_000, mean: 8_000 },
            model,
        }
    }

    /// The closed loop; a request's tenant is its client.
    pub fn start(&self, seed: u64) -> Result<impl Workload + use<>, WorkloadError> {
        self.output.check("output")?;
        check_count("question", self.question.0)?;
        let source = Thoughts { settings: *self, prefix: Prefix::new(0, self.prefix, 0), asked: 0 };
        ClosedLoop::new(source, self.clients, self.model, content_rng(seed))
    }
}

struct Thoughts {
    settings: Reasoning,
    prefix: Prefix,
    asked: u64,
}

impl Source for Thoughts {
    fn ask(&mut self, client: usize, rng: &mut Prng) -> Option<Ask> {
        self.asked += 1;
        let output = Tokens(self.settings.output.draw(rng));
        let tokens = self.settings.prefix + self.settings.question;
        let prompt = Stream::after(&self.prefix, self.asked).prompt(tokens, output);
        let tenant = u32::try_from(client).unwrap_or(u32::MAX);
        Some(Ask { tenant, prompt, output, output_cap: Tokens(self.settings.output.max) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::testing::{answer_in_turn, ideal_hit_ratio, mean};

    #[test]
    fn sessions_have_the_published_shape() {
        let mut workload = CodeGeneration::new(50, ModelId(0)).start(1).unwrap();
        let requests = answer_in_turn(&mut workload, 2_000);
        // Without the turns before it, a session of mean 6 turns over 55,000 tokens has prompts of about
        // 55,000 + 1,500 + 2,300 · 3.3, its turns weighted by how many there are.
        let prompts = mean(requests.iter().map(|request| request.prompt.tokens()));
        assert!((55_000.0..72_000.0).contains(&prompts), "{prompts} tokens a prompt");
        assert!(requests.iter().all(|request| request.prompt.tokens() <= Tokens(100_000 + 20 * 2_300)));
        // Everything but the first turn of a session is known up to its question.
        let ratio = ideal_hit_ratio(&requests[..300]);
        assert!((0.70..0.90).contains(&ratio), "ideal hit ratio {ratio}");
    }

    #[test]
    fn reasoning_is_short_in_and_long_out() {
        let mut workload = Reasoning::new(50, ModelId(0)).start(1).unwrap();
        let requests = answer_in_turn(&mut workload, 20_000);
        assert!(requests.iter().all(|request| request.prompt.tokens() == Tokens(1_250)));
        let outputs = mean(requests.iter().map(|request| request.output));
        assert!((outputs / 8_000.0 - 1.0).abs() < 0.03, "{outputs} tokens an answer");
        assert!(requests.iter().all(|request| request.output <= request.output_cap));
    }

    #[test]
    fn clients_wait_for_their_answer() {
        let mut workload = CodeGeneration::new(3, ModelId(0)).start(1).unwrap();
        let first: Vec<_> = std::iter::from_fn(|| workload.next()).collect();
        assert_eq!(first.len(), 3, "one request a client, then silence");
        let now = first[2].at;
        let second = workload.follow_up(1, now).unwrap();
        assert_eq!((second.tenant, second.at), (1, now + std::time::Duration::from_millis(1)));
        let whole = first[1].prompt.hashes();
        assert_eq!(second.prompt.prompt_hashes()[..whole.len()], *whole, "prompt and answer come again");
    }

    #[test]
    fn mistakes_name_their_field() {
        let good = CodeGeneration::new(1, ModelId(0));
        let cases = [
            (CodeGeneration::new(0, ModelId(0)), "`clients` is 0"),
            (CodeGeneration { system: Range { min: 1, max: 9, mean: 9 }, ..good }, "`system` is 9"),
            (CodeGeneration { output: Tokens(0), ..good }, "`output` is 0"),
        ];
        for (settings, expected) in cases {
            let error = settings.start(0).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
