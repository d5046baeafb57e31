// SPDX-License-Identifier: Apache-2.0
//! Requests whose connection stays: captures, and events and traced packets as they come.

use std::marker::PhantomData;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;

use super::http::MAX_ANSWER;
use super::server::{Stream, socket_error};
use super::{Client, ClientError};
use crate::{
    CAPTURE_PROTOCOL, CaptureFile, CaptureRequest, ConnectionEvent, ConnectionQuery, Event, LiveTraceRequest,
    TracedPacket, path,
};

/// Longest line of a stream to read.
const MAX_LINE: usize = 1 << 20;

impl Client {
    /// Starts a capture. The connection is its own from now on: send a byte, receive the hand-over of
    /// `netvm-capture-ring`; closing the connection ends the capture.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when a capture point or drop reason does not exist, or the filter is wrong.
    pub async fn capture(
        &self,
        request: &CaptureRequest,
    ) -> Result<std::os::unix::net::UnixStream, ClientError> {
        let name = format!("POST {}", path::CAPTURE);
        let Some(socket) = self.server.socket() else {
            return Err(ClientError::NotRemote { what: "a capture by shared memory" });
        };
        let broken = |source| self.server.broken(&name, source);
        let body = serde_json::to_string(request).map_err(ClientError::Request)?;
        let stream = self.connect().await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let connection = connection.with_upgrades();
        let exchange = async {
            let request = Request::post(path::CAPTURE)
                .header(header::HOST, self.server.host())
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::CONNECTION, "upgrade")
                .header(header::UPGRADE, CAPTURE_PROTOCOL)
                .body(Full::new(Bytes::from(body)))
                .map_err(|error| self.unexpected(&name, error.to_string()))?;
            let response = sender.send_request(request).await.map_err(broken)?;
            let status = response.status();
            if status == StatusCode::SWITCHING_PROTOCOLS {
                return hyper::upgrade::on(response).await.map_err(broken);
            }
            let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
            let bytes = body.map_err(|source| ClientError::Broken { request: name.clone(), source })?;
            Err(self.refusal(&name, status, &bytes.to_bytes()))
        };
        let both = async {
            tokio::pin!(exchange);
            tokio::pin!(connection);
            tokio::select! {
                answer = &mut exchange => answer,
                _ = &mut connection => exchange.await,
            }
        };
        let timeout = |_| ClientError::Timeout { request: name.clone(), seconds: self.short.as_secs() };
        let upgraded = tokio::time::timeout(self.short, both).await.map_err(timeout)??;
        let parts = upgraded.downcast::<TokioIo<Stream>>();
        let io = parts.map(|parts| parts.io.into_inner());
        let Ok(Stream::Socket(stream)) = io else {
            return Err(self.unexpected(&name, "not a Unix stream".to_owned()));
        };
        let stream = stream.into_std().map_err(|error| socket_error(socket, error))?;
        stream.set_nonblocking(false).map_err(|error| socket_error(socket, error))?;
        Ok(stream)
    }

    /// The events after a number, and those to come.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn follow_events(&self, after: u64) -> Result<EventStream, ClientError> {
        let uri = format!("{}?after={after}&follow=true", path::EVENTS);
        let request = Request::get(uri).header(header::HOST, self.server.host()).body(Full::default());
        self.lines(format!("GET {}", path::EVENTS), request).await
    }

    /// What happens to connections from now on.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when no port tracks connections.
    pub async fn watch_connections(&self) -> Result<ConnectionEventStream, ClientError> {
        let request = Request::get(path::CONNECTION_EVENTS)
            .header(header::HOST, self.server.host())
            .body(Full::default());
        self.lines(format!("GET {}", path::CONNECTION_EVENTS), request).await
    }

    /// Follows packets of traffic. Dropping the stream ends the trace.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when the filter is wrong, or too many traces run.
    pub async fn live_trace(&self, packets: &LiveTraceRequest) -> Result<TraceStream, ClientError> {
        let body = serde_json::to_string(packets).map_err(ClientError::Request)?;
        let request = Request::post(path::LIVE_TRACE)
            .header(header::HOST, self.server.host())
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)));
        self.lines(format!("POST {}", path::LIVE_TRACE), request).await
    }

    /// Sends a request whose answer is JSON, one object a line.
    async fn lines<T>(
        &self,
        name: String,
        request: Result<Request<Full<Bytes>>, hyper::http::Error>,
    ) -> Result<LineStream<T>, ClientError> {
        let bytes = self.bytes(name, request).await?;
        Ok(LineStream { bytes, rest: Vec::new(), of: PhantomData })
    }

    /// The connections that a query selects, as a file.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when no port tracks connections, or the query is wrong.
    pub async fn saved_connections(&self, query: &ConnectionQuery) -> Result<ByteStream, ClientError> {
        let request = Request::get(format!("{}?{}", path::SAVED_CONNECTIONS, query.query()))
            .header(header::HOST, self.server.host())
            .body(Full::default());
        self.bytes(format!("GET {}", path::SAVED_CONNECTIONS), request).await
    }

    /// Captures packets into a file, which the answer is. Dropping the stream ends the capture.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when a capture point or drop reason does not exist, or the filter is wrong.
    pub async fn capture_file(&self, file: &CaptureFile) -> Result<ByteStream, ClientError> {
        let body = serde_json::to_string(file).map_err(ClientError::Request)?;
        let request = Request::post(path::CAPTURE_FILE)
            .header(header::HOST, self.server.host())
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)));
        self.bytes(format!("POST {}", path::CAPTURE_FILE), request).await
    }

    /// Sends a request whose answer may be long.
    async fn bytes(
        &self,
        name: String,
        request: Result<Request<Full<Bytes>>, hyper::http::Error>,
    ) -> Result<ByteStream, ClientError> {
        let broken = |source| self.server.broken(&name, source);
        let request = request.map_err(|error| self.unexpected(&name, error.to_string()))?;
        let stream = self.connect().await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let connection = Connection(tokio::spawn(async move { drop(connection.await) }));
        let response = sender.send_request(request).await.map_err(broken)?;
        let (status, body) = (response.status(), response.into_body());
        if !status.is_success() {
            let body = Limited::new(body, MAX_ANSWER).collect().await;
            let bytes = body.map_err(|source| ClientError::Broken { request: name.clone(), source })?;
            return Err(self.refusal(&name, status, &bytes.to_bytes()));
        }
        Ok(ByteStream { client: self.clone(), name, body, _connection: connection })
    }
}

