// SPDX-License-Identifier: Apache-2.0
//! Connections to the members of etcd. In: an address. Out: HTTP/1.1 over TCP or TLS.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::Uri;
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::EtcdError;

/// Time limit for a connection and its handshake, each.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The port of an address without one.
const DEFAULT_PORT: u16 = 2379;

pub(super) type Sender = SendRequest<Full<Bytes>>;

/// A member of etcd.
#[derive(Clone)]
pub(super) struct Endpoint {
    /// Name and port, as in the header `Host`.
    pub(super) authority: String,
    host: String,
    port: u16,
    tls: Option<(ServerName<'static>, Arc<ClientConfig>)>,
}

impl Endpoint {
    pub(super) fn new(url: &str, tls: Option<&Arc<ClientConfig>>) -> Result<Self, EtcdError> {
        let wrong = || EtcdError::Address(netvm_text::line(url).into_owned());
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
        let authority = uri.authority().filter(|authority| is_bare && !authority.as_str().contains('@'));
        let authority = authority.ok_or_else(wrong)?;
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let tls = match uri.scheme_str() {
            Some("http") => None,
            Some("https") => {
                let config = tls.ok_or_else(|| EtcdError::NoAuthority(url.to_owned()))?;
                Some((ServerName::try_from(host.clone()).map_err(|_| wrong())?, Arc::clone(config)))
            }
            _ => return Err(wrong()),
        };
        let port = authority.port_u16().unwrap_or(DEFAULT_PORT);
        Ok(Self { authority: format!("{}:{port}", authority.host()), host, port, tls })
    }

    /// Connects. The task that moves its bytes ends with the sender, or when the member ends it.
    pub(super) async fn connect(&self) -> Result<Sender, EtcdError> {
        let late = || io::Error::new(io::ErrorKind::TimedOut, "no answer in time");
        let unreachable = |source| EtcdError::Unreachable { server: self.authority.clone(), source };
        let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect((&*self.host, self.port))).await;
        let stream = stream.unwrap_or_else(|_| Err(late())).map_err(unreachable)?;
        // Requests are short, and nothing follows them.
        let _ = stream.set_nodelay(true);
        let Some((name, config)) = &self.tls else { return self.speak(stream).await };
        let shake = TlsConnector::from(Arc::clone(config)).connect(name.clone(), stream);
        let shaken = timeout(CONNECT_TIMEOUT, shake).await.unwrap_or_else(|_| Err(late()));
        let refused =
            |error| EtcdError::Handshake { server: self.authority.clone(), why: netvm_tls::explain(&error) };
        self.speak(shaken.map_err(refused)?).await
    }

    async fn speak<S>(&self, stream: S) -> Result<Sender, EtcdError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.broken(&error))?;
        tokio::spawn(connection);
        Ok(sender)
    }

    /// The error of a connection that broke.
    pub(super) fn broken(&self, error: &dyn std::error::Error) -> EtcdError {
        let mut why = error.to_string();
        if let Some(source) = error.source() {
            // TLS says here that the other side refuses this one.
            let source = source.downcast_ref().map_or_else(|| source.to_string(), netvm_tls::explain);
            why = format!("{why}: {source}");
        }
        EtcdError::Broken { server: self.authority.clone(), why }
    }

    pub(super) fn protocol(&self, why: &dyn std::fmt::Display) -> EtcdError {
        EtcdError::Protocol { server: self.authority.clone(), why: why.to_string() }
    }
}
