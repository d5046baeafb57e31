// SPDX-License-Identifier: Apache-2.0
//! Ports: `builder.rs` opens a port, this file controls it, and `queue.rs` is its packet path.

mod builder;
mod device;
mod error;
mod queue;

use std::ffi::c_char;
use std::sync::{Arc, Mutex, PoisonError};

use dpdk_sys as sys;

use crate::inherit::Opened;
use crate::log::Control;
use crate::pool::DmaPort;
use crate::{NumaNode, Pool, PortNumber};
pub use builder::{PortBuilder, Started};
pub use device::{Device, PciAddress, PciAddressError};
pub use error::PortError;
pub use queue::{RxQueue, TxQueue};

/// A port's properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// The driver: `net_null`, `net_ice`.
    pub driver: String,
    /// The device's own Ethernet address.
    pub mac: [u8; 6],
    /// The NUMA node that the device is attached to, if DPDK knows.
    pub node: Option<NumaNode>,
    /// Most receive queues.
    pub max_rx_queues: u16,
    /// Most transmit queues.
    pub max_tx_queues: u16,
    /// Whether it can spread packets over receive queues by a hash of their addresses and ports (RSS).
    pub rss: bool,
}

/// State of a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Whether it carries packets.
    pub up: bool,
    /// Megabits per second; 0 if not known.
    pub megabits: u32,
    /// Whether both directions work at once.
    pub full_duplex: bool,
}

/// Counters of a port since it was started, as far as its driver supports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets that the device dropped because they were not received in time.
    pub rx_missed: u64,
    /// Packets that arrived damaged.
    pub rx_errors: u64,
    /// Receive failures because the pool was empty.
    pub rx_no_mbuf: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets that could not be sent.
    pub tx_errors: u64,
}

/// A running port. Clones refer to the same port, which closes when all of them and all its queues are dropped.
#[derive(Clone, Debug)]
pub struct Port {
    inner: Arc<Inner>,
}

impl Port {
    pub(crate) const fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// DPDK's number for it, which received packets carry ([`crate::Mbuf::port`]).
    #[must_use]
    pub fn number(&self) -> PortNumber {
        self.inner.number
    }

    /// A description of its device.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.inner.device
    }

    /// The pool that it receives into.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.inner.pool
    }

    /// Lets the device send packets of another pool. NICs read packets by DMA and need this before the first such
    /// packet; other devices send packets of any pool.
    ///
    /// The port keeps a reference to the pool.
    ///
    /// # Errors
    /// [`PortError::Dma`] if the device cannot reach the pool's memory: then do not send its packets.
    pub fn add_pool(&self, pool: &Arc<Pool>) -> Result<(), PortError> {
        self.inner.add_pool(pool)
    }

    /// Its properties.
    ///
    /// # Errors
    /// [`PortError::Refused`] if the device is gone.
    pub fn info(&self) -> Result<PortInfo, PortError> {
        self.inner.info()
    }

    /// State of its link; does not wait for a link that is coming up.
    ///
    /// # Errors
    /// [`PortError::Refused`] if the device is gone.
    pub fn link(&self) -> Result<Link, PortError> {
        let mut link = sys::netvm_link { megabits: 0, up: 0, full_duplex: 0 };
        self.inner.step("report its link", |port| {
            // SAFETY: writes to `link`; the port is open.
            unsafe { sys::netvm_port_link(port, &raw mut link) }
        })?;
        Ok(Link { up: link.up != 0, megabits: link.megabits, full_duplex: link.full_duplex != 0 })
    }

    /// Its counters. Does not stall its queues.
    ///
    /// # Errors
    /// [`PortError::Refused`] if the device is gone.
    pub fn stats(&self) -> Result<PortStats, PortError> {
        let mut now = sys::netvm_port_stats {
            rx_packets: 0,
            rx_bytes: 0,
            rx_missed: 0,
            rx_errors: 0,
            rx_no_mbuf: 0,
            tx_packets: 0,
            tx_bytes: 0,
            tx_errors: 0,
        };
        self.inner.step("report its statistics", |port| {
            // SAFETY: writes to `now`; the port is open.
            unsafe { sys::netvm_port_stats(port, &raw mut now) }
        })?;
        Ok(PortStats {
            rx_packets: now.rx_packets,
            rx_bytes: now.rx_bytes,
            rx_missed: now.rx_missed,
            rx_errors: now.rx_errors,
            rx_no_mbuf: now.rx_no_mbuf,
            tx_packets: now.tx_packets,
            tx_bytes: now.tx_bytes,
            tx_errors: now.tx_errors,
        })
    }

    /// Sets promiscuous mode: the port also receives packets for other Ethernet addresses.
    ///
    /// # Errors
    /// [`PortError::Refused`] if the device cannot.
    pub fn set_promiscuous(&self, on: bool) -> Result<(), PortError> {
        self.inner.set_promiscuous(on)
    }

    /// Whether the device has been unplugged. Then drop the queues and the port.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        // SAFETY: the port is open.
        unsafe { sys::rte_eth_dev_is_removed(self.inner.number.0) != 0 }
    }
}

