// SPDX-License-Identifier: Apache-2.0
//! Keys of the kinds of port, each with the form of its value. `netvm-config` reads and writes them by that list.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use netvm_ids::{PortId, RouterId};
use netvm_wire::{MacAddr, VlanId};

use super::guest::VhostDma;
use crate::router::InterfaceAddress;
use crate::words::{Words, words};

/// A key of a kind of port.
pub struct Key<'a> {
    /// Its name; of a form with two keys, the name of the first.
    pub name: &'static str,
    /// What to write, if it cannot be left out.
    pub help: Option<&'static str>,
    /// Its value.
    pub value: KeyValue<'a>,
}

impl<'a> Key<'a> {
    /// A key that can be left out.
    pub(super) const fn new(name: &'static str, value: KeyValue<'a>) -> Self {
        Self { name, help: None, value }
    }

    /// A key that cannot be left out; `help` tells what to write.
    pub(super) const fn required(name: &'static str, help: &'static str, value: KeyValue<'a>) -> Self {
        Self { name, help: Some(help), value }
    }

    /// The existing interface of a port.
    pub(super) const fn interface(name: &'a mut String) -> Self {
        let help = "name the interface, such as `interface = \"eth1\"` (see `ip link`)";
        Self::required("interface", help, KeyValue::Interface(name))
    }

    /// The socket by which a port is connected to a guest.
    pub(super) const fn socket(path: &'a mut PathBuf) -> Self {
        let help = "name the socket, such as `path = \"/run/netvm/guest.sock\"`";
        Self::required("path", help, KeyValue::Socket(path))
    }
}

/// The value of a key, by its form.
pub enum KeyValue<'a> {
    /// A PCI address.
    PciAddress(&'a mut String),
    /// The name of a kernel interface.
    Interface(&'a mut String),
    /// A network namespace.
    Namespace(&'a mut String),
    /// The MAC address of a network card.
    Mac(&'a mut Option<MacAddr>),
    /// Two keys, `addresses` and `gateways`.
    Addressing(&'a mut Vec<InterfaceAddress>, &'a mut Vec<IpAddr>),
    /// The path of a Unix socket.
    Socket(&'a mut PathBuf),
    /// What two sides know.
    Secret(&'a mut Option<String>),
    /// Descriptors of a ring.
    RingSize(&'a mut u32),
    /// Two keys, `input` and `output`; one of them is required.
    Captures(&'a mut Option<PathBuf>, &'a mut Option<PathBuf>),
    /// Another port.
    Port(&'a mut PortId),
    /// A virtual router.
    Router(&'a mut RouterId),
    /// An IP address of a host.
    Address(&'a mut IpAddr),
    /// One or several of them, or none without the key.
    Addresses(&'a mut Vec<IpAddr>),
    /// Other ports.
    Ports(&'a mut Vec<PortId>),
    /// A VLAN tag.
    Tag(&'a mut VlanId),
    /// `true` or `false`.
    Flag(&'a mut bool),
    /// A word.
    Word(&'a mut dyn Choice),
    /// A word that is not written if it is the first, which is the default.
    SparseWord(&'a mut dyn Choice),
    /// `true`, `false` or `"auto"`; and a key `on_daemon_loss`, which needs it.
    FastPath(&'a mut FastPath, Option<&'a mut DaemonLoss>),
    /// What copies to a guest.
    Dma(&'a mut VhostDma),
    /// Bytes of a frame.
    FrameSize(&'a mut u16),
    /// A number in a range.
    Number(&'a mut u32, RangeInclusive<u64>),
    /// The same, or none.
    OptionalNumber(&'a mut Option<u32>, RangeInclusive<u64>),
    /// A number of packets.
    Packets(&'a mut Option<u64>),
    /// Two keys, `rate` and `burst`; `burst` needs `rate`.
    Rate(&'a mut Option<u64>, &'a mut u16),
}

/// Whether the kernel may pass packets from container to container, as netvm has decided for their flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FastPath {
    /// No: netvm forwards every packet.
    #[default]
    Off,
    /// If this kernel can.
    Auto,
    /// Yes; it is a problem of the port if this kernel cannot.
    On,
}

/// What becomes of the packets that the kernel forwards when netvmd hangs or has died.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DaemonLoss {
    /// They are lost until netvmd is back.
    #[default]
    Stop,
    /// The kernel goes on to forward flows that netvmd has decided.
    Continue,
}

words!(DaemonLoss: "stop" => Stop, "continue" => Continue);

/// A value that is one of some words.
pub trait Choice {
    /// The words.
    fn words(&self) -> Vec<&'static str>;
    /// The position of its word.
    fn chosen(&self) -> usize;
    /// Takes the word at a position.
    fn choose(&mut self, position: usize);
}

impl<T: Words> Choice for T {
    fn words(&self) -> Vec<&'static str> {
        T::WORDS.iter().map(|(word, _)| *word).collect()
    }

    fn chosen(&self) -> usize {
        T::WORDS.iter().position(|(_, known)| known == self).unwrap_or_default()
    }

    fn choose(&mut self, position: usize) {
        if let Some((_, value)) = T::WORDS.get(position) {
            *self = *value;
        }
    }
}
