//! TLS clients, and certificates made for one test.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::wait::PATIENCE;

/// A certificate that signs itself, in two PEM files.
pub struct Certificate {
    pub der: CertificateDer<'static>,
    pub chain_file: PathBuf,
    pub key_file: PathBuf,
}

/// The name that every certificate here is for.
pub const NAME: &str = "gateway.test";

impl Certificate {
    /// Makes a new one and writes it to `cert.pem` and `key.pem` of `directory`, over what is there.
    pub fn write(directory: &Path) -> Self {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).expect("a certificate");
        let (chain_file, key_file) = (directory.join("cert.pem"), directory.join("key.pem"));
        std::fs::write(&chain_file, made.cert.pem()).expect("a file");
        std::fs::write(&key_file, made.signing_key.serialize_pem()).expect("a file");
        Self { der: made.cert.der().clone(), chain_file, key_file }
    }

    /// The lines of a configuration that use it.
    pub fn yaml(&self) -> String {
        format!(
            "tls: {{ certificate_file: {}, key_file: {} }}\n",
            self.chain_file.display(),
            self.key_file.display()
        )
    }

    /// A client's settings that trust it and nothing else.
    fn client(&self, alpn: &[&str]) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone()).expect("a root");
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(rustls::ALL_VERSIONS)
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        config
    }

    /// Connects, offering these protocols. An error is one of the handshake.
    pub fn connect(&self, address: SocketAddr, alpn: &[&str]) -> std::io::Result<TlsClient> {
        let name = ServerName::try_from(NAME).expect("a name");
        let connection = ClientConnection::new(Arc::new(self.client(alpn)), name).expect("a client");
        let socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut stream = StreamOwned::new(connection, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(TlsClient { stream, input: Vec::new() })
    }

    /// An HTTP/2 request over TLS with ALPN: status and body.
    pub fn h2_post(&self, address: SocketAddr, path: &str, bodies: &[&str]) -> Vec<(u16, Vec<u8>)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let connector = TlsConnector::from(Arc::new(self.client(&["h2"])));
        let work = async {
            let socket = tokio::net::TcpStream::connect(address).await.expect("the gateway accepts");
            let name = ServerName::try_from(NAME).expect("a name");
            let stream = connector.connect(name, socket).await.expect("a handshake");
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
            let (sender, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
            let mut sender = sender.ready().await.expect("ready");
            tokio::spawn(connection);
            let mut answers = Vec::new();
            for body in bodies {
                let request =
                    http::Request::post(format!("https://{NAME}{path}")).body(()).expect("a request");
                let (answer, mut stream) = sender.send_request(request, false).expect("sent");
                stream.send_data(Bytes::copy_from_slice(body.as_bytes()), true).expect("sent");
                let (head, mut body) = answer.await.expect("an answer").into_parts();
                let mut bytes = Vec::new();
                while let Some(data) = body.data().await {
                    let data = data.expect("the stream lives");
                    let _ = body.flow_control().release_capacity(data.len());
                    bytes.extend_from_slice(&data);
                }
                answers.push((head.status.as_u16(), bytes));
            }
            answers
        };
        runtime.block_on(async { tokio::time::timeout(PATIENCE, work).await.expect("in time") })
    }
}

/// HTTP/1.1 by hand over TLS.
pub struct TlsClient {
    stream: StreamOwned<ClientConnection, TcpStream>,
    input: Vec<u8>,
}

impl TlsClient {
    /// The protocol that was agreed on.
    pub fn alpn(&self) -> Option<String> {
        self.stream.conn.alpn_protocol().map(|name| String::from_utf8_lossy(name).into_owned())
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the gateway reads");
        self.stream.flush().expect("flushed");
    }

    /// Reads until `enough`, and returns all that came since the last call.
    pub fn read_until(&mut self, what: &str, enough: impl Fn(&str) -> bool) -> String {
        loop {
            let text = String::from_utf8_lossy(&self.input).into_owned();
            if enough(&text) {
                self.input.clear();
                return text;
            }
            let mut bytes = [0; 16384];
            match self.stream.read(&mut bytes) {
                Ok(0) => panic!("ended before {what}: {text}"),
                Ok(n) => self.input.extend_from_slice(&bytes[..n]),
                Err(error) => panic!("{error} before {what}: {text}"),
            }
        }
    }

    /// Reads to the end of the connection; `true` where TLS was ended in order.
    pub fn read_to_end(&mut self) -> (String, bool) {
        let mut bytes = std::mem::take(&mut self.input);
        let ended = self.stream.read_to_end(&mut bytes).is_ok();
        (String::from_utf8_lossy(&bytes).into_owned(), ended)
    }
}
