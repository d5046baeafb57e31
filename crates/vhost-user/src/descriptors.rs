// SPDX-License-Identifier: Apache-2.0
//! Checks that the descriptors in a guest's message cannot block netvm.
//!
//! The files with its memory must be in memory themselves (see `netvm_guest_memory`); otherwise, a worker could wait
//! for the process that serves them.
//!
//! Kick and call descriptors must be eventfds: no other kind is known never to block.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};

use netvm_guest_memory::is_in_memory;
use netvm_notify::is_eventfd;

use crate::Refusal;
use crate::payload::number;
use crate::request::{
    ADD_MEM_REG, REM_MEM_REG, SET_INFLIGHT_FD, SET_LOG_BASE, SET_LOG_FD, SET_MEM_TABLE, SET_VRING_CALL,
    SET_VRING_ERR, SET_VRING_KICK,
};

/// Flag beside a ring's index: the message has no descriptor (vhost-user, "Front-end message types").
pub(crate) const NO_FD: u64 = 1 << 8;

/// Checks that a message has the right number of descriptors, of the right kind.
pub(crate) fn check(request: u32, payload: &[u8], fds: &[OwnedFd]) -> Result<(), Refusal> {
    let first = number(payload).unwrap_or(0);
    let wanted = match request {
        // One for each region.
        SET_MEM_TABLE => first as u32 as usize,
        SET_VRING_KICK | SET_VRING_CALL | SET_VRING_ERR => usize::from(first & NO_FD == 0),
        ADD_MEM_REG | SET_LOG_BASE | SET_LOG_FD | SET_INFLIGHT_FD => 1,
        // Some front-ends send the region's file, which is closed unused (vhost-user, `VHOST_USER_REM_MEM_REG`).
        REM_MEM_REG => fds.len().min(1),
        _ => 0,
    };
    if fds.len() != wanted {
        return Err(Refusal::Protocol);
    }
    let is_memory =
        matches!(request, SET_MEM_TABLE | ADD_MEM_REG | REM_MEM_REG | SET_LOG_BASE | SET_INFLIGHT_FD);
    if !is_memory {
        return if fds.iter().all(is_eventfd) { Ok(()) } else { Err(Refusal::NotAnEventfd) };
    }
    fds.iter()
        .find(|fd| !is_in_memory(fd))
        .map_or(Ok(()), |fd| Err(Refusal::ServedMemory { file_system: file_system(fd) }))
}

/// The kernel's name for the file system of a file; `None` if this process does not see its mount.
fn file_system(fd: &OwnedFd) -> Option<String> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    let mount = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().to_owned();
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(&mount))?;
    Some(line.split_once(" - ")?.1.split(' ').next()?.to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;
    use crate::request::SET_FEATURES;

    fn memory(fds: &[OwnedFd]) -> Result<(), Refusal> {
        check(SET_MEM_TABLE, &[fds.len() as u8, 0, 0, 0, 0, 0, 0, 0], fds)
    }

    fn memfd() -> OwnedFd {
        memfd_create("memory", MemfdFlags::CLOEXEC).unwrap()
    }

    /// A new file without a name.
    fn file_in(folder: &std::path::Path) -> OwnedFd {
        let path = folder.join(format!("netvm-memory-{}", std::process::id()));
        let mut file = fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        fs::remove_file(path).unwrap();
        file.write_all(&[0; 4096]).unwrap();
        file.into()
    }

    #[test]
    fn memory_is_memory() {
        assert_eq!(memory(&[memfd(), memfd(), file_in("/dev/shm".as_ref())]), Ok(()));
        let nothing = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        assert_eq!(memory(&[nothing]), Err(Refusal::ServedMemory { file_system: None }));
        let on_disk = file_in(env!("CARGO_MANIFEST_DIR").as_ref());
        let kind = file_system(&on_disk).unwrap();
        if kind == "tmpfs" {
            println!("SKIP: the sources are in memory");
            return;
        }
        assert_eq!(memory(&[memfd(), on_disk]), Err(Refusal::ServedMemory { file_system: Some(kind) }));
    }

    #[test]
    fn every_message_has_its_descriptors_and_no_others() {
        let event = || eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let [with, without] = [[7, 0], [7, 1]].map(|[ring, flags]| [ring, flags, 0, 0, 0, 0, 0, 0]);
        for request in [SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR] {
            assert_eq!(check(request, &with, &[event()]), Ok(()));
            assert_eq!(check(request, &without, &[]), Ok(()));
            assert_eq!(check(request, &with, &[]), Err(Refusal::Protocol));
            assert_eq!(check(request, &without, &[event()]), Err(Refusal::Protocol));
            assert_eq!(check(request, &with, &[memfd()]), Err(Refusal::NotAnEventfd));
        }
        assert_eq!(check(SET_MEM_TABLE, &[2, 0, 0, 0, 0, 0, 0, 0], &[memfd()]), Err(Refusal::Protocol));
        assert_eq!(check(SET_FEATURES, &with, &[]), Ok(()));
        assert_eq!(check(SET_FEATURES, &with, &[event()]), Err(Refusal::Protocol));
    }
}
