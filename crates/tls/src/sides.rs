// SPDX-License-Identifier: Apache-2.0
//! The settings of both sides.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig, client};

use crate::PROTOCOL;
use crate::certificate::Certificate;
use crate::files::{TlsError, authorities, chain, key};

/// The files of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    /// Its certificate, and those between it and the authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The certificates of the authorities of its clients.
    pub client_ca: PathBuf,
    /// Whether clients without a certificate get a connection, too.
    pub admits_anonymous: bool,
}

/// The settings of a server.
#[derive(Clone, Debug)]
pub struct ServerSide {
    /// For the handshake.
    pub config: Arc<ServerConfig>,
    /// Its certificate.
    pub certificate: Certificate,
    /// The fingerprints of the authorities' certificates.
    pub client_ca: Vec<[u8; 32]>,
}

/// The files of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFiles {
    /// Its certificate, and those between it and the authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The certificates of the authorities of servers.
    pub ca: PathBuf,
}

/// The files of a client of other servers, which may not want its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustFiles {
    /// The certificates of the authorities of servers.
    pub ca: PathBuf,
    /// The client's certificate and its private key; `None`: it has none.
    pub own: Option<(PathBuf, PathBuf)>,
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

impl ServerFiles {
    /// Reads and checks the files.
    ///
    /// # Errors
    /// [`TlsError`] names the file and the remedy.
    pub fn load(&self) -> Result<ServerSide, TlsError> {
        let (chain, certificate) = chain(&self.certificate)?;
        let key = key(&self.key)?;
        let (store, client_ca) = authorities(&self.client_ca)?;
        let unusable = |source| TlsError::Unusable { path: self.certificate.clone(), source };
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(store), provider());
        let verifier = if self.admits_anonymous { verifier.allow_unauthenticated() } else { verifier };
        let verifier =
            verifier.build().map_err(|why| TlsError::Authority { path: self.client_ca.clone(), why })?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(verifier)
            // Fails if the key is another certificate's.
            .with_single_cert(chain, key)
            .map_err(unusable)?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(ServerSide { config: Arc::new(config), certificate, client_ca })
    }
}

impl ClientFiles {
    /// Reads and checks the files.
    ///
    /// # Errors
    /// [`TlsError`] names the file and the remedy.
    pub fn load(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let own = Some((self.certificate.clone(), self.key.clone()));
        TrustFiles { ca: self.ca.clone(), own }.load()
    }
}

impl TrustFiles {
    /// Reads and checks the files.
    ///
    /// # Errors
    /// [`TlsError`] names the file and the remedy.
    pub fn load(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let own = self.own.as_ref().map(|(certificate, private)| Ok((chain(certificate)?.0, key(private)?)));
        let own = own.transpose()?;
        let (store, _) = authorities(&self.ca)?;
        let path = self.own.as_ref().map_or(&self.ca, |(certificate, _)| certificate);
        let unusable = |source| TlsError::Unusable { path: path.clone(), source };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_root_certificates(store);
        let mut config = match own {
            Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(unusable)?,
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.resumption = client::Resumption::disabled();
        Ok(Arc::new(config))
    }
}
