// SPDX-License-Identifier: Apache-2.0
//! A client of etcd's JSON gateway, which every member serves at its client addresses.
//!
//! Requests go one after another over one connection, to one member; to the next one if that fails. None is sent twice.

mod connection;
mod error;
mod kv;
mod member;
mod watch;

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::HeaderValue;
use hyper::{Request, Response, StatusCode, header};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_rustls::rustls::ClientConfig;

use connection::{Endpoint, Sender};
pub use error::EtcdError;
pub use kv::{Compare, KeyRange, KeyValue, LeaseId, Operation, Reply, Revision, Txn};
pub use member::EtcdMember;
pub use watch::Watch;

/// Time limit of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest answer to read: of all hosts of a fleet.
const MAX_ANSWER: usize = 64 << 20;
/// gRPC's codes.
const OUT_OF_RANGE: u32 = 11;
const PERMISSION_DENIED: u32 = 7;
const UNAUTHENTICATED: u32 = 16;
/// No difference of clocks is known.
const UNKNOWN: i64 = i64::MIN;

/// A user of etcd.
#[derive(Clone)]
pub struct Credentials {
    pub(crate) name: String,
    pub(crate) password: String,
}

/// A client.
pub struct Etcd {
    endpoints: Vec<Endpoint>,
    credentials: Option<Credentials>,
    /// Whose turn it is.
    turn: AtomicUsize,
    kept: tokio::sync::Mutex<Option<(usize, Sender)>>,
    token: Mutex<Option<HeaderValue>>,
    /// Seconds by which this machine's clock is ahead of etcd's.
    ahead: AtomicI64,
}

impl std::fmt::Debug for Etcd {
    /// Without the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Etcd").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}

/// How etcd says what is wrong.
#[derive(Debug, Deserialize)]
struct Failure {
    #[serde(default)]
    message: String,
    #[serde(default)]
    code: u32,
}

impl Etcd {
    pub(crate) fn new(
        urls: &[String],
        tls: Option<&Arc<ClientConfig>>,
        credentials: Option<Credentials>,
    ) -> Result<Self, EtcdError> {
        let endpoints: Result<Vec<_>, _> = urls.iter().map(|url| Endpoint::new(url, tls)).collect();
        let endpoints = endpoints?;
        if endpoints.is_empty() {
            return Err(EtcdError::NoAddress);
        }
        Ok(Self {
            endpoints,
            credentials,
            turn: AtomicUsize::new(0),
            kept: tokio::sync::Mutex::default(),
            token: Mutex::default(),
            ahead: AtomicI64::new(UNKNOWN),
        })
    }

    /// The addresses of its members.
    #[must_use]
    pub fn addresses(&self) -> String {
        let list: Vec<&str> = self.endpoints.iter().map(|endpoint| &*endpoint.authority).collect();
        list.join(",")
    }

    /// Seconds by which this machine's clock is ahead of that of the member that answered last; `None`: none did.
    #[must_use]
    pub fn clock_ahead(&self) -> Option<i64> {
        let ahead = self.ahead.load(Ordering::Relaxed);
        (ahead != UNKNOWN).then_some(ahead)
    }

    /// Turns to the next member, with a new connection.
    pub fn turn_away(&self) {
        self.turn.fetch_add(1, Ordering::Relaxed);
        if let Ok(mut kept) = self.kept.try_lock() {
            *kept = None;
        }
    }

    fn endpoint(&self, number: usize) -> Result<(usize, &Endpoint), EtcdError> {
        let number = number % self.endpoints.len();
        self.endpoints.get(number).map(|endpoint| (number, endpoint)).ok_or(EtcdError::NoAddress)
    }

    /// Connects to the first member that can be reached, beginning with the one whose turn it is.
    async fn connect(&self) -> Result<(usize, Sender), EtcdError> {
        let first = self.turn.load(Ordering::Relaxed);
        let mut outcome = Err(EtcdError::NoAddress);
        for number in first..first + self.endpoints.len() {
            let (number, endpoint) = self.endpoint(number)?;
            outcome = endpoint.connect().await.map(|sender| (number, sender));
            if outcome.is_ok() {
                self.turn.store(number, Ordering::Relaxed);
                break;
            }
        }
        outcome
    }

    /// One request and its answer, with a new token if etcd has forgotten the last one.
    async fn call<T: DeserializeOwned>(&self, path: &str, request: &Value) -> Result<T, EtcdError> {
        let had_token = self.authenticate(false).await?;
        match self.exchange(path, request).await {
            Err(EtcdError::Denied { why, .. }) if had_token && why.contains("token") => {
                self.authenticate(true).await?;
                self.exchange(path, request).await
            }
            outcome => outcome,
        }
    }

