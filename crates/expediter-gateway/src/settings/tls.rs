//! The certificate of the data listener.

use std::fmt;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::{Error as PemError, PemObject as _};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate chain with the key that belongs to it.
#[derive(Clone)]
pub struct TlsIdentity(Arc<CertifiedKey>);

/// What is wrong with the two PEM files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsIdentityError {
    /// The certificate file holds no certificate, or something broken.
    #[error("the file holds no readable PEM certificate")]
    Certificate,
    /// The key file holds no private key, or something broken.
    #[error("the file holds no readable PEM private key")]
    Key,
    /// Both can be read and do not fit.
    #[error("certificate and key do not fit: {0}")]
    Pair(String),
}

impl TlsIdentity {
    /// Reads both PEM files.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, TlsIdentityError> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificate)
            .collect::<Result<_, PemError>>()
            .ok()
            .filter(|chain: &Vec<_>| !chain.is_empty())
            .ok_or(TlsIdentityError::Certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| TlsIdentityError::Key)?;
        CertifiedKey::from_der(chain, key, &ring::default_provider())
            .map(|certified| Self(Arc::new(certified)))
            .map_err(|error| TlsIdentityError::Pair(error.to_string()))
    }

    /// What a rustls certificate resolver hands out.
    pub fn certified_key(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.0)
    }
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsIdentity({} certificates)", self.0.cert.len())
    }
}

#[cfg(test)]
mod tests;
