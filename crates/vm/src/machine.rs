// SPDX-License-Identifier: Apache-2.0
//! Renders an ordinary guest as QEMU arguments: a machine whose memory is shared with netvm's vhost-user ports, a
//! network card for each port, and sockets for QMP and the serial console.

use std::ffi::OsString;
use std::fmt;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::qmp::Version;

/// Ring size of each virtqueue: the maximum of vhost-user. Larger rings let netvm pause for longer.
const QUEUE_SIZE: u16 = 1024;
/// The oldest QEMU that does not crash when a guest's driver starts a vhost-user card with MSI-X under TCG. QEMU 7.2
/// crashes in `msix_set_vector_notifiers`.
const SAFE_MSIX: Version = Version { major: 10, minor: 0, micro: 0 };

/// QEMU 9.2 added `reconnect-ms`, and QEMU 11 removed `reconnect`.
const RECONNECTS_BY_MS: Version = Version { major: 10, minor: 0, micro: 0 };

/// Linux parameter that skips the check of the timer.
const NO_TIMER_CHECK: &str = "no_timer_check";

/// Makes the firmware and its boot loaders use the serial console, as there is no display.
pub(crate) const FIRMWARE_ON_SERIAL: [&str; 2] = ["-machine", "graphics=off"];

/// QEMU's fd set with the log of the console.
const LOG_SET: u32 = 1;

/// Executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// KVM, or TCG if KVM fails.
    KvmOrTcg,
    /// KVM.
    Kvm,
    /// TCG, QEMU's translator.
    Tcg,
}

/// What the machine boots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Boot {
    /// A Linux kernel, without firmware or boot loader.
    Kernel {
        /// Path of the kernel, such as /boot/vmlinuz.
        kernel: PathBuf,
        /// Path of the initramfs.
        initrd: Option<PathBuf>,
        /// The kernel's command line, to which the console is added.
        append: String,
    },
    /// A disk with a boot loader.
    Image {
        /// Path of the image.
        path: PathBuf,
        /// Whether the format is qcow2, otherwise raw.
        is_qcow2: bool,
    },
}

/// How a network card reaches netvm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CardKind {
    /// virtio-net over vhost-user.
    #[default]
    VhostUser,
    /// An e1000 or e1000e over vfio-user: netvm emulates the card, and QEMU presents it to the guest. QEMU
    /// connects once, when it starts.
    VfioUser,
}

/// A network card: the guest's side of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Name of the port, for messages.
    pub name: String,
    /// Its kind.
    pub kind: CardKind,
    /// Socket of the port.
    pub socket: PathBuf,
    /// Whether QEMU connects to the socket, with retries, and netvm listens; otherwise QEMU listens.
    pub connects: bool,
    /// MAC address, such as 02:00:00:00:00:01. For a card over vfio-user, netvm's port sets it.
    pub mac: String,
    /// Number of queue pairs.
    pub queues: u16,
    /// The MTU that the guest learns from the card, if it is not Ethernet's usual one. Only virtio-net cards tell it.
    pub mtu: Option<u16>,
}

/// Where QMP and the serial console connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sockets<'a> {
    /// Listening sockets that QEMU inherits.
    Inherited {
        /// QMP.
        qmp: RawFd,
        /// The console.
        serial: RawFd,
        /// Write end of a pipe that gets a copy of the console output.
        log: Option<RawFd>,
    },
    /// The terminal that QEMU is started from: the console, with QEMU's monitor on ^A c.
    Terminal {
        /// A socket that QEMU connects to for QMP, with retries.
        qmp: Option<&'a Path>,
    },
}

/// An ordinary guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Name of the guest.
    pub name: String,
    /// Memory in MiB.
    pub memory: u32,
    /// Virtual processors.
    pub cpus: u16,
    /// NUMA node of the memory.
    pub node: Option<u32>,
    /// Executes the guest's instructions.
    pub accel: Accel,
    /// What the machine boots.
    pub boot: Boot,
    /// Network cards, in the order of the guest.
    pub cards: Vec<Card>,
}

