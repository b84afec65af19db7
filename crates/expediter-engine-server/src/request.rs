//! Bodies of generation requests: what vLLM makes of them, and what it says when it cannot.

use expediter_types::Tokens;
use hyper::StatusCode;
use serde_json::{Map, Value};

use crate::error::ErrorAnswer;
use crate::vocabulary::{self, MESSAGE_END, MESSAGE_START, VOCABULARY};

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

/// What a request is checked against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model<'a> {
    pub(crate) name: &'a str,
    pub(crate) max_model_len: Tokens,
}

impl Generation {
    /// Reads a body whose content type is JSON.
    pub(crate) fn parse(body: &[u8], endpoint: Endpoint, model: Model<'_>) -> Result<Self, ErrorAnswer> {
        let fields = Fields::parse(body)?;
        fields.check_model(model)?;
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
        })
    }
}

/// The tokens that `/tokenize` answers for a `prompt` or for `messages`, with the text of each.
pub(crate) fn tokenize(body: &[u8], model: Model<'_>) -> Result<Tokenized, ErrorAnswer> {
    let fields = Fields::parse(body)?;
    fields.check_model(model)?;
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

/// The members of a JSON object; of several with one name the last, as in Python.
struct Fields(Map<String, Value>);

impl Fields {
    fn parse(body: &[u8]) -> Result<Self, ErrorAnswer> {
        let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
        let Ok(text) = std::str::from_utf8(body) else { return Err(unreadable()) };
        if text.is_empty() {
            return Err(ErrorAnswer::validation("missing", "body", "Field required", "None"));
        }
        match serde_json::from_str(text) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(Value::Null) => Err(ErrorAnswer::validation("missing", "body", "Field required", "None")),
            Ok(other) => {
                let message = "Input should be a valid dictionary or object to extract fields from";
                Err(ErrorAnswer::validation("model_attributes_type", "body", message, &shown(&other)))
            }
            Err(error) if error.to_string().starts_with("recursion limit") => Err(unreadable()),
            Err(error) => {
                let before = text.lines().take(error.line().saturating_sub(1)).map(|line| line.len() + 1);
                Err(ErrorAnswer::json_invalid(before.sum::<usize>() + error.column(), "Expecting value"))
            }
        }
    }

    /// No model, and the empty one, mean the one that is served.
    fn check_model(&self, model: Model<'_>) -> Result<(), ErrorAnswer> {
        match self.0.get("model") {
            None | Some(Value::Null) => Ok(()),
            Some(Value::String(name)) if name.is_empty() || name == model.name => Ok(()),
            Some(Value::String(name)) => Err(ErrorAnswer::unknown_model(name, model.name)),
            Some(other) => {
                let message = "Input should be a valid string";
                Err(ErrorAnswer::validation("string_type", "body.model", message, &shown(other)))
            }
        }
    }

    fn string(&self, name: &str) -> Option<String> {
        self.0.get(name).and_then(Value::as_str).map(str::to_owned)
    }

    /// A number, or text that spells one; `None` where it is absent or null.
    fn integer(&self, name: &str) -> Result<Option<i64>, ErrorAnswer> {
        let Some(value) = self.0.get(name).filter(|value| !value.is_null()) else { return Ok(None) };
        let location = format!("body.{name}");
        let refuse = |kind: &str, message: &str| {
            Err(ErrorAnswer::validation(
                kind,
                &location,
                &format!("Input should be a valid integer{message}"),
                &shown(value),
            ))
        };
        match value {
            Value::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(integer), _) => Ok(Some(integer)),
                (None, Some(float)) if float.fract() == 0.0 && float.abs() < 9.0e15 => {
                    Ok(format!("{float:.0}").parse().ok())
                }
                _ => refuse("int_from_float", ", got a number with a fractional part"),
            },
            Value::String(text) => match text.trim().parse() {
                Ok(integer) => Ok(Some(integer)),
                Err(_) => refuse("int_parsing", ", unable to parse string as an integer"),
            },
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => refuse("int_type", ""),
        }
    }

    /// True, or text that means it.
    fn boolean(&self, name: &str) -> Result<bool, ErrorAnswer> {
        match self.0.get(name) {
            None | Some(Value::Null | Value::Bool(false)) => Ok(false),
            Some(Value::Bool(true)) => Ok(true),
            Some(Value::String(text)) if ["yes", "true", "on", "1"].contains(&text.as_str()) => Ok(true),
            Some(Value::String(text)) if ["no", "false", "off", "0"].contains(&text.as_str()) => Ok(false),
            Some(other) => {
                let message = "Input should be a valid boolean, unable to interpret input";
                Err(ErrorAnswer::validation("bool_parsing", &format!("body.{name}"), message, &shown(other)))
            }
        }
    }

    /// The cap that the request sets, or its endpoint's default; `None` for all that is left.
    fn cap(&self, endpoint: Endpoint) -> Result<Option<i64>, ErrorAnswer> {
        let max_tokens = self.integer("max_tokens")?;
        match endpoint {
            Endpoint::Chat => Ok(self.integer("max_completion_tokens")?.or(max_tokens)),
            Endpoint::Completions if self.0.contains_key("max_tokens") => Ok(max_tokens),
            Endpoint::Completions => Ok(Some(COMPLETION_TOKENS)),
        }
    }

    fn sampling(&self) -> Result<Sampling, ErrorAnswer> {
        let greedy = self.0.get("temperature").and_then(Value::as_f64) == Some(0.0);
        let seed = self.integer("seed")?.map(i64::cast_unsigned);
        Ok(match (greedy, seed) {
            (true, _) => Sampling::Greedy,
            (false, Some(seed)) => Sampling::Seeded(seed),
            (false, None) => Sampling::Free,
        })
    }

    fn prompts(&self, endpoint: Endpoint, model: &str) -> Result<Vec<Vec<u32>>, ErrorAnswer> {
        match endpoint {
            Endpoint::Chat => Ok(vec![self.chat(model)?]),
            Endpoint::Completions => prompts(self.0.get("prompt").unwrap_or(&Value::Null)),
        }
    }

    /// The conversation as the model sees it.
    fn chat(&self, model: &str) -> Result<Vec<u32>, ErrorAnswer> {
        let location = "body.messages";
        let messages = match self.0.get("messages") {
            Some(Value::Array(messages)) => messages,
            None => {
                let input = format!("<dict of {} items>", self.0.len());
                return Err(ErrorAnswer::validation("missing", location, "Field required", &input));
            }
            Some(other) => {
                let message = "Input should be a valid list";
                return Err(ErrorAnswer::validation("list_type", location, message, &shown(other)));
            }
        };
        if messages.is_empty() {
            let message =
                "Cannot apply chat template to an empty conversation. Provide at least one message.";
            return Err(ErrorAnswer::bad_request(None, message));
        }
        let mut ids = Vec::new();
        if let Some(tools) = self.0.get("tools").filter(|tools| !tools.is_null()) {
            ids.extend(vocabulary::ids(&tools.to_string()));
        }
        for message in messages {
            let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
            ids.push(MESSAGE_START);
            ids.extend(vocabulary::ids(&format!("{role}\n")));
            ids.extend(vocabulary::ids(&content(message.get("content"), model)?));
            ids.push(MESSAGE_END);
            ids.extend(vocabulary::ids("\n"));
        }
        if self.0.get("add_generation_prompt") != Some(&Value::Bool(false)) {
            ids.push(MESSAGE_START);
            ids.extend(vocabulary::ids("assistant\n"));
        }
        Ok(ids)
    }
}

