// SPDX-License-Identifier: Apache-2.0
//! The control side of an interface: what opens it, and what the manager asks of an open one.

mod kernel_interface;
mod problem;
mod reported;

use std::sync::Arc;

use netvm_model::PortConfig;
use netvm_vnet::LinkEvent;

use super::device::Device;
use crate::ids::WorkerId;
use crate::kept::InterfaceStore;
use crate::kernel_flows::{FastEnd, KernelFlows};
use crate::memory::Memory;
pub use kernel_interface::{InterfaceState, InterfaceView};
pub(super) use kernel_interface::{KernelInterface, has_device, mtu};
pub(crate) use kernel_interface::{closed_interface, device_node};
pub use problem::{OpenError, OpenProblem};
pub(super) use reported::Reported;

/// The control side of an open port. The defaults are right for a port without a device.
pub(crate) trait Control: Send {
    /// Whether its link is up, if the device reports it.
    fn link(&self) -> Option<bool> {
        None
    }

    /// Its kernel interface, for kinds that have one.
    fn interface(&self) -> Option<InterfaceView> {
        None
    }

    /// Follows the MTU and the offloads of its kernel interface, and the interface's end. Returns the new name of its
    /// driver, if that has changed.
    fn follow_interface(&mut self, _interface: &InterfaceView) -> Option<String> {
        None
    }

    /// Gives its kernel interface addresses and routes again, if it came up.
    fn restore_addresses(&mut self, _links: &[LinkEvent]) {}

    /// The fault that stopped the port, or that its interface has.
    fn fault(&self) -> Option<String> {
        None
    }

    /// A fault of its guest or its capture since the last call.
    fn new_fault(&mut self) -> Option<String> {
        None
    }

    /// The container's end, if the port has a fast path.
    fn fast_end(&self) -> Option<FastEnd> {
        None
    }

    /// Problems that do not stop the port.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Packets that its device dropped before a worker saw them, since it was opened.
    fn missed(&self) -> u64 {
        0
    }

    /// Packets that the kernel dropped after the port had sent them, since it was opened.
    fn refused(&self) -> u64 {
        0
    }

    /// Whether it has read its capture to the end; `None` if it reads none.
    fn is_done(&self) -> Option<bool> {
        None
    }

    /// Copies to its guest by a DMA device.
    fn copies(&self) -> Option<dpdk::DmaChannelStats> {
        None
    }

    /// Requests and interrupts of its guest's e1000 card.
    fn card(&self) -> Option<netvm_e1000::Counts> {
        None
    }

    /// Makes a memory usable for packets to send.
    fn register_memory(&self, _memory: &Memory) -> Result<(), OpenProblem> {
        Ok(())
    }

    /// A queue for a worker that was added, if it has one on each worker.
    fn further_queue(&self) -> Option<Box<dyn Device>> {
        None
    }

    /// Keeps its interface for the next netvmd again, after the process has ended that did.
    fn keep_again(&mut self, _store: &InterfaceStore) {}

    /// Closes a port for good, after all workers have returned its queues. Returns a fault that was not reported yet.
    fn close(self: Box<Self>) -> Option<String> {
        None
    }
}

/// The control side of a port without a device, and without anything that can fail.
pub(super) struct NoDevice;

impl Control for NoDevice {}

/// How a port is driven.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortMode {
    /// For example `net_null` or `AF_XDP native zero-copy`.
    pub(crate) driver: String,
    /// The preferred mode and why it failed, if this is a fallback.
    pub(crate) fallback: Option<String>,
}

impl PortMode {
    pub(super) const fn of(driver: String, fallback: Option<String>) -> Self {
        Self { driver, fallback }
    }
}

impl From<&str> for PortMode {
    fn from(driver: &str) -> Self {
        driver.to_owned().into()
    }
}

impl From<String> for PortMode {
    fn from(driver: String) -> Self {
        Self { driver, fallback: None }
    }
}

/// Device queues of one port, each with its worker.
pub(crate) type Queues = Vec<(WorkerId, Box<dyn Device>)>;

/// A port that is about to open.
pub(crate) struct Opening<'a> {
    pub(crate) eal: dpdk::Eal,
    pub(crate) config: &'a PortConfig,
    /// By worker: the memory into which it receives. There is at least one worker; empty for a port without queues.
    pub(crate) memories: Vec<Arc<Memory>>,
    /// By queue: its worker. Empty: a queue for each worker.
    pub(crate) workers: Vec<WorkerId>,
    /// For ports with a fast path.
    pub(crate) kernel_flows: &'a KernelFlows,
    /// Keeps interfaces for the next netvmd.
    pub(crate) store: &'a InterfaceStore,
}

impl Opening<'_> {
    /// The worker of a queue, and the memory into which it receives.
    pub(crate) fn queue(&self, n: usize) -> (WorkerId, &Arc<Memory>) {
        let each = || WorkerId((n % self.memories.len()) as u8);
        let worker = self.workers.get(n % self.workers.len().max(1)).copied().unwrap_or_else(each);
        (worker, &self.memories[worker.index()])
    }

    /// The configured number of queues.
    pub(super) fn queues(&self) -> u16 {
        self.config.queues.max(1)
    }

    /// Refuses several queues for a kind that has one.
    pub(super) fn check_one_queue(&self) -> Result<(), OpenProblem> {
        match self.config.queues {
            0 | 1 => Ok(()),
            wanted => Err(OpenProblem::OneQueue { wanted }),
        }
    }
}

/// What a kind has opened.
pub(crate) struct Opened {
    pub(crate) queues: Queues,
    pub(crate) mode: PortMode,
    pub(crate) control: Box<dyn Control>,
}

impl Opened {
    pub(super) fn new(queues: Queues, mode: impl Into<PortMode>, control: impl Control + 'static) -> Self {
        Self { queues, mode: mode.into(), control: Box::new(control) }
    }

    /// Of a kind without a device.
    pub(super) fn without_device(mode: &str) -> Self {
        Self::new(Queues::new(), mode, NoDevice)
    }

    /// With one queue, which the first worker gets.
    pub(super) fn of_one(
        opening: &Opening<'_>,
        device: impl Device + 'static,
        mode: impl Into<PortMode>,
        control: impl Control + 'static,
    ) -> Self {
        let queues: Queues = vec![(opening.queue(0).0, Box::new(device))];
        Self::new(queues, mode, control)
    }
}
