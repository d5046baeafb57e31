// SPDX-License-Identifier: Apache-2.0
//! Ports that are a guest's network card, and who may connect to the socket that a port creates.

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

/// The owner and mode of a socket. They can change while the port is open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketRights {
    /// `user`, `user:group` or `:group`, by name or number; `None`: netvmd's.
    pub owner: Option<String>,
    /// Permission bits; `None`: what netvmd's umask leaves, usually 0755, so that only the owner can connect.
    pub mode: Option<u32>,
    /// The numbers of `owner` on this machine, once they are looked up.
    pub ids: SocketIds,
}

/// Numbers of a user and a group; `None`: netvmd's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketIds {
    /// The user.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
}

impl SocketRights {
    /// User and group of `owner`.
    #[must_use]
    pub fn names(&self) -> (Option<&str>, Option<&str>) {
        let Some(owner) = &self.owner else { return (None, None) };
        let (user, group) = owner.split_once(':').unwrap_or((owner, ""));
        (Some(user).filter(|user| !user.is_empty()), Some(group).filter(|group| !group.is_empty()))
    }
}