/// The text of a message: parts are joined by line ends.
fn content(content: Option<&Value>, model: &str) -> Result<String, ErrorAnswer> {
    let unfit = || ErrorAnswer::bad_request(None, &format!("{model} is not a multimodal model"));
    match content {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let text =
                |part: &Value| part.get("text").and_then(Value::as_str).map(str::to_owned).ok_or_else(unfit);
            Ok(parts.iter().map(text).collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        Some(other @ (Value::Bool(_) | Value::Number(_) | Value::Object(_))) => {
            let location = "body.messages.0.content";
            Err(ErrorAnswer::validation(
                "string_type",
                location,
                "Input should be a valid string",
                &shown(other),
            ))
        }
    }
}

/// A text, token ids, or a list of either.
fn prompts(prompt: &Value) -> Result<Vec<Vec<u32>>, ErrorAnswer> {
    let absent = || {
        let message = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)";
        ErrorAnswer::bad_request(Some("prompt"), message)
    };
    let one = |text: &str| if text.is_empty() { Err(absent()) } else { Ok(vocabulary::ids(text).collect()) };
    match prompt {
        Value::Null => Err(absent()),
        Value::String(text) => Ok(vec![one(text)?]),
        Value::Array(list) => match list.first() {
            None => Err(ErrorAnswer::bad_request(None, "You must pass at least one prompt")),
            Some(Value::Number(_)) => Ok(vec![token_ids(list)?]),
            Some(_) => list
                .iter()
                .map(|prompt| match prompt {
                    Value::String(text) => one(text),
                    Value::Array(ids) => token_ids(ids),
                    Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
                        Err(not_a_prompt(prompt))
                    }
                })
                .collect(),
        },
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => Err(not_a_prompt(prompt)),
    }
}

