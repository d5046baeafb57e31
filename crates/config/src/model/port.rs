//! `[[port]]`: where packets come in and go out. The keys about packets are in [`super::port_policy`].

use std::path::PathBuf;

use netvm_policy::PortId;
use toml::Value;

use super::{GroupId, Host, MAX_WORKERS, PortPolicy};
use crate::field;
use crate::form::{
    Flag, Form, InGroup, Maybe, Name, Number, Numbered, Plain, Spanned, Sparse, Text, When, text,
};
use crate::names;
use crate::table::{At, Keys, Table};
use crate::words::{Word, one_of, words};

/// Longest name of a DMA device (`RTE_DEV_NAME_MAX_LEN` of DPDK, without the NUL byte).
const DEVICE_BYTES: usize = 63;

/// Ethernet's payload, and netvm's default.
const DEFAULT_MTU: u16 = 1500;
/// Bytes of Ethernet's header, which a frame has besides the MTU.
const HEADER: u16 = 14;
/// Longest frame: what fits the largest buffer behind a headroom of 256.
const MAX_FRAME: u64 = 65_472 - 256;

/// A port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Its number.
    pub id: PortId,
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: PortKind,
    /// Receive and transmit queues; spread over the workers.
    pub queues: u16,
    /// Longest frame in bytes without FCS, minus 14.
    pub mtu: u16,
    /// The group in whose memory received packets land, by number; `None`: that of the first chain that its packets may
    /// take, else a group of the engine's own.
    pub group: Option<GroupId>,
    /// What it does with packets besides the rules.
    pub policy: PortPolicy,
}

impl PortConfig {
    /// Whether it is the same device in the same way: what differs besides can change while it is open.
    #[must_use]
    pub fn is_same_device(&self, other: &Self) -> bool {
        let Self { id, name, kind, queues, mtu, group, policy: _ } = self;
        (*id, name, kind, *queues, *mtu, *group)
            == (other.id, &other.name, &other.kind, other.queues, other.mtu, other.group)
    }
}

impl Numbered for PortConfig {
    fn numbered(number: usize) -> Self {
        Self {
            id: PortId(number as u16),
            name: String::new(),
            kind: PortKind::Sink,
            queues: 1,
            mtu: DEFAULT_MTU,
            group: None,
            policy: PortPolicy::default(),
        }
    }
}

impl Keys for PortConfig {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.name(("name", "client"), &mut self.name, Name(names::port));
        let kinds = PortKind::all().map(|kind| format!("`{}`", kind.word()));
        let help = format!("say what the port is: {}", kinds.join(", "));
        let kind = table.required(("kind", &help), &mut self.kind, Kind);
        for mut other in PortKind::all().into_iter().filter(|other| other.word() != self.kind.word()) {
            let word = other.word();
            let keys = |table: &mut Table<'_>| other.keys(table);
            match kind {
                Some(_) => table.others(&format!("kind = \"{word}\""), keys),
                None => table.allow(keys),
            }
        }
        self.kind.keys(table);
        if table.reader().is_some() {
            self.mtu = DEFAULT_MTU.max(self.kind.needed_mtu());
        }
        if let Some(at) = table.key("mtu", &mut self.mtu, Number(68..=MAX_FRAME - u64::from(HEADER)))
            && self.mtu < self.kind.needed_mtu()
        {
            let needed = self.kind.needed_mtu();
            let size = needed + HEADER;
            at.bad_value(&format!("is {}, but frames are {size} bytes long", self.mtu))
                .help(format!("frames of {size} bytes, {HEADER} of them header, need an MTU of {needed}"))
                .keep();
        }
        if let Some(at) = table.key("queues", &mut self.queues, Number(1..=MAX_WORKERS as u64))
            && let (PortKind::Pcap { .. }, 2..) = (&self.kind, self.queues)
        {
            at.bad_value(&format!("is {} for a capture", self.queues))
                .help("one worker reads and writes a capture, which keeps its packets in order: leave `queues` out")
                .keep();
        }
        table.key("group", &mut self.group, Maybe(InGroup));
        self.policy.keys(table);
    }
}

