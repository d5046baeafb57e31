// SPDX-License-Identifier: Apache-2.0
//! Passes the engine's memory to a VM: one PCI device for each memory of an NF.
//!
//! ```text
//!  control.memfd ─┐   QEMU: memory-backend-file,share=on    ─▶ ivshmem-plain ─▶ guest: BAR 2 of PCI 1af4:1110
//!  table.memfd   ─┤         mem-path=/proc/self/fd/N             (read-only: the table)
//!  region.memfd … ┘
//! ```
//!
//! The order of the devices has no meaning: the guest identifies each memory by its content. A VM with a doorbell has
//! its control memory in an `ivshmem-doorbell` device, whose registers wake workers and NF threads on the host. The
//! host wakes the VM through a serial port.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use netvm_attach::Fds;
use netvm_region::{Control, NotifyMode};
use rustix::fs::fstat;

use crate::doorbell::{DoorbellServer, serve};

pub(crate) mod wake_line;

/// A rebooted guest would find its NF slot taken. So a reset ends the VM, and netvmd or the operator starts another.
pub(crate) const NO_REBOOT: [&str; 2] = ["-action", "reboot=shutdown,panic=shutdown"];

/// The memories of an NF in a VM, held open until QEMU has inherited them.
#[derive(Debug)]
pub struct GuestMemory {
    memories: Vec<Memory>,
    doorbell: Option<DoorbellServer>,
    /// QEMU's end of the wake-up line.
    line: Option<OwnedFd>,
}

#[derive(Debug)]
struct Memory {
    name: String,
    fd: OwnedFd,
    bytes: u64,
    read_only: bool,
}

impl GuestMemory {
    /// Duplicates the descriptors of an NF (close-on-exec). `notify` is the mode the NF was admitted with.
    ///
    /// # Errors
    /// The process has no free file descriptor.
    pub fn new(fds: &Fds<BorrowedFd<'_>>, notify: NotifyMode) -> io::Result<Self> {
        let memory = |name: String, fd: BorrowedFd<'_>, read_only| {
            let bytes = fstat(fd)?.st_size as u64;
            Ok::<_, io::Error>(Memory { name, fd: fd.try_clone_to_owned()?, bytes, read_only })
        };
        let (mut memories, mut doorbell, mut line) = (Vec::new(), None, None);
        match notify {
            NotifyMode::Poll => memories.push(memory("netvm-control".to_owned(), fds.control, false)?),
            NotifyMode::Doorbell => {
                let vectors: Vec<_> = fds.workers.iter().chain(&fds.nf_threads).copied().collect();
                doorbell = Some(serve(fds.control, &vectors)?);
                line = Some(wake_line::start(&own_nf_threads(fds)?)?);
            }
        }
        memories.push(memory("netvm-table".to_owned(), fds.table, true)?);
        for (number, region) in fds.regions.iter().enumerate() {
            memories.push(memory(format!("netvm-region{number}"), *region, false)?);
        }
        Ok(Self { memories, doorbell, line })
    }

    /// Arguments for a QEMU that inherits [`GuestMemory::descriptors`] under the same numbers.
    #[must_use]
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::<OsString>::new();
        if let Some(DoorbellServer { client, vectors, .. }) = &self.doorbell {
            let chardev = format!("socket,id=netvm-notify,fd={}", client.as_raw_fd());
            let device = format!("ivshmem-doorbell,chardev=netvm-notify,vectors={vectors}");
            arguments.extend(["-chardev".into(), chardev.into(), "-device".into(), device.into()]);
        }
        if let Some(line) = &self.line {
            let chardev = format!("socket,id=netvm-wake,fd={}", line.as_raw_fd());
            // The second serial port, as the first is the console.
            let device = "isa-serial,chardev=netvm-wake,index=1";
            arguments.extend(["-chardev".into(), chardev.into(), "-device".into(), device.into()]);
        }
        for Memory { name, fd, bytes, read_only } in &self.memories {
            let mut backend = OsString::from(format!("memory-backend-file,id={name},share=on,size={bytes}"));
            // Most of the sparse file is never used, so reserve no huge pages for it.
            backend.push(if *read_only { ",readonly=on" } else { ",reserve=off" });
            backend.push(format!(",mem-path=/proc/self/fd/{}", fd.as_raw_fd()));
            let device = format!("ivshmem-plain,memdev={name}");
            arguments.extend(["-object".into(), backend, "-device".into(), device.into()]);
        }
        arguments.extend(NO_REBOOT.map(OsString::from));
        arguments
    }

    /// The descriptors that QEMU must inherit.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let doorbell =
            self.doorbell.iter().flat_map(|doorbell| [doorbell.client.as_fd(), doorbell.server.as_fd()]);
        let line = self.line.iter().map(AsFd::as_fd);
        self.memories.iter().map(|memory| memory.fd.as_fd()).chain(doorbell).chain(line)
    }
}

