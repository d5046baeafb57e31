//! The host's side of virtual machines under QEMU: the arguments that make an ordinary guest, for QEMU and for libvirt,
//! those that give a VM the memory of a zero-copy NF, and QMP, the channel by which a running one is watched and told.
#![forbid(unsafe_code)]

mod doorbell;
mod guest_memory;
mod libvirt;
mod machine;
mod qmp;
mod served;
mod wake_line;

pub use guest_memory::GuestMemory;
pub use libvirt::Domain;
pub use machine::{Accel, Boot, Card, Machine, Sockets, shell_line};
pub use qmp::{Event, OLDEST, Qmp, QmpError, Version};
pub use served::{NfDevices, NfSocket, ServedMemory};