/// The kinds of port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// A physical NIC by PCI address, driven by DPDK.
    Pci {
        /// Such as `0000:3b:00.0`.
        address: String,
    },
    /// A kernel interface by AF_XDP: the kernel writes packets into the region itself.
    AfXdp {
        /// Name of the interface.
        interface: String,
        /// Generic (skb) mode, even where the driver supports native mode.
        generic: bool,
    },
    /// A kernel interface by AF_PACKET (DPDK).
    AfPacket {
        /// Name of the interface.
        interface: String,
    },
    /// A TAP interface that the port creates (DPDK).
    Tap {
        /// Name of the interface.
        interface: String,
    },
    /// A guest, over a vhost-user socket.
    VhostUser {
        /// The socket.
        path: PathBuf,
        /// Which side creates it.
        mode: VhostMode,
        /// What copies packets to the guest.
        dma: VhostDma,
    },
    /// Reads a capture, writes a capture.
    Pcap {
        /// The capture to read; `None`: nothing comes in.
        input: Option<PathBuf>,
        /// The capture to write; `None`: what goes out is discarded.
        output: Option<PathBuf>,
        /// Replay by the capture's time stamps, not as fast as possible.
        paced: bool,
    },
    /// DPDK's null device: packets from nowhere to nowhere, as fast as possible.
    Null {
        /// Length of received frames in bytes.
        size: u16,
    },
    /// Built-in traffic source; what goes out is discarded.
    Source(SourceConfig),
    /// Built-in sink: nothing comes in, what goes out is counted and discarded.
    Sink,
}

impl PortKind {
    /// The word in the configuration.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Pci { .. } => "pci",
            Self::AfXdp { .. } => "af_xdp",
            Self::AfPacket { .. } => "af_packet",
            Self::Tap { .. } => "tap",
            Self::VhostUser { .. } => "vhost-user",
            Self::Pcap { .. } => "pcap",
            Self::Null { .. } => "null",
            Self::Source(_) => "source",
            Self::Sink => "sink",
        }
    }

    /// Each kind, with the defaults of its keys.
    fn all() -> [Self; 9] {
        let interface = String::new;
        let (mode, dma) = (VhostMode::default(), VhostDma::default());
        [
            Self::Pci { address: String::new() },
            Self::AfXdp { interface: interface(), generic: false },
            Self::AfPacket { interface: interface() },
            Self::Tap { interface: interface() },
            Self::VhostUser { path: PathBuf::new(), mode, dma },
            Self::Pcap { input: None, output: None, paced: false },
            Self::Null { size: SourceConfig::default().size },
            Self::Source(SourceConfig::default()),
            Self::Sink,
        ]
    }

    /// The MTU that frames which the port makes need.
    const fn needed_mtu(&self) -> u16 {
        match self {
            Self::Null { size } | Self::Source(SourceConfig { size, .. }) => size.saturating_sub(HEADER),
            _ => 0,
        }
    }
}

/// The word of a [`PortKind`].
struct Kind;

impl Form<PortKind> for Kind {
    fn read<'a>(&self, at: &At<'a>, value: &'a Spanned<'a>) -> Option<PortKind> {
        one_of(at, text(at, value)?, PortKind::all().map(|kind| (kind.word(), kind)).into_iter())
    }

    fn write(&self, _: &Host, item: &mut PortKind) -> Option<Value> {
        Some(item.word().into())
    }
}