fn token_ids(list: &[Value]) -> Result<Vec<u32>, ErrorAnswer> {
    let id = |value: &Value| match value.as_u64() {
        None => {
            let message = "Input should be greater than or equal to 0";
            Err(ErrorAnswer::validation("greater_than_equal", "body.prompt.0", message, &shown(value)))
        }
        Some(id) => u32::try_from(id)
            .ok()
            .filter(|id| *id < VOCABULARY)
            .ok_or_else(|| ErrorAnswer::bad_request(None, &format!("Token id {id} is out of vocabulary"))),
    };
    list.iter().map(id).collect()
}

fn not_a_prompt(value: &Value) -> ErrorAnswer {
    ErrorAnswer::validation("list_type", "body.prompt", "Input should be a valid list", &shown(value))
}

fn unreadable() -> ErrorAnswer {
    ErrorAnswer::detail(StatusCode::BAD_REQUEST, "There was an error parsing the body")
}

/// A value as the messages show it.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(value) => if *value { "True" } else { "False" }.to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        Value::Array(list) => format!("<list of {} items>", list.len()),
        Value::Object(fields) => format!("<dict of {} items>", fields.len()),
    }
}

/// The default of `/v1/completions`.
const COMPLETION_TOKENS: i64 = 16;
/// `VLLM_MAX_N_SEQUENCES`.
const N_MAX: i64 = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: Model<'static> = Model { name: "tiny", max_model_len: Tokens(100) };

    fn parse(endpoint: Endpoint, body: &str) -> Result<Generation, (u16, String)> {
        Generation::parse(body.as_bytes(), endpoint, MODEL).map_err(|error| {
            let json: Value = serde_json::from_slice(&error.body).unwrap();
            let message = json["error"]["message"].as_str().or(json["detail"].as_str()).unwrap_or_default();
            (error.status.as_u16(), message.to_owned())
        })
    }

    #[test]
    fn the_length_of_an_answer() {
        use Endpoint::{Chat, Completions};
        let long = format!(r#"{{"prompt":{:?},"max_tokens":1}}"#, vec![5; 101]);
        let exact = format!(r#"{{"prompt":{:?}}}"#, vec![5; 100]);
        let cases: [(&str, Endpoint, &str, Result<u64, &str>); 12] = [
            ("default", Completions, r#"{"prompt":"abcd"}"#, Ok(16)),
            ("null is no default", Completions, r#"{"prompt":"abcd","max_tokens":null}"#, Ok(99)),
            ("clamped", Completions, r#"{"prompt":"abcd","max_tokens":100}"#, Ok(99)),
            ("text", Completions, r#"{"prompt":"abcd","max_tokens":"7"}"#, Ok(7)),
            (
                "completion tokens win",
                Chat,
                r#"{"messages":[{}],"max_tokens":9,"max_completion_tokens":3}"#,
                Ok(3),
            ),
            ("all that is left", Chat, r#"{"messages":[{}]}"#, Ok(92)),
            (
                "zero",
                Completions,
                r#"{"prompt":"a","max_tokens":0}"#,
                Err("max_tokens must be at least 1, got 0."),
            ),
            (
                "negative",
                Completions,
                r#"{"prompt":"a","max_tokens":-1}"#,
                Err("max_tokens must be at least 1, got -1."),
            ),
            (
                "above the context",
                Completions,
                r#"{"prompt":"a","max_tokens":101}"#,
                Err("max_tokens=101 cannot be"),
            ),
            (
                "fraction",
                Chat,
                r#"{"messages":[{}],"max_tokens":5.5}"#,
                Err("1 validation error:\n  {'type': 'int_from"),
            ),
            (
                "prompt too long",
                Completions,
                &long,
                Err("This model's maximum context length is 100 tokens."),
            ),
            ("nothing left", Completions, &exact, Err("max_tokens must be at least 1, got 0.")),
        ];
        for (name, endpoint, body, expected) in cases {
            match (parse(endpoint, body), expected) {
                (Ok(generation), Ok(tokens)) => {
                    assert_eq!(generation.prompts[0].output_max, tokens, "{name}");
                }
                (Err((400, message)), Err(start)) => assert!(message.starts_with(start), "{name}: {message}"),
                (got, expected) => panic!("{name}: {got:?} instead of {expected:?}"),
            }
        }
    }

    #[test]
    fn a_longer_conversation_begins_with_the_shorter() {
        let turn = |messages: &str| {
            let body = format!(r#"{{"messages":[{messages}],"max_tokens":1}}"#);
            parse(Endpoint::Chat, &body).unwrap().prompts.remove(0).ids
        };
        let first = turn(r#"{"role":"user","content":"Hello there"}"#);
        let second = turn(
            r#"{"role":"user","content":"Hello there"},{"role":"assistant","content":" the sky"},{"role":"user","content":"go"}"#,
        );
        assert_eq!(second[..first.len()], first);
        assert_eq!(second[first.len()..first.len() + 2], [vocabulary::id(b" the"), vocabulary::id(b" sky")]);
    }
}