    /// Gets a token if there is a user and no token yet, or if it must be `new`. Returns whether there is one.
    async fn authenticate(&self, new: bool) -> Result<bool, EtcdError> {
        let Some(Credentials { name, password }) = &self.credentials else { return Ok(false) };
        if !new && lock(&self.token).is_some() {
            return Ok(true);
        }
        #[derive(Deserialize)]
        struct Token {
            token: String,
        }
        *lock(&self.token) = None;
        let request = json!({ "name": name, "password": password });
        let answer: Result<Token, _> = self.exchange("auth/authenticate", &request).await;
        let refused = |why| EtcdError::Credentials { user: name.clone(), why };
        let token = answer.map_err(|error| match error {
            EtcdError::Refused { why, .. } | EtcdError::Denied { why, .. } => refused(why),
            other => other,
        })?;
        let token = HeaderValue::from_str(&token.token).map_err(|error| refused(error.to_string()))?;
        *lock(&self.token) = Some(token);
        Ok(true)
    }

    async fn exchange<T: DeserializeOwned>(&self, path: &str, request: &Value) -> Result<T, EtcdError> {
        let mut kept = self.kept.lock().await;
        let (number, mut sender) = match kept.take() {
            Some((number, sender)) if sender.is_ready() => (number, sender),
            _ => self.connect().await?,
        };
        let (_, endpoint) = self.endpoint(number)?;
        let work = async {
            let response = self.send(endpoint, &mut sender, path, request).await?;
            let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
            body.map(http_body_util::Collected::to_bytes).map_err(|error| endpoint.broken(&*error))
        };
        let seconds = REQUEST_TIMEOUT.as_secs();
        let server = endpoint.authority.clone();
        let late = |_| EtcdError::Timeout { server, seconds };
        let answer = timeout(REQUEST_TIMEOUT, work).await.map_err(late).flatten();
        if matches!(answer, Err(EtcdError::Timeout { .. } | EtcdError::Broken { .. })) {
            self.turn.fetch_add(1, Ordering::Relaxed);
        } else {
            *kept = Some((number, sender));
        }
        let bytes = answer?;
        serde_json::from_slice(&bytes).map_err(|error| endpoint.protocol(&error))
    }

    /// Sends a request. An answer without success is an error.
    async fn send(
        &self,
        endpoint: &Endpoint,
        sender: &mut Sender,
        path: &str,
        request: &Value,
    ) -> Result<Response<Incoming>, EtcdError> {
        let mut builder = Request::post(format!("/v3/{path}"))
            .header(header::HOST, &endpoint.authority)
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = &*lock(&self.token) {
            builder = builder.header(header::AUTHORIZATION, token);
        }
        // A list is several requests of one stream.
        let text = match request {
            Value::Array(several) => several.iter().map(Value::to_string).collect(),
            one => one.to_string(),
        };
        let request =
            builder.body(Full::new(Bytes::from(text))).map_err(|error| endpoint.protocol(&error))?;
        let response = sender.send_request(request).await.map_err(|error| endpoint.broken(&error))?;
        self.note_clock(&response);
        if response.status() == StatusCode::OK {
            return Ok(response);
        }
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|error| endpoint.broken(&*error))?.to_bytes();
        let Ok(failure) = serde_json::from_slice(&body) else {
            return Err(endpoint.protocol(&format!("HTTP status {status}")));
        };
        Err(self.failure(path, &failure))
    }

    fn failure(&self, path: &str, failure: &Failure) -> EtcdError {
        let (path, why) = (path.to_owned(), netvm_text::line(&failure.message).into_owned());
        let who = self.credentials.as_ref().map_or_else(
            || "clients without a user (--etcd-user)".to_owned(),
            |credentials| format!("user `{}`", credentials.name),
        );
        match failure.code {
            OUT_OF_RANGE if why.contains("compacted") => EtcdError::Compacted,
            PERMISSION_DENIED | UNAUTHENTICATED => EtcdError::Denied { path, who, why },
            _ if why.contains("user name is empty") => EtcdError::Denied { path, who, why },
            _ => EtcdError::Refused { path, why },
        }
    }

    /// Compares the clocks: etcd says its time with each answer, in whole seconds.
    fn note_clock(&self, response: &Response<Incoming>) {
        let date = response.headers().get(header::DATE).and_then(|date| date.to_str().ok());
        let Some(theirs) = date.and_then(|date| jiff::fmt::rfc2822::parse(date).ok()) else { return };
        let own = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let own = i64::try_from(own).unwrap_or(i64::MAX);
        self.ahead.store(own.saturating_sub(theirs.timestamp().as_second()), Ordering::Relaxed);
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
