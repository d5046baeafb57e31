// SPDX-License-Identifier: Apache-2.0
//! The audit log: who changed or tried to change what, from where, and what came of it. In: requests and their
//! outcomes. Out: JSON lines in a file, written by a thread, so that no disk delays netvmd.

mod file;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Serialize;

pub(crate) use file::AuditFile;

use crate::events::{Bucket, Events, Rate};
use crate::runtime::lock;

/// Most lines of a plan in an entry.
const MAX_PLAN_LINES: usize = 100;

/// A client, as the log names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct LoggedClient {
    /// The common name of its certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) certificate: Option<String>,
    /// The SHA-256 fingerprint of its certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fingerprint: Option<String>,
    /// The name by which it has logged in with a password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
    /// Its user on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<u32>,
    /// Its process on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<i32>,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Entry {
    /// When it ended (RFC 3339, UTC).
    time: String,
    pub(crate) client: LoggedClient,
    /// The socket's path, or the client's address and port.
    pub(crate) from: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    /// The method; absent if the client was refused before it sent a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) method: Option<String>,
    /// Path and query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<String>,
    /// The status of HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<u16>,
    /// What netvmd did, or why it did not.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) result: String,
    /// Refusals before this one that are not in the log.
    #[serde(skip_serializing_if = "is_zero")]
    suppressed: u64,
    /// The changes of a configuration, a line each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    plan: Vec<String>,
}

impl Entry {
    /// An entry of now, about a client.
    pub(crate) fn of(client: LoggedClient, from: &str) -> Self {
        Self {
            time: jiff::Timestamp::now().to_string(),
            client,
            from: from.to_owned(),
            role: None,
            method: None,
            path: None,
            status: None,
            result: String::new(),
            suppressed: 0,
            plan: Vec::new(),
        }
    }

    /// The same with a plan, cut if it is long.
    pub(crate) fn with_plan(mut self, plan: &str) -> Self {
        let mut lines = plan.lines().map(str::to_owned);
        self.plan = lines.by_ref().take(MAX_PLAN_LINES).collect();
        match lines.count() {
            0 => {}
            more => self.plan.push(format!("and {more} more lines")),
        }
        self
    }
}

/// serde passes a reference.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde wants it")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Who was refused. Refusals of each kind are limited together, so that none hides those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// A process of this machine, by a Unix socket.
    Process,
    /// A client with a certificate that TLS accepts, or with a password.
    Certificate,
    /// Anybody else.
    Unknown,
}

/// Entries about refusals of a kind, which cost the refused client nothing.
const REFUSALS: Rate = Rate { burst: 100, interval: Duration::from_millis(200) };

/// The log, on or off.
#[derive(Debug)]
pub(crate) struct Audit {
    events: Events,
    file: Mutex<Option<Arc<AuditFile>>>,
    /// By [`Refused`].
    refusals: Mutex<[Bucket; 3]>,
    /// Why there is none although there should be.
    problem: Mutex<Option<String>>,
}

impl Audit {
    pub(crate) fn new(events: Events) -> Self {
        let refusals = Mutex::new([Bucket::new(REFUSALS, Instant::now()); 3]);
        Self { events, file: Mutex::default(), refusals, problem: Mutex::default() }
    }

    /// Writes to this file from now on.
    pub(crate) fn write_to(&self, path: Option<&PathBuf>) {
        let mut file = lock(&self.file);
        if file.as_ref().map(|file| file.path()) == path.map(PathBuf::as_path) {
            return;
        }
        let started = path.map(|path| AuditFile::start(path, self.events.clone()));
        let (started, problem) = match started.transpose() {
            Ok(started) => (started, None),
            Err(error) => (None, Some(format!("audit log: cannot start its thread: {error}"))),
        };
        *file = started.map(Arc::new);
        *lock(&self.problem) = problem;
    }

    /// The file, if there is one now.
    pub(crate) fn file(&self) -> Option<Arc<AuditFile>> {
        lock(&self.file).clone()
    }

    /// Writes an entry, also to the file that there was `before`: a change may have removed or replaced it.
    pub(crate) fn write(&self, entry: &Entry, before: Option<&Arc<AuditFile>>) {
        let now = self.file();
        let other = before.filter(|before| now.as_ref().is_none_or(|now| !Arc::ptr_eq(now, before)));
        for file in other.into_iter().chain(&now) {
            file.write(entry);
        }
    }

    /// Writes an entry about a refusal, unless there were too many; the next one says how many.
    pub(crate) fn write_refusal(&self, mut entry: Entry, who: Refused) {
        let allowed = lock(&self.refusals)[who as usize].allows(Instant::now());
        if let Some(suppressed) = allowed {
            entry.suppressed = suppressed;
            self.write(&entry, None);
        }
    }

    /// Why entries are not in the log.
    pub(crate) fn problem(&self) -> Option<String> {
        lock(&self.problem).clone().or_else(|| self.file()?.problem())
    }

    /// Writes what is queued, unless the disk hangs.
    pub(crate) fn end(&self) {
        if let Some(file) = lock(&self.file).take() {
            file.end();
        }
    }
}

/// A path as text.
fn shown(path: &Path) -> String {
    path.display().to_string()
}
