//! DPDK ethdev ports: NICs, null.

use std::sync::Arc;

use dpdk::{Batch, RxQueue, TxQueue};

use super::device::{Device, Gathers, PortContext};
use crate::memory::Memory;

/// One queue pair of a DPDK port.
pub(crate) struct EthDevice {
    rx: RxQueue,
    tx: TxQueue,
    unsent: Batch,
    // Keeps the memory of the receive queue's mbufs.
    _memory: Arc<Memory>,
}

impl EthDevice {
    pub(crate) fn new(rx: RxQueue, tx: TxQueue, memory: Arc<Memory>) -> Self {
        Self { rx, tx, unsent: Batch::new(), _memory: memory }
    }
}

impl Gathers for EthDevice {
    #[inline]
    fn unsent(&mut self) -> &mut Batch {
        &mut self.unsent
    }
}

impl Device for EthDevice {
    #[inline]
    fn receive(&mut self, _memory: &Memory, out: &mut Batch, wanted: usize, _cx: &PortContext<'_>) {
        self.rx.burst_of(out, wanted);
    }

    #[inline]
    fn enqueue(&mut self, _memory: &Memory, batch: &mut Batch, cx: &PortContext<'_>) {
        self.gather(batch, cx);
    }

    #[inline]
    fn flush(&mut self, cx: &PortContext<'_>) -> usize {
        if self.unsent.is_empty() {
            return 0;
        }
        let bytes: u64 = self.unsent.as_slice().iter().map(|mbuf| u64::from(mbuf.data_len())).sum();
        let sent = self.tx.burst(&mut self.unsent);
        let left: u64 = if self.unsent.is_empty() {
            0
        } else {
            self.unsent.as_slice().iter().map(|mbuf| u64::from(mbuf.data_len())).sum()
        };
        cx.counters.tx_packets.add(sent as u64);
        cx.counters.tx_bytes.add(bytes - left);
        sent
    }

    fn is_flushed(&self) -> bool {
        self.unsent.is_empty()
    }
}
