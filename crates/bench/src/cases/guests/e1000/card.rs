// SPDX-License-Identifier: Apache-2.0
//! The guests' network cards, and the drivers of cards that have several.

use std::path::Path;

use netvm_model::{CardModel, Doorbells, PortKind, VhostDma, VhostMode};
use netvm_wire::MacAddr;

use crate::setup::network;

/// A card of each guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Card {
    E1000,
    /// The same with doorbells that guests map.
    E1000Mapped,
    E1000e,
    VhostUser,
    QemuE1000,
    QemuE1000e,
    QemuVirtio,
}

impl Card {
    pub const ALL: [Self; 7] = [
        Self::E1000,
        Self::E1000Mapped,
        Self::E1000e,
        Self::VhostUser,
        Self::QemuE1000,
        Self::QemuE1000e,
        Self::QemuVirtio,
    ];
    /// The cards that netvm serves, in the order of their ports.
    pub const NETVM: [Self; 4] = [Self::E1000, Self::E1000Mapped, Self::E1000e, Self::VhostUser];

    pub const fn name(self) -> &'static str {
        match self {
            Self::E1000 => "e1000",
            Self::E1000Mapped => "e1000-mapped",
            Self::E1000e => "e1000e",
            Self::VhostUser => "vhost-user",
            Self::QemuE1000 => "qemu-e1000",
            Self::QemuE1000e => "qemu-e1000e",
            Self::QemuVirtio => "qemu-virtio",
        }
    }

    pub fn is_netvm(self) -> bool {
        Self::NETVM.contains(&self)
    }
}

/// A card of one of the guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestCard {
    pub guest: usize,
    pub card: Card,
}

impl GuestCard {
    /// netvm's port for it, with its socket in `folder`.
    pub fn port(self, folder: &Path) -> PortKind {
        let (path, mac) = (folder.join(self.socket()), Some(self.mac()));
        match self.card {
            Card::VhostUser => PortKind::VhostUser { path, mode: VhostMode::Server, dma: VhostDma::Off },
            card => {
                let model = if card == Card::E1000e { CardModel::E1000e } else { CardModel::E1000 };
                // The guests have no KVM.
                let doorbells = if card == Card::E1000 { Doorbells::Posted } else { Doorbells::Mapped };
                PortKind::E1000 { path, mac, model, doorbells }
            }
        }
    }

    /// Its MAC address.
    pub const fn mac(self) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0x20 + self.guest as u8, self.card as u8])
    }

    /// Its TAP interface, if QEMU serves it.
    pub fn tap(self) -> Option<String> {
        let number = self.guest * Card::ALL.len() + self.card as usize;
        (!self.card.is_netvm()).then(|| network::interface(number as u32))
    }

    /// The name of its socket, if netvm serves it.
    pub fn socket(self) -> String {
        format!("{}-{}.sock", self.card.name(), self.guest)
    }
}

/// A driver of the 82540EM with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// The kernel's driver with its defaults.
    Stock,
    /// The kernel's driver without interrupt throttling.
    Plain,
    /// The kernel's driver with 64 µs between interrupts (`itr=250` of the paper).
    Itr,
    /// Send combining.
    Sc,
    ScItr,
    /// A communication status block.
    Csb,
}

impl Driver {
    /// All drivers; the stock driver comes first, because it is loaded when the guest has booted.
    pub const ALL: [Self; 6] = [Self::Stock, Self::Plain, Self::Itr, Self::Sc, Self::ScItr, Self::Csb];

    const fn suffix(self) -> &'static str {
        match self {
            Self::Stock => "",
            Self::Plain => "-plain",
            Self::Itr => "-itr",
            Self::Sc => "-sc",
            Self::ScItr => "-sc-itr",
            Self::Csb => "-csb",
        }
    }

    /// Whether this needs the changed driver.
    pub const fn is_changed(self) -> bool {
        matches!(self, Self::Sc | Self::ScItr | Self::Csb)
    }

    /// The module with its parameters, which apply to all 82540EM cards.
    pub const fn module(self) -> &'static str {
        match self {
            Self::Stock => "e1000.ko",
            Self::Plain => "e1000.ko InterruptThrottleRate=0,0,0",
            Self::Itr => "e1000.ko InterruptThrottleRate=15625,15625,15625",
            Self::Sc => "e1000-csb.ko csb=0 send_combining=1 InterruptThrottleRate=0,0,0",
            Self::ScItr => "e1000-csb.ko csb=0 send_combining=1 InterruptThrottleRate=15625,15625,15625",
            Self::Csb => "e1000-csb.ko InterruptThrottleRate=0,0,0",
        }
    }
}

/// A card with one of its drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nic {
    pub card: Card,
    pub driver: Driver,
}

impl Nic {
    /// All NICs, in an order that changes drivers seldom.
    pub fn all() -> Vec<Self> {
        let of = |driver| Card::ALL.into_iter().map(move |card| Self { card, driver });
        Driver::ALL.into_iter().flat_map(of).filter(|nic| nic.is_possible()).collect()
    }

    /// Whether the card works with the driver: only the 82540EM has several, and QEMU's has no communication status
    /// block.
    fn is_possible(self) -> bool {
        match self.card {
            Card::E1000 => true,
            Card::QemuE1000 => self.driver != Driver::Csb,
            _ => self.driver == Driver::Stock,
        }
    }

    /// Whether the card is measured with all drivers of the 82540EM.
    pub fn has_drivers(self) -> bool {
        matches!(self.card, Card::E1000 | Card::E1000Mapped | Card::QemuE1000)
    }

    pub fn name(self) -> String {
        format!("{}{}", self.card.name(), self.driver.suffix())
    }
}
