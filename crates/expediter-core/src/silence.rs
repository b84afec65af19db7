//! When silence means death. A hung engine keeps its port open, answers `/health` and accepts requests; only
//! the lack of any output shows it. A busy one is silent too, but not towards everybody.

use std::time::Duration;

use expediter_types::{Time, Tokens};

use crate::dispatcher::Request;
use crate::replica::Replica;
use crate::settings::Settings;

/// When the attempt dispatched to `replica` at `since` is to be given up if nothing more is heard. Counted from
/// the dispatch or the replica's last sign of life, whichever is later: output to anybody, or a report in which
/// the engine's counters moved.
///
/// The limit is a multiple of the replica's recent worst time to first token, within bounds, plus what
/// computing the prompt may take. Where no fresh report could show the engine at work, what it may be doing in
/// silence is added: computing the other prompts it has, and generating an answer that comes whole.
pub(crate) fn deadline(
    replica: &Replica,
    request: &Request,
    since: Time,
    settings: &Settings,
    now: Time,
) -> Time {
    let silence = &settings.silence;
    let usual = match (replica.ttft.peak(now), replica.ttft.mean()) {
        (Some(peak), Some(mean)) => {
            let worst = Duration::from_secs_f64(peak).max(mean);
            worst
                .saturating_mul(silence.ttft_factor)
                .clamp(silence.limit_min, silence.limit_max.max(silence.limit_min))
        }
        (None, _) | (_, None) => silence.limit_max,
    };
    let prompt = times(silence.per_prompt_token, request.prompt.tokens());
    let unseen = if replica.reported.fresh(settings.stale_after, now) {
        Duration::ZERO
    } else {
        let ahead = times(silence.per_prompt_token, replica.ledger.tokens()).min(silence.limit_max);
        let whole = if request.stream { Tokens::ZERO } else { request.output_cap.min(ANSWER_TOKENS_MAX) };
        ahead.saturating_add(times(silence.per_answer_token, whole))
    };
    let from = replica.last_life.map_or(since, |life| life.max(since));
    from + usual.saturating_add(prompt).saturating_add(unseen)
}

fn times(duration: Duration, tokens: Tokens) -> Duration {
    duration.saturating_mul(u32::try_from(tokens.0).unwrap_or(u32::MAX))
}

/// Few answers are longer, and few replicas that hang should be waited for longer.
const ANSWER_TOKENS_MAX: Tokens = Tokens(4_096);
