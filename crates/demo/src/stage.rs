// SPDX-License-Identifier: Apache-2.0
//! Everything that the demo creates, and the order of its removal.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::daemon::{Daemon, PortKind};
use crate::failure::{Failure, io};
use crate::host::interrupt::Interrupt;
use crate::host::names::Names;
use crate::host::namespaces::Hosts;
use crate::traffic::Servers;

/// A folder; removed with its contents on drop.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Creates it, writable by root only and readable by the NFs' user.
    ///
    /// # Errors
    /// [`Failure::Io`], also if it exists.
    pub fn make(names: Names) -> Result<Self, Failure> {
        let path = names.folder();
        DirBuilder::new()
            .mode(0o755)
            .create(&path)
            .map_err(io(format!("cannot create {}", path.display())))?;
        Ok(Self(path))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A later check reports what remains.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The two hosts, not joined yet.
#[derive(Debug)]
pub struct Testbed {
    /// The programs of the server's host.
    pub servers: Servers,
    _hosts: Hosts,
    /// All files.
    pub folder: Folder,
}

/// Everything that runs. Dropped from top to bottom: netvmd closes the interfaces before they are removed.
#[derive(Debug)]
pub struct Stage {
    /// netvmd with its NFs.
    pub daemon: Daemon,
    /// The hosts.
    pub testbed: Testbed,
}

impl Testbed {
    /// Creates the hosts and starts the servers.
    ///
    /// # Errors
    /// [`Failure`]; nothing remains.
    pub fn make(names: Names, interrupt: &Interrupt) -> Result<Self, Failure> {
        let folder = Folder::make(names)?;
        let hosts = Hosts::make(names)?;
        let servers = Servers::start(names, folder.path(), interrupt)?;
        Ok(Self { servers, _hosts: hosts, folder })
    }

    /// Starts netvmd between the hosts.
    ///
    /// # Errors
    /// [`Failure`]; nothing remains.
    pub fn connect(self, names: Names, kind: PortKind, interrupt: &Interrupt) -> Result<Stage, Failure> {
        let daemon = Daemon::start(names, kind, self.folder.path(), interrupt)?;
        Ok(Stage { daemon, testbed: self })
    }
}
