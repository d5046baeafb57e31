// SPDX-License-Identifier: Apache-2.0
//! What a trace notes of packets: what they meet at each stage. In: packets, and the stage that they go to. Out:
//! events of the recorder. The stages are those of every packet, but a hypothetical one reaches no device, no NF and
//! no kernel.

use dpdk::{Batch, Mbuf};
use netvm_conntrack::Half;
use netvm_model::SendsTo;
use netvm_wire::{Address, EtherType, FlowKey, IpProto, Malformed};

use crate::drop_reason::DropReason;
use crate::ids::{PortId, RouterId};
use crate::memory::mark::{state_of, translation_of};
use crate::snapshot::{Snapshot, Target};
use crate::worker::act::reject::{has_answer, has_mtu_answer};
use crate::worker::chain::hop::Hop;
use crate::worker::classify::l2_lookup::tag_of;
use crate::worker::forward::bridge::multicast::pruned_group;
use crate::worker::forward::bridge::{next_two, vlan_of};
use crate::worker::next::{ChainHop, Entering, Next, OutOfTunnel, Position, Side, ToVtep};
use crate::worker::packet::keys::{ethernet_key_of, key_of};
use crate::worker::record::{Arrival, ComesBack, PacketEvent, Recorder, Source, Visit};
use crate::worker::state::Datapath;
use crate::worker::state::burst::Context;
use crate::worker::state::connections::Passage;
use crate::worker::state::lookup_results::Action;
use crate::worker::trace::{NfVerdict, Step, Translated};

/// The last of a decision's mirrors is behind it.
const NO_MIRROR: u8 = u8::MAX;

/// Notes packets that a port has received.
#[cold]
pub(crate) fn received(dp: &Datapath, snapshot: &Snapshot, port: PortId, batch: &Batch) {
    if let Some(recorder) = &dp.recorder {
        recorder.received(&Arrival::of(snapshot, Source::Device(port), batch.as_slice()));
    }
}

/// Notes packets that a port without a device has received.
#[cold]
pub(crate) fn passed(dp: &Datapath, snapshot: &Snapshot, port: PortId, batch: &Batch) {
    if let Some(recorder) = &dp.recorder {
        recorder.received(&Arrival::of(snapshot, Source::Passed(port), batch.as_slice()));
    }
}

/// Notes packets that an NF has made.
#[cold]
pub(crate) fn made(dp: &Datapath, snapshot: &Snapshot, by: Source, packets: &[Mbuf]) {
    if let Some(recorder) = &dp.recorder {
        recorder.received(&Arrival::of(snapshot, by, packets));
    }
}

/// Notes packets that have come back from a program with two ports.
#[cold]
pub(crate) fn from_pair(dp: &Datapath, cx: Context<'_>, passed: ChainHop, batch: &Batch) {
    let ChainHop { chain, hop } = passed;
    let (Some(recorder), Some(role)) = (&dp.recorder, cx.snapshot.role_at(chain, hop)) else { return };
    let hop = cx.snapshot.configured_hop(chain, hop);
    recorder.visited(&Visit::of(cx.snapshot, batch), |packet| {
        Some(PacketEvent::FromNf { role, hop, verdict: NfVerdict::Next, key: key_of(packet).ok() })
    });
}

/// Notes packets before the rate of the port that has received them.
#[cold]
pub(crate) fn policed(dp: &Datapath, snapshot: &Snapshot, batch: &Batch) {
    if let Some(recorder) = &dp.recorder {
        recorder.visited(&Visit::of(snapshot, batch), |_| Some(PacketEvent::Step(Step::Policed(1))));
    }
}

/// Notes packets that go to a stage. Returns the stage that they go to instead, if this is the end of a hypothetical
/// packet.
#[cold]
pub(crate) fn visited(dp: &Datapath, cx: Context<'_>, next: Next, batch: &Batch) -> Next {
    let Some(recorder) = &dp.recorder else { return next };
    let visit = Visit {
        is_mirror: matches!(next, Next::Mirror(..)),
        is_end: matches!(next, Next::Tx(port) if is_end(dp, cx, port)),
        comes_back: comes_back(dp, cx, next),
        ..Visit::of(cx.snapshot, batch)
    };
    recorder.visited(&visit, |packet| what(dp, cx, next, packet));
    if dp.is_dry { instead(recorder, cx, next) } else { next }
}

/// Notes packets that other workers have handed over.
#[cold]
pub(crate) fn taken_over(dp: &Datapath) {
    if let Some(recorder) = &dp.recorder {
        recorder.taken_over();
    }
}

/// Notes packets that this worker sends for another one, or after their port has moved.
#[cold]
pub(crate) fn sent_for_others(dp: &Datapath, port: PortId, batch: &Batch) {
    if let Some(recorder) = &dp.recorder {
        recorder.taken_over();
        if sends(dp, port) {
            let visit = Visit { is_end: true, ..Visit::later(batch) };
            recorder.visited(&visit, |_| Some(PacketEvent::Step(Step::Out(port))));
        }
    }
}

