// SPDX-License-Identifier: Apache-2.0
//! Devices of a VM that is an NF and that the operator starts. QEMU receives the memory descriptors from sockets on
//! which netvmd is the server of `ivshmem-doorbell` devices, one socket per device. So sealed memory reaches only
//! processes that may connect, and no file exists that others could open or truncate.
//!
//! ```text
//!  control.sock ─▶ ivshmem-doorbell   control memory, and the eventfds of workers and NF threads
//!  table.sock   ─▶ ivshmem-doorbell   the VM's own copy of the next-hop table, as QEMU maps it for writing
//!  region0.sock ─▶ ivshmem-doorbell   the region on each node
//!  wake.sock    ─▶ isa-serial         wake-ups of the guest, if it does not poll
//! ```

use std::ffi::OsString;
use std::fmt::Write;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use netvm_attach::Fds;
use netvm_region::NotifyMode;

use crate::doorbell;
use crate::guest_memory::{NO_REBOOT, own_nf_threads, wake_line};
use crate::machine::escape_path_commas;

/// A socket that QEMU connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NfSocket {
    /// Control memory. The process connected here is the NF.
    Control,
    /// Next-hop table.
    Table,
    /// Region of this number.
    Region(u8),
    /// Serial port that wakes the guest.
    Wake,
}

impl NfSocket {
    /// Name of the socket and its device.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Control => "control".to_owned(),
            Self::Table => "table".to_owned(),
            Self::Region(number) => format!("region{number}"),
            Self::Wake => "wake".to_owned(),
        }
    }

    /// File name in the VM's folder.
    #[must_use]
    pub fn file(self) -> String {
        format!("{}.sock", self.name())
    }
}

/// The devices that make a VM an NF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfDevices {
    /// Folder of the sockets.
    pub folder: PathBuf,
    /// Number of regions of the trust group.
    pub regions: u8,
    /// Number of workers and NF threads that the guest can wake.
    pub vectors: usize,
    /// How guest and host wake each other.
    pub notify: NotifyMode,
}

impl NfDevices {
    /// All sockets of the VM.
    #[must_use]
    pub fn sockets(&self) -> Vec<NfSocket> {
        let wake = (self.notify == NotifyMode::Doorbell).then_some(NfSocket::Wake);
        self.memories().map(|(socket, _)| socket).chain(wake).collect()
    }

    /// The memories, and the interrupt vectors of their devices.
    fn memories(&self) -> impl Iterator<Item = (NfSocket, usize)> + use<> {
        let vectors = if self.notify == NotifyMode::Doorbell { self.vectors } else { 1 };
        // QEMU refuses a device without vectors.
        let first = [(NfSocket::Control, vectors), (NfSocket::Table, 1)];
        first.into_iter().chain((0..self.regions).map(|number| (NfSocket::Region(number), 1)))
    }

    /// QEMU arguments, in addition to those of the machine.
    #[must_use]
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        let chardev = |socket: NfSocket| {
            let path = escape_path_commas(&self.folder.join(socket.file()));
            ["-chardev".to_owned(), format!("socket,id=netvm-{},path={path}", socket.name())]
        };
        for (socket, vectors) in self.memories() {
            arguments.extend(chardev(socket));
            let device = format!("ivshmem-doorbell,chardev=netvm-{},vectors={vectors}", socket.name());
            arguments.extend(["-device".to_owned(), device]);
        }
        if self.notify == NotifyMode::Doorbell {
            arguments.extend(chardev(NfSocket::Wake));
            // The second serial port, as the first is the console.
            arguments.extend(["-device".to_owned(), "isa-serial,chardev=netvm-wake,index=1".to_owned()]);
        }
        arguments.extend(NO_REBOOT.map(str::to_owned));
        arguments.into_iter().map(OsString::from).collect()
    }

    /// The same devices as libvirt XML within `<devices>`.
    pub(crate) fn write_xml(&self, xml: &mut String) -> std::fmt::Result {
        let path = |socket: NfSocket| escape_path(&self.folder.join(socket.file()));
        if self.notify == NotifyMode::Doorbell {
            writeln!(xml, "    <serial type='unix'>")?;
            writeln!(xml, "      <source mode='connect' path='{}'/>", path(NfSocket::Wake))?;
            writeln!(xml, "      <target type='isa-serial' port='1'/>\n    </serial>")?;
        }
        for (socket, vectors) in self.memories() {
            writeln!(xml, "    <shmem name='netvm-{}' role='peer'>", socket.name())?;
            writeln!(xml, "      <model type='ivshmem-doorbell'/>")?;
            writeln!(xml, "      <server path='{}'/>", path(socket))?;
            writeln!(xml, "      <msi vectors='{vectors}'/>\n    </shmem>")?;
        }
        Ok(())
    }
}

