// SPDX-License-Identifier: Apache-2.0
//! What an exporter has done so far: its thread writes it, and others read it through a [`View`].

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use crate::entry::{Name, NameKind, Record};
use crate::top::{Hitter, SpaceSaving};

/// Counters of top talkers: errors are at most a 4096th of all bytes.
const TALKERS: usize = 4096;
/// The same for names.
const NAMES: usize = 1024;

/// Sums over all records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Records given to the collector's socket.
    pub exported: u64,
    /// Messages given to it.
    pub messages: u64,
    /// Records lost because the collector was away.
    pub lost: u64,
    /// Lines that could not be written.
    pub eve_lost: u64,
    /// The collector is away.
    pub is_away: bool,
}

/// One of the heaviest senders or receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Talker {
    /// Address.
    pub address: IpAddr,
    /// Bytes sent and received, or at most `error` more.
    pub bytes: u64,
    /// Bound of the error of `bytes`.
    pub error: u64,
}

/// A name with the most bytes in the flows that it was seen in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamedBytes {
    /// The name.
    pub name: String,
    /// `dns` or `tls`.
    pub kind: &'static str,
    /// Bytes of its flows, or at most `error` more.
    pub bytes: u64,
    /// Bound of the error of `bytes`.
    pub error: u64,
}

/// The heaviest addresses and names of some records.
#[derive(Clone, Debug)]
pub struct Heaviest {
    talkers: SpaceSaving<IpAddr>,
    names: SpaceSaving<Name>,
}

impl Default for Heaviest {
    fn default() -> Self {
        Self::new()
    }
}

impl Heaviest {
    /// Of no records.
    #[must_use]
    pub fn new() -> Self {
        Self { talkers: SpaceSaving::new(TALKERS), names: SpaceSaving::new(NAMES) }
    }

    /// Adds a record.
    pub fn add(&mut self, record: &Record) {
        if let Some(addresses) = record.endpoints().addresses() {
            for address in addresses {
                self.add_bytes(address, record.total().bytes);
            }
        }
        if let Some(name) = record.name {
            self.names.add(name, record.total().bytes);
        }
    }

    /// Adds bytes of an address.
    pub fn add_bytes(&mut self, address: IpAddr, bytes: u64) {
        self.talkers.add(address, bytes);
    }

    /// Adds those of other records.
    pub fn merge(&mut self, other: &Self) {
        self.talkers.merge(&other.talkers);
        self.names.merge(&other.names);
    }

    /// The `count` heaviest addresses, heaviest first.
    #[must_use]
    pub fn talkers(&self, count: usize) -> Vec<Talker> {
        let top = self.talkers.top(count).into_iter();
        top.map(|it| Talker { address: it.key, bytes: it.count, error: it.error }).collect()
    }

    /// The `count` names with the most bytes.
    #[must_use]
    pub fn names(&self, count: usize) -> Vec<NamedBytes> {
        let named = |it: Hitter<Name>| NamedBytes {
            name: it.key.as_str().to_owned(),
            kind: match it.key.kind() {
                NameKind::Dns => "dns",
                NameKind::TlsServer => "tls",
            },
            bytes: it.count,
            error: it.error,
        };
        self.names.top(count).into_iter().map(named).collect()
    }
}

/// What the exporter's thread and its readers share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) exported: AtomicU64,
    pub(super) messages: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) eve_lost: AtomicU64,
    pub(super) is_away: AtomicBool,
    heaviest: Mutex<Option<Heaviest>>,
}

impl Shared {
    pub(super) fn totals(&self) -> Totals {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Totals {
            exported: get(&self.exported),
            messages: get(&self.messages),
            lost: get(&self.lost),
            eve_lost: get(&self.eve_lost),
            is_away: self.is_away.load(Ordering::Relaxed),
        }
    }

    pub(super) fn publish(&self, heaviest: &Heaviest) {
        let mut published = self.heaviest.lock().unwrap_or_else(PoisonError::into_inner);
        *published = Some(heaviest.clone());
    }
}

/// What an exporter has done, for threads that report.
#[derive(Clone, Debug)]
pub struct View(pub(super) Arc<Shared>);

impl View {
    /// Sums so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.0.totals()
    }

    /// The heaviest addresses and names among the records of all meters up to a second ago.
    #[must_use]
    pub fn heaviest(&self) -> Heaviest {
        let heaviest = self.0.heaviest.lock().unwrap_or_else(PoisonError::into_inner);
        heaviest.clone().unwrap_or_default()
    }

    /// The heaviest `count` addresses among them, heaviest first.
    #[must_use]
    pub fn talkers(&self, count: usize) -> Vec<Talker> {
        self.heaviest().talkers(count)
    }

    /// The `count` names with the most bytes, among the same records.
    #[must_use]
    pub fn names(&self, count: usize) -> Vec<NamedBytes> {
        self.heaviest().names(count)
    }
}
