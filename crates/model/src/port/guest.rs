//! Ports that are a guest's network card.

use crate::words::words;

/// A guest's network card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CardModel {
    /// Intel 82540EM: INTx, and drivers since 2002.
    #[default]
    E1000,
    /// Intel 82574L: MSI-X, and drivers since 2008.
    E1000e,
}

words!(CardModel: "e1000" => E1000, "e1000e" => E1000e);

/// How the doorbells of a guest's card, TDT and RDT, reach the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Doorbells {
    /// `Posted` for an 82540EM if this machine has no KVM, else `Mapped`.
    #[default]
    Auto,
    /// The guest maps them, which takes KVM or MSI-X.
    Mapped,
    /// By messages that the guest does not wait for.
    Posted,
}

words!(Doorbells: "auto" => Auto, "mapped" => Mapped, "posted" => Posted);

/// Which side creates the socket of a [`PortKind::VhostUser`](crate::PortKind::VhostUser).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VhostMode {
    /// netvm: the guest connects.
    #[default]
    Server,
    /// The guest: netvm connects, and again whenever the guest restarts.
    Client,
}
words!(VhostMode: "server" => Server, "client" => Client);

/// What copies packets to the guest of a [`PortKind::VhostUser`](crate::PortKind::VhostUser).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VhostDma {
    /// The CPU.
    #[default]
    Off,
    /// A DMA engine that no other port uses, else the CPU.
    Auto,
    /// A DMA engine, by its name in DPDK.
    Device(String),
}

impl VhostDma {
    /// The word, or the device's name, in the configuration.
    #[must_use]
    pub fn word(&self) -> &str {
        match self {
            Self::Off => "off",
            Self::Auto => "auto",
            Self::Device(name) => name,
        }
    }
}
