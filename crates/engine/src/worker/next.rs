// SPDX-License-Identifier: Apache-2.0
//! [`Next`]: where the packets of a burst go. A stage takes a burst and says it; the loop ([`graph`](super::graph))
//! brings them there.

use dpdk::Batch;
use netvm_switch::snoop::SetNumber;
use netvm_wire::VlanId;

use crate::drop_reason::DropReason;
use crate::ids::{ChainId, LinkId, PortId, RoleId, RouterId};
use crate::router::PuntReason;
use crate::snapshot::{Side as ProgramSide, Snapshot};
use crate::worker::router::PuntCause;
use crate::worker::state::burst::Context;
use crate::worker::state::lookup_results::{PackedAction, PacketAction};
use crate::worker::state::{BURST, Datapath};

/// Which rules decide: those of received packets, or those of packets to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The rules of the port that received them.
    Ingress(PortId),
    /// The rules of the port that they are about to leave by.
    Egress(PortId),
}

impl Side {
    /// The port whose rules decide, which counts what they drop.
    #[inline(always)]
    pub(crate) const fn port(self) -> PortId {
        match self {
            Self::Ingress(port) | Self::Egress(port) => port,
        }
    }
}

/// What counts a dropped packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedAt {
    Port(PortId),
    Chain(ChainId),
}

/// A remote VTEP of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ToVtep {
    /// The port of the tunnel.
    pub(crate) from: PortId,
    /// The router that reaches it.
    pub(crate) router: RouterId,
    /// Its place among those of the tunnel.
    pub(crate) remote: u16,
}

/// Packets from a remote VTEP, with their outer headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfTunnel {
    /// The port that receives what is within.
    pub(crate) by: PortId,
    pub(crate) router: RouterId,
    /// The VTEP's place among those of the tunnel.
    pub(crate) remote: u16,
    /// Bytes of the outer headers.
    pub(crate) headers: u8,
}

/// Ports of a VLAN that packets of a port go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flooding {
    pub(crate) from: PortId,
    pub(crate) vlan: u16,
    /// Those of a group or of routers, or all.
    pub(crate) to: SetNumber,
    /// Of these, the ones whose numbers are at least so high.
    pub(crate) first: u16,
}

/// A position in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// Its entry; all packets came in by this port.
    Entry(PortId),
    /// Its entry without the first hops: the hop with this number. All packets came in by this port.
    Later(PortId, u8),
    /// The hop with this number, or the output if it is behind the last, after another hop.
    Inside(u8),
    /// An NF with this role that is not in the chain, after the hop with this number.
    /// `from`: they enter the chain there, and all came in by this port.
    Aside { role: u16, hop: u8, from: Option<PortId> },
}

impl Position {
    /// The ingress port of all packets, if they enter the chain.
    #[inline(always)]
    pub(crate) const fn entered_from(self) -> Option<PortId> {
        match self {
            Self::Entry(port) | Self::Later(port, _) => Some(port),
            Self::Inside(_) => None,
            Self::Aside { from, .. } => from,
        }
    }
}

/// Where a chain ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Out of a port.
    Port(PortId),
    /// Out of the ingress port.
    Ingress,
    /// To L2 switching.
    Normal,
    /// To a virtual router.
    Router(RouterId),
}

/// An interface of a router by which its kernel receives packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PuntBy {
    pub(crate) router: RouterId,
    /// The number of the interface.
    pub(crate) interface: u16,
    /// The packets have the interface's tag, which the kernel does not see.
    pub(crate) is_tagged: bool,
}

/// Packets for a group, of a port that several routers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ToGroup {
    pub(crate) from: PortId,
    /// The router whose port rules named.
    pub(crate) router: RouterId,
    /// The VLAN of all packets (0: none).
    pub(crate) vlan: u16,
    /// The next of the interfaces in the VLAN that gets a copy.
    pub(crate) nth: u16,
}