/// Events as they happen.
pub type EventStream = LineStream<Event>;
/// What happens to connections.
pub type ConnectionEventStream = LineStream<ConnectionEvent>;
/// Packets of traffic as they end.
pub type TraceStream = LineStream<TracedPacket>;

/// An answer that is JSON, one object a line, as it comes.
#[derive(Debug)]
pub struct LineStream<T> {
    bytes: ByteStream,
    /// What has arrived of the next lines.
    rest: Vec<u8>,
    of: PhantomData<fn() -> T>,
}

/// A long answer, as it comes.
#[derive(Debug)]
pub struct ByteStream {
    client: Client,
    /// The request.
    name: String,
    body: hyper::body::Incoming,
    _connection: Connection,
}

impl ByteStream {
    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// [`ClientError::Broken`] if netvmd has not sent all.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        match self.body.frame().await {
            None => Ok(None),
            Some(Ok(frame)) => Ok(Some(frame.into_data().unwrap_or_default())),
            Some(Err(source)) => Err(self.client.server.broken(&self.name, source)),
        }
    }

    fn unexpected(&self, what: String) -> ClientError {
        self.client.unexpected(&self.name, what)
    }
}

/// The task of a connection, which ends when this is dropped.
#[derive(Debug)]
struct Connection(tokio::task::JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<T: DeserializeOwned> LineStream<T> {
    /// The next object; `None` when netvmd has ended the stream, as it does when it stops. It is not safe to drop this
    /// future before it is ready and to call it again.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn next(&mut self) -> Result<Option<T>, ClientError> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                let object = serde_json::from_slice(&line);
                return object.map(Some).map_err(|error| self.bytes.unexpected(error.to_string()));
            }
            if self.rest.len() > MAX_LINE {
                return Err(self.bytes.unexpected("an endless line".to_owned()));
            }
            match self.bytes.next().await? {
                None => return Ok(None),
                Some(bytes) => self.rest.extend(bytes),
            }
        }
    }
}
