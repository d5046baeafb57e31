// SPDX-License-Identifier: Apache-2.0
//! Desired state of many hosts in etcd: a client of etcd, the keys that netvmd and `netvm fleet` use, and what hosts
//! report.
//!
//! | key | value | who writes it |
//! |---|---|---|
//! | `/netvm/hosts/NAME/config` | the host's configuration file | `netvm fleet apply`, `etcdctl put` |
//! | `/netvm/fragments/FRAGMENT` | a part of it that several hosts name | the same |
//! | `/netvm/hosts/NAME/hold` | why the host keeps what it runs | `netvm fleet apply`, before the host's wave |
//! | `/netvm/hosts/NAME/machine` | [`Machine`]: whose name it is | the first netvmd of that name |
//! | `/netvm/hosts/NAME/status` | [`HostStatus`], while netvmd is connected | netvmd, with a lease |
//!
//! Only revisions of etcd order anything: the clocks of hosts may differ.
#![forbid(unsafe_code)]

mod args;
mod etcd;
mod keys;
mod status;

pub use args::EtcdArgs;
pub use etcd::{
    Compare, Etcd, EtcdError, EtcdMember, KeyRange, KeyValue, LeaseId, Operation, Reply, Revision, Txn, Watch,
};
pub use keys::{FRAGMENTS, HOSTS, HostKey, HostName, fragment_key, split_host_key};
pub use status::{CLOCK_TOLERANCE, HostError, HostState, HostStatus, Machine};