/// Packets that enter a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entering {
    pub(crate) from: PortId,
    pub(crate) chain: ChainId,
    /// Hops that they skip, by per-flow verdicts (bit mask).
    pub(crate) skipped: u16,
}

/// The ring of an NF thread, and the position of packets there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingEnd {
    pub(crate) link: LinkId,
    pub(crate) chain: ChainId,
    pub(crate) hop: u8,
    /// The ingress port of all packets, if they enter the chain here.
    pub(crate) from: Option<PortId>,
}

/// A hop of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChainHop {
    pub(crate) chain: ChainId,
    pub(crate) hop: u8,
}

/// The port of a program, and the position of packets there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PairEntry {
    pub(crate) port: PortId,
    pub(crate) at: ChainHop,
    /// The port by which they enter the chain; `None` if they have entered it before.
    pub(crate) from: Option<PortId>,
    /// The side of the program by which they enter.
    pub(crate) side: ProgramSide,
}

/// Where packets go next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A decision of rules, and what else was found out about the packets.
    Decision(Side, PacketAction),
    /// A copy to each mirror port of a decision, from the mirror with this number on; then by the decision.
    Mirror(Side, PacketAction, u8),
    /// The L2 lookup, by their current headers.
    BridgeLookup { from: PortId },
    /// L2 switching, with the result of the lookup.
    Bridge { from: PortId, action: PackedAction },
    /// All ports of their VLANs.
    FloodEach { from: PortId },
    /// These ports of a VLAN.
    Flood(Flooding),
    /// Out of a port, with the tag that it expects.
    Bridged { from: PortId, out: PortId },
    /// A virtual router.
    Router { from: PortId, router: RouterId },
    /// The routers that share this one's port: by MAC address.
    RouterShared { from: PortId, router: RouterId },
    /// This virtual router, for which all packets are.
    RouterAlone { from: PortId, router: RouterId },
    /// The VTEPs of this virtual router, or the router.
    TunnelEnd { from: PortId, router: RouterId },
    /// Copies for the other routers of a shared port, from the `nth` interface in the VLAN on; then to this router.
    RouterGroup(ToGroup),
    /// Sent by a router's kernel: out of the port of the interface.
    FromKernel { from: PortId, router: RouterId },
    /// Rewritten by a router, out of the port of their next hop.
    Forwarded { router: RouterId, out: PortId },
    /// A router's kernel, as far as the shares of their classes allow.
    Punt { from: PortId, by: PuntBy, cause: PuntCause },
    /// The same, for this reason.
    PuntFor { from: PortId, by: PuntBy, reason: PuntReason },
    /// A router's kernel.
    Kernel { from: PortId, by: PuntBy, reason: PuntReason },
    /// Into a chain, without the hops whose bits are set.
    Chain(Entering),
    /// Into a chain at an NF of this role, by the verdict of the NF at this hop on their flows.
    ChainRole { from: PortId, chain: ChainId, role: RoleId, hop: u8 },
    /// An NF at this position of a chain, or out of the chain.
    Hop(ChainId, Position),
    /// The same, with unfinished offloads that the NF may not accept.
    HopUnfinished(ChainId, Position),
    /// An NF at this position, in another memory.
    HopCopy(ChainId, Position),
    /// One of the replicas at this position.
    Replica(ChainId, Position),
    /// The replica of each packet's flow.
    ReplicaOfFlow(ChainId, Position),
    /// A program with two ports at this position.
    Pair(ChainId, Position),
    /// The program of each packet's flow.
    PairOfFlow(ChainId, Position),
    /// A program with two ports at this position that is starting: they wait for it.
    WaitForStart(ChainId, Position),
    /// A program, by one of its ports.
    IntoPair(PairEntry),
    /// Out of a chain. `entered`: they have passed no NF of it.
    LeaveChain { chain: ChainId, to: Exit, entered: bool },
    /// The end of their chain, which depends on the port that received them.
    ByIngress(Exit),
    /// The ring of an NF thread.
    Ring(RingEnd),
    /// Out of a port, as far as its egress rules and its rate allow.
    Interface(PortId),
    /// The egress rules of a port, by the classes of their ingress ports.
    EgressClasses(PortId),
    /// The egress rules of a port for packets whose ingress ports have this class.
    EgressRules { out: PortId, class: u16 },
    /// Translation of their sources, as they leave by a port.
    SourceNat(PortId),
    /// The rate of a port.
    EgressRate(PortId),
    /// The tx queue of a port; of a port without a device, where it sends to.
    Tx(PortId),
    /// Received by a port without a device.
    Rx(PortId),
    /// Sent by a port for a tag of `parent`, which sends them with it.
    PushTag { from: PortId, parent: PortId, tag: VlanId },
    /// Received by a port for a tag, which they still have.
    PopTag { by: PortId },
    /// Sent by the port of a tunnel, to remote VTEPs by this router.
    PushHeaders { from: PortId, router: RouterId },
    /// Dropped, as they are longer than the tunnel of a port carries; each sender is told.
    TellMtu { from: PortId, mtu: u16 },
    /// To this VTEP, behind outer headers.
    Encapsulate(ToVtep),
    /// To this VTEP and those after it.
    EncapsulateAll(ToVtep),
    /// Received by the port of a tunnel, with their outer headers.
    PopHeaders(OutOfTunnel),
    /// Sent by a bond: by the member of each packet's flow.
    Member { bond: PortId },
    /// Dropped, with an answer to each sender.
    Reject { from: PortId },
    /// Dropped and counted at a port: their headers cannot be read.
    MalformedAt(PortId),
    /// The end of a hypothetical packet: free, and counted nowhere.
    Discard,
    /// Dropped.
    Drop(CountedAt, DropReason),
}

