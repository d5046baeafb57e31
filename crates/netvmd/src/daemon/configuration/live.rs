// SPDX-License-Identifier: Apache-2.0
//! Ports beside the configuration file: their record, `live.json` in the state directory, and how they are read
//! together with a file.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use netvm_config::{ConfigError, Loaded, Part};
use netvm_model::Host;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use super::history;
use crate::runtime::lock;

const FILE: &str = "live.json";
/// Version of the file's form.
const VERSION: u32 = 1;

/// A port that a client has added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LivePort {
    /// Who has added it.
    pub(crate) owner: String,
    /// What the owner knows it by.
    pub(crate) id: String,
    /// Different for every port that was ever added.
    pub(crate) number: u64,
    /// In seconds since 1970.
    pub(crate) created_at: u64,
    /// Its name.
    pub(crate) port: String,
    /// The names of its rules.
    pub(crate) rules: Vec<String>,
    /// Its tables.
    pub(crate) toml: String,
    /// The file without which it goes when netvmd starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lease: Option<PathBuf>,
    /// Why it is not in force: it contradicts the file, or a port added before.
    #[serde(skip)]
    pub(crate) problem: Option<String>,
}

impl LivePort {
    /// Its name in errors.
    pub(crate) fn title(&self) -> String {
        format!("live port {} of {}", self.port, self.owner)
    }

    /// Whether its owner has removed its lease; not if that cannot be known.
    pub(crate) fn has_ended(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.try_exists().is_ok_and(|exists| !exists))
    }

    pub(crate) fn is(&self, owner: &str, id: &str) -> bool {
        self.owner == owner && self.id == id
    }
}

/// All ports beside the file, the oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LiveSet {
    version: u32,
    /// The number of the next port.
    pub(crate) next: u64,
    pub(crate) ports: Vec<LivePort>,
}

impl Default for LiveSet {
    fn default() -> Self {
        Self { version: VERSION, next: 1, ports: Vec::new() }
    }
}

impl LiveSet {
    /// Those of a state directory, but for ports whose owner has removed their lease; none if it has no record.
    ///
    /// # Errors
    /// The record cannot be read, or a later netvmd has written it.
    pub(super) fn read(state_dir: &Path) -> io::Result<Self> {
        match history::read::<Self>(&state_dir.join(FILE)) {
            Ok(mut set) if set.version == VERSION => {
                set.ports.retain(|port| !port.has_ended());
                Ok(set)
            }
            Ok(set) => Err(io::Error::other(format!("it has version {} of its form", set.version))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// Those in force.
    fn in_force(&self) -> impl Iterator<Item = &LivePort> {
        self.ports.iter().filter(|port| port.problem.is_none())
    }

    /// A running host without them: what came from the file, and by requests for single rules.
    pub(crate) fn without(&self, running: &Host) -> Host {
        let mut host = running.clone();
        if self.ports.is_empty() {
            return host;
        }
        let has_port = |name: &str| self.in_force().any(|port| port.port == name);
        let has_rule = |name: &str| self.in_force().any(|port| port.rules.iter().any(|rule| rule == name));
        host.ports.retain(|port| !has_port(&port.name));
        host.rules.retain(|rule| rule.name.is_empty() || !has_rule(&rule.name));
        host
    }

    /// The same as a configuration file.
    pub(crate) fn file_text(&self, running: &Host) -> String {
        netvm_config::to_toml_of(running, self.without(running))
    }

    /// Reads a configuration with the live ports beside it. Those that contradict it stay out of force, with the
    /// reason; `keeps`: but those that are in force make it fail.
    ///
    /// # Errors
    /// What `parse` says of the configuration.
    pub(super) fn read_beside(
        &mut self,
        file: Part<'_>,
        keeps: bool,
        parse: impl Fn(&[Part<'_>]) -> Result<Loaded, ConfigError>,
    ) -> Result<Loaded, ConfigError> {
        let titles: Vec<String> = self.ports.iter().map(LivePort::title).collect();
        let mut left_out: Vec<Option<String>> = vec![None; self.ports.len()];
        let loaded = loop {
            let beside = self.ports.iter().zip(&titles).zip(&left_out).filter(|(_, out)| out.is_none());
            let beside = beside.map(|((port, title), _)| Part { name: title, text: &port.toml });
            let parts: Vec<Part<'_>> = std::iter::once(file).chain(beside).collect();
            let error = match parse(&parts) {
                Ok(loaded) => break loaded,
                Err(error) => error,
            };
            let mut is_known = false;
            for finding in error.findings().iter().filter(|finding| !finding.is_warning()) {
                let Some(at) = titles.iter().position(|title| title == finding.file()) else { continue };
                if left_out[at].is_none() && !(keeps && self.ports[at].problem.is_none()) {
                    left_out[at] = Some(finding.message().to_owned());
                    is_known = true;
                }
            }
            if !is_known {
                return Err(error);
            }
        };
        for (port, problem) in self.ports.iter_mut().zip(left_out) {
            port.problem = problem;
        }
        Ok(loaded)
    }
}

/// Ports that are on the disk, but not yet the record.
#[derive(Debug)]
pub(crate) struct PreparedSet {
    file: NamedTempFile,
    set: LiveSet,
}

/// The record.
#[derive(Debug)]
pub(crate) struct LivePorts {
    path: PathBuf,
    set: Mutex<LiveSet>,
}

impl LivePorts {
    /// The record in a state directory, of which these were read. One that cannot be read is kept under another name.
    pub(super) fn open(state_dir: &Path) -> Self {
        let path = state_dir.join(FILE);
        let set = LiveSet::read(state_dir).unwrap_or_else(|error| {
            let aside = state_dir.join(format!("{FILE}.unreadable"));
            tracing::error!(
                "live ports are lost: cannot read {}: {error}; kept as {}",
                path.display(),
                aside.display()
            );
            // If this fails, the next record replaces it.
            let _ = std::fs::rename(&path, &aside);
            LiveSet::default()
        });
        if path.exists() {
            // Without ports that have ended. If this fails, the next change does it.
            let _ = history::write(&path, &set);
        }
        Self { path, set: Mutex::new(set) }
    }

    pub(crate) fn all(&self) -> LiveSet {
        lock(&self.set).clone()
    }

    /// Says which are in force, as far as that was not known when they were saved.
    pub(crate) fn set_problems(&self, set: LiveSet) {
        *lock(&self.set) = set;
    }

    /// Writes a new record beside the one of the state directory, which [`LivePorts::save`] replaces by it.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn prepare(&self, set: LiveSet) -> io::Result<PreparedSet> {
        Ok(PreparedSet { file: history::write_beside(&self.path, &set)?, set })
    }

    /// Replaces the record.
    ///
    /// # Errors
    /// The kernel's error; the record is as before.
    pub(crate) fn save(&self, prepared: PreparedSet) -> io::Result<()> {
        let PreparedSet { file, set } = prepared;
        history::replace(&self.path, file)?;
        *lock(&self.set) = set;
        Ok(())
    }
}
