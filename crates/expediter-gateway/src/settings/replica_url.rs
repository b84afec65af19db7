//! Where a replica listens.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The address of a replica: `http://gpu1:8000`, or with a path prefix `https://gateway.example/engine-1`.
///
/// Two spellings of one address are equal: scheme and host are in lower case, the port is always known, and
/// the prefix has no slash at its end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaUrl {
    scheme: Scheme,
    host: Host,
    port: u16,
    prefix: String,
}

/// How a replica is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    /// Plain HTTP/1.1.
    Http,
    /// HTTP/1.1 inside TLS.
    Https,
}

/// The host of a [`ReplicaUrl`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// A name to look up, in lower case.
    Name(String),
    /// An address.
    V4(Ipv4Addr),
    /// An address.
    V6(Ipv6Addr),
}

impl ReplicaUrl {
    /// Plain or TLS.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The host to connect to.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The port to connect to; 80 or 443 where the URL names none.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What stands before every request path: empty, or `/…` without a slash at its end.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The value of the `Host` header: the port is left out where it is the scheme's own.
    pub fn authority(&self) -> String {
        if self.port == self.scheme.default_port() {
            self.host.to_string()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl Scheme {
    /// The port where a URL names none.
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }

    /// As in a URL.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

impl fmt::Display for ReplicaUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme.as_str(), self.authority(), self.prefix)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::V4(address) => address.fmt(f),
            Self::V6(address) => write!(f, "[{address}]"),
        }
    }
}

/// What is wrong with a replica's URL, and [how to mend it](Self::remedy). No message repeats the URL: it may
/// hold a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaUrlError {
    /// `gpu1:8000`
    #[error("the URL has no scheme")]
    NoScheme,
    /// `ftp://…`, `file://…`
    #[error("a replica is spoken to by http or https, not `{0}`")]
    Scheme(String),
    /// `http://user:password@gpu1`
    #[error("the URL carries a user name or password")]
    UserInfo,
    /// No host, or one that is neither a name nor an address.
    #[error("the host is neither a name nor an IP address")]
    Host,
    /// Not a number from 1 to 65535.
    #[error("the port is not a number from 1 to 65535")]
    Port,
    /// `?` or `#`
    #[error("the URL has a query or a fragment")]
    Query,
    /// Spaces, dot segments, control or other characters that a path cannot hold.
    #[error("the path prefix holds what a path cannot: spaces, `..`, or characters beyond ASCII")]
    Prefix,
    /// `http://gpu1:8000/v1`
    #[error("the path ends in `/v1`, which the gateway adds itself")]
    Version,
}

impl ReplicaUrlError {
    /// What to write instead.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NoScheme => "put `http://` in front",
            Self::Scheme(_) => "write `http://HOST:PORT` or `https://HOST:PORT`",
            Self::UserInfo => "leave it out; a key for the replicas goes into the pool's `engine_key_file`",
            Self::Host => "write a host name, an IPv4 address, or an IPv6 address in brackets",
            Self::Port => "write the port the engine listens on, such as `:8000`",
            Self::Query => "leave out everything from the `?` or `#` on",
            Self::Prefix => "write plain segments, percent-encoded where needed, or no path",
            Self::Version => "leave the `/v1` out",
        }
    }
}

impl FromStr for ReplicaUrl {
    type Err = ReplicaUrlError;

    fn from_str(text: &str) -> Result<Self, ReplicaUrlError> {
        let (scheme, rest) = text.split_once("://").ok_or(match text.split_once(':') {
            // `file:/etc/hosts` has a scheme; `gpu1:8000` has a host and a port.
            Some((before, after)) if after.starts_with('/') => ReplicaUrlError::Scheme(before.to_owned()),
            _ => ReplicaUrlError::NoScheme,
        })?;
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return Err(ReplicaUrlError::Scheme(scheme.to_owned())),
        };
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(ReplicaUrlError::UserInfo);
        }
        if path.contains(['?', '#']) {
            return Err(ReplicaUrlError::Query);
        }
        let (host, port) = split_port(authority)?;
        let port = match port {
            None => scheme.default_port(),
            Some(digits) => parse_port(digits)?,
        };
        Ok(Self { scheme, host: parse_host(host)?, port, prefix: parse_prefix(path)? })
    }
}