impl Next {
    /// Where packets go that the rules of a port allow.
    #[inline(always)]
    pub(crate) fn allowed(snapshot: &Snapshot, out: PortId) -> Self {
        if snapshot.nat.is_some() {
            Self::SourceNat(out)
        } else if snapshot.policy.egress(out).is_some() {
            Self::EgressRate(out)
        } else {
            Self::Tx(out)
        }
    }

    /// Dropped, and counted at a port.
    #[inline(always)]
    pub(crate) const fn drop_at(port: PortId, reason: DropReason) -> Self {
        Self::Drop(CountedAt::Port(port), reason)
    }

    /// Dropped, and counted in a chain.
    #[inline(always)]
    pub(crate) const fn drop_in(chain: ChainId, reason: DropReason) -> Self {
        Self::Drop(CountedAt::Chain(chain), reason)
    }
}

/// It is copied for each packet of a burst that goes several ways.
const _: () = assert!(size_of::<Next>() <= 20);

/// What a stage says of a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// All packets go there.
    All(Next),
    /// Each packet goes where [`Split::nexts`] says.
    Each,
    /// First [`Split::copies`] go to the first, then the packets to the second.
    Copies(Next, Next),
}

/// What a stage says of the packets of a burst that go several ways.
pub(crate) struct Split {
    /// By packet.
    pub(crate) nexts: [Next; BURST],
    /// Further packets.
    pub(crate) copies: Batch,
}

impl Split {
    /// All packets go to `next`, as far as the stage does not say otherwise.
    pub(crate) const fn all(next: Next) -> Self {
        Self { nexts: [next; BURST], copies: Batch::new() }
    }
}

/// A burst at a stage.
pub(crate) struct Dispatch<'a> {
    pub(crate) dp: &'a mut Datapath,
    pub(crate) cx: Context<'a>,
    /// The packets; the stage leaves all of them there.
    pub(crate) batch: &'a mut Batch,
    /// Where the stage sends each packet, and the copies that it has made.
    pub(crate) split: &'a mut Split,
}
