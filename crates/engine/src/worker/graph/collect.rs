// SPDX-License-Identifier: Apache-2.0
//! Collects packets from an NF's ring. In: descriptors that an NF thread has returned. Out: packets in runs with the
//! same verdict: to the next hop, out of the chain, to another role, or dropped. If the NF is not at this chain and
//! hop, or may not use this port or role, the packets are dropped and counted.
//!
//! Cost: one lookup of the chain per run. For the cost of taking packets back see [`crate::inflight`].

use dpdk::Batch;
use netvm_capture_ring::Direction;
use netvm_ring::{Descriptor, VerdictKind};

use super::{observe, walk};
use crate::capture::{CaptureMeta, CapturePoint};
use crate::drop_reason::{DropReason, Violation};
use crate::ids::{ChainId, GroupId, LinkId, PortId, RoleId};
use crate::inflight::{Returned, Turn};
use crate::snapshot::{ChainPath, Snapshot, Target};
use crate::worker::chain::flow_verdicts::{FlowVerdict, Steered, Steerer, record};
use crate::worker::chain::kept;
use crate::worker::next::{Exit, Next, Position};
use crate::worker::packet::groups::groups;
use crate::worker::packet::keys::key_of;
use crate::worker::record::{PacketEvent, Source, Visit};
use crate::worker::state::burst::Context;
use crate::worker::state::{BURST, Datapath};
use crate::worker::trace::NfVerdict;
use crate::worker::tx::offload::{all_plain, renew};

/// Descriptors taken from one NF thread in a turn; up to a burst minus one more.
const MAX_DESCRIPTORS: usize = 4 * BURST;

/// Takes the packets that one NF thread has returned, and acts on their verdicts. Returns the number of descriptors.
///
/// Takes more than a port receives in a turn. Otherwise, rings that filled up once, while either side was stopped,
/// would stay full, because as many packets would come in as go out.
#[inline]
pub(crate) fn collect(dp: &mut Datapath, snapshot: &Snapshot, link: LinkId) -> usize {
    let Some(end) = dp.nfs.get(link) else { return 0 };
    let cx = Context::new(snapshot, end.memory);
    let sender = Sender { cx, link, group: end.group, role: end.role };
    let (mut count, mut others, mut turn) = (0, 0, Turn::new(link));
    while count < MAX_DESCRIPTORS {
        let mut packets = Batch::new();
        let Some(end) = dp.nfs.get_mut(link) else { break };
        match dp.in_flight.take_back(&mut turn, &mut end.from_nf, &mut packets) {
            Returned::Packets(first) => {
                count += packets.len();
                dp.latency.taken_back(&packets, first.hop());
                if dp.ports.has_offload_work && !all_plain(&packets) {
                    let dp = &*dp;
                    renew(dp, cx.memory, &mut packets, |reason, mbuf| observe::drop_one(dp, reason, mbuf));
                }
                act(dp, sender, Verdict::of(first), &mut packets);
            }
            Returned::Nothing => break,
            Returned::Kept(first) => {
                count += packets.len();
                others += packets.len();
                let verdict = Verdict::of(first);
                if dp.recorder.is_some() || dp.latency.is_on() {
                    let hop = snapshot.configured_hop(verdict.chain, verdict.hop);
                    observe::made(dp, snapshot, Source::Nf { role: sender.role, hop }, &packets);
                }
                if dp.ports.has_offload_work && !all_plain(&packets) {
                    let dp = &*dp;
                    renew(dp, cx.memory, &mut packets, |reason, mbuf| observe::drop_one(dp, reason, mbuf));
                }
                if kept::give_ingress(verdict.kind, verdict.argument, &mut packets) {
                    act(dp, sender, verdict, &mut packets);
                } else {
                    sender.refuse(dp, verdict, DropReason::NoIngress, &mut packets);
                }
            }
            Returned::Message(message) => {
                count += 1;
                others += 1;
                kept::handle_message(dp, snapshot, link, message);
            }
            other => {
                count += 1;
                note_without_packets(dp, link, other);
            }
        }
    }
    // Without packets that were not handed out: nobody waits for them.
    dp.counters.links[link.index()].returned.add((count - others) as u64);
    count
}

/// Handles a descriptor without a packet.
#[cold]
fn note_without_packets(dp: &Datapath, link: LinkId, returned: Returned) {
    let counters = &dp.counters.links[link.index()];
    match returned {
        Returned::BadBounds => counters.drops.add(DropReason::BadSpan, 1),
        Returned::Refused(violation) => counters.violations[violation as usize].add(1),
        Returned::Nothing | Returned::Packets(_) | Returned::Kept(_) | Returned::Message(_) => {}
    }
}

