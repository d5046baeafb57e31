//! Lets devices on the PCI bus reach packet memory.
//!
//! DPDK maps its own memory for devices, not the caller's: that must be registered with the EAL once and mapped for each
//! device. Where the system has an IOMMU, a device uses the addresses of this process; where it has none it uses
//! physical ones, which are constant for huge pages only, and every mbuf is told its own.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use dpdk_sys as sys;

use crate::log::{Control, quoted, reason};
use crate::{MbufPtr, PacketMemory, PortNumber};

/// A device cannot reach a pool's memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DmaError {
    /// The memory is not a number of whole pages.
    #[error("the packet memory is not made of whole pages of {0} bytes")]
    Unaligned(usize),
    /// Ordinary pages on a system without an IOMMU.
    #[error(
        "devices use physical addresses here (there is no IOMMU), and packet memory in ordinary pages has none that \
         last: use huge pages"
    )]
    SmallPages,
    /// Physical addresses cannot be read.
    #[error(
        "physical addresses cannot be read from /proc/self/pagemap: run with CAP_SYS_ADMIN, or enable the IOMMU"
    )]
    NoPhysical,
    /// A cell that is not contiguous in physical memory.
    #[error("cell {0} crosses from one page to another: choose a cell size that divides {1} bytes")]
    Split(usize, usize),
    /// The EAL refused the memory.
    #[error("DPDK does not take the packet memory: {}{}", reason(*.errno), quoted(.said))]
    Register {
        /// The error number.
        errno: i32,
        /// What DPDK logged.
        said: String,
    },
    /// The device's driver refused it.
    #[error("the packet memory cannot be mapped for the device: {}", reason(*.0))]
    Map(i32),
}

/// Addresses that devices use.
#[derive(Debug)]
enum Addresses {
    /// Those of this process.
    Virtual,
    /// Physical ones, of each page of the memory.
    Physical(Vec<u64>),
    /// None, and why.
    None(DmaError),
}

/// How devices reach the memory of a pool.
#[derive(Debug)]
pub(crate) struct Dma {
    addresses: Addresses,
    registered: Mutex<bool>,
}

impl Default for Dma {
    fn default() -> Self {
        Self { addresses: Addresses::Virtual, registered: Mutex::new(false) }
    }
}

impl Dma {
    /// For a new pool: finds out which addresses devices use, and tells the mbufs.
    pub(crate) fn place(memory: &dyn PacketMemory, mbufs: &[MbufPtr]) -> Self {
        // SAFETY: reads the EAL's configuration; a pool exists, so it has one.
        if unsafe { sys::netvm_iova_is_va() } != 0 {
            return Self::default();
        }
        let addresses = match physical(memory, mbufs) {
            Ok(pages) => Addresses::Physical(pages),
            Err(error) => Addresses::None(error),
        };
        Self { addresses, registered: Mutex::new(false) }
    }

    /// Maps the memory for the device of a port.
    pub(crate) fn map_for(&self, memory: &dyn PacketMemory, port: PortNumber) -> Result<(), DmaError> {
        let page = memory.page_bytes();
        if !whole_pages(memory) {
            return Err(DmaError::Unaligned(page));
        }
        let (base, len) = (memory.base().as_ptr(), memory.len());
        let mut iovas: Vec<u64> = match &self.addresses {
            Addresses::Virtual => (0..len / page).map(|n| (base as usize + n * page) as u64).collect(),
            Addresses::Physical(pages) => pages.clone(),
            Addresses::None(error) => return Err(error.clone()),
        };
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        if !*registered {
            let control = Control::enter();
            let count = iovas.len() as u32;
            // SAFETY: whole pages that stay mapped (PacketMemory), with as many addresses as there are pages.
            let error = unsafe { sys::netvm_memory_register(base.cast(), iovas.as_mut_ptr(), count, page) };
            if error != 0 {
                return Err(DmaError::Register { errno: -error, said: control.said() });
            }
            *registered = true;
        }
        for (address, iova, bytes) in self.pieces(memory) {
            // SAFETY: memory that stays mapped; the port exists, as its caller has just opened it.
            let error = unsafe { sys::netvm_port_dma_map(port.0, address, iova, bytes) };
            // Not supported: a bus or driver that needs no mapping.
            if error != 0 && error != -libc::ENOTSUP {
                return Err(DmaError::Map(-error));
            }
        }
        Ok(())
    }

