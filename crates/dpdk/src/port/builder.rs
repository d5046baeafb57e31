// SPDX-License-Identifier: Apache-2.0
//! Opens a port: attaches the device, configures it, sets up its queues and starts it. If a step fails, the earlier
//! ones are undone.

use std::ffi::CString;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dpdk_sys as sys;

use super::{Inner, PortError, PortInfo};
use crate::inherit::Opened;
use crate::log::{Control, c_string};
use crate::{Device, Eal, Pool, Port, PortNumber, QueueId, RxQueue, TxQueue};

/// Bytes of a frame in addition to the MTU: addresses, type and a VLAN tag. Drivers strip the FCS.
const FRAME_OVERHEAD: u32 = 18;

/// A started port, with the handles of its queues in order.
#[derive(Debug)]
pub struct Started {
    /// The control side.
    pub port: Port,
    /// Its receive queues.
    pub rx: Vec<RxQueue>,
    /// Its transmit queues.
    pub tx: Vec<TxQueue>,
}

/// How a port is opened.
///
/// ```
/// use std::sync::Arc;
/// use dpdk::{
///     Batch, BufferLayout, Device, Eal, EalOptions, HeapMemory, HugePages, Pool, PoolBuffers, PoolOptions,
///     PortBuilder,
/// };
///
/// let eal = Eal::init(&EalOptions { huge_pages: HugePages::Off, ..EalOptions::default() })?;
/// let layout = BufferLayout { first: 0, stride: 2048, buffers: 1024, headroom: 128 };
/// let memory = Arc::new(HeapMemory::new(1024 * 2048).ok_or("no memory")?);
/// let pool = Arc::new(Pool::over_region(eal, "example", PoolBuffers { memory, layout }, PoolOptions::default())?);
///
/// let device = Device::Null { packet_bytes: 64, copy: false, receive: true };
/// let mut null = PortBuilder::new(device).start(eal, &pool)?;
/// let mut batch = Batch::new();
/// let received = null.rx[0].burst(&mut batch);
/// assert_eq!(null.tx[0].burst(&mut batch), received);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "it opens nothing until it is started"]
pub struct PortBuilder {
    device: Device,
    rx_queues: u16,
    tx_queues: u16,
    rx_descriptors: u16,
    tx_descriptors: u16,
    mtu: Option<u16>,
    promiscuous: bool,
    symmetric_rss: bool,
}

impl PortBuilder {
    /// One receive and one transmit queue of 512 descriptors, the device's own MTU, not promiscuous.
    pub fn new(device: Device) -> Self {
        Self {
            device,
            rx_queues: 1,
            tx_queues: 1,
            rx_descriptors: 512,
            tx_descriptors: 512,
            mtu: None,
            promiscuous: false,
            symmetric_rss: false,
        }
    }

    /// Numbers of queues.
    pub const fn queues(mut self, rx: u16, tx: u16) -> Self {
        self.rx_queues = rx;
        self.tx_queues = tx;
        self
    }

    /// Descriptors of a queue, adjusted to the device's limits. A NIC takes this many packets from the pool.
    pub const fn descriptors(mut self, rx: u16, tx: u16) -> Self {
        self.rx_descriptors = rx;
        self.tx_descriptors = tx;
        self
    }

    /// Sets the MTU, in bytes of the packet without its Ethernet header.
    pub const fn mtu(mut self, bytes: u16) -> Self {
        self.mtu = Some(bytes);
        self
    }

    /// Receives packets for other Ethernet addresses, too. Virtual devices without address filters always do.
    pub const fn promiscuous(mut self, on: bool) -> Self {
        self.promiscuous = on;
        self
    }

    /// With RSS over several receive queues, delivers both directions of a flow to one queue.
    pub const fn symmetric_rss(mut self, on: bool) -> Self {
        self.symmetric_rss = on;
        self
    }

    /// Opens the port, to receive into `pool`, and starts it.
    ///
    /// Virtual devices look for interfaces in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`PortError`] names the device, the step that failed and the reason. All earlier steps are undone.
    pub fn start(self, eal: Eal, pool: &Arc<Pool>) -> Result<Started, PortError> {
        let room = pool.layout().room();
        self.check(eal, room)?;
        let mut inner = self.attach(pool)?;
        let info = inner.info()?;
        self.check_queues(&info)?;
        self.configure(&inner, &info)?;
        if matches!(self.device, Device::Pci { .. }) {
            inner.enable_dma(&info.driver)?;
        }
        self.set_up_queues(&inner)?;
        // SAFETY: the port is open and configured, with all its queues set up.
        inner.step("start", |port| unsafe { sys::rte_eth_dev_start(port) })?;
        self.after_start(&inner, &info, room)?;

        let inner = Arc::new(inner);
        let rx = |id| RxQueue::new(Arc::clone(&inner), QueueId(id));
        let rx = (0..self.rx_queues).map(rx).collect();
        let tx = (0..self.tx_queues).map(|id| TxQueue::new(Arc::clone(&inner), QueueId(id))).collect();
        Ok(Started { port: Port::new(inner), rx, tx })
    }

    fn name(&self) -> String {
        self.device.to_string()
    }

