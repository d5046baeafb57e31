// SPDX-License-Identifier: Apache-2.0
//! What etcd has of a fleet.

use std::collections::BTreeMap;

use netvm_fleet::{
    Etcd, FRAGMENTS, HOSTS, HostKey, HostName, HostStatus, KeyRange, KeyValue, Revision, split_host_key,
};

use crate::error::FleetError;

/// What etcd has of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KnownHost {
    /// Its configuration, and when that was written last.
    pub(super) config: Option<(String, Revision)>,
    /// Why it is held back.
    pub(super) hold: Option<String>,
    /// Whose name it is.
    pub(super) machine: Option<(String, Revision)>,
    /// What it reports; `None`: nothing.
    pub(super) status: Option<HostStatus>,
}

/// What etcd has of all hosts, as of one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) hosts: BTreeMap<HostName, KnownHost>,
    pub(super) fragments: BTreeMap<String, (String, Revision)>,
}

impl Contents {
    pub(super) async fn read(etcd: &Etcd) -> Result<Self, FleetError> {
        let ranges = [KeyRange::prefix(HOSTS), KeyRange::prefix(FRAGMENTS)];
        let mut contents = Self::default();
        for KeyValue { key, value, revision } in etcd.get(&ranges, None).await?.keys().flatten() {
            if let Some(fragment) = key.strip_prefix(FRAGMENTS) {
                contents.fragments.insert(fragment.to_owned(), (value, revision));
                continue;
            }
            let Some((host, which)) = split_host_key(&key) else { continue };
            let known = contents.hosts.entry(host).or_default();
            match which {
                HostKey::Config => known.config = Some((value, revision)),
                HostKey::Hold => known.hold = Some(value),
                HostKey::Machine => known.machine = Some((value, revision)),
                HostKey::Status => known.status = serde_json::from_str(&value).ok(),
            }
        }
        Ok(contents)
    }
}
