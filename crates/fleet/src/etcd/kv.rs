// SPDX-License-Identifier: Apache-2.0
//! Keys, transactions and leases. etcd's JSON has keys and values in base64, and numbers of 64 bits as strings.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Etcd, EtcdError};

/// A revision of etcd: the number of changes before it, of all keys.
pub type Revision = i64;

/// A lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseId(i64);

/// Keys in order, from one to before another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    from: String,
    /// `None`: only the first.
    to: Option<String>,
}

impl KeyRange {
    /// One key.
    #[must_use]
    pub fn one(key: &str) -> Self {
        Self { from: key.to_owned(), to: None }
    }

    /// From one to before another.
    #[must_use]
    pub fn between(from: &str, to: &str) -> Self {
        Self { from: from.to_owned(), to: Some(to.to_owned()) }
    }

    /// All that begin so, with a letter that is not the last of all.
    #[must_use]
    pub fn prefix(prefix: &str) -> Self {
        let mut to: Vec<char> = prefix.chars().collect();
        if let Some(last) = to.last_mut() {
            *last = char::from_u32(u32::from(*last) + 1).unwrap_or(char::MAX);
        }
        Self { from: prefix.to_owned(), to: Some(to.into_iter().collect()) }
    }

    /// Whether a key is among them.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        match &self.to {
            None => key == self.from,
            Some(to) => (self.from.as_str()..to.as_str()).contains(&key),
        }
    }

    pub(super) fn json(&self) -> Value {
        match &self.to {
            None => json!({ "key": STANDARD.encode(&self.from) }),
            Some(to) => json!({ "key": STANDARD.encode(&self.from), "range_end": STANDARD.encode(to) }),
        }
    }
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: String,
    /// The value; characters instead of bytes that are not UTF-8.
    pub value: String,
    /// When the key was written last.
    pub revision: Revision,
}

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The key was written last at this revision; 0: there is no such key.
    Revision(String, Revision),
}

/// What a transaction does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read keys.
    Get(KeyRange),
    /// Write a key, which ends with the lease if there is one.
    Put(String, String, Option<LeaseId>),
    /// Remove a key.
    Delete(String),
}

/// What an operation returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The keys that were read.
    Keys(Vec<KeyValue>),
    /// A key was written or removed.
    Done,
}

/// A transaction that etcd has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Txn {
    /// Whether the conditions held.
    pub succeeded: bool,
    /// The revision of the store after it.
    pub revision: Revision,
    /// What each operation returned.
    pub replies: Vec<Reply>,
}

impl Txn {
    /// The keys that were read, of each read.
    pub fn keys(self) -> impl Iterator<Item = Vec<KeyValue>> {
        self.replies.into_iter().filter_map(|reply| match reply {
            Reply::Keys(keys) => Some(keys),
            Reply::Done => None,
        })
    }
}

/// A number that is written as a string.
fn number<'de, D: serde::Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map_err(|_| serde::de::Error::custom("not a number of 64 bits"))
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Header {
    #[serde(default, deserialize_with = "number")]
    pub(super) revision: i64,
}

#[derive(Debug, Deserialize)]
struct RawKeyValue {
    key: String,
    #[serde(default)]
    value: String,
    #[serde(default, deserialize_with = "number")]
    mod_revision: i64,
}

#[derive(Debug, Default, Deserialize)]
struct RawRange {
    #[serde(default)]
    kvs: Vec<RawKeyValue>,
}

#[derive(Debug, Deserialize)]
struct RawReply {
    response_range: Option<RawRange>,
}

#[derive(Debug, Deserialize)]
struct RawTxn {
    #[serde(default)]
    header: Header,
    #[serde(default)]
    succeeded: bool,
    #[serde(default)]
    responses: Vec<RawReply>,
}

impl From<RawRange> for Reply {
    fn from(raw: RawRange) -> Self {
        let text = |base64: &str| {
            let bytes = STANDARD.decode(base64).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let key = |raw: RawKeyValue| KeyValue {
            key: text(&raw.key),
            value: text(&raw.value),
            revision: raw.mod_revision,
        };
        Self::Keys(raw.kvs.into_iter().map(key).collect())
    }
}

impl Operation {
    fn json(&self, at: Option<Revision>) -> Value {
        match self {
            Self::Get(range) => {
                let mut range = range.json();
                if let (Some(revision), Some(fields)) = (at, range.as_object_mut()) {
                    fields.insert("revision".to_owned(), revision.to_string().into());
                }
                json!({ "request_range": range })
            }
            Self::Put(key, value, lease) => {
                let lease = lease.map_or(0, |lease| lease.0).to_string();
                let (key, value) = (STANDARD.encode(key), STANDARD.encode(value));
                json!({ "request_put": { "key": key, "value": value, "lease": lease } })
            }
            Self::Delete(key) => json!({ "request_delete_range": { "key": STANDARD.encode(key) } }),
        }
    }
}

impl Compare {
    fn json(&self) -> Value {
        let Self::Revision(key, revision) = self;
        json!({ "key": STANDARD.encode(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string() })
    }
}

impl Etcd {
    /// Reads keys, all as of one revision: the given one, else the last.
    ///
    /// # Errors
    /// [`EtcdError`]; [`EtcdError::Compacted`] if the given revision is too old.
    pub async fn get(&self, ranges: &[KeyRange], at: Option<Revision>) -> Result<Txn, EtcdError> {
        let reads: Vec<Value> = ranges.iter().map(|range| Operation::Get(range.clone()).json(at)).collect();
        self.transaction(&json!({ "success": reads })).await
    }