/// An open port. Dropping it closes it, before the pools whose packets its queues hold.
#[derive(Debug)]
pub(crate) struct Inner {
    number: PortNumber,
    device: String,
    pool: Arc<Pool>,
    dma: Option<PortDma>,
}

/// The pools that a DMA-capable device can reach.
#[derive(Debug)]
struct PortDma {
    port: DmaPort,
    pools: Mutex<Vec<Arc<Pool>>>,
}

impl Inner {
    pub(crate) const fn new(number: PortNumber, device: String, pool: Arc<Pool>) -> Self {
        Self { number, device, pool, dma: None }
    }

    /// Maps the receive pool for the device, which is on the PCI bus.
    pub(crate) fn enable_dma(&mut self, driver: &str) -> Result<(), PortError> {
        // Drivers of NICs that the kernel also uses; they map memory through the kernel.
        let alone = ["mlx", "mana"].iter().any(|name| driver.contains(name));
        let port = DmaPort { number: self.number, alone };
        self.dma = Some(PortDma { port, pools: Mutex::default() });
        let pool = Arc::clone(&self.pool);
        self.add_pool(&pool)
    }

    fn add_pool(&self, pool: &Arc<Pool>) -> Result<(), PortError> {
        let Some(dma) = &self.dma else { return Ok(()) };
        let mut pools = dma.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if !pools.iter().any(|known| Arc::ptr_eq(known, pool)) {
            let mapped = pool.map_for(dma.port);
            mapped.map_err(|error| PortError::Dma { device: self.device.clone(), error })?;
            pools.push(Arc::clone(pool));
        }
        Ok(())
    }

    #[inline(always)]
    pub(crate) const fn number(&self) -> PortNumber {
        self.number
    }

    pub(crate) const fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Runs a DPDK call; the error names the step and the reason.
    pub(crate) fn step(&self, what: &'static str, call: impl FnOnce(u16) -> i32) -> Result<(), PortError> {
        let control = Control::enter();
        let _opened = Opened::from_here();
        match call(self.number.0) {
            0 => Ok(()),
            error => {
                let (device, errno) = (self.device.clone(), -error);
                Err(PortError::Refused { device, what, errno, log: control.log() })
            }
        }
    }

    pub(crate) fn set_promiscuous(&self, on: bool) -> Result<(), PortError> {
        self.step("be promiscuous", |port| match on {
            // SAFETY: the port is open.
            true => unsafe { sys::rte_eth_promiscuous_enable(port) },
            // SAFETY: as above.
            false => unsafe { sys::rte_eth_promiscuous_disable(port) },
        })
    }

    pub(crate) fn info(&self) -> Result<PortInfo, PortError> {
        let mut info = sys::netvm_port_info {
            driver: [0; 64],
            rss_offloads: 0,
            max_packet_bytes: 0,
            node: -1,
            max_rx_queues: 0,
            max_tx_queues: 0,
            min_mtu: 0,
            max_mtu: 0,
            mac: [0; 6],
            rss_key_bytes: 0,
        };
        self.step("report its properties", |port| {
            // SAFETY: writes to `info`; the port is open.
            unsafe { sys::netvm_port_info(port, &raw mut info) }
        })?;
        let name: Vec<u8> = info.driver.iter().map(|&c: &c_char| c as u8).take_while(|&c| c != 0).collect();
        Ok(PortInfo {
            driver: String::from_utf8_lossy(&name).into_owned(),
            mac: info.mac,
            node: NumaNode::from_signed(info.node),
            max_rx_queues: info.max_rx_queues,
            max_tx_queues: info.max_tx_queues,
            rss: info.rss_offloads != 0,
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let port = self.number.0;
        {
            let _control = Control::enter();
            // SAFETY: open until closed below; no queue is in use, as all of them hold this. A port that was never
            // started stays stopped.
            unsafe { sys::netvm_port_stop(port) };
        }
        if let Some(dma) = &mut self.dma {
            for pool in dma.pools.get_mut().unwrap_or_else(PoisonError::into_inner) {
                pool.unmap_for(dma.port);
            }
        }
        let _control = Control::enter();
        // SAFETY: as above. An error is ignored: the device may be unplugged.
        unsafe { sys::netvm_port_close(port) };
    }
}