/// Takes everything that a leaving NF thread has published. Its link is not used afterwards.
pub(crate) fn drain(dp: &mut Datapath, snapshot: &Snapshot, link: LinkId) {
    let Some(end) = dp.nfs.get(link) else { return };
    let bursts = end.from_nf.memory().capacity() as usize / BURST + 1;
    for _ in 0..bursts {
        dp.nfs.prefetch_returned();
        if collect(dp, snapshot, link) == 0 {
            break;
        }
    }
}

/// Counts impossible ring indexes.
pub(crate) fn note_faults(dp: &Datapath, link: LinkId) {
    if let Some(end) = dp.nfs.get(link) {
        let faults = end.to_nf.faults() + end.from_nf.faults();
        let counter = &dp.counters.links[link.index()].violations[Violation::RingIndex as usize];
        counter.add(faults.saturating_sub(counter.get()));
    }
}

/// The verdict that the descriptors of a run have in common.
#[derive(Clone, Copy)]
struct Verdict {
    chain: ChainId,
    hop: u8,
    kind: u8,
    argument: u16,
}

impl Verdict {
    #[inline(always)]
    const fn of(descriptor: Descriptor) -> Self {
        let (kind, argument) = (descriptor.verdict(), descriptor.argument());
        Self { chain: ChainId(descriptor.chain()), hop: descriptor.hop(), kind, argument }
    }

    /// The verdict on the flows of the packets, of the NF thread with this link to this chain.
    const fn on_flows(self, link: LinkId, path: &ChainPath) -> FlowVerdict<'_> {
        let drops = self.kind == VerdictKind::DropFlow as u8;
        FlowVerdict { link, path, hop: self.hop, drops, seconds: self.argument }
    }
}

/// The NF thread that returned packets, and the context of their handling.
#[derive(Clone, Copy)]
struct Sender<'a> {
    cx: Context<'a>,
    link: LinkId,
    group: GroupId,
    role: RoleId,
}

impl Sender<'_> {
    /// The capture point of its packets, according to the NF, which is not trusted.
    const fn point(&self, verdict: Verdict) -> CapturePoint {
        CapturePoint::Hop { chain: verdict.chain, hop: verdict.hop, role: self.role }
    }

    /// The NF as one that may steer flows.
    const fn steerer<'a>(&'a self, path: &'a ChainPath, verdict: Verdict) -> Steerer<'a> {
        let Verdict { chain, hop, .. } = verdict;
        Steerer { snapshot: self.cx.snapshot, link: self.link, role: self.role, chain, path, hop }
    }

    /// Drops packets because of an NF's verdict. Counts them for the NF, and for the chain if the NF belongs to it.
    #[inline]
    fn refuse(&self, dp: &Datapath, verdict: Verdict, reason: DropReason, run: &mut Batch) {
        dp.counters.links[self.link.index()].drops.add(reason, run.len() as u64);
        if dp.is_capturing {
            let meta = CaptureMeta::dropped(self.point(verdict), reason);
            dp.capture(&meta.by_verdict(verdict.kind, verdict.argument), run.as_slice());
        }
        if reason != DropReason::BadChain
            && let Some(counters) = dp.counters.chains.get(verdict.chain.index())
        {
            counters.drops.add(reason, run.len() as u64);
        }
        observe::free(dp, reason, run);
    }
}

/// Carries out a verdict; the batch is empty afterwards.
#[inline]
fn act(dp: &mut Datapath, sender: Sender<'_>, verdict: Verdict, run: &mut Batch) {
    if run.is_empty() {
        return;
    }
    let (chain, snapshot) = (verdict.chain, sender.cx.snapshot);
    if dp.recorder.is_some() {
        trace(dp, sender, verdict, run);
    }
    let Some(path) = snapshot.chain(chain).filter(|path| path.has(verdict.hop, sender.group)) else {
        return sender.refuse(dp, verdict, DropReason::BadChain, run);
    };
    if dp.is_capturing {
        let meta = CaptureMeta::at(sender.point(verdict), Direction::Out);
        dp.capture(&meta.by_verdict(verdict.kind, verdict.argument), run.as_slice());
    }
    let kind = VerdictKind::from_raw(verdict.kind);
    match kind {
        Some(VerdictKind::DropFlow | VerdictKind::SkipFlow) => {
            record(dp, snapshot, verdict.on_flows(sender.link, path), run);
        }
        Some(VerdictKind::Hold) => {
            kept::hold(dp, sender.link, run);
            return sender.refuse(dp, verdict, DropReason::HoldQuota, run);
        }
        _ => {}
    }
    let steered = Steered::of(kind, verdict.argument);
    match next_of(sender, path, verdict, kind) {
        Ok(next) if steered.is_some() || kind == Some(VerdictKind::Next) => {
            let steerer = sender.steerer(path, verdict);
            if steered.is_some() || steerer.may_have_steered(dp) {
                return pass_on(dp, steerer, steered, Passed { cx: sender.cx, next, run });
            }
            walk(dp, sender.cx, next, run);
        }
        Ok(next) => walk(dp, sender.cx, next, run),
        Err(reason) => sender.refuse(dp, verdict, reason, run),
    }
}

