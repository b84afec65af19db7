//! Answers that are not streamed, with every member that vLLM 0.32.0 prints, nulls included.

use expediter_engine_sim::FinishReason;
use serde::Serialize;

use crate::generate::{Answer, Choice};
use crate::request::Endpoint;

/// The body of the answer.
pub(crate) fn render(answer: &Answer) -> Vec<u8> {
    let bytes = match answer.generation.endpoint {
        Endpoint::Chat => serde_json::to_vec(&chat(answer)),
        Endpoint::Completions => serde_json::to_vec(&completion(answer)),
    };
    bytes.expect("strings and numbers are valid JSON")
}

/// A reason as clients read it.
pub(crate) const fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Abort => "abort",
    }
}

/// As the captured engine calls itself.
pub(crate) const FINGERPRINT: &str = "vllm-0.32.0-04cd96b3";

/// JSON's null: a member that the simulation has nothing to say in.
type Null = ();

fn chat(answer: &Answer) -> ChatCompletion<'_> {
    let usage = answer.usage();
    ChatCompletion {
        id: &answer.id,
        object: "chat.completion",
        created: answer.created,
        model: &answer.model,
        choices: (0..answer.choices.len()).map(|index| chat_choice(answer, index)).collect(),
        service_tier: (),
        system_fingerprint: FINGERPRINT,
        usage: usage_body(answer, Some(usage.created)),
        prompt_logprobs: (),
        prompt_token_ids: answer.generation.return_token_ids.then(|| answer.prompt(0).ids.as_slice()),
        prompt_text: (),
        kv_transfer_params: (),
        ec_transfer_params: (),
        metrics: (),
    }
}

fn chat_choice(answer: &Answer, index: usize) -> ChatChoice {
    let choice = &answer.choices[index];
    ChatChoice {
        index,
        message: Message {
            role: "assistant",
            content: text(choice),
            refusal: (),
            annotations: (),
            audio: (),
            function_call: (),
            reasoning: (),
        },
        logprobs: (),
        finish_reason: choice.finish.map(finish_reason),
        stop_reason: (),
        token_ids: token_ids(answer, choice),
        routed_experts: (),
    }
}

fn completion(answer: &Answer) -> Completion<'_> {
    let choice = |index: usize| {
        let choice = &answer.choices[index];
        CompletionChoice {
            index,
            text: text(choice),
            logprobs: (),
            finish_reason: choice.finish.map(finish_reason),
            stop_reason: (),
            token_ids: token_ids(answer, choice),
            prompt_logprobs: (),
            prompt_token_ids: answer.generation.return_token_ids.then(|| answer.prompt(index).ids.as_slice()),
            routed_experts: (),
        }
    };
    Completion {
        id: &answer.id,
        object: "text_completion",
        created: answer.created,
        model: &answer.model,
        choices: (0..answer.choices.len()).map(choice).collect(),
        service_tier: (),
        system_fingerprint: FINGERPRINT,
        usage: usage_body(answer, None),
        kv_transfer_params: (),
        ec_transfer_params: (),
        metrics: (),
    }
}

fn text(choice: &Choice) -> String {
    choice.words[..choice.produced].iter().map(|word| word.text()).collect()
}

fn token_ids(answer: &Answer, choice: &Choice) -> Option<Vec<u32>> {
    let ids = || choice.words[..choice.produced].iter().map(|word| word.id()).collect();
    answer.generation.return_token_ids.then(ids)
}

fn usage_body(answer: &Answer, created_cache_tokens: Option<u64>) -> UsageBody {
    let usage = answer.usage();
    UsageBody {
        prompt_tokens: usage.prompt,
        total_tokens: usage.prompt + usage.completion,
        completion_tokens: usage.completion,
        prompt_tokens_details: Details {
            cached_tokens: usage.cached,
            created_cache_tokens,
            multimodal_tokens: (),
        },
        completion_tokens_details: (),
    }
}

// Members in the order of the captures.

#[derive(Serialize)]
struct ChatCompletion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<ChatChoice>,
    service_tier: Null,
    system_fingerprint: &'static str,
    usage: UsageBody,
    prompt_logprobs: Null,
    prompt_token_ids: Option<&'a [u32]>,
    prompt_text: Null,
    kv_transfer_params: Null,
    ec_transfer_params: Null,
    metrics: Null,
}

#[derive(Serialize)]
struct ChatChoice {
    index: usize,
    message: Message,
    logprobs: Null,
    finish_reason: Option<&'static str>,
    stop_reason: Null,
    token_ids: Option<Vec<u32>>,
    routed_experts: Null,
}

#[derive(Serialize)]
struct Message {
    role: &'static str,
    content: String,
    refusal: Null,
    annotations: Null,
    audio: Null,
    function_call: Null,
    reasoning: Null,
}

#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<CompletionChoice<'a>>,
    service_tier: Null,
    system_fingerprint: &'static str,
    usage: UsageBody,
    kv_transfer_params: Null,
    ec_transfer_params: Null,
    metrics: Null,
}

#[derive(Serialize)]
struct CompletionChoice<'a> {
    index: usize,
    text: String,
    logprobs: Null,
    finish_reason: Option<&'static str>,
    stop_reason: Null,
    token_ids: Option<Vec<u32>>,
    prompt_logprobs: Null,
    prompt_token_ids: Option<&'a [u32]>,
    routed_experts: Null,
}

#[derive(Serialize)]
struct UsageBody {
    prompt_tokens: u64,
    total_tokens: u64,
    completion_tokens: u64,
    prompt_tokens_details: Details,
    completion_tokens_details: Null,
}

#[derive(Serialize)]
#[expect(clippy::struct_field_names, reason = "the names are the engine's")]
struct Details {
    cached_tokens: u64,
    created_cache_tokens: Option<u64>,
    multimodal_tokens: Null,
}