impl Machine {
    /// The arguments for a QEMU of this version, without the program.
    #[must_use]
    pub fn arguments(&self, version: Version, sockets: Sockets<'_>) -> Vec<OsString> {
        let mut arguments = Arguments::default();
        arguments.flag("-nodefaults").flag("-no-user-config").pair("-display", "none");
        arguments.pair("-name", format_args!("guest={}", escape_commas(&self.name)));
        // Forbids new programs, users and privileges; netvmd sets the affinity of its threads from outside.
        arguments.pair("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
        arguments.pair("-machine", format_args!("q35,accel={},memory-backend=ram", self.accel.word()));
        // All features of the processor or translator.
        arguments.pair("-cpu", "max");
        // With only one possible processor, TCG turns locked instructions into plain ones, which other threads may see
        // half done.
        arguments.pair("-smp", format_args!("{},maxcpus={}", self.cpus, self.cpus.max(2)));
        arguments.pair("-m", format_args!("{}M", self.memory));
        let node = self.node.map_or(String::new(), |node| format!(",host-nodes={node},policy=bind"));
        arguments.pair(
            "-object",
            format_args!("memory-backend-memfd,id=ram,size={}M,share=on{node}", self.memory),
        );
        Self::sockets(sockets, version, &mut arguments);
        arguments.pair("-device", "pvpanic").pair("-device", "virtio-rng-pci");
        self.boot(&mut arguments);
        for (n, card) in self.cards.iter().enumerate() {
            self.card(n, card, version, &mut arguments);
        }
        arguments.0
    }

    fn sockets(sockets: Sockets<'_>, version: Version, arguments: &mut Arguments) {
        match sockets {
            Sockets::Inherited { qmp, serial, log } => {
                arguments.pair("-chardev", format_args!("socket,id=qmp,fd={qmp},server=on,wait=off"));
                arguments.pair("-mon", "chardev=qmp,mode=control");
                let mut console = format!("socket,id=serial,fd={serial},server=on,wait=off");
                if let Some(log) = log {
                    arguments.pair("-add-fd", format_args!("fd={log},set={LOG_SET}"));
                    // QEMU truncates a log that it does not append to, which fails on a pipe.
                    console.push_str(&format!(",logfile=/dev/fdset/{LOG_SET},logappend=on"));
                }
                arguments.pair("-chardev", console).pair("-serial", "chardev:serial");
            }
            Sockets::Terminal { qmp } => {
                arguments.pair("-serial", "mon:stdio");
                if let Some(qmp) = qmp {
                    let [key, value, mon, monitor] = monitor(qmp, version);
                    arguments.pair(&key, value).pair(&mon, monitor);
                }
            }
        }
    }

    fn boot(&self, arguments: &mut Arguments) {
        match &self.boot {
            Boot::Kernel { kernel, initrd, append } => {
                arguments.pair("-kernel", kernel.display());
                if let Some(initrd) = initrd {
                    arguments.pair("-initrd", initrd.display());
                }
                arguments.pair("-append", command_line(append, self.accel));
            }
            Boot::Image { path, is_qcow2 } => {
                let format = if *is_qcow2 { "qcow2" } else { "raw" };
                let path = escape_path_commas(path);
                let [key, value] = FIRMWARE_ON_SERIAL;
                arguments.pair(key, value);
                arguments.pair("-drive", format_args!("if=none,id=disk,format={format},file={path}"));
                arguments.pair("-device", "virtio-blk-pci,drive=disk,bootindex=1");
            }
        }
    }

    fn card(&self, n: usize, card: &Card, version: Version, arguments: &mut Arguments) {
        if card.kind == CardKind::VfioUser {
            arguments.pair("-device", vfio_user_device(&card.socket));
            return;
        }
        let side = if card.connects { reconnect(version) } else { "server=on,wait=off" };
        let path = escape_path_commas(&card.socket);
        arguments.pair("-chardev", format_args!("socket,id=port{n},path={path},{side}"));
        let queues = card.queues;
        arguments.pair("-netdev", format_args!("vhost-user,id=net{n},chardev=port{n},queues={queues}"));
        let vectors = match vectors(self.accel, version, queues) {
            Some(vectors) => format!(",vectors={vectors}"),
            None => String::new(),
        };
        let several = if queues > 1 { ",mq=on" } else { "" };
        let mtu = card.mtu.map_or(String::new(), |mtu| format!(",host_mtu={mtu}"));
        arguments.pair(
            "-device",
            format_args!(
                "virtio-net-pci,netdev=net{n},mac={},romfile=,rx_queue_size={QUEUE_SIZE},tx_queue_size={QUEUE_SIZE}{several}{mtu}{vectors}",
                card.mac
            ),
        );
    }
}

/// Arguments that make QEMU connect to a socket for QMP, with retries.
pub(crate) fn monitor(qmp: &Path, version: Version) -> [String; 4] {
    let path = escape_path_commas(qmp);
    let chardev = format!("socket,id=netvm-qmp,path={path},{}", reconnect(version));
    ["-chardev".to_owned(), chardev, "-mon".to_owned(), "chardev=netvm-qmp,mode=control".to_owned()]
}

/// The device of a card over vfio-user, which QEMU accepts only in JSON. Without a ROM, because the guest
/// would read it by many messages.
#[must_use]
pub fn vfio_user_device(socket: &Path) -> String {
    let socket = json!({ "type": "unix", "path": socket });
    json!({ "driver": "vfio-user-pci", "socket": socket, "rombar": 0 }).to_string()
}

/// Makes QEMU connect to a socket again each second.
fn reconnect(version: Version) -> &'static str {
    if version < RECONNECTS_BY_MS { "reconnect=1" } else { "reconnect-ms=1000" }
}