/// Packets that an NF passes on.
struct Passed<'a> {
    cx: Context<'a>,
    next: Next,
    run: &'a mut Batch,
}

/// Brings packets to their ends that an NF passes on which steers flows.
#[cold]
fn pass_on(dp: &mut Datapath, steerer: Steerer<'_>, steered: Option<Steered>, passed: Passed<'_>) {
    let Passed { cx, next: on, run } = passed;
    let nexts = steerer.pass_on(dp, steered, run, on);
    groups(
        run,
        |n| nexts[n],
        |next, part| {
            if matches!(next, Next::Chain(_)) {
                observe::left_chain(dp, steerer.chain, part);
            }
            walk(dp, cx, next, part);
        },
    );
}

/// Notes packets that an NF has returned, for traces.
#[cold]
fn trace(dp: &Datapath, sender: Sender<'_>, verdict: Verdict, run: &Batch) {
    let Verdict { chain, hop, kind, argument } = verdict;
    let snapshot = sender.cx.snapshot;
    let (role, hop) = (sender.role, snapshot.configured_hop(chain, hop));
    let verdict = NfVerdict::of(kind, argument);
    if let Some(recorder) = &dp.recorder {
        recorder.visited(&Visit::of(snapshot, run), |packet| {
            Some(PacketEvent::FromNf { role, hop, verdict, key: key_of(packet).ok() })
        });
    }
}

/// Where a verdict sends packets, or why it may not.
#[inline]
fn next_of(
    sender: Sender<'_>,
    path: &ChainPath,
    verdict: Verdict,
    kind: Option<VerdictKind>,
) -> Result<Next, DropReason> {
    let (chain, snapshot) = (verdict.chain, sender.cx.snapshot);
    match kind {
        Some(VerdictKind::Next | VerdictKind::SkipFlow) => {
            Ok(Next::Hop(chain, Position::Inside(verdict.hop + 1)))
        }
        Some(VerdictKind::Port) => {
            let port = PortId(verdict.argument);
            if snapshot.group(sender.group).is_some_and(|ports| ports.has(port)) {
                return Ok(Next::LeaveChain { chain, to: Exit::Port(port), entered: false });
            }
            Err(if snapshot.ports.has(port) { DropReason::PortDenied } else { DropReason::UnknownPort })
        }
        Some(VerdictKind::Role) => next_with_role(sender, path, verdict),
        Some(VerdictKind::Drop | VerdictKind::DropFlow) => Err(DropReason::Verdict),
        Some(
            VerdictKind::SteerChain
            | VerdictKind::SteerRole
            | VerdictKind::SteerPort
            | VerdictKind::SteerBack,
        ) => {
            let steered = Steered::of(kind, verdict.argument);
            let rights = steered.and_then(|steered| sender.steerer(path, verdict).rights(steered));
            match rights {
                Some(_) => Ok(Next::Hop(chain, Position::Inside(verdict.hop + 1))),
                None => Err(DropReason::SteerDenied),
            }
        }
        // `act` has returned before.
        Some(VerdictKind::Hold) | None => Err(DropReason::BadAction),
    }
}

/// The next hop of the chain with this role, in any group. If there is none: an NF of this role in the sender's own
/// group, and the hop does not change.
#[cold]
fn next_with_role(sender: Sender<'_>, path: &ChainPath, verdict: Verdict) -> Result<Next, DropReason> {
    let (chain, role, hop) = (verdict.chain, verdict.argument, verdict.hop);
    let after = usize::from(hop) + 1;
    if let Some(later) = path.roles.iter().skip(after).position(|other| *other == role) {
        return Ok(Next::Hop(chain, Position::Inside((after + later) as u8)));
    }
    let target = sender.cx.snapshot.roles.get(usize::from(role)).and_then(Option::as_ref);
    match target.and_then(Target::replicas) {
        Some(replicas) if replicas.group == sender.group => {
            Ok(Next::Hop(chain, Position::Aside { role, hop, from: None }))
        }
        Some(_) => Err(DropReason::RoleDenied),
        None => Err(DropReason::UnknownRole),
    }
}
