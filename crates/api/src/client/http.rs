// SPDX-License-Identifier: Apache-2.0
//! One connection for each request.

use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::server::Stream;
use super::{Client, ClientError};
use crate::FILE_HEADER;
use crate::escape::encode;

/// Longest answer to read.
pub(super) const MAX_ANSWER: usize = 64 << 20;

/// The body of a request.
pub(super) enum Body<'a> {
    /// A configuration with the name of its file.
    Toml {
        file: &'a str,
        text: &'a str,
    },
    Json(String),
    /// A file.
    Bytes(Bytes),
}

impl Body<'_> {
    pub(super) fn json<T: Serialize>(value: &T) -> Result<Self, ClientError> {
        serde_json::to_string(value).map(Self::Json).map_err(ClientError::Request)
    }
}

impl Client {
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.request(Method::GET, path, None, self.short).await
    }

    pub(super) async fn request<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Body<'_>>,
        limit: Duration,
    ) -> Result<T, ClientError> {
        let name = format!("{method} {path}");
        let timeout = || ClientError::Timeout { request: name.clone(), seconds: limit.as_secs() };
        let answer = tokio::time::timeout(limit, self.exchange(&name, method, path, body));
        let (status, bytes) = answer.await.map_err(|_| timeout())??;
        if status.is_success() {
            return serde_json::from_slice(&bytes).map_err(|error| self.unexpected(&name, error.to_string()));
        }
        Err(self.refusal(&name, status, &bytes))
    }

    async fn exchange(
        &self,
        name: &str,
        method: Method,
        path: &str,
        body: Option<Body<'_>>,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let stream = self.connect().await?;
        let broken = |source| self.server.broken(name, source);
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let exchange = async {
            let mut request =
                Request::builder().method(method).uri(path).header(header::HOST, self.server.host());
            let text = match body {
                None => Bytes::new(),
                Some(Body::Toml { file, text }) => {
                    request = request
                        .header(header::CONTENT_TYPE, "application/toml")
                        .header(FILE_HEADER, encode(file, "/"));
                    Bytes::copy_from_slice(text.as_bytes())
                }
                Some(Body::Json(json)) => {
                    request = request.header(header::CONTENT_TYPE, "application/json");
                    Bytes::from(json)
                }
                Some(Body::Bytes(bytes)) => {
                    request = request.header(header::CONTENT_TYPE, "application/octet-stream");
                    bytes
                }
            };
            if let Some(trace) = &self.trace {
                request = request.header("traceparent", trace);
            }
            let request =
                request.body(Full::new(text)).map_err(|error| self.unexpected(name, error.to_string()))?;
            let response = sender.send_request(request).await.map_err(broken)?;
            let status = response.status();
            let bytes = Limited::new(response.into_body(), MAX_ANSWER)
                .collect()
                .await
                .map_err(|source| ClientError::Broken { request: name.to_owned(), source })?;
            Ok((status, bytes.to_bytes()))
        };
        // The connection must be polled while the exchange waits. It ends after the exchange.
        tokio::pin!(exchange);
        tokio::pin!(connection);
        tokio::select! {
            answer = &mut exchange => answer,
            _ = &mut connection => exchange.await,
        }
    }

    pub(super) async fn connect(&self) -> Result<Stream, ClientError> {
        self.server.connect().await
    }

    /// The error of an answer without success.
    pub(super) fn refusal(&self, request: &str, status: StatusCode, body: &[u8]) -> ClientError {
        match serde_json::from_slice(body) {
            Ok(error) => ClientError::Refused { status: status.as_u16(), error },
            Err(_) => self.unexpected(request, format!("HTTP status {status}")),
        }
    }

    pub(super) fn unexpected(&self, request: &str, what: String) -> ClientError {
        ClientError::Protocol { request: request.to_owned(), server: self.server.shown(), what }
    }
}
