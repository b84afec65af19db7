//! Error answers in OpenAI's shape.

use serde::Serialize;

/// The body of an error answer: `{"error":{"message":…,"type":…,"param":…,"code":…}}`, in this order, as
/// engines write it.
pub fn error_body(message: &str, kind: &str, param: Option<&str>, code: &str) -> Vec<u8> {
    let body = Body { error: Error { message, kind, param, code } };
    serde_json::to_vec(&body).expect("strings serialise, and a vector takes them")
}

#[derive(Serialize)]
struct Body<'a> {
    error: Error<'a>,
}

#[derive(Serialize)]
struct Error<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: &'a str,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::ErrorFrame;

    #[test]
    fn the_body_is_openais_and_escapes_what_it_quotes() {
        let body = error_body("no model \"x\"\n", "invalid_request_error", Some("model"), "model_not_found");
        let expected = concat!(
            r#"{"error":{"message":"no model \"x\"\n","type":"invalid_request_error","#,
            r#""param":"model","code":"model_not_found"}}"#
        );
        assert_eq!(String::from_utf8(body.clone()).unwrap(), expected);
        let read = crate::completion::inspect_answer(&body).error;
        assert_eq!(read, Some(ErrorFrame { code: None, message: "no model \"x\"\n".into() }));
        assert!(error_body("m", "t", None, "c").windows(12).any(|part| part == br#""param":null"#));
    }
}