    /// If all conditions hold, does one list of operations, else the other, at once or not at all.
    ///
    /// # Errors
    /// [`EtcdError`]; the transaction may have been made nevertheless if the connection broke.
    pub async fn txn(
        &self,
        conditions: &[Compare],
        then: &[Operation],
        otherwise: &[Operation],
    ) -> Result<Txn, EtcdError> {
        let list = |operations: &[Operation]| -> Vec<Value> {
            operations.iter().map(|operation| operation.json(None)).collect()
        };
        let compare: Vec<Value> = conditions.iter().map(Compare::json).collect();
        let request = json!({ "compare": compare, "success": list(then), "failure": list(otherwise) });
        self.transaction(&request).await
    }

    async fn transaction(&self, request: &Value) -> Result<Txn, EtcdError> {
        let raw: RawTxn = self.call("kv/txn", request).await?;
        let reply = |raw: RawReply| raw.response_range.map_or(Reply::Done, Reply::from);
        let replies = raw.responses.into_iter().map(reply).collect();
        Ok(Txn { succeeded: raw.succeeded, revision: raw.header.revision, replies })
    }

    /// A new lease.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub async fn grant(&self, seconds: u64) -> Result<LeaseId, EtcdError> {
        #[derive(Deserialize)]
        struct Granted {
            #[serde(rename = "ID", deserialize_with = "number")]
            id: i64,
        }
        let granted: Granted = self.call("lease/grant", &json!({ "TTL": seconds.to_string() })).await?;
        Ok(LeaseId(granted.id))
    }

    /// Keeps a lease for as long again. Returns whether it was still there.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub async fn keep_alive(&self, LeaseId(id): LeaseId) -> Result<bool, EtcdError> {
        #[derive(Deserialize)]
        struct Alive {
            result: Left,
        }
        #[derive(Deserialize)]
        struct Left {
            #[serde(rename = "TTL", default, deserialize_with = "number")]
            ttl: i64,
        }
        let alive: Alive = self.call("lease/keepalive", &json!({ "ID": id.to_string() })).await?;
        Ok(alive.result.ttl > 0)
    }

    /// Ends a lease, and removes its keys.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub async fn revoke(&self, LeaseId(id): LeaseId) -> Result<(), EtcdError> {
        self.call::<Value>("lease/revoke", &json!({ "ID": id.to_string() })).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_the_keys_that_begin_with_their_prefix() {
        let range = KeyRange::prefix("/netvm/fragments/");
        assert!(range.has("/netvm/fragments/a") && range.has("/netvm/fragments/~"));
        assert!(!range.has("/netvm/fragments") && !range.has("/netvm/hosts/a"));
        assert!(KeyRange::one("a").has("a") && !KeyRange::one("a").has("aa"));
    }

    #[test]
    fn a_transaction_is_read_as_etcd_writes_it() {
        let text = r#"{"header":{"cluster_id":"1","member_id":"2","revision":"7","raft_term":"2"},"succeeded":true,
            "responses":[{"response_range":{"header":{"revision":"7"},"kvs":[{"key":"L2E=","create_revision":"2",
            "mod_revision":"6","version":"1","value":"aGVsbG8="}],"count":"1"}},{"response_put":{}},
            {"response_range":{"header":{"revision":"7"}}}]}"#;
        let raw: RawTxn = serde_json::from_str(text).unwrap();
        assert_eq!((raw.header.revision, raw.succeeded), (7, true));
        let replies: Vec<Reply> = raw
            .responses
            .into_iter()
            .map(|raw| raw.response_range.map_or(Reply::Done, Reply::from))
            .collect();
        let key = KeyValue { key: "/a".to_owned(), value: "hello".to_owned(), revision: 6 };
        assert_eq!(replies, [Reply::Keys(vec![key]), Reply::Done, Reply::Keys(Vec::new())]);
    }
}
