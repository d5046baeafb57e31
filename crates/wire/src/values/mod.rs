// SPDX-License-Identifier: Apache-2.0
//! Values of header fields, with their text forms.

/// Defines the named values of a number, and the table of their names.
macro_rules! named_values {
    ($type:ident { $($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)* }) => {
        impl $type {
            $($(#[$doc])* pub const $name: Self = Self($number);)*

            const NAMES: &[(Self, &str)] = &[$((Self::$name, $text)),*];

            fn name(self) -> Option<&'static str> {
                Self::NAMES.iter().find(|(value, _)| *value == self).map(|(_, name)| *name)
            }

            fn from_name(text: &str) -> Option<Self> {
                Self::NAMES.iter().find(|(_, name)| name.eq_ignore_ascii_case(text)).map(|(value, _)| *value)
            }
        }
    };
}

/// Formats values for debugging as for display.
macro_rules! debug_as_display {
    ($($type:ty),*) => {$(
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    )*};
}

mod address;
mod ether;
mod net;
mod port_range;
mod proto;

pub use address::Address;
pub use ether::{EtherType, InvalidVlanId, MacAddr, ParseEtherTypeError, ParseMacError, VlanId};
pub use net::{IpNet, Ipv4Net, Ipv6Net, NetError};
pub use port_range::{ParsePortRangeError, PortRange};
pub use proto::{IpProto, ParseIpProtoError, TcpFlags};

debug_as_display!(Address, EtherType, IpNet, IpProto, Ipv4Net, Ipv6Net, MacAddr);
