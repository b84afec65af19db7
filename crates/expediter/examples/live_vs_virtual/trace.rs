//! Conversations: a system prompt that many share, then turns that repeat all before them.

use std::sync::Arc;
use std::time::Duration;

use expediter_types::Prng;

/// One request.
pub(crate) struct Ask {
    /// When it is sent, from the beginning of the trace.
    pub(crate) at: Duration,
    /// Token ids of the prompt.
    pub(crate) prompt: Arc<[u32]>,
    /// Tokens of the answer; the client allows no more.
    pub(crate) output: u32,
}

struct Conversation {
    tokens: Vec<u32>,
    turns: u32,
    /// When its person has read the last answer.
    free_at: Duration,
}

/// Requests of a Poisson process.
pub(crate) fn asks(seed: u64, count: usize, rate: f64) -> Vec<Ask> {
    let mut rng = Prng::new(seed);
    let systems: Vec<Vec<u32>> = (0..SYSTEMS).map(|number| fresh(&mut rng, 256 + 80 * number)).collect();
    let mut conversations: Vec<Conversation> = Vec::new();
    let mut at = Duration::ZERO;
    let mut asks = Vec::with_capacity(count);
    for _ in 0..count {
        at += Duration::from_secs_f64(-(1.0 - rng.unit()).ln() / rate);
        let goes_on = |one: &Conversation| one.free_at <= at && one.turns < TURNS_MAX;
        let open: Vec<usize> =
            (0..conversations.len()).filter(|&index| goes_on(&conversations[index])).collect();
        let index = if open.is_empty() || rng.unit() < NEW_SHARE {
            let tokens = systems[rng.below(SYSTEMS)].clone();
            conversations.push(Conversation { tokens, turns: 0, free_at: at });
            conversations.len() - 1
        } else {
            open[rng.below(open.len())]
        };
        let question = 20 + rng.below(500);
        let output = 40 + rng.below(200);
        let conversation = &mut conversations[index];
        conversation.tokens.extend(fresh(&mut rng, question));
        asks.push(Ask { at, prompt: conversation.tokens.as_slice().into(), output: count_of(output) });
        // The client sends the answer back in words of its own: only the prompt's blocks are found again.
        conversation.tokens.extend(fresh(&mut rng, output));
        conversation.turns += 1;
        conversation.free_at = at + PAUSE;
    }
    asks
}

/// System prompts, of 256 to 1,456 tokens.
const SYSTEMS: usize = 16;

const TURNS_MAX: u32 = 6;

/// Requests that begin a conversation although another could go on.
const NEW_SHARE: f64 = 0.3;

/// Answering and reading.
const PAUSE: Duration = Duration::from_secs(12);

/// Tokens that nothing else begins with.
pub(crate) fn fresh(rng: &mut Prng, tokens: usize) -> Vec<u32> {
    (0..tokens).map(|_| count_of(rng.below(100_000))).collect()
}

fn count_of(small: usize) -> u32 {
    u32::try_from(small).expect("draws here are below a small number")
}
