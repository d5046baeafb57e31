// SPDX-License-Identifier: Apache-2.0
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
                if let Some(revision) = news_of(&self.server, &line)? {
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

    fn protocol(&self, why: &str) -> EtcdError {
        EtcdError::Protocol { server: self.server.clone(), why: why.to_owned() }
    }
}

/// What a line says that `server` has sent: the revision of a change; `None`: no change.
fn news_of(server: &str, line: &[u8]) -> Result<Option<Revision>, EtcdError> {
    let malformed = |error: serde_json::Error| EtcdError::Protocol {
        server: server.to_owned(),
        why: netvm_text::line(&error.to_string()).into_owned(),
    };
    let line: Line = serde_json::from_slice(line).map_err(malformed)?;
    let refused =
        |why: &str| EtcdError::Refused { path: "watch".to_owned(), why: netvm_text::line(why).into_owned() };
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

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: [&str; 5] = [
        r#"{"result":{"header":{"revision":"7"},"created":true}}"#,
        r#"{"result":{"header":{"revision":"8"},"events":[{"kv":{"key":"L2E=","value":"eA=="}}]}}"#,
        r#"{"result":{"header":{"revision":"9"},"canceled":true,"compact_revision":"8"}}"#,
        r#"{"result":{"header":{},"canceled":true,"cancel_reason":"\u001b[2J"}}"#,
        r#"{"error":{"message":"etcdserver: no leader","code":14}}"#,
    ];

    #[test]
    fn lines_are_read_as_etcd_writes_them() {
        let [made, changed, compacted, cancelled, failed] =
            LINES.map(|line| news_of("etcd", line.as_bytes()));
        assert!(matches!((made, changed), (Ok(None), Ok(Some(8)))));
        assert!(matches!(compacted, Err(EtcdError::Compacted)));
        assert!(matches!(cancelled, Err(EtcdError::Refused { .. })));
        assert!(failed.unwrap_err().to_string().contains("no leader"));
    }

    /// An etcd that lies, or who is in its place: an error that can be printed, or a revision.
    #[test]
    fn damaged_lines_are_refused_in_words() {
        let check = |line: &[u8]| {
            if let Err(error) = news_of("etcd", line) {
                let text = error.to_string();
                assert!(text.chars().all(netvm_text::is_visible), "{text:?}");
            }
        };
        for line in LINES.map(str::as_bytes) {
            (0..line.len()).for_each(|length| check(&line[..length]));
            for at in 0..line.len() {
                for byte in [0, b'"', b'{', b'9', 0x1b, 0xff] {
                    let mut damaged = line.to_vec();
                    damaged[at] = byte;
                    check(&damaged);
                    damaged.insert(at, byte);
                    check(&damaged);
                }
            }
        }
        check(format!("{}1", "[".repeat(100_000)).as_bytes());
    }
}