/// The memory of an NF in a VM that the operator started, held while the VM runs.
#[derive(Debug)]
pub struct ServedMemory {
    control: OwnedFd,
    table: OwnedFd,
    regions: Vec<OwnedFd>,
    /// Eventfds that the guest can signal; empty if it polls.
    vectors: Vec<OwnedFd>,
    /// Eventfds of the NF's own threads.
    nf_threads: Vec<OwnedFd>,
}

impl ServedMemory {
    /// Duplicates the descriptors of an NF (close-on-exec). The NF must have its own table (`Engine::give_own_table`).
    /// `notify` is the mode it was admitted with.
    ///
    /// # Errors
    /// The process has no free file descriptor.
    pub fn new(fds: &Fds<BorrowedFd<'_>>, notify: NotifyMode) -> io::Result<Self> {
        let (vectors, nf_threads) = match notify {
            NotifyMode::Poll => (Vec::new(), Vec::new()),
            NotifyMode::Doorbell => ([&fds.workers[..], &fds.nf_threads].concat(), own_nf_threads(fds)?),
        };
        Ok(Self {
            control: fds.control.try_clone_to_owned()?,
            table: fds.table.try_clone_to_owned()?,
            regions: duplicates(&fds.regions)?,
            vectors: duplicates(&vectors)?,
            nf_threads: duplicates(&nf_threads)?,
        })
    }

    /// Refuses a QEMU. It exits with a message that the server's version is wrong.
    ///
    /// # Errors
    /// QEMU has closed the connection.
    pub fn refuse(connection: BorrowedFd<'_>) -> io::Result<()> {
        doorbell::refuse(connection)
    }

    /// Sends QEMU the descriptors of this socket. Hold the connection while QEMU runs; QEMU sends nothing on
    /// it.
    ///
    /// # Errors
    /// QEMU has closed the connection, or there is no such region.
    pub fn answer(&self, socket: NfSocket, connection: BorrowedFd<'_>) -> io::Result<()> {
        let memory = match socket {
            NfSocket::Control => {
                let vectors: Vec<_> = self.vectors.iter().map(AsFd::as_fd).collect();
                return doorbell::send_messages(connection, self.control.as_fd(), &vectors);
            }
            NfSocket::Table => &self.table,
            NfSocket::Region(number) => {
                self.regions.get(usize::from(number)).ok_or(io::ErrorKind::NotFound)?
            }
            NfSocket::Wake => {
                let nf_threads: Vec<_> = self.nf_threads.iter().map(AsFd::as_fd).collect();
                return wake_line::start_on(connection.try_clone_to_owned()?, &nf_threads);
            }
        };
        doorbell::send_messages(connection, memory.as_fd(), &[])
    }
}

fn duplicates(fds: &[BorrowedFd<'_>]) -> io::Result<Vec<OwnedFd>> {
    fds.iter().map(BorrowedFd::try_clone_to_owned).collect()
}

/// Escapes a path for XML.
pub(crate) fn escape_path(path: &Path) -> String {
    escape(&path.display().to_string())
}

/// Escapes text for XML.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\'' => escaped.push_str("&apos;"),
            '"' => escaped.push_str("&quot;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(notify: NotifyMode) -> NfDevices {
        NfDevices { folder: "/run/a,b".into(), regions: 2, vectors: 65, notify }
    }

    #[test]
    fn every_memory_has_a_socket_and_a_device() {
        let text = |devices: &NfDevices| {
            let words = devices.arguments();
            words.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        let (polls, rings) = (devices(NotifyMode::Poll), devices(NotifyMode::Doorbell));
        let files: Vec<_> = rings.sockets().into_iter().map(NfSocket::file).collect();
        assert_eq!(files, ["control.sock", "table.sock", "region0.sock", "region1.sock", "wake.sock"]);
        assert_eq!(polls.sockets().len(), 4);
        for part in [
            "-chardev socket,id=netvm-control,path=/run/a,,b/control.sock",
            "-device ivshmem-doorbell,chardev=netvm-control,vectors=65",
            "-device ivshmem-doorbell,chardev=netvm-region1,vectors=1",
            "isa-serial,chardev=netvm-wake,index=1",
            "-action reboot=shutdown,panic=shutdown",
        ] {
            assert!(text(&rings).contains(part), "{part}: {}", text(&rings));
        }
        assert!(!text(&polls).contains("wake") && !text(&polls).contains("vectors=65"));
        let mut xml = String::new();
        rings.write_xml(&mut xml).unwrap();
        assert!(
            xml.contains("<server path='/run/a,b/region1.sock'/>") && xml.contains("vectors='65'"),
            "{xml}"
        );
    }
}