/// Number of interrupt vectors of a card; `None`: QEMU's default.
pub(crate) fn vectors(accel: Accel, version: Version, queues: u16) -> Option<u16> {
    if accel == Accel::Tcg && version < SAFE_MSIX {
        return Some(0);
    }
    // One per queue, one for configuration changes, one for the control queue.
    (queues > 1).then_some(2 * queues + 2)
}

/// Adds netvm's console to a kernel command line. Under TCG, Linux must not check whether timer interrupts arrive: on a
/// busy machine they do not, and it panics ("IO-APIC + timer doesn't work!"). Under KVM it skips the check itself.
pub(crate) fn command_line(append: &str, accel: Accel) -> String {
    let has = |start: &str| append.split_whitespace().any(|word| word.starts_with(start));
    let console = (!has("console=")).then_some("console=ttyS0");
    let unmeasured = (accel != Accel::Kvm && !has(NO_TIMER_CHECK)).then_some(NO_TIMER_CHECK);
    let words = console.into_iter().chain(unmeasured).chain((!append.is_empty()).then_some(append));
    words.collect::<Vec<_>>().join(" ")
}

impl Accel {
    /// QEMU's name for the accelerator.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::KvmOrTcg => "kvm:tcg",
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

#[derive(Default)]
struct Arguments(Vec<OsString>);

impl Arguments {
    fn flag(&mut self, flag: &str) -> &mut Self {
        self.0.push(flag.into());
        self
    }

    fn pair(&mut self, key: &str, value: impl fmt::Display) -> &mut Self {
        self.flag(key).0.push(value.to_string().into());
        self
    }
}

/// Escapes a value in a comma-separated list, where QEMU reads two commas as one.
fn escape_commas(text: &str) -> String {
    text.replace(',', ",,")
}

pub(crate) fn escape_path_commas(path: &Path) -> String {
    escape_commas(&path.display().to_string())
}

/// Quotes arguments as one line for a shell.
#[must_use]
pub fn shell_line<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=+@%".contains(c);
    let quoted = |word: &str| match word {
        _ if !word.is_empty() && word.chars().all(plain) => word.to_owned(),
        _ => format!("'{}'", word.replace('\'', r"'\''")),
    };
    words.into_iter().map(quoted).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
pub(crate) mod tests;