/// The eventfds of the NF's own threads.
pub(crate) fn own_nf_threads<'a>(fds: &Fds<BorrowedFd<'a>>) -> io::Result<Vec<BorrowedFd<'a>>> {
    let control = Control::open(fds.control.try_clone_to_owned()?).map_err(io::Error::other)?;
    let header = control.header();
    let nf_threads = header.nf_threads.iter().take(usize::from(header.threads));
    nf_threads
        .map(|nf_thread| {
            fds.nf_threads.get(usize::from(*nf_thread)).copied().ok_or(io::ErrorKind::InvalidInput.into())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm_region::{Admission, Geometry, Mapping, Pages, RegionSpec};

    #[test]
    fn every_memory_is_a_device_of_a_valid_size() {
        let make = |bytes| Mapping::create("vm-test", bytes, Pages::Normal, None).unwrap();
        let (control, table, region) = (make(3 * 4096), make(8192), make(5 << 20));
        let fds = Fds {
            control: control.as_fd(),
            table: table.as_fd(),
            regions: vec![region.as_fd()],
            workers: Vec::new(),
            nf_threads: Vec::new(),
        };
        let memory = GuestMemory::new(&fds, NotifyMode::Poll).unwrap();
        assert_eq!(memory.descriptors().count(), 3);
        let text = |arguments: Vec<OsString>| {
            arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        let inherited = text(memory.arguments());
        for part in [
            "id=netvm-control,share=on,size=16384,reserve=off,mem-path=/proc/self/fd/",
            "id=netvm-table,share=on,size=8192,readonly=on,",
            "id=netvm-region0,share=on,size=8388608,",
            "-device ivshmem-plain,memdev=netvm-region0",
        ] {
            assert!(inherited.contains(part), "{part}: {inherited}");
        }
    }

    #[test]
    fn a_doorbell_comes_with_a_wake_up_line() {
        let geometry = Geometry::new(RegionSpec::default()).unwrap();
        let admission = Admission {
            layout: netvm_region::LAYOUT_VERSION,
            quota: netvm_region::Quota::default(),
            group: 0,
            role: 0,
            ring_capacity: 8,
            nf_threads: vec![1],
            workers: 1,
            worker_regions: vec![0],
            geometries: vec![geometry],
            mailbox: false,
        };
        let control = Control::create("vm-test", &admission, None).unwrap();
        let table = Mapping::create("vm-test", 4096, Pages::Normal, None).unwrap();
        let event = || rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        let events = [event(), event(), event()];
        let fds = Fds {
            control: control.as_fd(),
            table: table.as_fd(),
            regions: Vec::new(),
            workers: vec![events[0].as_fd()],
            nf_threads: vec![events[1].as_fd(), events[2].as_fd()],
        };
        let memory = GuestMemory::new(&fds, NotifyMode::Doorbell).unwrap();
        assert_eq!(memory.descriptors().count(), 4);
        let arguments: Vec<_> =
            memory.arguments().iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let text = arguments.join(" ");
        assert!(text.contains("ivshmem-doorbell,chardev=netvm-notify,vectors=3"), "{text}");
        assert!(text.contains("isa-serial,chardev=netvm-wake,index=1") && !text.contains("netvm-control"));
    }
}
