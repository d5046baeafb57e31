//! Everything that the demo builds, and in which order it goes.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::daemon::{Daemon, PortKind};
use crate::failure::{Failure, io};
use crate::interrupt::Interrupt;
use crate::names::Names;
use crate::namespaces::Hosts;
use crate::traffic::Servers;

/// A folder; removed with all that is in it when dropped.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes it. Others may read it, as NFs run as another user, and only we may write.
    ///
    /// # Errors
    /// [`Failure::Io`], when it is there already, too.
    pub fn make(names: Names) -> Result<Self, Failure> {
        let path = names.folder();
        DirBuilder::new().mode(0o755).create(&path).map_err(io(format!("making {}", path.display())))?;
        Ok(Self(path))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The check afterwards reports what is left.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The two hosts, with nothing between them.
#[derive(Debug)]
pub struct Scenery {
    /// What the server's host runs.
    pub servers: Servers,
    _hosts: Hosts,
    /// Files of all of it.
    pub folder: Folder,
}

/// Everything that runs. Dropped from top to bottom: netvmd lets go of the interfaces before they go.
#[derive(Debug)]
pub struct Stage {
    /// netvmd with its NFs.
    pub daemon: Daemon,
    /// What it joins.
    pub scenery: Scenery,
}

impl Scenery {
    /// Makes the hosts and starts the servers.
    ///
    /// # Errors
    /// [`Failure`]; nothing is left then.
    pub fn make(names: Names, interrupt: &Interrupt) -> Result<Self, Failure> {
        let folder = Folder::make(names)?;
        let hosts = Hosts::make(names)?;
        let servers = Servers::start(names, folder.path(), interrupt)?;
        Ok(Self { servers, _hosts: hosts, folder })
    }

    /// Puts netvmd between the hosts. `refused` hears why AF_XDP is not used, where it is not.
    ///
    /// # Errors
    /// [`Failure`]; nothing is left then.
    pub fn connect(
        self,
        names: Names,
        kind: PortKind,
        interrupt: &Interrupt,
        refused: impl FnOnce(&Failure),
    ) -> Result<Stage, Failure> {
        let start = |kind| Daemon::start(names, kind, self.folder.path(), interrupt);
        let daemon = match start(kind) {
            Err(error @ Failure::DaemonEnded { .. }) if kind == PortKind::AfXdp => {
                refused(&error);
                start(PortKind::AfPacket)?
            }
            other => other?,
        };
        Ok(Stage { daemon, scenery: self })
    }
}