/// The keys that go with the kind.
impl Keys for PortKind {
    fn keys(&mut self, table: &mut Table<'_>) {
        match self {
            Self::Pci { address } => {
                let help = "name the device, such as `address = \"0000:3b:00.0\"` (see `lspci -D`)";
                table.required(("address", help), address, Text(field::pci_address, String::clone));
            }
            Self::AfXdp { interface, generic } => {
                kernel_interface(interface, table);
                table.key("generic", generic, Flag);
            }
            Self::AfPacket { interface } | Self::Tap { interface } => kernel_interface(interface, table),
            Self::VhostUser { path, mode, dma } => {
                let help = "name the socket, such as `path = \"/run/netvm/guest.sock\"`";
                table.required(("path", help), path, Text(field::socket_path, field::path_text));
                table.key("mode", mode, Word);
                table.key("dma", dma, Sparse(Text(dma_of, |dma: &VhostDma| dma.word().to_owned())));
            }
            Self::Pcap { input, output, paced } => {
                for (key, path) in [("input", input), ("output", output)] {
                    let mut text = path.as_ref().map(field::path_text);
                    table.key(key, &mut text, Maybe(Plain));
                    *path = text.map(PathBuf::from);
                }
                table.key("paced", paced, Flag);
                if let Some(reader) = table.reader()
                    && reader.given(&["input", "output"]).is_empty()
                {
                    reader.missing(
                        "input",
                        "name a capture to read (`input`), one to write (`output`), or both",
                    );
                }
            }
            Self::Null { size } => drop(table.key("size", size, Number(60..=MAX_FRAME))),
            Self::Source(source) => source.keys(table),
            Self::Sink => {}
        }
    }
}

fn kernel_interface(name: &mut String, table: &mut Table<'_>) {
    let help = "name the interface, such as `interface = \"eth1\"` (see `ip link`)";
    table.required(("interface", help), name, Name(names::kernel_interface));
}

/// Which side creates the socket of a [`PortKind::VhostUser`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VhostMode {
    /// netvm: the guest connects.
    #[default]
    Server,
    /// The guest: netvm connects, and again whenever the guest restarts.
    Client,
}
words!(VhostMode: "server" => Server, "client" => Client);

/// What copies packets to the guest of a [`PortKind::VhostUser`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VhostDma {
    /// The CPU.
    #[default]
    Off,
    /// A free DMA engine if there is one, else the CPU.
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

/// The traffic of a [`PortKind::Source`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceConfig {
    /// Length of the frames in bytes, without FCS (64-byte Ethernet frames: 60).
    pub size: u16,
    /// How many flows (UDP 5-tuples).
    pub flows: u32,
    /// Packets per second; `None`: flat out.
    pub rate: Option<u64>,
    /// Packets that a source with a rate sends at once: it waits until so many are due.
    pub burst: u16,
    /// Wait for room at the chain's entry instead of overrunning it.
    pub lossless: bool,
    /// Stop after this many packets.
    pub count: Option<u64>,
}

impl Default for SourceConfig {
    /// The shortest Ethernet frames, one flow, flat out.
    fn default() -> Self {
        Self { size: 60, flows: 1, rate: None, burst: 1, lossless: false, count: None }
    }
}

impl Keys for SourceConfig {
    fn keys(&mut self, table: &mut Table<'_>) {
        let most = i64::MAX as u64;
        table.key("size", &mut self.size, Number(60..=MAX_FRAME));
        table.key("flows", &mut self.flows, Number(1..=1 << 24));
        table.key("rate", &mut self.rate, Maybe(Number(1..=most)));
        let has_rate = table.has("rate", self.rate.is_some());
        if let Some(at) = table.key("burst", &mut self.burst, When(has_rate, Number(1..=u16::MAX.into())))
            && !has_rate
        {
            at.bad_value("has no effect without `rate`")
                .help("give the source a `rate`, or leave `burst` out: without a rate it sends as fast as possible")
                .keep();
        }
        table.key("lossless", &mut self.lossless, Flag);
        table.key("count", &mut self.count, Maybe(Number(1..=most)));
    }
}

fn dma_of(text: &str) -> Result<VhostDma, field::FieldError> {
    match text {
        "off" => Ok(VhostDma::Off),
        "auto" => Ok(VhostDma::Auto),
        _ if (1..=DEVICE_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Ok(VhostDma::Device(text.to_owned()))
        }
        _ => Err(field::FieldError::Syntax(
            "`off`, `auto`, or a DMA device by its name in DPDK, such as `wq0.1`",
        )),
    }
}
