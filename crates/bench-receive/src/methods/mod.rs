// SPDX-License-Identifier: Apache-2.0
//! The methods by which the program can receive packets, one file each.

mod af_xdp;
mod libpcap;
mod nf;
mod tpacket;
pub mod xdp;

use std::time::Duration;

use crate::counters::Counters;
use crate::error::MethodError;
use crate::monitor::Monitor;
use crate::options::Method;

/// Bytes of the kernel's receive buffer: libpcap's default. An AF_XDP socket has a ring of 2,048 packets instead.
const BUFFER: usize = 2 << 20;
/// How long to wait for a packet before looking at the kernel's counters.
const IDLE: Duration = Duration::from_millis(20);

/// Counts packets and gives them to a monitor.
#[derive(Debug)]
pub struct Consumer<'a, M> {
    counters: &'a Counters,
    monitor: M,
    /// Packets and bytes that are not in the counters yet.
    burst: (u64, u64),
}

impl<'a, M: Monitor> Consumer<'a, M> {
    /// A consumer.
    pub const fn new(counters: &'a Counters, monitor: M) -> Self {
        Self { counters, monitor, burst: (0, 0) }
    }

    /// Takes a packet of `length` bytes, of which `frame` holds the first.
    #[inline]
    fn packet(&mut self, frame: &[u8], length: usize) {
        self.monitor.packet(frame);
        self.burst.0 += 1;
        self.burst.1 += length as u64;
    }

    /// Publishes the counters after a burst.
    #[inline]
    fn publish(&mut self) {
        let (packets, bytes) = std::mem::take(&mut self.burst);
        self.counters.flows.set(self.monitor.commit());
        self.counters.bytes.add(bytes);
        self.counters.received.add(packets);
    }
}

/// Receives packets from an interface, or as an NF, until the process is killed or the engine ends.
///
/// # Errors
/// [`MethodError`] if the method cannot be opened, or the interface goes away.
pub fn run<M: Monitor>(
    method: Method,
    interface: &str,
    consumer: Consumer<'_, M>,
) -> Result<(), MethodError> {
    match method {
        Method::Libpcap => libpcap::run(interface, consumer),
        Method::TpacketV3 => tpacket::run(interface, consumer),
        Method::AfXdp => af_xdp::run(interface, consumer),
        Method::NetvmNf => nf::run(consumer),
        // The caller has no monitor for it.
        Method::Xdp => xdp::run(interface, false, consumer.counters),
    }
}