    /// Undoes `map_for`; the port is open and stopped.
    pub(crate) fn unmap_for(&self, memory: &dyn PacketMemory, port: PortNumber) {
        for (address, iova, bytes) in self.pieces(memory) {
            // SAFETY: as in `map_for`. An error means that it was not mapped.
            unsafe { sys::netvm_port_dma_unmap(port.0, address, iova, bytes) };
        }
    }

    /// Takes the memory from the EAL again.
    pub(crate) fn forget(&self, memory: &dyn PacketMemory) {
        if std::mem::take(&mut *self.registered.lock().unwrap_or_else(PoisonError::into_inner)) {
            // SAFETY: registered with the same values; no port is open on the pool, so no device uses it.
            unsafe { sys::rte_extmem_unregister(memory.base().as_ptr().cast(), memory.len()) };
        }
    }

    /// What is mapped at a time: all at once under the process's own addresses, else page by page.
    fn pieces(&self, memory: &dyn PacketMemory) -> Vec<(*mut c_void, u64, usize)> {
        let (base, page) = (memory.base().as_ptr(), memory.page_bytes());
        match &self.addresses {
            Addresses::Virtual => vec![(base.cast(), base as u64, memory.len())],
            Addresses::Physical(pages) => pages
                .iter()
                .enumerate()
                .map(|(n, &iova)| (base.wrapping_add(n * page).cast(), iova, page))
                .collect(),
            Addresses::None(_) => Vec::new(),
        }
    }
}

fn whole_pages(memory: &dyn PacketMemory) -> bool {
    let page = memory.page_bytes();
    page != 0 && (memory.base().as_ptr() as usize).is_multiple_of(page) && memory.len().is_multiple_of(page)
}

/// The physical address of each page; tells each mbuf that of its cell.
fn physical(memory: &dyn PacketMemory, mbufs: &[MbufPtr]) -> Result<Vec<u64>, DmaError> {
    /// The smallest huge page of the architectures that DPDK has.
    const HUGE: usize = 2 << 20;

    let page = memory.page_bytes();
    if page < HUGE {
        return Err(DmaError::SmallPages);
    }
    if !whole_pages(memory) {
        return Err(DmaError::Unaligned(page));
    }
    let base = memory.base().as_ptr();
    let pages = (0..memory.len() / page)
        .map(|n| physical_address(base.wrapping_add(n * page)))
        .collect::<Option<Vec<u64>>>()
        .ok_or(DmaError::NoPhysical)?;
    let iova = |offset: usize| pages.get(offset / page).map(|start| start + (offset % page) as u64);
    for (cell, mbuf) in mbufs.iter().enumerate() {
        // SAFETY: the pool is new and nobody else has it, so its mbufs may be looked at and changed.
        let packet = unsafe { mbuf.borrow() };
        let start = packet.buf_addr() as usize - base as usize;
        let last = usize::from(packet.buf_len()) - 1;
        match (iova(start), iova(start + last)) {
            // SAFETY: as above.
            (Some(from), Some(to)) if to == from + last as u64 => unsafe {
                sys::netvm_mbuf_set_iova(mbuf.as_ptr(), from);
            },
            _ => return Err(DmaError::Split(cell, page)),
        }
    }
    Ok(pages)
}

fn physical_address(page: *mut u8) -> Option<u64> {
    // SAFETY: mapped and readable (PacketMemory); volatile as others may write. Reading makes the page present.
    unsafe { ptr::read_volatile(page) };
    // SAFETY: looks the address up in /proc/self/pagemap.
    let address = unsafe { sys::rte_mem_virt2phy(page.cast_const().cast()) };
    (address != u64::MAX && address != 0).then_some(address)
}
