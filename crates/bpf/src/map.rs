// SPDX-License-Identifier: Apache-2.0
//! Maps.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libc::c_int;

use crate::sys::{NAME, bpf, bpf_fd, bpf_write};

// Commands of `enum bpf_cmd`.
const MAP_CREATE: c_int = 0;
const MAP_LOOKUP_ELEM: c_int = 1;
const MAP_UPDATE_ELEM: c_int = 2;
const MAP_DELETE_ELEM: c_int = 3;
const MAP_LOOKUP_BATCH: c_int = 24;

/// Kinds of maps, of `enum bpf_map_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MapKind {
    /// Values by keys.
    Hash = 1,
    /// Values by numbers from zero on.
    Array = 2,
    /// Interfaces by numbers from zero on. One that goes is removed from it.
    Device = 14,
    /// AF_XDP sockets by numbers from zero on.
    Xsk = 17,
}

/// The shape of a map.
#[derive(Clone, Copy, Debug)]
pub struct MapShape {
    /// Its kind.
    pub kind: MapKind,
    /// Bytes of a key.
    pub key_bytes: u32,
    /// Bytes of a value.
    pub value_bytes: u32,
    /// Most entries.
    pub entries: u32,
    /// `BPF_F_` flags.
    pub flags: u32,
}

/// A map of the kernel, which ends with its last descriptor and the last program that uses it.
#[derive(Debug)]
pub struct Map {
    descriptor: OwnedFd,
    key_bytes: usize,
    value_bytes: usize,
}

/// The attributes of commands on one element.
#[repr(C)]
struct Element {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The attributes of commands on many elements.
#[repr(C)]
struct Batch {
    from: u64,
    next: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: u32,
    element_flags: u64,
    flags: u64,
}

/// Where a dump of a map goes on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Position(Option<u64>);

impl Map {
    /// Makes a map.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new(shape: MapShape) -> io::Result<Self> {
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
        let MapShape { kind, key_bytes, value_bytes, entries, flags } = shape;
        let attributes = Attributes {
            map_type: kind as u32,
            key_size: key_bytes,
            value_size: value_bytes,
            max_entries: entries,
            map_flags: flags,
            inner_map_fd: 0,
            numa_node: 0,
            name: NAME,
        };
        // SAFETY: the attributes of BPF_MAP_CREATE, without addresses or padding; it returns a descriptor.
        let descriptor = unsafe { bpf_fd(MAP_CREATE, &attributes) }?;
        Ok(Self { descriptor, key_bytes: key_bytes as usize, value_bytes: value_bytes as usize })
    }

    /// Sets the value of a key, whether or not it has one.
    ///
    /// # Errors
    /// The kernel's error: `E2BIG` if the map is full. `InvalidInput` for bytes of another shape.
    pub fn set(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.check(key, value)?;
        let element = self.element(key, value.as_ptr().addr());
        // SAFETY: the attributes of BPF_MAP_UPDATE_ELEM; key and value have the sizes that the map was made with, and
        // outlive the call.
        unsafe { bpf(MAP_UPDATE_ELEM, &element) }.map(|_| ())
    }

    /// The value of a key is read into `value`; false if it has none.
    ///
    /// # Errors
    /// As of [`Map::set`].
    pub fn get(&self, key: &[u8], value: &mut [u8]) -> io::Result<bool> {
        self.check(key, value)?;
        let element = self.element(key, value.as_mut_ptr().addr());
        // SAFETY: the attributes of BPF_MAP_LOOKUP_ELEM; the kernel reads the key and writes the value, which have the
        // sizes that the map was made with, and outlive the call.
        found(unsafe { bpf(MAP_LOOKUP_ELEM, &element) })
    }

    /// Removes a key; false if it is not there.
    ///
    /// # Errors
    /// As of [`Map::set`].
    pub fn remove(&self, key: &[u8]) -> io::Result<bool> {
        if key.len() != self.key_bytes {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let element = self.element(key, 0);
        // SAFETY: the attributes of BPF_MAP_DELETE_ELEM; the key has the size that the map was made with, and outlives
        // the call.
        found(unsafe { bpf(MAP_DELETE_ELEM, &element) })
    }

    /// Reads the next entries of a hash into `keys` and `values`, one after another; returns how many, and where to go
    /// on; `None` after the last. While others change the map, an entry may be missed or read twice. Both must have
    /// room for as many entries as a bucket may have, or the kernel says `ENOSPC`.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn dump(
        &self,
        from: Position,
        keys: &mut [u8],
        values: &mut [u8],
    ) -> io::Result<(usize, Option<Position>)> {
        let room = (keys.len() / self.key_bytes.max(1)).min(values.len() / self.value_bytes.max(1));
        let (begin, mut next) = (from.0.unwrap_or_default(), 0_u64);
        let mut batch = Batch {
            from: if from.0.is_some() { (&raw const begin).addr() as u64 } else { 0 },
            next: (&raw mut next).addr() as u64,
            keys: keys.as_mut_ptr().addr() as u64,
            values: values.as_mut_ptr().addr() as u64,
            count: room as u32,
            map: self.number(),
            element_flags: 0,
            flags: 0,
        };
        // SAFETY: the attributes of BPF_MAP_LOOKUP_BATCH; the kernel writes at most `count` keys and values of the
        // sizes that the map was made with, and four bytes of `next`; all outlive the call.
        let outcome = unsafe { bpf_write(MAP_LOOKUP_BATCH, &mut batch) };
        let count = batch.count as usize;
        match outcome {
            Ok(_) => Ok((count, Some(Position(Some(next))))),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok((count, None)),
            Err(error) => Err(error),
        }
    }

    fn check(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let is_right = (key.len(), value.len()) == (self.key_bytes, self.value_bytes);
        if is_right { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    fn number(&self) -> u32 {
        self.descriptor.as_raw_fd().unsigned_abs()
    }

    fn element(&self, key: &[u8], value: usize) -> Element {
        Element { map: self.number(), pad: 0, key: key.as_ptr().addr() as u64, value: value as u64, flags: 0 }
    }
}

fn found(outcome: io::Result<i32>) -> io::Result<bool> {
    match outcome {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
