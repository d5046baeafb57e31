//! The ports of the switch: all in one VLAN.

use netvm_config::model::Host;
use netvm_wire::MacAddr;

use crate::ids::PortId;
use crate::snapshot::PortBits;

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forward {
    /// To one port.
    Port(PortId),
    /// To all but the one that it came in by.
    Flood,
    /// Nowhere: it is where it belongs.
    Filter,
}

/// All ports of the host.
#[derive(Clone, Debug)]
pub(crate) struct Bridge {
    ports: PortBits,
}

impl Bridge {
    pub(super) fn new(host: &Host) -> Self {
        let mut ports = PortBits::default();
        host.ports.iter().for_each(|port| ports.add(port.id));
        Self { ports }
    }

    /// Where a frame to `destination` goes that came in by `from`; `known` is the port behind which that address is.
    pub(crate) fn forward(&self, from: PortId, destination: MacAddr, known: Option<u16>) -> Forward {
        // Bridges do not forward what is for them alone (IEEE 802.1Q table 8-1).
        if destination.octets()[..5] == [0x01, 0x80, 0xc2, 0, 0] && destination.octets()[5] < 0x10 {
            return Forward::Filter;
        }
        match known.map(PortId).filter(|_| !destination.is_multicast()) {
            Some(out) if out == from => Forward::Filter,
            Some(out) if self.ports.has(out) => Forward::Port(out),
            _ => Forward::Flood,
        }
    }

    /// The ports that a flooded frame goes to.
    pub(crate) fn flood(&self, from: PortId) -> impl Iterator<Item = PortId> + '_ {
        (0..netvm_region::MAX_PORTS as u16)
            .map(PortId)
            .filter(move |port| *port != from && self.ports.has(*port))
    }
}
