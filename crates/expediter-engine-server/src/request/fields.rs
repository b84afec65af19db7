//! The members of a request's body, as pydantic reads them.

use std::sync::Arc;

use hyper::StatusCode;
use serde_json::{Map, Value};

use super::{Endpoint, Model, Sampling};
use crate::adapters::Served;
use crate::error::ErrorAnswer;
use crate::vocabulary::{self, MESSAGE_END, MESSAGE_START, VOCABULARY};

/// The members of a JSON object; of several with one name the last, as in Python.
pub(crate) struct Fields(pub(crate) Map<String, Value>);

impl Fields {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ErrorAnswer> {
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

    /// The adapter that is asked for. No model, and the empty one, mean the one that is served.
    pub(crate) fn adapter(&self, model: Model<'_>) -> Result<Option<Arc<Served>>, ErrorAnswer> {
        match self.0.get("model") {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(name)) if name.is_empty() || name == model.name => Ok(None),
            Some(Value::String(name)) => {
                model.adapters.get(name).map(Some).ok_or_else(|| ErrorAnswer::unknown_model(name, model.name))
            }
            Some(other) => {
                let message = "Input should be a valid string";
                Err(ErrorAnswer::validation("string_type", "body.model", message, &shown(other)))
            }
        }
    }

    pub(crate) fn string(&self, name: &str) -> Option<String> {
        self.0.get(name).and_then(Value::as_str).map(str::to_owned)
    }

    /// A number, or text that spells one; `None` where it is absent or null.
    pub(crate) fn integer(&self, name: &str) -> Result<Option<i64>, ErrorAnswer> {
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
    pub(crate) fn boolean(&self, name: &str) -> Result<bool, ErrorAnswer> {
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
    pub(crate) fn cap(&self, endpoint: Endpoint) -> Result<Option<i64>, ErrorAnswer> {
        let max_tokens = self.integer("max_tokens")?;
        match endpoint {
            Endpoint::Chat => Ok(self.integer("max_completion_tokens")?.or(max_tokens)),
            Endpoint::Completions if self.0.contains_key("max_tokens") => Ok(max_tokens),
            Endpoint::Completions => Ok(Some(COMPLETION_TOKENS)),
        }
    }

    pub(crate) fn sampling(&self) -> Result<Sampling, ErrorAnswer> {
        let greedy = self.0.get("temperature").and_then(Value::as_f64) == Some(0.0);
        let seed = self.integer("seed")?.map(i64::cast_unsigned);
        Ok(match (greedy, seed) {
            (true, _) => Sampling::Greedy,
            (false, Some(seed)) => Sampling::Seeded(seed),
            (false, None) => Sampling::Free,
        })
    }

    pub(crate) fn prompts(&self, endpoint: Endpoint, model: &str) -> Result<Vec<Vec<u32>>, ErrorAnswer> {
        match endpoint {
            Endpoint::Chat => Ok(vec![self.chat(model)?]),
            Endpoint::Completions => prompts(self.0.get("prompt").unwrap_or(&Value::Null)),
        }
    }

    /// The conversation as the model sees it.
    pub(crate) fn chat(&self, model: &str) -> Result<Vec<u32>, ErrorAnswer> {
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
