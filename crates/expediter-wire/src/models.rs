//! The list of models that a replica serves: the answer to `GET /v1/models`.

use serde::Deserialize;

/// A model on a replica's list.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ServedModel {
    /// Its name in requests.
    pub id: String,
    /// The base model, where this is an adapter.
    #[serde(default)]
    pub parent: Option<String>,
    /// Tokens that prompt and answer may have together; adapters do not say.
    #[serde(default)]
    pub max_model_len: Option<u64>,
}

/// Why a list of models cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("no list of models: {0}")]
pub struct ModelsError(#[from] serde_json::Error);

/// Reads a list of models. An empty list is a list.
pub fn parse_models(body: &[u8]) -> Result<Vec<ServedModel>, ModelsError> {
    let list: List = serde_json::from_slice(body)?;
    Ok(list.data)
}

#[derive(Deserialize)]
struct List {
    data: Vec<ServedModel>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(id: &str, parent: Option<&str>, max_model_len: Option<u64>) -> ServedModel {
        ServedModel { id: id.into(), parent: parent.map(Into::into), max_model_len }
    }

    #[test]
    fn lists_with_much_or_little_in_them() {
        let cases: [(&str, &str, Option<Vec<ServedModel>>); 9] = [
            ("the least", r#"{"data":[{"id":"a"}]}"#, Some(vec![model("a", None, None)])),
            (
                "a base model",
                r#"{"object":"list","data":[{"id":"m","parent":null,"max_model_len":8192,"x":[]}]}"#,
                Some(vec![model("m", None, Some(8192))]),
            ),
            (
                "an adapter",
                r#"{"data":[{"id":"ad-1","parent":"m","max_model_len":null}]}"#,
                Some(vec![model("ad-1", Some("m"), None)]),
            ),
            ("empty", r#"{"data":[]}"#, Some(vec![])),
            ("no data", r#"{"object":"list"}"#, None),
            ("an error", r#"{"error":"Unauthorized"}"#, None),
            ("no id", r#"{"data":[{"name":"a"}]}"#, None),
            ("cut", r#"{"data":[{"id":"a"}"#, None),
            ("nothing", "", None),
        ];
        for (name, body, expected) in cases {
            assert_eq!(parse_models(body.as_bytes()).ok(), expected, "{name}");
        }
    }
}
