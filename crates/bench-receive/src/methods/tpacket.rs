// SPDX-License-Identifier: Apache-2.0
//! The mapped ring of a packet socket, TPACKET_V3 (`Documentation/networking/packet_mmap.rst`).
//!
//! ```text
//!  ring: BLOCKS blocks of BLOCK bytes
//!  block: tpacket_block_desc | packet | packet | ...      `block_status`: owned by the kernel or by the user
//!  packet: tpacket3_hdr ... MAC header at tp_mac          the next at tp_next_offset
//! ```

use std::ffi::CString;
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::af_xdp::wait;
use super::{BUFFER, Consumer};
use crate::error::MethodError;
use crate::monitor::Monitor;

const BLOCK: usize = 1 << 17;
const BLOCKS: usize = BUFFER / BLOCK;
/// Milliseconds after which the kernel passes on a block that is not full.
const RETIRE: u32 = 5;

pub(super) fn run<M: Monitor>(interface: &str, mut consumer: Consumer<'_, M>) -> Result<(), MethodError> {
    let failed = || MethodError::system::<io::Error>(format!("packet socket on {interface}"));
    let (socket, ring) = open(interface).map_err(failed())?;
    consumer.counters.ready.set(1);
    for index in (0..BLOCKS).cycle() {
        let block = Block(ring, index);
        while !block.is_user_owned() {
            wait(&socket).map_err(failed())?;
            consumer.counters.dropped.add(drops(&socket).map_err(failed())?);
        }
        block.for_each(|frame, length| consumer.packet(frame, length));
        consumer.publish();
        block.give_back();
    }
    Ok(())
}

/// A block, by the address of the ring and the block's index.
#[derive(Clone, Copy)]
struct Block(NonNull<u8>, usize);

impl Block {
    fn start(self) -> *mut u8 {
        // SAFETY: the index is below BLOCKS, and the mapping has BLOCKS blocks.
        unsafe { self.0.as_ptr().add(self.1 * BLOCK) }
    }

    /// The block's header, in version 1 of its format.
    fn header(self) -> *mut libc::tpacket_hdr_v1 {
        // SAFETY: a block begins with its description, and is longer.
        unsafe { &raw mut (*self.start().cast::<libc::tpacket_block_desc>()).hdr.bh1 }
    }

    fn status(&self) -> &AtomicU32 {
        // SAFETY: an aligned word of the mapping, which lives until the process ends; both sides use it atomically.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.header()).block_status) }
    }

    fn is_user_owned(&self) -> bool {
        self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    fn give_back(&self) {
        self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }

    /// Calls `each` with the bytes of each packet and its length on the wire.
    fn for_each(self, mut each: impl FnMut(&[u8], usize)) {
        // SAFETY: the caller owns the block, so the kernel does not write; it wrote the headers and offsets, all inside
        // the block, and the kernel is trusted.
        unsafe {
            let packets = (*self.header()).num_pkts;
            let mut at = self.start().add((*self.header()).offset_to_first_pkt as usize);
            for _ in 0..packets {
                let header = at.cast::<libc::tpacket3_hdr>();
                let data = at.add(usize::from((*header).tp_mac));
                each(
                    std::slice::from_raw_parts(data, (*header).tp_snaplen as usize),
                    (*header).tp_len as usize,
                );
                at = at.add((*header).tp_next_offset as usize);
            }
        }
    }
}

fn open(interface: &str) -> io::Result<(OwnedFd, NonNull<u8>)> {
    // SAFETY: the call takes integers. Without a protocol the socket receives nothing before it is bound.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: a new descriptor that nothing else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let name = CString::new(interface)?;
    // SAFETY: the string ends with NUL.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    set(&socket, libc::PACKET_VERSION, &libc::tpacket_versions::TPACKET_V3)?;
    set(&socket, libc::PACKET_IGNORE_OUTGOING, &1i32)?;
    // SAFETY: zeros are valid in a structure of integers.
    let mut membership: libc::packet_mreq = unsafe { zeroed() };
    (membership.mr_ifindex, membership.mr_type) = (index as i32, libc::PACKET_MR_PROMISC as u16);
    set(&socket, libc::PACKET_ADD_MEMBERSHIP, &membership)?;
    let frame = 2048;
    let request = libc::tpacket_req3 {
        tp_block_size: BLOCK as u32,
        tp_block_nr: BLOCKS as u32,
        tp_frame_size: frame,
        tp_frame_nr: (BLOCK * BLOCKS) as u32 / frame,
        tp_retire_blk_tov: RETIRE,
        tp_sizeof_priv: 0,
        tp_feature_req_word: 0,
    };
    set(&socket, libc::PACKET_RX_RING, &request)?;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the address of a new mapping, which nothing else uses.
    let ring = unsafe { mmap(null_mut(), BLOCK * BLOCKS, access, MapFlags::SHARED, &socket, 0) }?;
    let ring = NonNull::new(ring.cast()).ok_or_else(|| io::Error::other("the kernel mapped address 0"))?;
    // SAFETY: zeros are a valid address of integers.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    (address.sll_family, address.sll_protocol, address.sll_ifindex) =
        (libc::AF_PACKET as u16, (libc::ETH_P_ALL as u16).to_be(), index as i32);
    // SAFETY: the address outlives the call, and the size is right.
    check(unsafe {
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of::<libc::sockaddr_ll>() as u32)
    })?;
    Ok((socket, ring))
}

fn set<T>(socket: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    let (from, size) = ((&raw const *value).cast(), size_of::<T>() as u32);
    // SAFETY: the value outlives the call, and the size is right.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, from, size) }).map(drop)
}

/// Packets dropped since the last call.
fn drops(socket: &OwnedFd) -> io::Result<u64> {
    // SAFETY: zeros are valid in a structure of integers.
    let mut stats: libc::tpacket_stats_v3 = unsafe { zeroed() };
    let mut size = size_of_val(&stats) as u32;
    let into = (&raw mut stats).cast();
    // SAFETY: the kernel writes at most `size` bytes.
    let got = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS, into, &mut size)
    };
    check(got)?;
    Ok(stats.tp_drops.into())
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
