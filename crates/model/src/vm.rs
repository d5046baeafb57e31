// SPDX-License-Identifier: Apache-2.0
//! Virtual machines.

use std::path::PathBuf;

use netvm_ids::{PortId, RoleId};
use netvm_wire::MacAddr;

use crate::derived::derived_mac;
use crate::words::words;

/// A virtual machine that netvmd starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmConfig {
    /// Its name.
    pub name: String,
    /// Its purpose for netvm.
    pub guest: Guest,
    /// MiB of memory.
    pub memory: u32,
    /// Virtual processors.
    pub cpus: u16,
    /// Cores of its virtual processors, in turn; empty: all without a worker, else all.
    pub cores: Vec<u32>,
    /// The NUMA node of its memory; `None`: any.
    pub node: Option<u32>,
    /// What runs its instructions.
    pub accel: VmAccel,
    /// What it boots.
    pub boot: VmBoot,
    /// QEMU's program: an absolute path, or a name in `PATH`.
    pub qemu: String,
    /// The user that QEMU runs as when netvmd is root, by name or number.
    pub user: String,
    /// What starts it, and when.
    pub start: VmStart,
    /// When netvmd restarts it after it ended.
    pub restart: Restart,
    /// Time limit in seconds for its boot, until its NF attaches or its driver opens one of its ports.
    pub boot_timeout: u32,
}

/// What starts a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum VmStart {
    /// netvmd, as soon as it can.
    #[default]
    WithNetvmd,
    /// netvmd, on command.
    OnCommand,
    /// The operator, by hand or with libvirt; netvmd prepares the sockets.
    Manual,
}

/// The purpose of a virtual machine for netvm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guest {
    /// A network function that gets its trust group's packets without a copy, and ends with netvmd.
    Nf {
        /// The role that it attaches as; netvmd starts no process for that role.
        role: RoleId,
        /// Its threads.
        threads: u16,
        /// How it notifies its peers.
        notify: VmNotify,
    },
    /// Any guest. It is not trusted, and keeps running when netvmd ends.
    Ordinary {
        /// Its network cards, in the guest's order.
        cards: Vec<VmCard>,
    },
}

/// A network card: the guest's side of a vhost-user port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmCard {
    /// The port.
    pub port: PortId,
    /// Its MAC address.
    pub mac: MacAddr,
}

impl VmCard {
    /// The address of a card without a configured one: locally administered, and always the same for that VM and
    /// position.
    #[must_use]
    pub fn own_mac(vm: &str, card: usize) -> MacAddr {
        derived_mac(vm.bytes().chain([0, card as u8]))
    }
}

/// What runs a guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum VmAccel {
    /// The CPU where KVM is available, else QEMU's translator.
    #[default]
    KvmOrTcg,
    /// The CPU, by KVM.
    Kvm,
    /// QEMU's translator.
    Tcg,
}
words!(VmAccel: "kvm:tcg" => KvmOrTcg, "kvm" => Kvm, "tcg" => Tcg);

/// What a virtual machine boots.
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
    /// A disk with a boot loader: qcow2 if its name ends in `.qcow2`, else raw.
    Image(PathBuf),
}

/// When netvmd restarts a virtual machine that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Restart {
    /// When it was killed, crashed or panicked; not when the guest shut itself down.
    #[default]
    OnFailure,
    /// However it ended.
    Always,
    /// Never.
    Never,
}
words!(Restart: "on-failure" => OnFailure, "always" => Always, "never" => Never);

/// How an NF in a virtual machine notifies peers that wait for packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum VmNotify {
    /// Not at all: peers with links to it poll.
    #[default]
    Poll,
    /// By an `ivshmem-doorbell` device.
    Doorbell,
}
words!(VmNotify: "poll" => Poll, "doorbell" => Doorbell);
