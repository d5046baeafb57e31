// SPDX-License-Identifier: Apache-2.0
//! Errors of ports.

use crate::DmaError;
use crate::log::{quoted, reason};

/// A port cannot be opened, or refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// An invalid device argument.
    #[error("{device}: {text:?} is not valid as a device argument")]
    Name {
        /// The port.
        device: String,
        /// The invalid text.
        text: String,
    },
    /// An unsupported number of queues.
    #[error("{device}: {rx} receive and {tx} transmit queues; {rule}")]
    Queues {
        /// The port.
        device: String,
        /// Receive queues asked for.
        rx: u16,
        /// Transmit queues asked for.
        tx: u16,
        /// The rule that it breaks.
        rule: String,
    },
    /// Several receive queues on a device that does not spread packets over them.
    #[error("{device}: driver {driver} has no RSS to spread packets over {queues} receive queues; use one")]
    NoRss {
        /// The port.
        device: String,
        /// Its driver.
        driver: String,
        /// The number requested.
        queues: u16,
    },
    /// Frames longer than buffers.
    #[error(
        "{device}: frames of {frame} bytes do not fit into buffers with room for {room}: configure larger buffers or a smaller MTU"
    )]
    FrameTooLong {
        /// The port.
        device: String,
        /// Bytes of the longest frame.
        frame: u32,
        /// Bytes that a buffer has for a frame.
        room: u32,
    },
    /// The device uses less of a buffer than its room.
    #[error(
        "{device}: driver {driver} would split packets over buffers, because it rounds their room of {room} bytes down: \
         configure buffers of 128 bytes more than a power of two (2176 for an MTU of 1500)"
    )]
    Splits {
        /// The port.
        device: String,
        /// Its driver.
        driver: String,
        /// Bytes that a buffer has for a frame.
        room: u32,
    },
    /// A PCI device, but the EAL was started without PCI.
    #[error("{device}: DPDK was started without PCI: enable PCI before the first port is opened")]
    PciOff {
        /// The port.
        device: String,
    },
    /// The device cannot be attached.
    #[error("{device}: cannot be attached: {}{}; {remedy}", reason(*.errno), quoted(.log))]
    Attach {
        /// The port.
        device: String,
        /// The error number.
        errno: i32,
        /// What DPDK logged.
        log: String,
        /// What may help.
        remedy: &'static str,
    },
    /// The device cannot reach the packets.
    #[error("{device}: {error}")]
    Dma {
        /// The port.
        device: String,
        /// Why.
        error: DmaError,
    },
    /// The driver refused.
    #[error("{device}: cannot {what}: {}{}", reason(*.errno), quoted(.log))]
    Refused {
        /// The port.
        device: String,
        /// The step that failed.
        what: &'static str,
        /// The error number.
        errno: i32,
        /// What DPDK logged.
        log: String,
    },
}
