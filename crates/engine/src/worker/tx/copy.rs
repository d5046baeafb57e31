//! From one region to another: the only place where packets are copied, and counted.

use dpdk::{Batch, Mbuf};

use crate::ids::MemoryId;
use crate::memory::Memory;
use crate::worker::state::Path;

impl Path {
    /// Replaces packets of `from` by copies in buffers of `to`, and frees the originals; returns how many were lost because
    /// no buffer was free or none is long enough.
    pub(crate) fn copy_into(&mut self, to: MemoryId, from: MemoryId, batch: &mut Batch) -> usize {
        let wanted = batch.len();
        let (Some(target), Some(source)) = (self.memory(to), self.memory(from)) else {
            batch.clear();
            return wanted;
        };
        let mut buffers = Batch::new();
        let mut copies = Batch::new();
        target.pool.alloc_into(&mut buffers, wanted);
        let mut bytes = 0;
        for mbuf in batch.drain() {
            let Some(mut copy) = buffers.pop() else { continue };
            if copy_one(source, &mbuf, target, &mut copy) {
                bytes += u64::from(copy.data_len());
                let _ = copies.push(copy);
            }
        }
        self.counters.copies.add(copies.len() as u64);
        self.counters.copied_bytes.add(bytes);
        batch.append(&mut copies);
        wanted - batch.len()
    }
}

/// Whether the packet fitted.
pub(crate) fn copy_one(source: &Memory, from: &Mbuf, target: &Memory, to: &mut Mbuf) -> bool {
    let length = from.data_len();
    if to.set_bounds(target.region().geometry().headroom as u16, length).is_err() {
        return false;
    }
    to.set_port(from.port());
    to.set_note(from.note());
    // SAFETY: both packets are owned, lie in their buffers, and have this length. NFs of the source's group may write there
    // meanwhile: the copy is then as torn as the packet.
    unsafe { core::ptr::copy_nonoverlapping(from.data(), to.data(), usize::from(length)) };
    let (time, original) = source.stamp(from);
    target.set_stamp(to, time, original);
    true
}