    /// Checks that need no open device.
    fn check(&self, eal: Eal, room: u32) -> Result<(), PortError> {
        if self.rx_queues == 0 && self.tx_queues == 0 {
            return Err(self.queues_error("configure at least one"));
        }
        if matches!(self.device, Device::Pci { .. }) && !eal.pci() {
            return Err(PortError::PciOff { device: self.name() });
        }
        let by_mtu = || u32::from(self.mtu.unwrap_or(1500)) + FRAME_OVERHEAD;
        let frame = self.device.made_bytes().unwrap_or_else(by_mtu);
        if frame > room {
            return Err(PortError::FrameTooLong { device: self.name(), frame, room });
        }
        Ok(())
    }

    fn queues_error(&self, rule: impl Into<String>) -> PortError {
        PortError::Queues { device: self.name(), rx: self.rx_queues, tx: self.tx_queues, rule: rule.into() }
    }

    /// Makes DPDK probe the device.
    fn attach(&self, pool: &Arc<Pool>) -> Result<Inner, PortError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);

        let name = self.device.name(NEXT.fetch_add(1, Ordering::Relaxed));
        let arguments = self.device.arguments();
        let whole = if arguments.is_empty() { name.clone() } else { format!("{name},{arguments}") };
        let c = |text: &str| -> Result<CString, PortError> {
            c_string(text).map_err(|_| PortError::Name { device: self.name(), text: text.to_owned() })
        };
        let (whole, name) = (c(&whole)?, c(&name)?);

        let control = Control::enter();
        let _opened = Opened::from_here();
        let mut number = 0;
        // SAFETY: NUL-terminated strings; `control` excludes concurrent probes.
        let error = unsafe {
            match sys::rte_dev_probe(whole.as_ptr()) {
                0 => sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &raw mut number),
                error => error,
            }
        };
        if error != 0 {
            let remedy = match &self.device {
                Device::Pci { address, .. } if !address.is_present() => {
                    "this machine has no such device now: `lspci -D` lists those that it has"
                }
                Device::Pci { .. } => {
                    "is it bound to vfio-pci (dpdk-devbind.py -s), and its driver installed?"
                }
                _ if error == -libc::EPERM || error == -libc::EACCES => "run as root",
                _ => "is the driver's package (librte-net-...) installed, and are its arguments right?",
            };
            let (device, log) = (self.name(), control.log());
            return Err(PortError::Attach { device, errno: -error, log, remedy });
        }
        Ok(Inner::new(PortNumber(number), self.name(), Arc::clone(pool)))
    }

    fn check_queues(&self, info: &PortInfo) -> Result<(), PortError> {
        let PortInfo { max_rx_queues: rx, max_tx_queues: tx, .. } = *info;
        if self.rx_queues > rx || self.tx_queues > tx {
            return Err(self.queues_error(format!("it has at most {rx} and {tx}")));
        }
        if self.rx_queues > 1 && !info.rss {
            let (device, driver) = (self.name(), info.driver.clone());
            return Err(PortError::NoRss { device, driver, queues: self.rx_queues });
        }
        Ok(())
    }

    fn configure(&self, inner: &Inner, info: &PortInfo) -> Result<(), PortError> {
        let config = sys::netvm_port_config {
            rx_queues: self.rx_queues,
            tx_queues: self.tx_queues,
            mtu: self.mtu.unwrap_or(0),
            rss: u8::from(self.rx_queues > 1 && info.rss),
            rss_symmetric: u8::from(self.symmetric_rss),
        };
        inner.step("be configured", |port| {
            // SAFETY: `config` is read during the call; the port is open and stopped.
            unsafe { sys::netvm_port_configure(port, &raw const config) }
        })
    }

    fn set_up_queues(&self, inner: &Inner) -> Result<(), PortError> {
        let (mut rx, mut tx) = (self.rx_descriptors, self.tx_descriptors);
        inner.step("adjust its numbers of descriptors", |port| {
            // SAFETY: writes to both numbers; the port is open.
            unsafe { sys::rte_eth_dev_adjust_nb_rx_tx_desc(port, &raw mut rx, &raw mut tx) }
        })?;
        // DPDK takes -1 for any node, as an unsigned number.
        let any_node = u32::MAX;
        for queue in 0..self.rx_queues {
            inner.step("set up a receive queue", |port| {
                let pool = inner.pool().mempool();
                // SAFETY: the port is configured with this queue; the pool outlives the port, which holds it.
                unsafe { sys::rte_eth_rx_queue_setup(port, queue, rx, any_node, ptr::null(), pool) }
            })?;
        }
        for queue in 0..self.tx_queues {
            inner.step("set up a transmit queue", |port| {
                // SAFETY: the port is configured with this queue.
                unsafe { sys::rte_eth_tx_queue_setup(port, queue, tx, any_node, ptr::null()) }
            })?;
        }
        Ok(())
    }

    fn after_start(&self, inner: &Inner, info: &PortInfo, room: u32) -> Result<(), PortError> {
        // Registers of some NICs (e1000, igb, ixgbe) hold a buffer's size in KiB, or as a power of two.
        // SAFETY: the port is open.
        if self.rx_queues > 0 && unsafe { sys::netvm_port_scatters(inner.number().0) } != 0 {
            return Err(PortError::Splits { device: self.name(), driver: info.driver.clone(), room });
        }
        if self.promiscuous {
            match inner.set_promiscuous(true) {
                Err(PortError::Refused { errno: libc::ENOTSUP, .. })
                    if matches!(self.device, Device::Null { .. } | Device::Vdev { .. }) => {}
                result => result?,
            }
        }
        Ok(())
    }
}
