// SPDX-License-Identifier: Apache-2.0
//! Devices that a port can be opened on, and their names and arguments in DPDK.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::str::FromStr;

use crate::NumaNode;

/// Where a device is on the PCI bus: `0000:01:00.0`, or `01:00.0` in the first domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

/// Not a PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a PCI address such as 0000:01:00.0 (lspci -D lists them)")]
pub struct PciAddressError(pub String);

impl PciAddress {
    /// The device's folder, which is there while Linux has the device.
    fn folder(self) -> PathBuf {
        PathBuf::from(format!("/sys/bus/pci/devices/{self}"))
    }

    /// Whether Linux has a device there now.
    pub(crate) fn is_present(self) -> bool {
        self.folder().exists()
    }
}

impl FromStr for PciAddress {
    type Err = PciAddressError;

    fn from_str(text: &str) -> Result<Self, PciAddressError> {
        let parse = || {
            let (place, function) = text.split_once('.')?;
            let mut parts = place.rsplit(':');
            let (device, bus, domain) = (parts.next()?, parts.next()?, parts.next().unwrap_or("0"));
            let address = Self {
                domain: u32::from_str_radix(domain, 16).ok()?,
                bus: u8::from_str_radix(bus, 16).ok()?,
                device: u8::from_str_radix(device, 16).ok()?,
                function: u8::from_str_radix(function, 16).ok()?,
            };
            (parts.next().is_none() && address.device < 32 && address.function < 8).then_some(address)
        };
        parse().ok_or_else(|| PciAddressError(text.to_owned()))
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// A device that a port is opened on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// Receives generated packets at any rate, and drops packets to send (`net_null`).
    Null {
        /// Bytes of a received packet.
        packet_bytes: u16,
        /// Whether the driver copies the bytes of received and sent packets.
        copy: bool,
        /// Whether it receives at all.
        receive: bool,
    },
    /// Any of DPDK's virtual devices. netvm trusts the driver to stay within the packets' buffers.
    Vdev {
        /// The driver's name: `net_ring`.
        driver: String,
        /// The driver's arguments, separated by commas.
        arguments: String,
    },
    /// A NIC that is bound to a driver for user space (vfio-pci), or has one that shares it (mlx5).
    ///
    /// Many NICs round the room of a buffer down to a power of two: buffers of 2,176 bytes suffice for an MTU of 1,500.
    /// Without an IOMMU, the pool's memory must be in huge pages, and the buffer size must divide the page size
    /// (4,096).
    Pci {
        /// Where it is.
        address: PciAddress,
        /// The driver's arguments, separated by commas.
        arguments: String,
    },
}

impl Device {
    /// The NUMA node of the device, if Linux knows it; pools and workers are best there.
    ///
    /// ```
    /// let null = dpdk::Device::Null { packet_bytes: 64, copy: false, receive: true };
    /// assert_eq!(null.numa_node(), None);
    /// ```
    #[must_use]
    pub fn numa_node(&self) -> Option<NumaNode> {
        let path = match self {
            Self::Pci { address, .. } => address.folder().join("numa_node"),
            Self::Null { .. } | Self::Vdev { .. } => return None,
        };
        NumaNode::from_signed(fs::read_to_string(path).ok()?.trim().parse().ok()?)
    }

    /// Length of the packets that the device generates; its driver does not check that they fit into the buffers.
    pub(crate) fn made_bytes(&self) -> Option<u32> {
        match self {
            Self::Null { packet_bytes, .. } => Some(u32::from(*packet_bytes)),
            Self::Vdev { driver, arguments } if driver.starts_with("net_null") => {
                let size = arguments.split(',').find_map(|argument| argument.trim().strip_prefix("size="));
                // The driver's default is 64 bytes. It accepts numbers in other bases, which this refuses.
                Some(size.map_or(64, |size| size.parse().unwrap_or(u32::MAX)))
            }
            _ => None,
        }
    }

    /// DPDK's name for the device, unique by `number`.
    pub(crate) fn name(&self, number: u32) -> String {
        match self {
            Self::Null { .. } => format!("net_null{number}"),
            Self::Vdev { driver, .. } => format!("{driver}{number}"),
            Self::Pci { address, .. } => address.to_string(),
        }
    }

    /// The device's arguments.
    pub(crate) fn arguments(&self) -> String {
        match self {
            Self::Null { packet_bytes, copy, receive } => {
                format!("size={packet_bytes},copy={},no-rx={}", u8::from(*copy), u8::from(!receive))
            }
            Self::Vdev { arguments, .. } | Self::Pci { arguments, .. } => arguments.clone(),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null { .. } => write!(f, "null device"),
            Self::Vdev { driver, .. } => write!(f, "virtual device {driver}"),
            Self::Pci { address, .. } => write!(f, "PCI device {address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_are_read_in_both_forms() {
        assert_eq!("0000:01:00.0".parse::<PciAddress>().unwrap().to_string(), "0000:01:00.0");
        assert_eq!("c1:1f.7".parse::<PciAddress>().unwrap().to_string(), "0000:c1:1f.7");
        for wrong in ["", "01:00", "1:2:3:4.0", "0000:01:20.0", "0000:01:00.8", "eth0", "0000:01:00.0,x=1"] {
            assert!(wrong.parse::<PciAddress>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_length_of_null_packets_is_known() {
        let vdev = |arguments: &str| Device::Vdev { driver: "net_null".into(), arguments: arguments.into() };
        assert_eq!(vdev("copy=1,size=9000").made_bytes(), Some(9000));
        assert_eq!(vdev("copy=1").made_bytes(), Some(64));
        assert_eq!(vdev("size=0x40").made_bytes(), Some(u32::MAX));
        assert_eq!(Device::Vdev { driver: "net_ring".into(), arguments: String::new() }.made_bytes(), None);
    }
}
