// SPDX-License-Identifier: Apache-2.0
//! Maps packet memory for devices on the PCI bus.
//!
//! DPDK maps its own memory for devices. The caller's memory must be registered with the EAL once, and then mapped for
//! each device. With an IOMMU, devices use the virtual addresses of this process (an IOMMU of fewer than 48 bits
//! refuses them). Without one, they use physical addresses, which stay valid only for huge pages; each mbuf gets its
//! physical address.
//!
//! All devices under VFIO share a mapping until the last of them is closed. Devices that share their NIC with the
//! kernel (such as mlx5) have their own mappings.
//!
//! No test covers this module, because it needs a NIC. It was tested manually with emulated e1000 NICs in a guest: with
//! an IOMMU and vfio-pci, and without an IOMMU and uio_pci_generic.

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
        "devices use physical addresses here (there is no IOMMU), and those of packet memory in ordinary pages can \
         change: use huge pages"
    )]
    SmallPages,
    /// Physical addresses cannot be read.
    #[error(
        "physical addresses cannot be read from /proc/self/pagemap: run with CAP_SYS_ADMIN, or enable the IOMMU"
    )]
    NoPhysical,
    /// A buffer is not contiguous in physical memory.
    #[error("buffer {0} crosses from one page to another: choose a buffer size that divides {1} bytes")]
    Split(usize, usize),
    /// The EAL refused the memory.
    #[error("DPDK does not accept the packet memory: {}{}", reason(*.errno), quoted(.log))]
    Register {
        /// The error number.
        errno: i32,
        /// What DPDK logged.
        log: String,
    },
    /// The device's driver refused it.
    #[error("the packet memory cannot be mapped for the device: {}{}", reason(*.errno), quoted(.log))]
    Map {
        /// The error number.
        errno: i32,
        /// What DPDK logged.
        log: String,
    },
}

/// Addresses that devices use.
#[derive(Debug)]
enum Addresses {
    /// The virtual addresses of this process.
    Virtual,
    /// The physical address of each page of the memory.
    Physical(Vec<u64>),
    /// Devices cannot reach the memory, for this reason.
    None(DmaError),
}

/// Users of the memory.
#[derive(Debug, Default)]
struct Users {
    /// Whether the EAL knows the memory.
    registered: bool,
    /// Number of ports that use the shared mapping.
    sharing: u32,
}

/// The mappings of a pool's memory for devices.
#[derive(Debug)]
pub(crate) struct Dma {
    addresses: Addresses,
    users: Mutex<Users>,
}

impl Default for Dma {
    fn default() -> Self {
        Self { addresses: Addresses::Virtual, users: Mutex::default() }
    }
}

/// A port whose device needs the memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DmaPort {
    pub(crate) number: PortNumber,
    /// Whether its device has its own mappings.
    pub(crate) alone: bool,
}

impl Dma {
    /// For a new pool: determines which addresses devices use, and sets them in the mbufs.
    pub(crate) fn place(memory: &dyn PacketMemory, mbufs: &[MbufPtr]) -> Self {
        // SAFETY: reads the EAL's configuration; a pool exists, so it has one.
        if unsafe { sys::netvm_iova_is_va() } != 0 {
            return Self::default();
        }
        let addresses = match physical(memory, mbufs) {
            Ok(pages) => Addresses::Physical(pages),
            Err(error) => Addresses::None(error),
        };
        Self { addresses, users: Mutex::default() }
    }

    /// Maps the memory for the device of a port.
    pub(crate) fn map_for(&self, memory: &dyn PacketMemory, port: DmaPort) -> Result<(), DmaError> {
        let page = memory.page_bytes();
        if !whole_pages(memory) {
            return Err(DmaError::Unaligned(page));
        }
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let control = Control::enter();
        if !users.registered {
            let (base, len) = (memory.base().as_ptr(), memory.len());
            let mut iovas: Vec<u64> = match &self.addresses {
                Addresses::Virtual => (0..len / page).map(|n| (base as usize + n * page) as u64).collect(),
                Addresses::Physical(pages) => pages.clone(),
                Addresses::None(error) => return Err(error.clone()),
            };
            let count = iovas.len() as u32;
            // SAFETY: whole pages that stay mapped (PacketMemory), with as many addresses as there are pages.
            let error = unsafe { sys::netvm_memory_register(base.cast(), iovas.as_mut_ptr(), count, page) };
            if error != 0 {
                return Err(DmaError::Register { errno: -error, log: control.log() });
            }
            users.registered = true;
        }
        if port.alone || users.sharing == 0 {
            let pieces = self.pieces(memory);
            for (done, &(address, iova, bytes)) in pieces.iter().enumerate() {
                // SAFETY: memory that stays mapped, and an open port.
                let error = unsafe { sys::netvm_port_dma_map(port.number.0, address, iova, bytes) };
                // ENOTSUP: the bus or driver needs no mapping.
                if error != 0 && error != -libc::ENOTSUP {
                    unmap(&pieces[..done], port);
                    return Err(DmaError::Map { errno: -error, log: control.log() });
                }
            }
        }
        users.sharing += u32::from(!port.alone);
        Ok(())
    }

    /// Undoes `map_for`; the port is open and stopped.
    pub(crate) fn unmap_for(&self, memory: &dyn PacketMemory, port: DmaPort) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.sharing -= u32::from(!port.alone);
        if port.alone || users.sharing == 0 {
            let _control = Control::enter();
            unmap(&self.pieces(memory), port);
        }
    }

    /// Unregisters the memory from the EAL; no port uses it any more.
    pub(crate) fn forget(&self, memory: &dyn PacketMemory) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut users.registered) {
            let _control = Control::enter();
            // SAFETY: registered with the same values; no port is open on the pool, so no device uses it.
            unsafe { sys::rte_extmem_unregister(memory.base().as_ptr().cast(), memory.len()) };
        }
    }

    /// The pieces to map: the whole memory for virtual addresses, or each page for physical addresses.
    fn pieces(&self, memory: &dyn PacketMemory) -> Vec<Piece> {
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

/// Address here, address for devices, and bytes.
type Piece = (*mut c_void, u64, usize);

fn unmap(pieces: &[Piece], port: DmaPort) {
    for &(address, iova, bytes) in pieces {
        // SAFETY: an open port. Nothing can be done about an error: it was not mapped then.
        unsafe { sys::netvm_port_dma_unmap(port.number.0, address, iova, bytes) };
    }
}

fn whole_pages(memory: &dyn PacketMemory) -> bool {
    let page = memory.page_bytes();
    page != 0 && (memory.base().as_ptr() as usize).is_multiple_of(page) && memory.len().is_multiple_of(page)
}

/// The physical address of each page; sets each mbuf's buffer address.
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
    for (buffer, mbuf) in mbufs.iter().enumerate() {
        // SAFETY: the pool is new and not shared yet, so its mbufs may be read and changed.
        let packet = unsafe { mbuf.borrow() };
        let start = packet.buf_addr() as usize - base as usize;
        let last = usize::from(packet.buf_len()) - 1;
        match (iova(start), iova(start + last)) {
            // SAFETY: as above.
            (Some(from), Some(to)) if to == from + last as u64 => unsafe {
                sys::netvm_mbuf_set_iova(mbuf.as_ptr(), from);
            },
            _ => return Err(DmaError::Split(buffer, page)),
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
