// SPDX-License-Identifier: Apache-2.0
//! Hops that are pairs of ports: any program, whose packets leave netvm by one port and return by the other.

use std::path::PathBuf;

use netvm_ids::PortId;
use netvm_wire::MacAddr;

use super::NfLimits;
use crate::derived::{derived_mac, names_of, stable_hash};
use crate::words::words;

/// What the ports of a program are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// Two veth pairs with one end in a network namespace of the program, by packet sockets at the other.
    Veth,
    /// Two TAP devices in a network namespace of the program.
    TapDevice,
    /// Two veth pairs with one end in a network namespace of the program, by AF_XDP at the other.
    AfXdp,
    /// Two vhost-user sockets that the ports create.
    VhostUser,
    /// Two memif sockets that the ports create.
    Memif,
}
words!(Attach: "veth" => Veth, "tap" => TapDevice, "af_xdp" => AfXdp, "vhost-user" => VhostUser,
    "memif" => Memif);

/// Properties of a way to attach a program, for the configuration, the ports and netvmd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachInfo {
    /// Whether the program runs in a network namespace that netvmd makes, as its user and with rights there.
    pub has_namespace: bool,
    /// Whether netvmd makes the interfaces in the namespace; if not, the ports do.
    pub has_veths: bool,
    /// Whether packets may leave with unfinished checksums and as long segments, if the configuration allows it.
    pub may_offload: bool,
}

impl Attach {
    /// Properties of this way to attach.
    #[must_use]
    pub const fn info(self) -> AttachInfo {
        let (has_namespace, has_veths, may_offload) = match self {
            Self::Veth => (true, true, true),
            Self::TapDevice => (true, false, true),
            Self::AfXdp => (true, true, false),
            Self::VhostUser | Self::Memif => (false, false, false),
        };
        AttachInfo { has_namespace, has_veths, may_offload }
    }
}

/// A side of a program. Packets of a chain enter by the left port and leave by the right one; those of the chain that
/// is its reverse, the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairSide {
    /// The port of the chain's direction.
    Left,
    /// The port of the reverse direction.
    Right,
    /// The port of both directions, if it is the only one.
    Only,
}
words!(PairSide: "left" => Left, "right" => Right, "port" => Only);

impl PairSide {
    /// Both sides, as the ports of an instance are ordered.
    pub const BOTH: [Self; 2] = [Self::Left, Self::Right];

    /// The sides of a program with so many ports.
    #[must_use]
    pub const fn of_count(ports: u16) -> &'static [Self] {
        if ports == 1 { &[Self::Only] } else { &Self::BOTH }
    }

    /// The other side.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
            Self::Only => Self::Only,
        }
    }
}

/// What happens to packets for a program that has started, but does not forward yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhileStarting {
    /// They skip the hop.
    Bypass,
    /// They are dropped at the entry of their chain.
    Drop,
    /// They wait for it, as many as a worker has room for.
    Hold,
}
words!(WhileStarting: "bypass" => Bypass, "drop" => Drop, "hold" => Hold);

/// A program that knows nothing of netvm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairConfig {
    /// What its ports are.
    pub attach: Attach,
    /// Program and arguments, restarted with back-off when it ends; empty: something else forwards the packets.
    pub command: Vec<String>,
    /// The user it runs as when netvmd is root, by name or number.
    pub user: String,
    /// Instances that process packets.
    pub replicas: u16,
    /// Instances that run and wait to replace one that fails.
    pub standby: u16,
    /// Cores that its threads may use; empty: all without a worker, else all.
    pub cores: Vec<u32>,
    /// Environment variables, in order.
    pub environment: Vec<(String, String)>,
    /// Resource limits of each process.
    pub limits: NfLimits,
    /// Folder of its sockets.
    pub sockets: PathBuf,
    /// MTU of its interfaces.
    pub mtu: u16,
    /// Whether packets may reach it with unfinished checksums and as segments of up to 64 KB.
    pub offloads: bool,
    /// Whether it forwards frames that are not for it, so that probes find out whether it works.
    pub probe: bool,
    /// The number of its ports: two, or one by which packets go in and come back.
    pub port_count: u16,
    /// Whether packets enter with the MAC address of its port, and get back those that they had: for programs that
    /// route. Only what can be routed enters.
    pub rewrite_macs: bool,
    /// Whether packets enter with a TTL that is higher by one.
    pub restore_ttl: bool,
    /// What happens to packets until it forwards; `None`: as the chain's `on_failure` says.
    pub while_starting: Option<WhileStarting>,
    /// The ports of each instance, left and right, or the only one twice: standbys are the last ones.
    pub ports: Vec<[PortId; 2]>,
}

/// The default of [`PairConfig::sockets`].
pub const HOP_SOCKETS: &str = "/run/netvm/hops";

impl PairConfig {
    /// One instance with the defaults of this way to attach it.
    #[must_use]
    pub fn new(attach: Attach) -> Self {
        // Rights in a network namespace need root; they are all that it has.
        let user = if attach.info().has_namespace { "root" } else { "nobody" };
        Self {
            attach,
            command: Vec::new(),
            user: user.to_owned(),
            replicas: 1,
            standby: 0,
            cores: Vec::new(),
            environment: Vec::new(),
            limits: NfLimits::default(),
            sockets: PathBuf::from(HOP_SOCKETS),
            mtu: crate::DEFAULT_MTU,
            offloads: false,
            probe: true,
            port_count: 2,
            rewrite_macs: false,
            restore_ttl: false,
            while_starting: None,
            ports: Vec::new(),
        }
    }

    /// The number of instances, standbys included.
    #[must_use]
    pub const fn instances(&self) -> u16 {
        self.replicas.saturating_add(self.standby)
    }

    /// The sides on which it has ports.
    #[must_use]
    pub const fn sides(&self) -> &'static [PairSide] {
        PairSide::of_count(self.port_count)
    }

    /// Whether the flows are noted that pass it: for what cannot be seen of a packet that comes back.
    #[must_use]
    pub const fn notes_flows(&self) -> bool {
        self.port_count == 1 || self.rewrite_macs
    }
}

/// One side of one instance of a program, and the names that follow from it.
#[derive(Clone, Copy, Debug)]
pub struct PairEnd<'a> {
    /// The role.
    pub role: &'a str,
    /// The number of the instance.
    pub instance: u16,
    /// The side.
    pub side: PairSide,
}

impl PairEnd<'_> {
    /// The name of the port.
    #[must_use]
    pub fn port_name(&self) -> String {
        format!("{}.{}.{}", self.role, self.instance, self.side.word())
    }

    /// The network namespace of the instance.
    #[must_use]
    pub fn namespace(&self) -> String {
        format!("nf-{}.{}", self.role, self.instance)
    }

    /// The name of the outer end of a veth pair: 14 bytes, always the same.
    #[must_use]
    pub fn outer_name(&self) -> String {
        let name = format!("{}.{}", self.instance, self.side.word());
        format!("nh{:012x}", stable_hash(names_of(self.role, &name)) >> 16)
    }

    /// The MAC address of the program's port, if netvm writes it into packets: always the same.
    #[must_use]
    pub fn mac(&self) -> MacAddr {
        derived_mac(names_of(self.role, &format!("{}.{}", self.instance, self.side.word())))
    }

    /// The socket of the port in a folder.
    #[must_use]
    pub fn socket(&self, folder: &std::path::Path) -> PathBuf {
        folder.join(format!("{}.sock", self.port_name()))
    }
}
