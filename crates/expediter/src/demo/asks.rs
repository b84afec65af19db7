//! What the clients of the demo ask, and when: draws from one seed.

use std::time::Duration;

use expediter_types::Prng;
use serde_json::{Value, json};

/// One request of the traffic.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ask {
    /// Time since the one before.
    pub(crate) after: Duration,
    pub(crate) path: &'static str,
    pub(crate) body: String,
    pub(crate) stream: bool,
    /// How long its client has patience; without it, to the end.
    pub(crate) leaves_after: Option<Duration>,
}

/// An endless sequence of requests. Arrivals are Poisson, their rate a slow wave; lengths are lognormal; the
/// system prompts are few, so that the replicas' prefix caches have something to find.
pub(crate) struct Asks {
    rng: Prng,
    /// Seconds since the first request.
    time: f64,
    systems: Vec<String>,
}

/// Requests in a second, over a whole wave.
const RATE: f64 = 9.0;
/// By how much the rate swings about its mean, as a ratio.
const SWING: f64 = 0.5;
const WAVE_SECONDS: f64 = 60.0;

/// The names that clients ask for, and how many of 100 requests go there.
const MODELS: [(&str, usize); 4] = [("gpt-fast", 50), ("m-8b", 12), ("gpt-smart", 24), ("m-32b", 14)];
/// Tokens of each system prompt.
const SYSTEMS: [usize; 4] = [160, 320, 640, 1_200];
const STREAM_RATIO: f64 = 0.75;
/// Of the requests without a system prompt's shape: plain text to be completed.
const COMPLETION_RATIO: f64 = 0.1;
const LEAVER_RATIO: f64 = 0.05;

/// Median and standard deviation of the logarithm, in tokens, and the longest.
struct Lengths {
    median: f64,
    sigma: f64,
    max: f64,
}

const PROMPTS: Lengths = Lengths { median: 90.0, sigma: 1.0, max: 3_000.0 };
const ANSWERS: Lengths = Lengths { median: 110.0, sigma: 0.7, max: 800.0 };

impl Asks {
    /// The sequence that `seed` fixes.
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Prng::new(seed);
        let systems = SYSTEMS.iter().map(|tokens| text(&mut rng, *tokens)).collect();
        Self { rng, time: 0.0, systems }
    }

    fn gap(&mut self) -> Duration {
        let wave = 1.0 + SWING * (std::f64::consts::TAU * self.time / WAVE_SECONDS).sin();
        let gap = -(1.0 - self.rng.unit()).ln() / (RATE * wave);
        self.time += gap;
        Duration::from_secs_f64(gap)
    }

    fn model(&mut self) -> &'static str {
        let mut draw = self.rng.below(100);
        for (model, share) in MODELS {
            match draw.checked_sub(share) {
                Some(rest) => draw = rest,
                None => return model,
            }
        }
        MODELS[0].0
    }

    fn chance(&mut self, ratio: f64) -> bool {
        self.rng.unit() < ratio
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to a small range")]
    fn length(&mut self, lengths: &Lengths) -> usize {
        let tokens = lengths.median * (lengths.sigma * self.rng.normal()).exp();
        tokens.clamp(4.0, lengths.max) as usize
    }

    /// Chat with one of the system prompts, or a text to complete.
    fn prompt(&mut self) -> (&'static str, &'static str, Value) {
        let tokens = self.length(&PROMPTS);
        let user = text(&mut self.rng, tokens);
        if self.chance(COMPLETION_RATIO) {
            return ("/v1/completions", "prompt", json!(user));
        }
        let system = &self.systems[self.rng.below(self.systems.len())];
        let messages = json!([{ "role": "system", "content": system }, { "role": "user", "content": user }]);
        ("/v1/chat/completions", "messages", messages)
    }
}

impl Iterator for Asks {
    type Item = Ask;

    fn next(&mut self) -> Option<Ask> {
        let after = self.gap();
        let stream = self.chance(STREAM_RATIO);
        let (path, member, prompt) = self.prompt();
        // With `ignore_eos` an answer runs to its cap, so that lengths are those drawn here.
        let mut body = json!({
            "model": self.model(),
            "stream": stream,
            "max_tokens": self.length(&ANSWERS),
            "ignore_eos": true,
        });
        body[member] = prompt;
        let leaves = self.chance(LEAVER_RATIO);
        let leaves_after = leaves.then(|| Duration::from_secs_f64(0.05 + 2.0 * self.rng.unit()));
        Some(Ask { after, path, body: body.to_string(), stream, leaves_after })
    }
}

/// A text of about so many tokens, at four bytes each.
fn text(rng: &mut Prng, tokens: usize) -> String {
    let mut text = String::with_capacity(4 * tokens + 16);
    while text.len() < 4 * tokens {
        text.push_str(WORDS[rng.below(WORDS.len())]);
        text.push(' ');
    }
    text
}

const WORDS: [&str; 32] = [
    "parcel", "dispatch", "harbour", "signal", "ledger", "courier", "window", "station", "answer", "letter",
    "the", "of", "and", "to", "in", "for", "on", "with", "between", "without", "carries", "reads", "waits",
    "arrives", "returns", "counts", "early", "late", "heavy", "quiet", "second", "open",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_one_traffic() {
        let first: Vec<Ask> = Asks::new(3).take(50).collect();
        assert_eq!(first, Asks::new(3).take(50).collect::<Vec<_>>());
        assert_ne!(first, Asks::new(4).take(50).collect::<Vec<_>>());
    }

    #[test]
    fn the_mix_is_as_described() {
        let asks: Vec<Ask> = Asks::new(1).take(4_000).collect();
        let seconds: f64 = asks.iter().map(|ask| ask.after.as_secs_f64()).sum();
        let count = |is: &dyn Fn(&Ask) -> bool| asks.iter().filter(|ask| is(ask)).count();
        let bodies: Vec<Value> = asks.iter().map(|ask| serde_json::from_str(&ask.body).unwrap()).collect();
        for (model, share) in MODELS {
            let seen = bodies.iter().filter(|body| body["model"] == model).count();
            assert!(seen.abs_diff(40 * share) < 160, "{model}: {seen}");
        }
        let of_system = bodies.iter().filter(|body| body["messages"][0]["content"].is_string()).count();
        let cases = [
            ("a second", asks.len() as f64 / seconds, RATE, 1.5),
            ("streams", count(&|ask| ask.stream) as f64, 3_000.0, 150.0),
            ("leavers", count(&|ask| ask.leaves_after.is_some()) as f64, 200.0, 60.0),
            ("chats", of_system as f64, 3_600.0, 100.0),
        ];
        for (what, seen, expected, tolerance) in cases {
            assert!((seen - expected).abs() < tolerance, "{what}: {seen}, not about {expected}");
        }
    }
}
