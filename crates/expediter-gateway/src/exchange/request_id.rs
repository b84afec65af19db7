//! Request ids and trace context.

use http::{HeaderMap, HeaderName, HeaderValue};

/// Carries the id in both directions.
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The id of a request: the client's own where it is fit to stand in logs, headers and records, else `fresh`.
pub(crate) fn request_id(headers: &HeaderMap, fresh: impl FnOnce() -> u64) -> HeaderValue {
    match headers.get(&X_REQUEST_ID) {
        Some(id) if is_fit(id.as_bytes()) => id.clone(),
        _ => {
            let id = format!("{:016x}", fresh());
            HeaderValue::try_from(id).unwrap_or_else(|_| HeaderValue::from_static("0"))
        }
    }
}

fn is_fit(id: &[u8]) -> bool {
    (1..=ID_BYTES_MAX).contains(&id.len())
        && id.iter().all(|byte| {
            byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':' | b'/' | b'+' | b'=')
        })
}

/// Longer than a UUID with any prefix, short enough for a log line.
const ID_BYTES_MAX: usize = 128;

/// The trace id of a W3C `traceparent`: `00-<32 hex digits>-<16 hex digits>-<2 hex digits>`.
/// Source: W3C Trace Context, §3.2.
pub(crate) fn trace_id(headers: &HeaderMap) -> Option<&str> {
    let parent = headers.get("traceparent")?.to_str().ok()?;
    let id = parent.get(3..35)?;
    let well_formed = parent.as_bytes().get(2) == Some(&b'-')
        && parent.as_bytes().get(35) == Some(&b'-')
        && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (well_formed && id.bytes().any(|byte| byte != b'0')).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fit_id_of_the_client_is_kept_and_any_other_replaced() {
        let long = "x".repeat(129);
        for (sent, expected) in [
            ("client-id-1", "client-id-1"),
            ("", "000000000000002a"),
            ("has space", "000000000000002a"),
            ("quote\"", "000000000000002a"),
            (long.as_str(), "000000000000002a"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(X_REQUEST_ID, HeaderValue::from_str(sent).unwrap());
            assert_eq!(request_id(&headers, || 42), expected, "{sent}");
        }
        assert_eq!(request_id(&HeaderMap::new(), || 42), "000000000000002a");
    }

    #[test]
    fn only_a_well_formed_traceparent_has_a_trace_id() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        for (parent, expected) in [
            (format!("00-{id}-00f067aa0ba902b7-01"), Some(id)),
            (format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)), None),
            (format!("00-{}-00f067aa0ba902b7-01", "G".repeat(32)), None),
            ("00-short".to_owned(), None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", HeaderValue::try_from(parent.as_str()).unwrap());
            assert_eq!(trace_id(&headers), expected, "{parent}");
        }
    }
}
