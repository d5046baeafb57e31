// SPDX-License-Identifier: Apache-2.0
//! Owner and mode of a socket.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid, chownat, openat};

/// Who may connect to a socket: its owner, group and permission bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The permissions. Connecting takes the right to write.
    pub mode: u32,
}

impl Rights {
    /// Those of a socket; `None` if there is none.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let found = std::fs::symlink_metadata(path).ok().filter(|found| found.file_type().is_socket())?;
        Some(Self { uid: found.uid(), gid: found.gid(), mode: found.mode() & 0o777 })
    }

    /// Those of a socket that this process makes.
    #[must_use]
    pub fn own() -> Self {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Self { uid, gid, mode: 0o755 }
    }

    /// Gives them to a socket. Follows no symbolic link, and changes nothing else than a socket, as others may write to
    /// its directory.
    ///
    /// # Errors
    /// The kernel's.
    pub fn apply(self, path: &Path) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket: OwnedFd = openat(CWD, path, flags, Mode::empty())?;
        let magic = format!("/proc/self/fd/{}", socket.as_raw_fd());
        if !std::fs::metadata(&magic)?.file_type().is_socket() {
            return Err(rustix::io::Errno::NOTSOCK.into());
        }
        // First what takes rights away, then the owner, so that at no time too many may connect.
        std::fs::set_permissions(&magic, std::fs::Permissions::from_mode(self.mode & 0o700))?;
        let (uid, gid) = (Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)));
        chownat(&socket, "", uid, gid, AtFlags::EMPTY_PATH)?;
        std::fs::set_permissions(&magic, std::fs::Permissions::from_mode(self.mode))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_socket_gets_its_owner_and_mode_and_nothing_else_does() {
        let folder = tempfile::tempdir().unwrap();
        let [path, link, file] = ["a.sock", "link", "file"].map(|name| folder.path().join(name));
        let _listener = UnixListener::bind(&path).unwrap();
        let own = Rights::own();
        let is_root = own.uid == 0;
        let given = if is_root {
            Rights { uid: 12_345, gid: 54_321, mode: 0o660 }
        } else {
            Rights { mode: 0o600, ..own }
        };
        given.apply(&path).unwrap();
        assert_eq!(Rights::of(&path), Some(given));
        own.apply(&path).unwrap();
        assert_eq!(Rights::of(&path), Some(own));
        std::os::unix::fs::symlink(&path, &link).unwrap();
        std::fs::write(&file, "").unwrap();
        assert!(given.apply(&link).is_err() && given.apply(&file).is_err());
        assert_eq!((Rights::of(&path), Rights::of(&file)), (Some(own), None));
    }
}
