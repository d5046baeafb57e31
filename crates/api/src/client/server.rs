// SPDX-License-Identifier: Apache-2.0
//! Where a netvmd is: at a Unix socket, or on another machine, by HTTPS. In: its address and this client's files. Out:
//! connections.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use netvm_tls::ClientFiles;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::ClientError;

/// The port of an address without one.
const DEFAULT_PORT: u16 = 9480;
/// Time limit for a connection and its handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The name by which clients of a Unix socket ask for netvmd.
const SOCKET_HOST: &str = "netvmd";

/// Where a netvmd is.
#[derive(Clone, Debug)]
pub(super) enum Server {
    Socket(PathBuf),
    Remote(Remote),
}

/// A netvmd on another machine.
#[derive(Clone)]
pub(super) struct Remote {
    /// Name and port, as in the header `Host`.
    authority: String,
    /// The name or the address.
    host: String,
    port: u16,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
}

impl std::fmt::Debug for Remote {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").field("authority", &self.authority).finish_non_exhaustive()
    }
}

impl Remote {
    /// A netvmd at `https://NAME:PORT`, for the client of these files.
    pub(super) fn new(url: &str, files: &ClientFiles) -> Result<Self, ClientError> {
        let wrong = || ClientError::Address(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
        let authority = uri.authority().filter(|_| is_bare && uri.scheme_str() == Some("https"));
        let authority = authority.filter(|authority| !authority.as_str().contains('@')).ok_or_else(wrong)?;
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host.clone()).map_err(|_| wrong())?;
        let port = authority.port_u16().unwrap_or(DEFAULT_PORT);
        let authority = format!("{}:{port}", authority.host());
        Ok(Self { authority, host, port, name, config: files.load()? })
    }

    async fn connect(&self) -> Result<TlsStream<TcpStream>, ClientError> {
        let unreachable = |source| ClientError::Unreachable { server: self.authority.clone(), source };
        let connect = TcpStream::connect((&*self.host, self.port));
        let late = || io::Error::new(io::ErrorKind::TimedOut, "no answer in time");
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, connect).await;
        let stream = stream.unwrap_or_else(|_| Err(late())).map_err(unreachable)?;
        // Requests are short, and nothing follows them.
        let _ = stream.set_nodelay(true);
        let shake = TlsConnector::from(Arc::clone(&self.config)).connect(self.name.clone(), stream);
        let shaken = tokio::time::timeout(CONNECT_TIMEOUT, shake).await.unwrap_or_else(|_| Err(late()));
        shaken.map_err(|error| self.refused(&error))
    }

    fn refused(&self, error: &io::Error) -> ClientError {
        ClientError::Handshake { server: self.authority.clone(), why: netvm_tls::explain(error) }
    }
}

impl Server {
    /// The value of the header `Host`.
    pub(super) fn host(&self) -> &str {
        match self {
            Self::Socket(_) => SOCKET_HOST,
            Self::Remote(remote) => &remote.authority,
        }
    }

    /// For messages.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Socket(path) => path.display().to_string(),
            Self::Remote(remote) => format!("https://{}", remote.authority),
        }
    }

    pub(super) fn socket(&self) -> Option<&Path> {
        match self {
            Self::Socket(path) => Some(path),
            Self::Remote(_) => None,
        }
    }

    pub(super) async fn connect(&self) -> Result<Stream, ClientError> {
        match self {
            Self::Socket(path) => match UnixStream::connect(path).await {
                Ok(stream) => Ok(Stream::Socket(stream)),
                Err(source) => Err(socket_error(path, source)),
            },
            Self::Remote(remote) => Ok(Stream::Tls(Box::new(remote.connect().await?))),
        }
    }

    /// The error of a connection that broke during a request. The server checks this client's certificate when the
    /// client takes the handshake for done.
    pub(super) fn broken(&self, request: &str, source: hyper::Error) -> ClientError {
        if let Self::Remote(remote) = self
            && let Some(error) = alert(&source)
        {
            return remote.refused(error);
        }
        ClientError::Broken { request: request.to_owned(), source: source.into() }
    }
}

/// The error of TLS in an error of HTTP.
fn alert(error: &hyper::Error) -> Option<&io::Error> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        let io = error.downcast_ref::<io::Error>();
        let is_tls = |io: &&io::Error| {
            let inner = io.get_ref().and_then(|inner| inner.downcast_ref::<tokio_rustls::rustls::Error>());
            inner.is_some()
        };
        if let Some(io) = io.filter(is_tls) {
            return Some(io);
        }
        next = error.source();
    }
    None
}

/// The error of a Unix socket.
pub(super) fn socket_error(path: &Path, source: io::Error) -> ClientError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            ClientError::NotRunning { path, source }
        }
        io::ErrorKind::PermissionDenied => ClientError::Denied { path, source },
        _ => ClientError::Connect { path, source },
    }
}

/// A connection.
#[derive(Debug)]
pub(super) enum Stream {
    Socket(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Passes a call on to the stream.
macro_rules! pass {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Self::Socket($stream) => {
                let $stream = Pin::new($stream);
                $call
            }
            Self::Tls($stream) => {
                let $stream = Pin::new(&mut **$stream);
                $call
            }
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        pass!(self, stream => stream.poll_read(context, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        pass!(self, stream => stream.poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        pass!(self, stream => stream.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        pass!(self, stream => stream.poll_shutdown(context))
    }
}