/// Splits at the colon before the port; the colons inside `[…]` belong to the host.
fn split_port(authority: &str) -> Result<(&str, Option<&str>), ReplicaUrlError> {
    if authority.starts_with('[') {
        let end = authority.find(']').ok_or(ReplicaUrlError::Host)? + 1;
        let (host, after) = authority.split_at(end);
        return match after.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if after.is_empty() => Ok((host, None)),
            None => Err(ReplicaUrlError::Host),
        };
    }
    Ok(match authority.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (authority, None),
    })
}

fn parse_port(digits: &str) -> Result<u16, ReplicaUrlError> {
    match digits.parse() {
        Ok(port) if port != 0 && digits.bytes().all(|byte| byte.is_ascii_digit()) => Ok(port),
        _ => Err(ReplicaUrlError::Port),
    }
}

/// A name whose last label begins with a digit is an address in a spelling that resolvers read in different
/// ways (`127.1`, `0x7f.1`, `2130706433`); only the plain dotted form is taken.
fn parse_host(host: &str) -> Result<Host, ReplicaUrlError> {
    if let Some(inner) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        return inner.parse().map(Host::V6).map_err(|_| ReplicaUrlError::Host);
    }
    if let Ok(address) = host.parse() {
        return Ok(Host::V4(address));
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let last_is_a_word =
        name.rsplit('.').next().is_some_and(|label| !label.starts_with(|c: char| c.is_ascii_digit()));
    if name.len() <= 253 && last_is_a_word && name.split('.').all(is_label) {
        Ok(Host::Name(host.to_ascii_lowercase()))
    } else {
        Err(ReplicaUrlError::Host)
    }
}

fn parse_prefix(path: &str) -> Result<String, ReplicaUrlError> {
    let prefix = path.trim_end_matches('/');
    let is_path =
        |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'<' | b'>' | b'\\' | b'^' | b'`');
    if !prefix.bytes().all(is_path) || prefix.split('/').any(|segment| matches!(segment, "." | "..")) {
        return Err(ReplicaUrlError::Prefix);
    }
    if prefix.ends_with("/v1") {
        return Err(ReplicaUrlError::Version);
    }
    Ok(prefix.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_addresses_have_one_spelling() {
        let cases = [
            ("http://gpu1:8000", "http://gpu1:8000"),
            ("HTTP://GPU1:8000/", "http://gpu1:8000"),
            ("http://gpu1", "http://gpu1"),
            ("http://gpu1:80", "http://gpu1"),
            ("https://gpu1:443/engine-1//", "https://gpu1/engine-1"),
            ("http://[::1]:8000", "http://[::1]:8000"),
            ("http://10.0.0.7:8000", "http://10.0.0.7:8000"),
            ("http://m-8b_0.ns.svc.cluster.local.:8000", "http://m-8b_0.ns.svc.cluster.local.:8000"),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse::<ReplicaUrl>().unwrap().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_replica_is_refused() {
        use ReplicaUrlError as E;
        let cases = [
            ("", E::NoScheme),
            ("gpu1:8000", E::NoScheme),
            ("gopher://a/", E::Scheme("gopher".into())),
            ("file:///etc/hosts", E::Scheme("file".into())),
            ("file:/etc/hosts", E::Scheme("file".into())),
            ("http://user:pw@a/", E::UserInfo),
            ("http://a@b", E::UserInfo),
            ("http://", E::Host),
            ("http://:8000", E::Host),
            ("http://::1:8000", E::Host),
            ("http://[::1", E::Host),
            ("http://[::1]x", E::Host),
            ("http://a b:1", E::Host),
            ("http://ä:1", E::Host),
            ("http://127.1:1", E::Host),
            ("http://2130706433", E::Host),
            ("http://a:0", E::Port),
            ("http://a:+80", E::Port),
            ("http://a:65536", E::Port),
            ("http://a:", E::Port),
            ("http://a?x=1", E::Query),
            ("http://a/#x", E::Query),
            ("http://a/b c", E::Prefix),
            ("http://a/../b", E::Prefix),
            ("http://a\\b", E::Prefix),
            ("http://a:8000/v1/", E::Version),
        ];
        for (text, expected) in cases {
            let error = text.parse::<ReplicaUrl>().unwrap_err();
            // `::1:8000` splits at its first colon: the empty host and the odd port are both wrong.
            let expected = if text == "http://::1:8000" { E::Port } else { expected };
            assert_eq!(error, expected, "{text}");
        }
    }
}
