//! Virtual machines.

use std::path::PathBuf;

use netvm_policy::PortId;
use netvm_wire::MacAddr;
use serde::{Deserialize, Serialize};

use super::RoleId;

/// A virtual machine that netvmd starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmConfig {
    /// Its name.
    pub name: String,
    /// What it is to netvm.
    pub guest: Guest,
    /// MiB of memory.
    pub memory: u32,
    /// Virtual processors.
    pub cpus: u16,
    /// Cores that its virtual processors run on, one after another and round again; empty: all that no worker has, or all.
    pub cores: Vec<u32>,
    /// The NUMA node that its memory is on; `None`: wherever.
    pub node: Option<u32>,
    /// Who runs its instructions.
    pub accel: VmAccel,
    /// What it starts.
    pub boot: VmBoot,
    /// QEMU's program: an absolute path, or a name in `PATH`.
    pub qemu: String,
    /// The user that QEMU runs as when netvmd is root, by name or number.
    pub user: String,
    /// Who starts it, and when.
    pub start: VmStart,
    /// When it is started again after it has ended.
    pub restart: Restart,
    /// Seconds in which it is to have booted: attached as an NF, or its driver at one of its ports.
    pub boot_timeout: u32,
}

/// Who starts a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum VmStart {
    /// netvmd, as soon as it can.
    #[default]
    WithNetvmd,
    /// netvmd, when it is told to.
    WhenTold,
    /// Others, by hand or by libvirt; netvmd has its sockets ready.
    Manual,
}

/// What a virtual machine is to netvm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guest {
    /// A network function that sees its trust group's packets without a copy, and ends with netvmd.
    Nf {
        /// The role under which it answers; no other VM or process is started by netvmd for it.
        role: RoleId,
        /// Its threads.
        threads: u16,
        /// How it wakes others.
        notify: VmNotify,
    },
    /// Any guest, not trusted, that lives on when netvmd ends.
    Ordinary {
        /// Its network cards, in the order in which it sees them.
        cards: Vec<VmCard>,
    },
}

/// A network card: the other side of a vhost-user port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmCard {
    /// The port.
    pub port: PortId,
    /// The address that the guest finds in it.
    pub mac: MacAddr,
}

/// Who runs a guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum VmAccel {
    /// The processor where it can, else QEMU's translator.
    #[default]
    #[serde(rename = "kvm:tcg")]
    KvmOrTcg,
    /// The processor.
    #[serde(rename = "kvm")]
    Kvm,
    /// QEMU's translator.
    #[serde(rename = "tcg")]
    Tcg,
}

/// What a virtual machine starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmBoot {
    /// A Linux kernel.
    Kernel {
        /// The kernel.
        kernel: PathBuf,
        /// Its initramfs.
        initrd: Option<PathBuf>,
        /// Its command line, without the console.
        append: String,
    },
    /// A disk, by its boot loader: qcow2 if its name ends so, else raw.
    Image(PathBuf),
}

/// When a virtual machine is started again after it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restart {
    /// When it was killed, crashed or panicked; not when the guest has shut itself down.
    #[default]
    OnFailure,
    /// However it ended.
    Always,
    /// Not by itself.
    Never,
}

/// How an NF in a virtual machine wakes others that wait for packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VmNotify {
    /// Not at all: who has links with it looks.
    #[default]
    Poll,
    /// By an `ivshmem-doorbell` device.
    Doorbell,
}
