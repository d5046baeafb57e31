// SPDX-License-Identifier: Apache-2.0
//! What a member of etcd says of itself.

use serde::Deserialize;
use serde_json::json;

use super::{Etcd, EtcdError};

/// A member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdMember {
    /// The version of etcd.
    pub version: String,
    /// Whether it knows a leader, without which nothing is written.
    pub has_leader: bool,
}

/// As the JSON gateway has it: no leader is the number 0, or left out.
#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    version: String,
    #[serde(default)]
    leader: String,
}

impl Etcd {
    /// What the member that answers says of itself.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub async fn member(&self) -> Result<EtcdMember, EtcdError> {
        let Status { version, leader } = self.call("maintenance/status", &json!({})).await?;
        Ok(EtcdMember { version, has_leader: !matches!(leader.as_str(), "" | "0") })
    }
}