/// Notes packets that a port without a device has sent.
#[cold]
pub(crate) fn passed_on(dp: &Datapath, port: PortId, batch: &Batch) {
    if let Some(recorder) = &dp.recorder {
        recorder.visited(&Visit::later(batch), |_| Some(PacketEvent::Step(Step::Out(port))));
    }
}

/// Where packets come back that this stage sends into a program.
fn comes_back(dp: &Datapath, cx: Context<'_>, next: Next) -> Option<ComesBack> {
    let Next::IntoPair(end) = next else { return None };
    let by = cx.snapshot.pairs.of(end.port)?.other;
    let is_here = dp.ports.sender(by).is_some();
    // The worker that sends by a port of a program receives by it, too.
    let worker = if is_here { None } else { Some(dp.ports.handoff.owner_of(by)?) };
    Some(ComesBack { by, worker })
}

/// Whether packets for a port end there.
fn is_end(dp: &Datapath, cx: Context<'_>, port: PortId) -> bool {
    if dp.is_dry { cx.snapshot.sends_to(port).is_none() } else { sends(dp, port) }
}

/// Whether this worker sends packets for a port by its device.
fn sends(dp: &Datapath, port: PortId) -> bool {
    dp.ports.sender(port).is_some_and(|queue| !queue.devices().is_empty())
}

/// What is noted of a packet that goes to a stage; nothing, if the stage only leads to others.
fn what(dp: &Datapath, cx: Context<'_>, next: Next, packet: &Mbuf) -> Option<PacketEvent> {
    let policy = &cx.snapshot.policy;
    Some(PacketEvent::Step(match next {
        Next::Decision(Side::Ingress(port), action) => {
            let translated = translated(dp, cx, port, packet);
            let key = looked_up_key(cx, port, packet).ok().map(|key| before_nat64(key, translated));
            return Some(PacketEvent::Ingress { port, decision: action.decision, key, translated });
        }
        Next::Decision(Side::Egress(out), action) => {
            let from = PortId(packet.port().0);
            return Some(PacketEvent::Egress { out, from, decision: action.decision });
        }
        Next::Bridge { from, action } => Step::Switched(match action.unpack() {
            Action::SwitchTo(out) => Some(out),
            Action::Flood => None,
            _ => known_destination(dp, cx, from, packet)?,
        }),
        Next::FloodEach { from } => {
            let (multicast, switching) = (cx.snapshot.multicast.as_ref()?, policy.switching.as_ref()?);
            Step::ToGroup(pruned_group(multicast, vlan_of(switching, from, packet)?, packet)?)
        }
        Next::Flood(flooding) => {
            Step::Flooded(next_two(cx.snapshot, policy.switching.as_ref()?, flooding)[0]?)
        }
        Next::Router { router, .. } => Step::Router(router),
        Next::Forwarded { out, .. } => {
            let key = ethernet_key_of(packet).ok()?;
            Step::NextHop { port: out, vlan: key.vlan, mac: key.destination_mac }
        }
        Next::Kernel { reason, .. } => Step::Punted(reason),
        Next::Chain(Entering { chain, .. }) | Next::ChainRole { chain, .. } => Step::Chain(chain),
        Next::Ring(end) => {
            let (role, key) = (dp.nfs.get(end.link)?.role, key_of(packet).ok());
            let hop = cx.snapshot.configured_hop(end.chain, end.hop);
            return Some(PacketEvent::ToNf { role, hop, key });
        }
        Next::IntoPair(end) => {
            let ChainHop { chain, hop } = end.at;
            let (role, key) = (cx.snapshot.role_at(chain, hop)?, key_of(packet).ok());
            return Some(PacketEvent::ToNf { role, hop: cx.snapshot.configured_hop(chain, hop), key });
        }
        // A hypothetical packet has only seemed to pass the NFs.
        Next::WaitForStart(chain, position) => Step::Waiting(Hop { chain, position }.waits_for(cx.snapshot)?),
        Next::LeaveChain { .. } if !dp.is_dry => Step::Left,
        Next::EgressRate(out) if policy.egress(out).is_some_and(|egress| egress.meter.is_some()) => {
            Step::Policed(1)
        }
        Next::Tx(port) if is_end(dp, cx, port) => Step::Out(port),
        Next::PushTag { tag, .. } => Step::TagPushed(tag),
        Next::PopTag { by } => match cx.snapshot.sends_to(by)? {
            SendsTo::Parent { tag, .. } => Step::TagPopped(tag),
            SendsTo::Peer(_) | SendsTo::Bridge | SendsTo::Tunnel(_) | SendsTo::Member => return None,
        },
        Next::Encapsulate(ToVtep { from, router, remote }) => {
            let (vni, remote) = vtep_of(cx, from, router, remote)?;
            Step::Encapsulated { vni, remote }
        }
        Next::PopHeaders(OutOfTunnel { by, router, remote, .. }) => {
            let (vni, remote) = vtep_of(cx, by, router, remote)?;
            Step::Decapsulated { vni, remote }
        }
        Next::Reject { .. } if has_answer(packet) => Step::Answered,
        Next::TellMtu { .. } if has_mtu_answer(packet) => Step::Answered,
        Next::MalformedAt(_) => Step::Malformed(key_of(packet).err()?),
        _ => return None,
    }))
}

