//! TLS towards clients.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

use crate::settings::Settings;

/// An acceptor whose certificate follows the settings, so that a renewed one is used without a restart.
pub(crate) fn acceptor(settings: Arc<ArcSwap<Settings>>) -> Result<TlsAcceptor, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(FromSettings(settings)));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

struct FromSettings(Arc<ArcSwap<Settings>>);

impl std::fmt::Debug for FromSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FromSettings")
    }
}

impl ResolvesServerCert for FromSettings {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load().tls.as_ref().map(crate::settings::TlsIdentity::certified_key)
    }
}
