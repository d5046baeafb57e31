//! The devices of a VM that is an NF and that others start: QEMU gets the descriptors of their memory from sockets, on which
//! netvmd is the server of `ivshmem-doorbell` devices, a socket for each. Sealed memory thus reaches who may connect, without
//! a file by which anybody could open, or shorten, it.
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
use std::path::PathBuf;

use netvm_attach::Fds;
use netvm_region::Notify;

use crate::doorbell;
use crate::guest_memory::{ONE_LIFE, own_nf_threads};
use crate::libvirt::escape_path;
use crate::machine::comma_path;
use crate::wake_line;

/// A socket to which QEMU connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NfSocket {
    /// Of the control memory. The process that has it is the NF.
    Control,
    /// Of the next-hop table.
    Table,
    /// Of the region of this number.
    Region(u8),
    /// Of the serial port by which the guest is woken.
    Wake,
}

impl NfSocket {
    /// What it and its device are called.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Control => "control".to_owned(),
            Self::Table => "table".to_owned(),
            Self::Region(number) => format!("region{number}"),
            Self::Wake => "wake".to_owned(),
        }
    }

    /// Its file in the folder of the VM.
    #[must_use]
    pub fn file(self) -> String {
        format!("{}.sock", self.name())
    }
}

/// The devices that make a VM an NF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfDevices {
    /// The folder of the sockets.
    pub folder: PathBuf,
    /// Regions of the trust group.
    pub regions: u8,
    /// Workers and NF threads that the guest can wake.
    pub vectors: usize,
    /// How the guest wakes others; one that does not poll is woken, too.
    pub notify: Notify,
}

impl NfDevices {
    /// Its sockets.
    #[must_use]
    pub fn sockets(&self) -> Vec<NfSocket> {
        let wake = (self.notify == Notify::Doorbell).then_some(NfSocket::Wake);
        self.memories().map(|(socket, _)| socket).chain(wake).collect()
    }

    /// Memories, with the interrupt vectors of their devices.
    fn memories(&self) -> impl Iterator<Item = (NfSocket, usize)> + use<> {
        let vectors = if self.notify == Notify::Doorbell { self.vectors } else { 1 };
        // A device without any would be refused.
        let first = [(NfSocket::Control, vectors), (NfSocket::Table, 1)];
        first.into_iter().chain((0..self.regions).map(|number| (NfSocket::Region(number), 1)))
    }

    /// QEMU's arguments, beside those of the machine.
    #[must_use]
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        let chardev = |socket: NfSocket| {
            let path = comma_path(&self.folder.join(socket.file()));
            ["-chardev".to_owned(), format!("socket,id=netvm-{},path={path}", socket.name())]
        };
        for (socket, vectors) in self.memories() {
            arguments.extend(chardev(socket));
            let device = format!("ivshmem-doorbell,chardev=netvm-{},vectors={vectors}", socket.name());
            arguments.extend(["-device".to_owned(), device]);
        }
        if self.notify == Notify::Doorbell {
            arguments.extend(chardev(NfSocket::Wake));
            // The second serial port: the first is the console.
            arguments.extend(["-device".to_owned(), "isa-serial,chardev=netvm-wake,index=1".to_owned()]);
        }
        arguments.extend(ONE_LIFE.map(str::to_owned));
        arguments.into_iter().map(OsString::from).collect()
    }

    /// The same for libvirt, within `<devices>`.
    pub(crate) fn write_xml(&self, xml: &mut String) -> std::fmt::Result {
        let path = |socket: NfSocket| escape_path(&self.folder.join(socket.file()));
        if self.notify == Notify::Doorbell {
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

/// The memory of one NF, for as long as a VM that others have started has it.
#[derive(Debug)]
pub struct ServedMemory {
    control: OwnedFd,
    table: OwnedFd,
    regions: Vec<OwnedFd>,
    /// Whom the guest can wake; empty when it polls.
    vectors: Vec<OwnedFd>,
    /// What wakes each of its threads.
    nf_threads: Vec<OwnedFd>,
}

impl ServedMemory {
    /// Duplicates the descriptors that the engine has for an NF (close-on-exec); its table must be its own
    /// (`Engine::give_own_table`). `notify` is what it was let in with.
    ///
    /// # Errors
    /// The kernel's, when there are no more descriptors.
    pub fn new(fds: &Fds<BorrowedFd<'_>>, notify: Notify) -> io::Result<Self> {
        let (vectors, nf_threads) = match notify {
            Notify::Poll => (Vec::new(), Vec::new()),
            Notify::Doorbell => ([&fds.workers[..], &fds.nf_threads].concat(), own_nf_threads(fds)?),
        };
        Ok(Self {
            control: fds.control.try_clone_to_owned()?,
            table: fds.table.try_clone_to_owned()?,
            regions: duplicates(&fds.regions)?,
            vectors: duplicates(&vectors)?,
            nf_threads: duplicates(&nf_threads)?,
        })
    }

    /// Sends a QEMU away that is not to have any memory; it ends, and says that the server's version is wrong.
    ///
    /// # Errors
    /// The kernel's, when QEMU has gone.
    pub fn refuse(connection: BorrowedFd<'_>) -> io::Result<()> {
        doorbell::refuse(connection)
    }

    /// Tells QEMU on a connection to this socket all that it is to be told. The connection is to be held while QEMU lives;
    /// nothing comes from there.
    ///
    /// # Errors
    /// The kernel's, when QEMU has gone or there is no such region.
    pub fn answer(&self, socket: NfSocket, connection: BorrowedFd<'_>) -> io::Result<()> {
        let memory = match socket {
            NfSocket::Control => {
                let vectors: Vec<_> = self.vectors.iter().map(AsFd::as_fd).collect();
                return doorbell::tell(connection, self.control.as_fd(), &vectors);
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
        doorbell::tell(connection, memory.as_fd(), &[])
    }
}

fn duplicates(fds: &[BorrowedFd<'_>]) -> io::Result<Vec<OwnedFd>> {
    fds.iter().map(BorrowedFd::try_clone_to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(notify: Notify) -> NfDevices {
        NfDevices { folder: "/run/a,b".into(), regions: 2, vectors: 65, notify }
    }

    #[test]
    fn every_memory_has_a_socket_and_a_device() {
        let text = |devices: &NfDevices| {
            let words = devices.arguments();
            words.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        let (polls, rings) = (devices(Notify::Poll), devices(Notify::Doorbell));
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
