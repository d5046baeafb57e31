// SPDX-License-Identifier: Apache-2.0
//! A FUSE file system with one file, whose server does not answer any more once that is open (fuse(4), `linux/fuse.h`).
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
};

const GETATTR: u32 = 3;
const LOOKUP: u32 = 1;
const OPEN: u32 = 14;
const INIT: u32 = 26;

/// A file without a server. A process that faults on its pages, stats it or closes it waits until this is dropped.
pub struct UnservedFile {
    // Dropped before the file, which cannot be closed otherwise.
    _server: File,
    pub file: File,
}

impl UnservedFile {
    /// `None` where there is no FUSE, or this process may not mount.
    pub fn open(bytes: u64) -> Option<Self> {
        let known = |errno| matches!(errno, Errno::PERM | Errno::NODEV | Errno::NOSYS);
        let Ok(mut server) = File::options().read(true).write(true).open("/dev/fuse") else {
            println!("SKIP: no /dev/fuse");
            return None;
        };
        let context = match fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC) {
            Err(errno) if known(errno) => {
                println!("SKIP: no FUSE file system can be mounted: {errno}");
                return None;
            }
            other => other.unwrap(),
        };
        let number = server.as_raw_fd().to_string();
        for (key, value) in [("fd", &*number), ("rootmode", "40755"), ("user_id", "0"), ("group_id", "0")] {
            fsconfig_set_string(&context, key, value).unwrap();
        }
        fsconfig_create(&context).unwrap();
        let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).unwrap();
        let serving = std::thread::spawn(move || {
            while serve(&mut server, bytes) != OPEN {}
            server
        });
        let file = openat(&mount, "memory", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
        Some(Self { _server: serving.join().unwrap(), file: file.into() })
    }
}

/// Answers one request; returns which.
fn serve(server: &mut File, bytes: u64) -> u32 {
    let mut request = [0; 1 << 16];
    let _ = server.read(&mut request).unwrap();
    let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
    let (kind, node) = (word(4), word(16));
    let answer = match kind {
        // Version 7.31, no flags, and 4 KB to be written at once.
        INIT => words(&[7, 31, 0, 0, 0, 4096, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
        // Node 2, known for ever; its attributes for no time.
        LOOKUP => [words(&[2, 0, 0, 0, u32::MAX, 0, 0, 0, 0, 0]), attributes(2, bytes)].concat(),
        GETATTR => [words(&[0; 4]), attributes(node, bytes)].concat(),
        OPEN => words(&[0; 4]),
        _ => Vec::new(),
    };
    let error = if answer.is_empty() { -libc::ENOSYS } else { 0 };
    let header = [words(&[16 + answer.len() as u32, error.cast_unsigned()]), request[8..16].to_vec()];
    server.write_all(&[header.concat(), answer].concat()).unwrap();
    kind
}

/// Of the root (1) or the file.
fn attributes(node: u32, bytes: u64) -> Vec<u8> {
    let mode = if node == 1 { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o600 };
    let mut all = vec![0; 22];
    (all[0], all[2], all[3]) = (node, bytes as u32, (bytes >> 32) as u32);
    // Behind the times: mode, and how many names it has.
    (all[15], all[16]) = (mode, 1);
    words(&all)
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
