// SPDX-License-Identifier: Apache-2.0
//! Handles guests that truncate memory that they share.
//!
//! A guest passes files (memfds), which netvm maps. This module records where each guest's memory is mapped, before any
//! thread touches it. When a thread touches a page that is missing, [`lost_pages`] fills it and marks the guest. A
//! thread of this module then withdraws marked guests, so that no thread uses their memory any more.

use std::io;
use std::sync::OnceLock;

use dpdk_sys as sys;
use netvm_region::lost_pages::{self, Mark, Range};

const DEVICES: usize = sys::NETVM_VHOST_MAX_DEVICES as usize;
/// Regions of memory, and the two other parts that a front-end may share.
const REGIONS: usize = sys::NETVM_VHOST_MAX_REGIONS as usize + 2;

/// A device's memory.
struct Memory {
    regions: [Range; REGIONS],
    truncated: Mark,
}

impl Memory {
    const fn none() -> Self {
        Self { regions: [const { Range::none() }; REGIONS], truncated: Mark::new() }
    }

    fn forget(&self) {
        self.regions.iter().for_each(|region| region.set(0, 0));
    }
}

static MEMORIES: [Memory; DEVICES] = [const { Memory::none() }; DEVICES];
static WATCHED: OnceLock<Result<(), i32>> = OnceLock::new();

fn memory(device: i32) -> Option<&'static Memory> {
    MEMORIES.get(usize::try_from(device).ok()?)
}

/// Begins to handle the signal, once; `close` is called for each guest that has truncated its memory.
pub(super) fn watch(close: fn(i32)) -> Result<(), i32> {
    *WATCHED.get_or_init(|| begin(close).map_err(|error| error.raw_os_error().unwrap_or(libc::EINVAL)))
}

fn begin(close: fn(i32)) -> io::Result<()> {
    // SAFETY: takes no pointer.
    let eventfd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if eventfd < 0 {
        return Err(io::Error::last_os_error());
    }
    MEMORIES.iter().for_each(|memory| memory.truncated.signal(eventfd));
    let signaller = move || {
        let mut count = [0u8; 8];
        // SAFETY: `count` has 8 bytes. The descriptor is never closed.
        while unsafe { libc::read(eventfd, count.as_mut_ptr().cast(), count.len()) } > 0 || interrupted() {
            let truncated = |(_, memory): &(i32, &Memory)| memory.truncated.is_set();
            (0..).zip(&MEMORIES).filter(truncated).for_each(|(device, _)| close(device));
        }
    };
    std::thread::Builder::new().name("vhost-truncated".to_owned()).spawn(signaller)?;
    lost_pages::ask_also(mark_at)
}

fn interrupted() -> bool {
    io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
}

/// Records where a device's memory is mapped, in place of older memory that no thread uses any more.
pub(super) fn record_regions(device: i32, regions: impl Iterator<Item = (usize, usize)>) {
    let Some(memory) = memory(device) else { return };
    memory.forget();
    for (region, (start, bytes)) in memory.regions.iter().zip(regions) {
        region.set(start, bytes);
    }
}

/// Removes all records of a device that is gone, or whose memory is.
pub(super) fn forget(device: i32) {
    if let Some(memory) = memory(device) {
        memory.forget();
        memory.truncated.clear();
    }
}

/// Whether the device has truncated its memory.
pub(super) fn is_marked(device: i32) -> bool {
    memory(device).is_some_and(|memory| memory.truncated.is_set())
}

/// The mark of the device to which an address belongs. Async-signal-safe.
fn mark_at(address: usize) -> Option<&'static Mark> {
    let holds = |memory: &&Memory| memory.regions.iter().any(|region| region.holds(address));
    MEMORIES.iter().find(holds).map(|memory| &memory.truncated)
}

#[cfg(test)]
mod tests {
    use std::ptr;
    use std::sync::Mutex;

    use super::*;

    static CLOSED: Mutex<Vec<i32>> = Mutex::new(Vec::new());

    fn watched() {
        watch(|device| CLOSED.lock().unwrap().push(device)).unwrap();
    }

    /// A mapping of pages that a file of no bytes does not have.
    fn missing(bytes: usize) -> *mut u8 {
        // SAFETY: a name, and a new mapping at an address of the kernel's choice.
        unsafe {
            let file = libc::memfd_create(c"missing".as_ptr(), libc::MFD_CLOEXEC);
            let start = libc::mmap(ptr::null_mut(), bytes, 3, libc::MAP_SHARED, file, 0);
            assert!(file >= 0 && start != libc::MAP_FAILED);
            libc::close(file);
            start.cast()
        }
    }

    #[test]
    fn missing_pages_of_guests_read_as_zeroes_and_tell_on_them() {
        watched();
        let told =
            |device| netvm_testing::within(netvm_testing::LIMIT, || CLOSED.lock().unwrap().contains(&device));
        let start = missing(1 << 20);
        record_regions(1000, [(0, 0); 7].into_iter().chain([(start as usize, 1 << 20)]));
        // SAFETY: mapped; what has no pages gets some.
        unsafe {
            assert_eq!(start.add(5000).read_volatile(), 0);
            start.add(5000).write_volatile(7);
            assert_eq!((start.add(5000).read_volatile(), start.add(90_000).read_volatile()), (7, 0));
        }
        assert!(told(1000));
        assert!(!CLOSED.lock().unwrap().contains(&1001));
        forget(1000);
        assert!(!MEMORIES[1000].truncated.is_set() && mark_at(start as usize).is_none());
    }
}