/// The network and the address of a VTEP by its place.
fn vtep_of(cx: Context<'_>, port: PortId, router: RouterId, remote: u16) -> Option<(u32, Address)> {
    let tunnel = cx.snapshot.router(router)?.tunnels.of_port(port)?;
    Some((tunnel.vni.get(), tunnel.remotes.get(usize::from(remote))?.address))
}

/// The fields that the rules of a port see; at a port that switches everything, the Ethernet header is enough.
fn looked_up_key(cx: Context<'_>, port: PortId, packet: &Mbuf) -> Result<FlowKey, Malformed> {
    let ingress = cx.snapshot.policy.ingress(port);
    let is_switched = ingress.is_some_and(|ingress| ingress.switched.is_some());
    let key = key_of(packet).or_else(|why| if is_switched { ethernet_key_of(packet) } else { Err(why) })?;
    Ok(FlowKey { state: state_of(packet), ..key })
}

/// What NAT has made of a packet when a port received it.
fn translated(dp: &Datapath, cx: Context<'_>, port: PortId, packet: &Mbuf) -> Option<Translated> {
    let (nat, connections) = (cx.snapshot.nat.as_ref()?, dp.connections.as_ref()?);
    let of = translation_of(packet)?;
    let vlan = ethernet_key_of(packet).ok()?.vlan;
    connections.translated(nat, Passage { half: Half::Destination, port, of, vlan })
}

/// The fields that the rules saw, if NAT64 has translated the packet since.
fn before_nat64(key: FlowKey, translated: Option<Translated>) -> FlowKey {
    let Some(Translated { before: [source, destination], is_nat64: true, .. }) = translated else {
        return key;
    };
    let (ether_type, protocol) = match (source.address.is_v4(), key.protocol) {
        (true, IpProto::ICMPV6) => (EtherType::IPV4, IpProto::ICMP),
        (true, other) => (EtherType::IPV4, other),
        (false, IpProto::ICMP) => (EtherType::IPV6, IpProto::ICMPV6),
        (false, other) => (EtherType::IPV6, other),
    };
    let ports = [(key.source_port, source.port), (key.destination_port, destination.port)];
    // Messages of ICMP have none.
    let [source_port, destination_port] = ports.map(|(now, before)| if now == 0 { 0 } else { before });
    let (source, destination) = (source.address, destination.address);
    FlowKey { ether_type, protocol, source, destination, source_port, destination_port, ..key }
}

/// The port that L2 switching knows for the destination of a packet that it filters; `None` if it looks nothing up.
fn known_destination(dp: &Datapath, cx: Context<'_>, from: PortId, packet: &Mbuf) -> Option<Option<PortId>> {
    let switching = cx.snapshot.policy.switching.as_ref()?;
    let key = ethernet_key_of(packet).ok()?;
    let vlan = switching.bridge.ingress(from.0, tag_of(&key))?.ok()?;
    Some(switching.fdb.lookup(vlan, key.destination_mac, dp.clock.tick).map(PortId))
}

/// Where a hypothetical packet goes in place of the stage.
fn instead(recorder: &Recorder, cx: Context<'_>, next: Next) -> Next {
    match next {
        // The decision names them; their copies go nowhere.
        Next::Mirror(side, action, _) => Next::Mirror(side, action, NO_MIRROR),
        Next::Chain(entering) => pass_nfs(recorder, cx, entering),
        Next::ChainRole { from, chain, .. } => pass_nfs(recorder, cx, Entering { from, chain, skipped: 0 }),
        Next::Reject { from } => Next::drop_at(from, DropReason::Rejected),
        Next::TellMtu { from, .. } => Next::drop_at(from, DropReason::ExceedsMtu),
        Next::Tx(port) if cx.snapshot.sends_to(port).is_none() => Next::Discard,
        _ => next,
    }
}

/// As if every NF passed it on unchanged.
fn pass_nfs(recorder: &Recorder, cx: Context<'_>, entering: Entering) -> Next {
    let path = cx.snapshot.chain(entering.chain);
    let targets = path.map(|path| &path.targets[..]).unwrap_or_default();
    let (step, next) = match targets.split_last() {
        None | Some((Target::Drop(_), _)) => (Step::NfDecides, Next::Discard),
        Some((_, hops)) => (Step::Passed, Next::Hop(entering.chain, Position::Inside(hops.len() as u8))),
    };
    recorder.note(cx.snapshot.number, PacketEvent::Step(step));
    next
}
