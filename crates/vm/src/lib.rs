// SPDX-License-Identifier: Apache-2.0
//! The host side of virtual machines under QEMU: arguments for an ordinary guest, for QEMU and for libvirt; devices
//! that give a VM the memory of a zero-copy NF; and QMP, the channel that monitors and controls a running VM.
#![forbid(unsafe_code)]

mod doorbell;
mod guest_memory;
mod kvm;
mod libvirt;
mod machine;
mod qmp;
mod served;
mod vfio_user;

pub use guest_memory::GuestMemory;
pub use kvm::{KvmError, check_kvm};
pub use libvirt::Domain;
pub use machine::{Accel, Boot, Card, CardKind, Machine, Sockets, shell_line, vfio_user_device};
pub use qmp::{Event, OLDEST, Qmp, QmpError, Version};
pub use served::{NfDevices, NfSocket, ServedMemory};
pub use vfio_user::{OLDEST_WITH_E1000, QEMU, find_vfio_user_client, is_vfio_user_client};
