// SPDX-License-Identifier: Apache-2.0
//! The status of a port, and why peers were refused or disconnected.

use netvm_guest_memory::FileError;

use crate::protocol::{ChannelError, VERSION};

/// Why a peer was refused or disconnected, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It speaks another version of the protocol.
    #[error(
        "it speaks memif {}.{} to {}.{}, netvm speaks {}.{}: use DPDK 19.08, VPP 18.10, libmemif 3 or later",
        .min >> 8, .min & 0xff, .max >> 8, .max & 0xff, VERSION >> 8, VERSION & 0xff
    )]
    Version {
        /// The oldest that it speaks: major and minor.
        min: u16,
        /// The newest.
        max: u16,
    },
    /// It wants another interface.
    #[error("it asks for interface {asked}, and the port is interface {own}: give both sides the same `id`")]
    Id {
        /// The one that it wants.
        asked: u32,
        /// This one.
        own: u32,
    },
    /// It does not want Ethernet frames.
    #[error("it asks for IP packets without Ethernet headers (mode {0}): set its mode to ethernet")]
    Mode(u8),
    /// It does not know the secret.
    #[error("its secret is missing or wrong: give both sides the same `secret`")]
    Secret,
    /// Its rings are too large.
    #[error(
        "a ring of it has 2^{log2} descriptors, and the port allows 2^{most}: raise `ring_size`, or lower its own"
    )]
    RingSize {
        /// Its size.
        log2: u8,
        /// The largest.
        most: u8,
    },
    /// It has more rings in one direction than the port has queues.
    #[error("it has more than {0} rings in one direction: raise `queues`, or lower its number of queues")]
    Rings(u16),
    /// Its memory may fail when it is accessed.
    #[error(
        "it shares {0}, not a memfd of ordinary pages that is sealed against shrinking: switch its zero-copy mode off \
         (DPDK: zero-copy=no, VPP: no-zero-copy)"
    )]
    Memory(#[from] FileError),
    /// A file is shorter than its region.
    #[error("it shares a file that is shorter than it says")]
    Short,
    /// Memory cannot be mapped or made.
    #[error(
        "netvm has no memory or address space for {0} bytes of packets: lower `ring_size` or the number of queues"
    )]
    NoMemory(u64),
    /// It passed a descriptor of the wrong kind.
    #[error("the descriptor of an interrupt is not an eventfd")]
    NotAnEventfd,
    /// It violates the protocol.
    #[error("it violates the protocol: {0}")]
    Protocol(&'static str),
    /// It broke a rule of the rings.
    #[error("it wrote an index or a descriptor into a ring that leads out of the memory which it shares")]
    Ring,
    /// It did not answer.
    #[error("it was silent for a second before it was connected")]
    Silent,
    /// It has ended the connection, with a reason.
    #[error("it ended the connection: {0:?}")]
    Refused(String),
    /// No descriptor or memory is free.
    #[error("netvm has no file descriptor for it: raise the limit of open files")]
    NoFiles,
}

impl From<&'static str> for Fault {
    fn from(what: &'static str) -> Self {
        Self::Protocol(what)
    }
}

/// Why a connection ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The peer has gone.
    Gone,
    /// A rule was broken.
    Fault(Fault),
}

impl From<Fault> for End {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<ChannelError> for End {
    fn from(error: ChannelError) -> Self {
        match error {
            ChannelError::Gone => Self::Gone,
            ChannelError::NoMessage(what) => Self::Fault(Fault::Protocol(what)),
        }
    }
}

/// State of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// A peer is connected, and packets pass.
    pub is_connected: bool,
    /// How many peers have been.
    pub connections: u32,
    /// Why the last peer was refused or disconnected; `None` again when one is connected.
    pub fault: Option<Fault>,
    /// Faults so far, without those that repeat.
    pub faults: u32,
    /// Why a client cannot reach its server.
    pub unreachable: Option<String>,
}

impl Status {
    pub(crate) fn note_fault(&mut self, fault: Fault) {
        if self.fault.as_ref() != Some(&fault) {
            self.faults = self.faults.wrapping_add(1);
        }
        self.fault = Some(fault);
    }
}
