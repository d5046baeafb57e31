// SPDX-License-Identifier: Apache-2.0
//! Errors of `netvm fleet`.

use std::io;
use std::path::PathBuf;

use netvm_fleet::{EtcdError, HostName, Machine};

/// The configurations of a fleet were not changed, or not all of them.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// etcd cannot be used.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The name of a file is no name of a host or fragment.
    #[error("{} is to be called NAME.toml, and {why}", path.display())]
    Name {
        /// The file.
        path: PathBuf,
        /// What is wrong with its name.
        why: String,
    },
    /// There is no host.
    #[error("{} has no hosts/NAME.toml: name a folder with one, or the file NAME.toml of a host", .0.display())]
    NoHosts(PathBuf),
    /// Hosts have errors.
    #[error("{0} hosts have errors: nothing was written")]
    Invalid(usize),
    /// Somebody else has changed a key.
    #[error("{key} changed in etcd since the plan{}: look at the plan again", held(.left))]
    Changed {
        /// The key.
        key: String,
        /// Hosts that are held back.
        left: Vec<HostName>,
    },
    /// A host is not healthy.
    #[error("stopped at host {host}: {why}{}", held(.left))]
    Stopped {
        /// The host.
        host: HostName,
        /// What it says.
        why: String,
        /// Hosts that are held back.
        left: Vec<HostName>,
    },
    /// A name that is in use.
    #[error("host {host} reports, from machine {} ({}): stop its netvmd first", machine.id, machine.hostname)]
    InUse {
        /// The host.
        host: HostName,
        /// Whose it is.
        machine: Machine,
    },
    /// A name that nobody has.
    #[error("no machine has the name {0}: see `netvm fleet status`")]
    NotTaken(HostName),
}

fn held(left: &[HostName]) -> String {
    if left.is_empty() {
        return "; no host is held back".to_owned();
    }
    let names: Vec<String> = left.iter().map(ToString::to_string).collect();
    format!("; held back with what they run, until the next `netvm fleet apply`: {}", names.join(", "))
}
