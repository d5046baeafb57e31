// SPDX-License-Identifier: Apache-2.0
//! What etcd says about this host. In: etcd's keys. Out: whose the name is, and what the host is to run.

use std::path::Path;

use netvm_config::{Document, SharedFragment, fragment_names};
use netvm_fleet::{
    Compare, Etcd, EtcdError, FRAGMENTS, HostError, HostKey, HostName, HostStatus, KeyRange, KeyValue,
    Machine, Operation, Revision, fragment_key,
};

use super::problem::host_error;
use crate::daemon::kept_number;

/// Identifies a machine (machine-id(5)).
const MACHINE_ID: &str = "/etc/machine-id";
/// Identifies the start of the kernel (random(4)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The same as the machine's number, of one without that file, in the state directory.
const OWN_ID: &str = "machine-id";
/// How often a reading is repeated that a compaction has outrun.
const ATTEMPTS: usize = 5;

/// What the host is to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Nothing is known yet.
    Unknown,
    /// There is no configuration.
    Nothing,
    /// It is to keep what it runs.
    Held { revision: Revision, why: String },
    /// A configuration.
    Config { revision: Revision, document: Document },
    /// A configuration of which not even the names of fragments can be read.
    Unreadable { revision: Revision, error: HostError },
}

/// Who has the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Claimed {
    Own,
    Other(Machine),
    /// Another machine has the same number: this one or that one is a copy. Or this one has started anew, and what it
    /// reported before is there until its lease ends.
    Copy(Machine),
}

/// The keys of this host.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) etcd: Etcd,
    pub(super) host: HostName,
    pub(super) machine: Machine,
}

impl Source {
    pub(super) fn new(etcd: Etcd, host: HostName, state_dir: &Path) -> Self {
        let boot = std::fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned();
        let machine = Machine { id: machine_id(state_dir), hostname: hostname(), boot };
        Self { etcd, host, machine }
    }

    /// Takes the name, unless another machine has it.
    pub(super) async fn claim(&self) -> Result<Claimed, EtcdError> {
        let key = self.host.key(HostKey::Machine);
        let own = serde_json::to_string(&self.machine).unwrap_or_default();
        let take = [Operation::Put(key.clone(), own, None)];
        let status = self.host.key(HostKey::Status);
        let look = [&key, &status].map(|key| Operation::Get(KeyRange::one(key)));
        let made = self.etcd.txn(&[Compare::Revision(key.clone(), 0)], &take, &look).await?;
        if made.succeeded {
            return Ok(Claimed::Own);
        }
        let found: Vec<KeyValue> = made.keys().flatten().collect();
        let value =
            |wanted: &str| found.iter().find(|found| found.key == wanted).map(|found| found.value.clone());
        let owner = value(&key).unwrap_or_default();
        let unknown = || Machine { id: "unknown".to_owned(), hostname: owner.clone(), boot: String::new() };
        let owner: Machine = serde_json::from_str(&owner).unwrap_or_else(|_| unknown());
        if owner.id != self.machine.id {
            return Ok(Claimed::Other(owner));
        }
        // Who reports now, under this name and with this number.
        let reported = value(&status).and_then(|status| serde_json::from_str::<HostStatus>(&status).ok());
        let other = reported.map(|status| status.machine).filter(|machine| *machine != self.machine);
        Ok(other.map_or(Claimed::Own, Claimed::Copy))
    }

    /// What changes of keys concern this host.
    pub(super) fn ranges(&self) -> [KeyRange; 2] {
        [self.host.wanted(), KeyRange::prefix(FRAGMENTS)]
    }

    /// Reads what is wanted, as of one revision, and returns that too.
    pub(super) async fn read(&self) -> Result<(Wanted, Revision), EtcdError> {
        let mut outcome = Err(EtcdError::Compacted);
        for _ in 0..ATTEMPTS {
            outcome = self.read_once().await;
            if !matches!(outcome, Err(EtcdError::Compacted)) {
                break;
            }
        }
        outcome
    }

    async fn read_once(&self) -> Result<(Wanted, Revision), EtcdError> {
        let own = self.etcd.get(&[self.host.wanted()], None).await?;
        let revision = own.revision;
        let own: Vec<KeyValue> = own.keys().flatten().collect();
        let find = |which| own.iter().find(|known| known.key == self.host.key(which));
        let Some(config) = find(HostKey::Config) else { return Ok((Wanted::Nothing, revision)) };
        let hold = find(HostKey::Hold);
        if let Some(hold) = hold {
            let why = netvm_text::line(&hold.value).into_owned();
            return Ok((Wanted::Held { revision: config.revision, why }, revision));
        }
        let names = match fragment_names(&config.key, &config.value) {
            Ok(names) => names,
            Err(error) => {
                let error = host_error(&error);
                return Ok((Wanted::Unreadable { revision: config.revision, error }, revision));
            }
        };
        let keys: Vec<KeyRange> = names.iter().map(|name| KeyRange::one(&fragment_key(name))).collect();
        let found: Vec<KeyValue> = if keys.is_empty() {
            Vec::new()
        } else {
            self.etcd.get(&keys, Some(revision)).await?.keys().flatten().collect()
        };
        let newest = found.iter().map(|found| found.revision).chain([config.revision]).max();
        let fragment = |key: String| {
            let name = fragment_key(&key);
            let text = found.iter().find(|found| found.key == name).map(|found| found.value.clone());
            SharedFragment { key, name, text }
        };
        let document = Document {
            name: config.key.clone(),
            text: config.value.clone(),
            fragments: Some(names.into_iter().map(fragment).collect()),
        };
        Ok((Wanted::Config { revision: newest.unwrap_or(config.revision), document }, revision))
    }
}

fn machine_id(state_dir: &Path) -> String {
    let known = std::fs::read_to_string(MACHINE_ID).unwrap_or_default();
    let known = known.trim();
    if !known.is_empty() && known.chars().all(|c| c.is_ascii_hexdigit()) {
        return known.to_owned();
    }
    kept_number(state_dir, OWN_ID).map_or_else(|_| hostname(), |number| format!("{number:016x}"))
}

fn hostname() -> String {
    netvm_text::line(&rustix::system::uname().nodename().to_string_lossy()).into_owned()
}
