// SPDX-License-Identifier: Apache-2.0
//! DPDK ethdev ports: NICs, null.

use std::sync::Arc;

use dpdk::{Batch, Port, PortBuilder, RxQueue, TxQueue};

use super::control::{Control, OpenProblem, Opened, Opening, Queues};
use super::device::{Device, PortContext, TxBuffered};
use crate::memory::Memory;

/// The control side of a NIC.
struct Nic(Port);

impl Control for Nic {
    fn link(&self) -> Option<bool> {
        Some(self.0.link().ok()?.up)
    }

    fn missed(&self) -> u64 {
        missed(&self.0)
    }

    /// Registers it for DMA.
    fn register_memory(&self, memory: &Memory) -> Result<(), OpenProblem> {
        Ok(self.0.add_pool(&memory.pool)?)
    }
}

/// The control side of DPDK's null device.
struct Null(Port);

impl Control for Null {
    fn missed(&self) -> u64 {
        missed(&self.0)
    }
}

/// Packets for which no descriptor was free in the device, or no mbuf in the pool.
fn missed(port: &Port) -> u64 {
    port.stats().map_or(0, |stats| stats.rx_missed.saturating_add(stats.rx_no_mbuf))
}

pub(super) fn open_nic(opening: &Opening<'_>, address: &str) -> Result<Opened, OpenProblem> {
    let device = dpdk::Device::Pci { address: address.parse()?, arguments: String::new() };
    let (port, queues) = start(opening, device)?;
    Ok(Opened::new(queues, "DPDK", Nic(port)))
}

pub(super) fn open_null(opening: &Opening<'_>, size: u16) -> Result<Opened, OpenProblem> {
    let device = dpdk::Device::Null { packet_bytes: size, copy: false, receive: true };
    let (port, queues) = start(opening, device)?;
    Ok(Opened::new(queues, "DPDK net_null", Null(port)))
}

fn start(opening: &Opening<'_>, device: dpdk::Device) -> Result<(Port, Queues), OpenProblem> {
    let builder = PortBuilder::new(device)
        .queues(opening.queues(), opening.queues())
        .mtu(opening.config.mtu)
        .promiscuous(true)
        .symmetric_rss(true);
    // The placement puts all of them on one node.
    let (_, memory) = opening.queue(0);
    let started = builder.start(opening.eal, &memory.pool)?;
    let mut queues = Queues::new();
    for (n, (rx, tx)) in started.rx.into_iter().zip(started.tx).enumerate() {
        let (worker, _) = opening.queue(n);
        queues.push((worker, Box::new(EthDevice::new(rx, tx, Arc::clone(memory)))));
    }
    Ok((started.port, queues))
}

/// One queue pair of a DPDK port.
struct EthDevice {
    rx: RxQueue,
    tx: TxQueue,
    unsent: Batch,
    // Keeps the memory of the receive queue's mbufs.
    _memory: Arc<Memory>,
}

impl EthDevice {
    fn new(rx: RxQueue, tx: TxQueue, memory: Arc<Memory>) -> Self {
        Self { rx, tx, unsent: Batch::new(), _memory: memory }
    }
}

impl TxBuffered for EthDevice {
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
        self.buffer_tx(batch, cx);
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

    fn drop_unsent(&mut self, cx: &PortContext<'_>) {
        self.drop_gathered(cx);
    }
}
