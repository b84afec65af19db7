//! Which headers travel, in both directions.

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use super::request_id::X_REQUEST_ID;
use crate::fleet::Replica;

/// The head of the request to `replica`.
///
/// `Host` is the replica's own, the length is that of the body as it is sent, and nothing that speaks about
/// the client's connection goes on. Answers are asked for without a content encoding, since events inside one
/// can neither be judged nor counted.
pub(super) fn request_head(
    replica: &Replica,
    path: &str,
    client: &HeaderMap,
    request_id: &HeaderValue,
    body_bytes: usize,
) -> Bytes {
    let mut head = BytesMut::with_capacity(1024);
    head.put_slice(b"POST ");
    head.put_slice(replica.target.url.prefix().as_bytes());
    head.put_slice(path.as_bytes());
    head.put_slice(b" HTTP/1.1\r\nhost: ");
    head.put_slice(replica.target.authority.as_bytes());
    head.put_slice(b"\r\ncontent-length: ");
    head.put_slice(itoa::Buffer::new().format(body_bytes).as_bytes());
    head.put_slice(b"\r\naccept-encoding: identity\r\nx-request-id: ");
    head.put_slice(request_id.as_bytes());
    head.put_slice(b"\r\n");
    let key = replica.engine_key();
    if let Some(key) = &key {
        head.put_slice(b"authorization: Bearer ");
        head.put_slice(key.reveal().as_bytes());
        head.put_slice(b"\r\n");
    }
    let nominated = Nominated::of(client);
    for (name, value) in client {
        let replaced = *name == header::AUTHORIZATION && key.is_some();
        if !(replaced || is_hop_by_hop(name) || is_remade(name) || nominated.names(name)) {
            head.put_slice(name.as_str().as_bytes());
            head.put_slice(b": ");
            head.put_slice(value.as_bytes());
            head.put_slice(b"\r\n");
        }
    }
    head.put_slice(b"\r\n");
    head.freeze()
}

/// The replica's headers that go to the client: all but those about its connection, its length (made anew)
/// and its request id (ours is the one).
pub(super) fn answer_headers(mut headers: HeaderMap, request_id: &HeaderValue) -> HeaderMap {
    for name in dropped_from_answer(&headers) {
        headers.remove(name);
    }
    headers.insert(X_REQUEST_ID, request_id.clone());
    headers
}

fn dropped_from_answer(headers: &HeaderMap) -> SmallVec<[HeaderName; 4]> {
    let nominated = Nominated::of(headers);
    let is_dropped = |name: &&HeaderName| {
        is_hop_by_hop(name)
            || nominated.names(name)
            || **name == header::CONTENT_LENGTH
            || **name == header::DATE
            || name.as_str().starts_with("x-expediter-")
    };
    headers.keys().filter(is_dropped).cloned().collect()
}

/// Headers that the gateway writes itself.
fn is_remade(name: &HeaderName) -> bool {
    *name == header::HOST
        || *name == header::CONTENT_LENGTH
        || *name == header::ACCEPT_ENCODING
        || *name == header::EXPECT
        || *name == X_REQUEST_ID
}

/// Headers that speak about one connection. Source: RFC 9110 §7.6.1, and `Keep-Alive` and `Proxy-Connection`,
/// which are older than it.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    *name == header::CONNECTION
        || *name == header::TRANSFER_ENCODING
        || *name == header::TE
        || *name == header::TRAILER
        || *name == header::UPGRADE
        || *name == header::PROXY_AUTHORIZATION
        || *name == header::PROXY_AUTHENTICATE
        || name.as_str() == "keep-alive"
        || name.as_str() == "proxy-connection"
}

/// The headers that `Connection` declares to be about this connection only.
struct Nominated<'a>(SmallVec<[&'a str; 2]>);

impl<'a> Nominated<'a> {
    fn of(headers: &'a HeaderMap) -> Self {
        let lists = headers.get_all(header::CONNECTION).iter().filter_map(|list| list.to_str().ok());
        let names = lists.flat_map(|list| list.split(','));
        // What every client sends names no header.
        let is_header = |name: &&str| !name.is_empty() && !name.eq_ignore_ascii_case("keep-alive");
        Self(names.map(str::trim).filter(is_header).collect())
    }

    fn names(&self, name: &HeaderName) -> bool {
        self.0.iter().any(|nominated| nominated.eq_ignore_ascii_case(name.as_str()))
    }
}
