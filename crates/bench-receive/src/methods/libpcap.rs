// SPDX-License-Identifier: Apache-2.0
//! libpcap: the packet socket that every capture program uses.

use pcap::{Capture, Error};

use super::af_xdp::wait;
use super::{BUFFER, Consumer, IDLE};
use crate::error::MethodError;
use crate::monitor::Monitor;

/// Packets after which the counters are published.
const BURST: u32 = 32;
/// Packets between two readings of the kernel's drop counter.
const STATS_EVERY: u32 = 4096;

pub(super) fn run<M: Monitor>(interface: &str, mut consumer: Consumer<'_, M>) -> Result<(), MethodError> {
    let failed = |source| MethodError::Pcap { interface: interface.to_owned(), source };
    let capture = Capture::from_device(interface)
        .map_err(failed)?
        .promisc(true)
        .buffer_size(BUFFER as i32)
        .timeout(IDLE.as_millis() as i32)
        .open()
        .map_err(failed)?;
    capture.direction(pcap::Direction::In).map_err(failed)?;
    // A blocking libpcap call would wait for a packet without a limit.
    let mut capture = capture.setnonblock().map_err(failed)?;
    consumer.counters.ready.set(1);
    let mut unchecked = 0;
    loop {
        match capture.next_packet() {
            Ok(packet) => {
                consumer.packet(packet.data, packet.header.len as usize);
                unchecked += 1;
                if unchecked % BURST == 0 {
                    consumer.publish();
                }
            }
            Err(Error::TimeoutExpired) => {
                consumer.publish();
                unchecked = STATS_EVERY;
                wait(&capture).map_err(MethodError::system("cannot wait for packets"))?;
            }
            Err(error) => return Err(failed(error)),
        }
        if unchecked >= STATS_EVERY {
            unchecked = 0;
            let stats = capture.stats().map_err(failed)?;
            consumer.counters.dropped.set(stats.dropped.into());
        }
    }
}
