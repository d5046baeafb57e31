//! Requests whose connection stays: captures, and events as they happen.

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use super::http::MAX_ANSWER;
use super::{Client, ClientError};
use crate::{CAPTURE_PROTOCOL, CaptureRequest, Event, path};

/// Longest line of the event stream to read.
const LONGEST_EVENT: usize = 1 << 20;

impl Client {
    /// Starts a capture. The connection is its own from now on: send a byte, receive the hand-over of `netvm-tap`; closing
    /// the connection ends the capture.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when a place or reason does not exist, or the filter is wrong.
    pub async fn capture(
        &self,
        request: &CaptureRequest,
    ) -> Result<std::os::unix::net::UnixStream, ClientError> {
        let name = format!("POST {}", path::CAPTURE);
        let broken =
            |source: hyper::Error| ClientError::Broken { request: name.clone(), source: source.into() };
        let body = serde_json::to_string(request).map_err(ClientError::Request)?;
        let stream = self.connect().await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let connection = connection.with_upgrades();
        let exchange = async {
            let request = Request::post(path::CAPTURE)
                .header(header::HOST, "netvmd")
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
        let parts = upgraded.downcast::<TokioIo<UnixStream>>();
        let parts = parts.map_err(|_| self.unexpected(&name, "not a Unix stream".to_owned()))?;
        let stream = parts.io.into_inner().into_std().map_err(|error| self.connect_error(error))?;
        stream.set_nonblocking(false).map_err(|error| self.connect_error(error))?;
        Ok(stream)
    }

    /// The events after a number, and those to come.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn follow_events(&self, after: u64) -> Result<EventStream, ClientError> {
        let name = format!("GET {}", path::EVENTS);
        let broken =
            |source: hyper::Error| ClientError::Broken { request: name.clone(), source: source.into() };
        let stream = self.connect().await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let connection = tokio::spawn(async move { drop(connection.await) });
        let uri = format!("{}?after={after}&follow=true", path::EVENTS);
        let request =
            Request::builder().uri(uri).header(header::HOST, "netvmd").body(Full::<Bytes>::default());
        let request = request.map_err(|error| self.unexpected(&name, error.to_string()))?;
        let response = sender.send_request(request).await.map_err(broken)?;
        if !response.status().is_success() {
            return Err(self.unexpected(&name, format!("HTTP status {}", response.status())));
        }
        Ok(EventStream { client: self.clone(), body: response.into_body(), rest: Vec::new(), connection })
    }
}

/// Events as they happen.
#[derive(Debug)]
pub struct EventStream {
    client: Client,
    body: hyper::body::Incoming,
    /// What has arrived of the next lines.
    rest: Vec<u8>,
    connection: tokio::task::JoinHandle<()>,
}

impl EventStream {
    /// The next event; `None` when netvmd has ended the stream, as it does when it stops. It is not safe to drop this
    /// future before it is ready and to call it again.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn next(&mut self) -> Result<Option<Event>, ClientError> {
        let name = || format!("GET {}", path::EVENTS);
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                let event = serde_json::from_slice(&line);
                return event.map(Some).map_err(|error| self.client.unexpected(&name(), error.to_string()));
            }
            if self.rest.len() > LONGEST_EVENT {
                return Err(self.client.unexpected(&name(), "an endless line".to_owned()));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => self.rest.extend(frame.into_data().into_iter().flatten()),
                Some(Err(source)) => {
                    return Err(ClientError::Broken { request: name(), source: source.into() });
                }
            }
        }
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.connection.abort();
    }
}
