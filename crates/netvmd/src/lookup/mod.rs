// SPDX-License-Identifier: Apache-2.0
//! Looks up everything that a configuration names: cores, interfaces, devices, programs, users, files, folders and
//! namespaces. `netvmd check`, plans and applies do so before anything changes.

pub(crate) mod labels;
mod ports;
mod programs;
mod shared;
mod sockets;

use std::path::Path;

use netvm_config::{ConfigError, Document, Loaded, Missing, MissingKind, Part};
use netvm_model::{Host, assign_ids};

use crate::process::cores::allowed;
use crate::vms::guests_run_on_kvm;

/// What this process may use on this machine.
#[derive(Clone, Debug)]
pub(crate) struct Lookup {
    /// The cores that it may use.
    cores: Vec<u32>,
    /// Whether it can start NFs and VMs as other users.
    is_root: bool,
}

impl Lookup {
    /// # Errors
    /// The kernel's error.
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { cores: allowed()?, is_root: rustix::process::geteuid().is_root() })
    }

    /// Parses a configuration for this machine. Skips what the `running` configuration of this daemon already has in
    /// the same form, because a lost interface must not prevent other changes. `running` is `None` if the configuration
    /// may be for another daemon.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`], also with everything that this machine lacks.
    pub(crate) fn parse(&self, parts: &[Part<'_>], running: Option<&Host>) -> Result<Loaded, ConfigError> {
        let missing = |host: &Host| {
            // Elsewhere the ports of containers and guests are not known.
            let labels = running.map(|_| labels::missing(host)).unwrap_or_default();
            [self.missing(host, running), labels].concat()
        };
        netvm_config::parse_parts(parts, missing).map(|loaded| complete(loaded, running.is_some()))
    }

    /// As [`Lookup::parse`], of a file and its fragments.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`], also with everything that this machine lacks.
    pub(crate) fn parse_document(&self, document: &Document, running: &Host) -> Result<Loaded, ConfigError> {
        netvm_config::parse_document(document, |host| self.missing(host, Some(running)))
    }

    /// As [`Lookup::parse`], for netvmd's start: without what this machine lacks, only the item that needs it does not
    /// work.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`].
    pub(crate) fn parse_at_start(&self, parts: &[Part<'_>]) -> Result<Loaded, ConfigError> {
        let is_of_all = |missing: &Missing| missing.table == "engine";
        netvm_config::parse_parts(parts, |host| {
            let missing = self.missing(host, Some(&Host::default())).into_iter();
            let absent = |missing: Missing| match missing.kind {
                MissingKind::Missing if !is_of_all(&missing) => {
                    Missing { kind: MissingKind::Absent, ..missing }
                }
                _ => missing,
            };
            missing.map(absent).chain(labels::missing(host)).collect()
        })
        .map(|loaded| complete(loaded, true))
    }

    fn missing(&self, host: &Host, running: Option<&Host>) -> Vec<Missing> {
        let mut host = host.clone();
        assign_ids(&mut host, running);
        let is_daemon = running.is_some();
        let nothing = Host::default();
        let running = running.unwrap_or(&nothing);
        let mut missing = Vec::new();
        if running.engine.cores != host.engine.cores {
            missing.extend(self.core("engine", 0, &host.engine.cores));
        }
        for (item, port) in host.ports.iter().enumerate() {
            let is_new = !running.ports.iter().any(|old| old.name == port.name && old.kind == port.kind);
            // What such ports need is made with their routers and programs.
            if host.is_implied(port.id) {
                continue;
            }
            if is_new {
                missing.extend(ports::missing(item, port, running));
            }
            missing.extend(sockets::missing(item, port));
        }
        for (item, nf) in host.nfs.iter().enumerate() {
            if running.nf_named(&nf.role).is_none_or(|old| old.start != nf.start) {
                missing.extend(self.nf(item, nf));
            }
        }
        for (item, vm) in host.vms.iter().enumerate() {
            if !host.has_same_vm(vm, running) {
                missing.extend(self.vm(item, vm, &host));
            }
        }
        for (item, router) in host.routers.iter().enumerate() {
            // The netvmd that will use the file may be running, and hold the namespaces of its routers.
            if is_daemon && running.router_named(&router.name).is_none() {
                missing.extend(namespace(item, &router.namespace()));
            }
        }
        missing
    }

    fn core(&self, table: &'static str, item: usize, cores: &[u32]) -> Option<Missing> {
        let core = cores.iter().find(|core| !self.cores.contains(core))?;
        let message = format!(
            "core {core}: netvmd may use only {:?}: correct `cores`, or the CPU affinity of netvmd",
            self.cores
        );
        Some(Missing { table, item, key: "cores", message, kind: MissingKind::Missing })
    }
}

/// Adds to a valid configuration what only this machine knows. `is_daemon`: it is about to be used.
fn complete(mut loaded: Loaded, is_daemon: bool) -> Loaded {
    for port in &mut loaded.host.ports {
        // What does not exist was reported.
        port.socket.ids = sockets::ids(&port.socket).unwrap_or_default();
    }
    if is_daemon && loaded.host.ports.iter().any(|port| port.kind.info().depends_on_kvm) {
        netvm_engine::note_kvm(guests_run_on_kvm());
    }
    loaded
}

/// Checks a namespace's name. netvmd takes over a namespace that exists.
fn namespace(item: usize, name: &str) -> Option<Missing> {
    let missing =
        |message| Some(Missing { table: "router", item, key: "name", message, kind: MissingKind::Missing });
    match crate::routers::is_taken(name) {
        Ok(false) => None,
        Ok(true) => missing(format!(
            "network namespace {name} belongs to a router of another running netvmd: give this router another name"
        )),
        Err(source) => missing(format!(
            "network namespace {name} cannot be used: {source}: remove it (ip netns delete {name}), or give this \
             router another name"
        )),
    }
}

/// Checks a configuration file, and whether this machine has what the file names.
///
/// # Errors
/// As for [`netvm_config::load`], also with everything that this machine lacks.
pub fn check(path: &Path) -> Result<Loaded, ConfigError> {
    let read = |source| ConfigError::Read { path: path.to_owned(), source };
    let text = std::fs::read_to_string(path).map_err(read)?;
    let file = Part { name: &path.display().to_string(), text: &text };
    Lookup::new().map_err(read)?.parse(&[file], None)
}
