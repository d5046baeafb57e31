//! Makes BPF maps.

use std::io;
use std::os::fd::OwnedFd;

use libc::c_int;

use crate::kernel::sys;

/// Of `enum bpf_cmd`.
const MAP_CREATE: c_int = 0;

/// A kernel object name: 15 bytes and a zero.
pub(crate) const NAME: [u8; 16] = *b"netvm_xsk\0\0\0\0\0\0\0";

/// A map whose keys have four bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapShape {
    /// Of `enum bpf_map_type`.
    pub(crate) kind: u32,
    pub(crate) value_bytes: u32,
    pub(crate) entries: u32,
    /// `BPF_F_` flags.
    pub(crate) flags: u32,
}

/// Makes a map.
pub(crate) fn new_map(shape: MapShape) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        map_type: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        map_flags: u32,
        inner_map_fd: u32,
        numa_node: u32,
        name: [u8; 16],
    }
    let MapShape { kind, value_bytes, entries, flags } = shape;
    let attributes = Attributes {
        map_type: kind,
        key_size: 4,
        value_size: value_bytes,
        max_entries: entries,
        map_flags: flags,
        inner_map_fd: 0,
        numa_node: 0,
        name: NAME,
    };
    // SAFETY: the attributes of BPF_MAP_CREATE, without addresses or padding; it returns a descriptor.
    unsafe { sys::bpf_fd(MAP_CREATE, &attributes) }
}
