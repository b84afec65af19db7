//! Bodies of generation requests: what vLLM makes of them, and what it says when it cannot.

mod fields;

use std::sync::Arc;

use expediter_types::Tokens;
use serde_json::Value;

use crate::adapters::{Adapters, Served};
use crate::error::ErrorAnswer;
use crate::vocabulary;

use fields::Fields;

/// Which of the two ways to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
}

/// A request that the engine can take.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Generation {
    pub(crate) endpoint: Endpoint,
    pub(crate) prompts: Vec<PromptAsk>,
    /// Answers to each prompt.
    pub(crate) n: usize,
    pub(crate) stream: bool,
    pub(crate) usage: UsageEvents,
    pub(crate) return_token_ids: bool,
    pub(crate) ignore_eos: bool,
    pub(crate) min_tokens: u64,
    pub(crate) sampling: Sampling,
    /// Set apart from all others in the prefix cache.
    pub(crate) cache_salt: Option<String>,
    pub(crate) request_id: Option<String>,
    /// `None` for the base model.
    pub(crate) adapter: Option<Arc<Served>>,
    /// Lower is more urgent.
    pub(crate) priority: Option<i32>,
    pub(crate) session: Option<String>,
}

/// Where a stream says how many tokens it has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UsageEvents {
    /// Nowhere.
    Never,
    /// In an event of its own, after the last token.
    AtEnd,
    /// There, and in every event.
    Everywhere,
}

/// What the words of an answer depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sampling {
    /// Nothing: each answer is another.
    Free,
    /// On the prompt: temperature 0.
    Greedy,
    /// On prompt and seed.
    Seeded(u64),
}

/// A prompt and how long its answer may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PromptAsk {
    pub(crate) ids: Vec<u32>,
    pub(crate) output_max: u64,
}

impl Generation {
    /// Whether the client sent ids, where others send text.
    pub(crate) fn is_of_ids(body: &[u8]) -> bool {
        let body: Option<Value> = serde_json::from_slice(body).ok();
        let is_id = |value: &Value| value.is_u64() || value.get(0).is_some_and(Value::is_u64);
        body.and_then(|body| body.get("prompt")?.get(0).map(is_id)).unwrap_or(false)
    }
}

/// What a request is checked against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model<'a> {
    pub(crate) name: &'a str,
    pub(crate) max_model_len: Tokens,
    pub(crate) adapters: &'a Adapters,
}

impl Generation {
    /// Reads a body whose content type is JSON.
    pub(crate) fn parse(body: &[u8], endpoint: Endpoint, model: Model<'_>) -> Result<Self, ErrorAnswer> {
        let fields = Fields::parse(body)?;
        let adapter = fields.adapter(model)?;
        let priority = fields.integer("priority")?.map(saturated);
        let n = fields.integer("n")?.unwrap_or(1);
        let stream = fields.boolean("stream")?;
        let options = fields.0.get("stream_options").and_then(Value::as_object);
        if options.is_some() && !stream {
            let message = "Stream options can only be defined when `stream=True`. (parameter=stream_options)";
            return Err(ErrorAnswer::bad_request(Some("stream_options"), message));
        }
        let option = |name: &str| options.and_then(|options| options.get(name)) == Some(&Value::Bool(true));
        let cap = fields.cap(endpoint)?;
        let prompts = fields.prompts(endpoint, model.name)?;
        if n < 1 {
            return Err(ErrorAnswer::bad_request(None, &format!("n must be at least 1, got {n}.")));
        }
        if n > N_MAX {
            let message = format!(
                "n must be at most {N_MAX}, got {n}. To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable."
            );
            return Err(ErrorAnswer::bad_request(None, &message));
        }
        let prompts = prompts
            .into_iter()
            .map(|ids| Ok(PromptAsk { output_max: output_max(ids.len() as u64, cap, model)?, ids }))
            .collect::<Result<_, ErrorAnswer>>()?;
        Ok(Self {
            endpoint,
            prompts,
            n: usize::try_from(n).unwrap_or(1),
            stream,
            usage: match (option("include_usage"), option("continuous_usage_stats")) {
                (false, _) => UsageEvents::Never,
                (true, false) => UsageEvents::AtEnd,
                (true, true) => UsageEvents::Everywhere,
            },
            return_token_ids: fields.boolean("return_token_ids")?,
            ignore_eos: fields.boolean("ignore_eos")?,
            min_tokens: fields
                .integer("min_tokens")?
                .and_then(|tokens| u64::try_from(tokens).ok())
                .unwrap_or(0),
            sampling: fields.sampling()?,
            cache_salt: fields.string("cache_salt"),
            request_id: fields.string("request_id"),
            adapter,
            priority,
            session: fields.string("session_id"),
        })
    }
}

/// The tokens that `/tokenize` answers for a `prompt` or for `messages`, with the text of each.
pub(crate) fn tokenize(body: &[u8], model: Model<'_>) -> Result<Tokenized, ErrorAnswer> {
    let fields = Fields::parse(body)?;
    fields.adapter(model)?;
    let with_text = fields.boolean("return_token_strs")?;
    let (ids, text) = if let Some(Value::String(prompt)) = fields.0.get("prompt") {
        let text =
            || vocabulary::pieces(prompt).map(|piece| String::from_utf8_lossy(piece).into_owned()).collect();
        (vocabulary::ids(prompt).collect(), with_text.then(text))
    } else {
        (fields.chat(model.name)?, None)
    };
    Ok(Tokenized { ids, text })
}

/// What `/tokenize` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tokenized {
    pub(crate) ids: Vec<u32>,
    pub(crate) text: Option<Vec<String>>,
}

/// Tokens that an answer may have, of what is asked (`None`: all that is left) and what the context leaves.
fn output_max(prompt: u64, cap: Option<i64>, model: Model<'_>) -> Result<u64, ErrorAnswer> {
    let limit = model.max_model_len.0;
    if prompt > limit {
        let least = limit + 1;
        let message = format!(
            "This model's maximum context length is {limit} tokens. However, your prompt contains at least {least} \
             input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the \
             input prompt. (parameter=input_tokens, value={least})"
        );
        return Err(ErrorAnswer::bad_request(Some("input_tokens"), &message));
    }
    if let Some(cap) = cap.filter(|cap| u64::try_from(*cap).is_ok_and(|cap| cap > limit)) {
        let message = format!(
            "max_tokens={cap} cannot be greater than max_model_len={limit}. Please request fewer output tokens. \
             (parameter=max_tokens, value={cap})"
        );
        return Err(ErrorAnswer::bad_request(Some("max_tokens"), &message));
    }
    let left = i64::try_from(limit - prompt).unwrap_or(i64::MAX);
    let left = cap.map_or(left, |cap| cap.min(left));
    u64::try_from(left).ok().filter(|tokens| *tokens > 0).ok_or_else(|| {
        let message =
            format!("max_tokens must be at least 1, got {left}. (parameter=max_tokens, value={left})");
        ErrorAnswer::bad_request(Some("max_tokens"), &message)
    })
}

/// A priority of any size.
pub(crate) fn saturated(priority: i64) -> i32 {
    i32::try_from(priority).unwrap_or(if priority < 0 { i32::MIN } else { i32::MAX })
}

/// `VLLM_MAX_N_SEQUENCES`.
const N_MAX: i64 = 16_384;

#[cfg(test)]
mod tests;
