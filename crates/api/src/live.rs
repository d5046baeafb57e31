// SPDX-License-Identifier: Apache-2.0
//! Ports that clients add beside the configuration file, one by one.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::change::Diagnostic;
use crate::escape::encode;

/// A port to add, with the rules that come with it. The same again changes nothing; another port of the same owner and
/// `id` replaces the one before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddPort {
    /// Who adds it: such as the program, and the network that it serves. Its ports are removed by this name.
    pub owner: String,
    /// What the owner knows it by; other owners may use the same. Empty: the name of the port.
    #[serde(default)]
    pub id: String,
    /// A `[[port]]` table and `[[rule]]` tables, as in the configuration, or the lines of a port alone.
    pub toml: String,
    /// A file that the owner removes with the port, also while no netvmd runs: a netvmd that starts removes the ports
    /// whose file is not there. Absent: the port stays until it is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub lease: Option<PathBuf>,
}

/// A port that was added.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AddedPort {
    /// What netvmd did, in one sentence.
    pub message: String,
    /// The port.
    pub port: LivePortInfo,
    /// Warnings about it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Diagnostic>,
    /// How long it took, in milliseconds.
    pub took_ms: f64,
}

/// Which port to remove: the query of the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemovePort {
    /// Who has added it.
    pub owner: String,
    /// What the owner knows it by.
    pub id: String,
}

impl RemovePort {
    /// As a query.
    #[must_use]
    pub fn query(&self) -> String {
        format!("owner={}&id={}", encode(&self.owner, ""), encode(&self.id, ""))
    }
}

/// A port beside the configuration file. It stays until its owner removes it, also when netvmd restarts or another file
/// is applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LivePortInfo {
    /// Who has added it.
    pub owner: String,
    /// What the owner knows it by.
    pub id: String,
    /// The name of the port.
    pub port: String,
    /// Its labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The names of the rules that came with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// When it was added, in seconds since 1970.
    pub created_at: u64,
    /// The MAC address of its interface or card, if netvmd chooses it or the port says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Why packets do not pass it now: what it waits for, or what of the configuration it contradicts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Its tables.
    pub toml: String,
}
