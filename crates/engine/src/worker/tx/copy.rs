// SPDX-License-Identifier: Apache-2.0
//! Copies packets: into another memory, for a trust group or device that cannot read the first, and within a memory,
//! for mirrors and floods. Nothing else in the engine copies packets between buffers. Counts copies between memories.
//!
//! Cost: a buffer, and reading and writing a cache line for every 64 bytes. `./dev bench copy` measures it.

use dpdk::{Batch, Mbuf};

use crate::drop_reason::DropReason;
use crate::ids::{MemoryId, PortId};
use crate::memory::Memory;
use crate::memory::mark;
use crate::worker::state::Datapath;

/// Replaces packets of `from` by copies in buffers of `to`, and frees the originals. Returns packets for which no
/// buffer was free or large enough.
pub(crate) fn copy_into(dp: &Datapath, to: MemoryId, from: MemoryId, batch: &mut Batch) -> Batch {
    let wanted = batch.len();
    let (Some(target), Some(source)) = (dp.memories.get(to), dp.memories.get(from)) else {
        return core::mem::take(batch);
    };
    let mut buffers = Batch::new();
    target.pool.alloc_into(&mut buffers, wanted);
    let mut bytes = 0;
    let is_followed = dp.recorder.is_some() || dp.latency.is_among(batch.raw());
    let lost = batch.partition(|mbuf| {
        let copy =
            buffers.pop().and_then(|mut copy| copy_one(source, mbuf, target, &mut copy).then_some(copy));
        let Some(copy) = copy else { return false };
        if is_followed {
            follow(dp, mbuf, &copy);
        }
        bytes += u64::from(copy.data_len());
        *mbuf = copy;
        true
    });
    dp.counters.copies.add(batch.len() as u64);
    dp.counters.copied_bytes.add(bytes);
    lost
}

/// Follows a copy in place of the packet.
#[cold]
fn follow(dp: &Datapath, packet: &Mbuf, copy: &Mbuf) {
    dp.latency.copied(packet, copy);
    if let Some(recorder) = &dp.recorder {
        recorder.replaced(packet.as_ptr(), copy);
    }
}

/// Copies packets within their memory, for an additional port. If no buffer is free, counts a drop of that port.
pub(crate) fn copies_for(dp: &Datapath, port: PortId, memory: MemoryId, packets: &[Mbuf]) -> Batch {
    let (copies, missing) = copy_each(dp, port, memory, packets);
    if let Some(recorder) = &dp.recorder {
        let mut made = copies.as_slice().iter();
        for (n, packet) in packets.iter().enumerate() {
            let copy = if missing >> n & 1 == 0 { made.next() } else { None };
            recorder.copied(packet, copy);
        }
    }
    copies
}

/// The copies, and a bit for each packet that has none.
fn copy_each(dp: &Datapath, port: PortId, memory: MemoryId, packets: &[Mbuf]) -> (Batch, u64) {
    let mut copies = Batch::new();
    let mut missing = 0u64;
    let cx = dp.port_context(port);
    let mut keep = |packet: &Mbuf, copy: Option<Mbuf>| match copy {
        Some(copy) => copies.add(copy),
        None => {
            missing |= 1 << (copies.len() + missing.count_ones() as usize);
            cx.note_drop(DropReason::NoBuffer, packet);
        }
    };
    let Some(memory) = dp.memories.get(memory) else {
        packets.iter().for_each(|packet| keep(packet, None));
        return (copies, missing);
    };
    if dp.ports.has_offload_work && !packets.iter().all(Mbuf::is_plain) {
        packets.iter().for_each(|packet| keep(packet, memory.pool.copy_of(packet)));
        return (copies, missing);
    }
    let mut buffers = Batch::new();
    memory.pool.alloc_into(&mut buffers, packets.len());
    for packet in packets {
        let copy = buffers.pop();
        let copied = copy.and_then(|mut copy| copy_one(memory, packet, memory, &mut copy).then_some(copy));
        keep(packet, copied);
    }
    (copies, missing)
}

/// Copies one packet. Returns whether it fits.
fn copy_one(source: &Memory, from: &Mbuf, target: &Memory, to: &mut Mbuf) -> bool {
    let length = from.data_len();
    if to.set_bounds(target.region().geometry().headroom as u16, length).is_err() {
        return false;
    }
    to.set_port(from.port());
    to.set_user_data(from.user_data());
    mark::copy(from, to);
    // SAFETY: the engine owns both packets, and `length` bytes lie in the buffer of each. NFs of the source's group may
    // write to the source at the same time; then the copy is as inconsistent as the packet.
    unsafe { core::ptr::copy_nonoverlapping(from.data(), to.data(), usize::from(length)) };
    target.set_stamp(to, source.stamp(from));
    true
}
