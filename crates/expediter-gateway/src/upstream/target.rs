//! Where a replica is and how to connect to it.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::io::Errno;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::UpstreamIo;
use crate::settings::{Host, ReplicaUrl, Scheme};

/// Everything a connection to one replica needs.
#[derive(Clone)]
pub(crate) struct Target {
    /// As configured; its text names the replica in logs, metrics and records.
    pub(crate) url: ReplicaUrl,
    /// `Host` of every request to it.
    pub(crate) authority: String,
    /// Addresses that a check allowed: where set, nothing else is ever connected to, whatever the name
    /// resolves to later.
    pub(crate) pinned: Option<Arc<[SocketAddr]>>,
    /// TLS, where the scheme is `https`.
    pub(crate) tls: Option<TlsContext>,
}

/// What TLS to one replica needs.
#[derive(Clone)]
pub(crate) struct TlsContext {
    /// Roots and versions.
    pub(crate) connector: TlsConnector,
    /// The name that the replica's certificate must carry.
    pub(crate) name: ServerName<'static>,
}

/// Why a connection was not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// The name has no address.
    #[error("{host} cannot be resolved: {source}")]
    Resolve {
        /// The name.
        host: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// Nobody accepts there.
    #[error("connect: {0}")]
    Connect(#[source] io::Error),
    /// TLS was not agreed.
    #[error("TLS: {0}")]
    Tls(#[source] io::Error),
    /// Nothing happened within the limit.
    #[error("connect: nothing within {0:?}")]
    Timeout(Duration),
}

impl ConnectError {
    /// Whether the fault is this machine's: no descriptors, no ports, no memory. It says nothing of the replica.
    pub(crate) fn is_local(&self) -> bool {
        let (Self::Connect(error) | Self::Tls(error) | Self::Resolve { source: error, .. }) = self else {
            return false;
        };
        let errno = error.raw_os_error().map(Errno::from_raw_os_error);
        matches!(
            errno,
            Some(Errno::MFILE | Errno::NFILE | Errno::ADDRNOTAVAIL | Errno::NOBUFS | Errno::NOMEM)
        )
    }
}

impl Target {
    /// Connects, in all within `limit`.
    pub(crate) async fn connect(&self, limit: Duration) -> Result<UpstreamIo, ConnectError> {
        tokio::time::timeout(limit, self.connect_unlimited())
            .await
            .unwrap_or(Err(ConnectError::Timeout(limit)))
    }

    async fn connect_unlimited(&self) -> Result<UpstreamIo, ConnectError> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in self.addresses().await? {
            match TcpStream::connect(address).await {
                Ok(stream) => return self.secure(stream).await,
                Err(error) => last = error,
            }
        }
        Err(ConnectError::Connect(last))
    }

    async fn addresses(&self) -> Result<Vec<SocketAddr>, ConnectError> {
        if let Some(pinned) = &self.pinned {
            return Ok(pinned.to_vec());
        }
        resolve(&self.url).await
    }

    async fn secure(&self, stream: TcpStream) -> Result<UpstreamIo, ConnectError> {
        // Small writes must not wait for the other side's acknowledgement. A socket without the option works too.
        let _ = stream.set_nodelay(true);
        match &self.tls {
            None => Ok(UpstreamIo::Plain(stream)),
            Some(tls) => {
                let stream =
                    tls.connector.connect(tls.name.clone(), stream).await.map_err(ConnectError::Tls)?;
                Ok(UpstreamIo::Tls(Box::new(stream)))
            }
        }
    }
}

/// The addresses of a replica's host, literal or by name.
pub(crate) async fn resolve(url: &ReplicaUrl) -> Result<Vec<SocketAddr>, ConnectError> {
    match url.host() {
        Host::V4(address) => Ok(vec![SocketAddr::from((*address, url.port()))]),
        Host::V6(address) => Ok(vec![SocketAddr::from((*address, url.port()))]),
        Host::Name(name) => match tokio::net::lookup_host((name.as_str(), url.port())).await {
            Ok(addresses) => Ok(addresses.collect()),
            Err(source) => Err(ConnectError::Resolve { host: name.clone(), source }),
        },
    }
}

impl Target {
    /// The target of `url`; TLS trusts `roots`.
    pub(crate) fn new(url: ReplicaUrl, pinned: Option<Arc<[SocketAddr]>>, roots: &TlsRoots) -> Self {
        let tls = match url.scheme() {
            Scheme::Http => None,
            Scheme::Https => Some(TlsContext { connector: roots.connector(), name: server_name(url.host()) }),
        };
        Self { authority: url.authority(), url, pinned, tls }
    }
}

fn server_name(host: &Host) -> ServerName<'static> {
    match host {
        Host::V4(address) => ServerName::IpAddress((*address).into()),
        Host::V6(address) => ServerName::IpAddress((*address).into()),
        // A URL's host names are checked when it is read; one that TLS cannot name fails its handshake.
        Host::Name(name) => ServerName::try_from(name.trim_end_matches('.').to_owned())
            .unwrap_or_else(|_| ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into())),
    }
}

/// The certificates that replicas' certificates must lead to: the system's, read when first needed.
#[derive(Default)]
pub(crate) struct TlsRoots(OnceLock<TlsConnector>);

impl TlsRoots {
    fn connector(&self) -> TlsConnector {
        self.0.get_or_init(connector).clone()
    }
}

fn connector() -> TlsConnector {
    let mut roots = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    for error in &system.errors {
        tracing::warn!(%error, "a system certificate cannot be read");
    }
    roots.add_parsable_certificates(system.certs);
    let versions = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(rustls::ALL_VERSIONS)
        .expect("ring supports every version that is compiled in");
    TlsConnector::from(Arc::new(versions.with_root_certificates(roots).with_no_client_auth()))
}
