//! Watches: a connection on which etcd says that keys have changed, one line of JSON for each piece of news.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::connection::{Endpoint, Sender};
use super::kv::{Header, KeyRange, Revision};
use super::{Etcd, EtcdError, Failure};

/// Time limit for the first answer.
const START_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest line: the values of one transaction, in base64.
const MAX_LINE: usize = 16 << 20;

/// A watch of some keys.
#[derive(Debug)]
pub struct Watch {
    body: Incoming,
    /// What came after the last line.
    rest: Vec<u8>,
    server: String,
    _connection: Sender,
}

#[derive(Debug, Deserialize)]
struct Line {
    result: Option<News>,
    error: Option<Failure>,
}

#[derive(Debug, Deserialize)]
struct News {
    #[serde(default)]
    header: Header,
    #[serde(default)]
    canceled: bool,
    #[serde(default)]
    compact_revision: Option<String>,
    #[serde(default)]
    cancel_reason: String,
    #[serde(default)]
    events: Vec<serde::de::IgnoredAny>,
}

impl Etcd {
    /// Watches keys from a revision on.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub async fn watch(&self, ranges: &[KeyRange], from: Revision) -> Result<Watch, EtcdError> {
        self.authenticate(false).await?;
        let (number, mut sender) = self.connect().await?;
        let (_, endpoint): (_, &Endpoint) = self.endpoint(number)?;
        let create = |range: &KeyRange| {
            let mut range = range.json();
            if let Some(fields) = range.as_object_mut() {
                fields.insert("start_revision".to_owned(), from.to_string().into());
            }
            json!({ "create_request": range })
        };
        let requests = Value::Array(ranges.iter().map(create).collect());
        let server = endpoint.authority.clone();
        let late = EtcdError::Timeout { server: server.clone(), seconds: START_TIMEOUT.as_secs() };
        let started = timeout(START_TIMEOUT, self.send(endpoint, &mut sender, "watch", &requests)).await;
        let response = started.map_err(|_| late).flatten()?;
        Ok(Watch { body: response.into_body(), rest: Vec::new(), server, _connection: sender })
    }
}

impl Watch {
    /// Waits until keys have changed. Returns the revision of the change. Nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// [`EtcdError`]; the watch has ended.
    pub async fn changed(&mut self) -> Result<Revision, EtcdError> {
        loop {
            while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                if let Some(revision) = self.read(&line)? {
                    return Ok(revision);
                }
            }
            if self.rest.len() > MAX_LINE {
                return Err(self.protocol("a line without an end"));
            }
            let broken = |why: String| EtcdError::Broken { server: self.server.clone(), why };
            match self.body.frame().await {
                Some(Ok(frame)) => self.rest.extend(frame.data_ref().into_iter().flatten()),
                Some(Err(error)) => return Err(broken(error.to_string())),
                None => return Err(broken("the watch has ended".to_owned())),
            }
        }
    }

    /// What a line says; `None`: no change.
    fn read(&self, line: &[u8]) -> Result<Option<Revision>, EtcdError> {
        let line: Line = serde_json::from_slice(line).map_err(|error| self.protocol(&error.to_string()))?;
        let refused = |why: &str| EtcdError::Refused {
            path: "watch".to_owned(),
            why: netvm_text::line(why).into_owned(),
        };
        if let Some(failure) = line.error {
            return Err(refused(&failure.message));
        }
        let Some(news) = line.result else { return Ok(None) };
        match (news.canceled, news.compact_revision) {
            (true, Some(_)) => Err(EtcdError::Compacted),
            (true, None) => Err(refused(&news.cancel_reason)),
            (false, _) if news.events.is_empty() => Ok(None),
            (false, _) => Ok(Some(news.header.revision)),
        }
    }

    fn protocol(&self, why: &str) -> EtcdError {
        EtcdError::Protocol { server: self.server.clone(), why: why.to_owned() }
    }
}
