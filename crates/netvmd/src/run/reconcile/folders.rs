// SPDX-License-Identifier: Apache-2.0
//! Waits for files that appear or go: inotify(7) on the folders of ports' namespaces, sockets and captures.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init, remove_watch};
use tokio::io::unix::AsyncFd;

/// The watched folders.
#[derive(Debug)]
pub(super) struct Folders {
    inotify: AsyncFd<OwnedFd>,
    watches: BTreeMap<PathBuf, i32>,
}

impl Folders {
    /// # Errors
    /// The kernel's error.
    pub(super) fn new() -> io::Result<Self> {
        let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        // SAFETY: an `OwnedFd` names the same open descriptor for its whole life.
        let inotify = unsafe { AsyncFd::register(inotify) }?;
        Ok(Self { inotify, watches: BTreeMap::new() })
    }

    /// Watches exactly these folders, as far as they exist.
    pub(super) fn watch(&mut self, folders: &[PathBuf]) {
        let inotify = self.inotify.get_ref();
        self.watches.retain(|folder, watch| {
            let is_wanted = folders.contains(folder);
            if !is_wanted {
                // It ended with its folder, if that is gone.
                let _ = remove_watch(inotify, *watch);
            }
            is_wanted
        });
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_TO
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ONLYDIR;
        for folder in folders {
            // Each time, as the folder may be another one. The kernel returns the same watch for the same folder.
            match add_watch(inotify, folder, flags) {
                Ok(watch) => drop(self.watches.insert(folder.clone(), watch)),
                Err(_) => drop(self.watches.remove(folder)),
            }
        }
    }

    /// Waits for the next change.
    pub(super) async fn changed(&mut self) {
        let Ok(mut ready) = self.inotify.readable().await else { return std::future::pending().await };
        let mut events = [0u8; 4096];
        // What happened does not matter.
        while rustix::io::read(self.inotify.get_ref(), &mut events).is_ok_and(|count| count > 0) {}
        ready.clear_ready();
    }
}
