//! Out of an NF's ring: takes packets back and does what their verdicts say. What taking back costs: see [`crate::inflight`].

use dpdk::Batch;
use netvm_ring::{Action, Descriptor, Message};

use crate::drop_reason::{DropReason, Violation};
use crate::ids::{ChainId, GroupId, LinkId, MemoryId, PortId};
use crate::inflight::{Returned, Turn};
use crate::snapshot::{ChainPath, Snapshot, Target};
use crate::worker::chain::deliver::Way;
use crate::worker::chain::flow_verdicts::Said;
use crate::worker::state::{BURST, Path};

/// Descriptors that are taken from one NF thread in a turn, or a burst less one more.
const MOST: usize = 4 * BURST;

/// What is the same for the packets of a run.
#[derive(Clone, Copy)]
struct Verdict {
    chain: ChainId,
    hop: u8,
    action: u8,
    argument: u16,
}

impl Verdict {
    #[inline(always)]
    const fn of(descriptor: Descriptor) -> Self {
        let (action, argument) = (descriptor.action(), descriptor.argument());
        Self { chain: ChainId(descriptor.chain()), hop: descriptor.hop(), action, argument }
    }
}

/// Whose verdicts are being acted on.
#[derive(Clone, Copy)]
struct Sender {
    link: LinkId,
    group: GroupId,
    memory: MemoryId,
}

impl Path {
    /// Takes what one NF thread has returned, as far as is known, and does what it says; returns how many descriptors there were.
    ///
    /// That is more than what a port gives in a turn: otherwise rings that have filled up once, while either side stood still, stay
    /// full, as nothing takes more out of them than what comes in.
    #[inline]
    pub(crate) fn collect(&mut self, snapshot: &Snapshot, link: LinkId) -> usize {
        let Some(end) = self.links[link.index()].as_ref() else { return 0 };
        let sender = Sender { link, group: end.group, memory: end.memory };
        let (mut count, mut turn) = (0, Turn::new(link));
        while count < MOST {
            let mut packets = Batch::new();
            let Some(end) = self.links[link.index()].as_deref_mut() else { break };
            match self.in_flight.take_back(&mut turn, &mut end.from_nf, &mut packets) {
                Returned::Packets(first) => {
                    count += packets.len();
                    self.act(snapshot, sender, Verdict::of(first), &mut packets);
                }
                Returned::Nothing => break,
                other => {
                    count += 1;
                    self.note_without_packets(link, other);
                }
            }
        }
        self.counters.links[link.index()].returned.add(count as u64);
        count
    }

    /// A descriptor that brought no packet.
    #[cold]
    fn note_without_packets(&self, link: LinkId, returned: Returned) {
        let counters = &self.counters.links[link.index()];
        match returned {
            Returned::Message(Message::WithdrawVerdicts) => self.flows.words.withdraw(link),
            Returned::BadBounds => counters.drops.add(DropReason::BadSpan, 1),
            Returned::Refused(violation) => counters.violations[violation as usize].add(1),
            Returned::Nothing | Returned::Packets(_) => {}
        }
    }

    #[inline]
    fn act(&mut self, snapshot: &Snapshot, sender: Sender, verdict: Verdict, run: &mut Batch) {
        if run.is_empty() {
            return;
        }
        let chain = verdict.chain;
        let Some(path) = snapshot.chain(chain).filter(|path| path.has(verdict.hop, sender.group)) else {
            return self.reject(sender, None, DropReason::BadChain, run);
        };
        match Action::from_raw(verdict.action) {
            Some(Action::Next) => {
                let next = &path.targets[usize::from(verdict.hop) + 1];
                self.deliver(snapshot, next, onwards(chain, path), sender.memory, run);
            }
            Some(Action::Port) => {
                let port = PortId(verdict.argument);
                let allowed = snapshot.group(sender.group).is_some_and(|ports| ports.has(port));
                if allowed {
                    self.leave(snapshot, chain, port, sender.memory, run);
                } else {
                    let known = snapshot.ports.has(port);
                    let reason = if known { DropReason::PortDenied } else { DropReason::UnknownPort };
                    self.reject(sender, Some(chain), reason, run);
                }
            }
            Some(Action::Drop) => self.reject(sender, Some(chain), DropReason::Verdict, run),
            Some(Action::Role) => self.send_to_role(snapshot, sender, verdict, path, run),
            Some(action @ (Action::DropFlow | Action::SkipFlow)) => {
                self.act_on_flows(snapshot, sender, verdict, action, path, run);
            }
            None => self.reject(sender, Some(chain), DropReason::BadAction, run),
        }
    }

    /// Hears what is to become of the packets' flows, and treats the packets in the same way.
    #[cold]
    fn act_on_flows(
        &mut self,
        snapshot: &Snapshot,
        sender: Sender,
        verdict: Verdict,
        action: Action,
        path: &ChainPath,
        run: &mut Batch,
    ) {
        let drops = action == Action::DropFlow;
        let said = Said { link: sender.link, hop: verdict.hop, drops, seconds: verdict.argument };
        self.hear(snapshot, path, said, run);
        let action = if drops { Action::Drop } else { Action::Next } as u8;
        self.act(snapshot, sender, Verdict { action, ..verdict }, run);
    }

    /// To the next hop of the chain with that role, in whatever group the chain leads to, else to an NF of the sender's
    /// own group.
    fn send_to_role(
        &mut self,
        snapshot: &Snapshot,
        sender: Sender,
        verdict: Verdict,
        path: &ChainPath,
        run: &mut Batch,
    ) {
        let chain = verdict.chain;
        let after = usize::from(verdict.hop) + 1;
        if let Some(later) = path.roles.iter().skip(after).position(|role| *role == verdict.argument) {
            self.deliver(snapshot, &path.targets[after + later], onwards(chain, path), sender.memory, run);
            return;
        }
        match snapshot.roles.get(usize::from(verdict.argument)) {
            Some(Some(target @ Target::Links { group, .. })) if *group == sender.group => {
                self.detour(snapshot, target, onwards(chain, path), verdict.hop, sender.memory, run);
            }
            Some(Some(Target::Links { .. })) => self.reject(sender, Some(chain), DropReason::RoleDenied, run),
            _ => self.reject(sender, Some(chain), DropReason::UnknownRole, run),
        }
    }

    /// Frees packets for what an NF said of them; counted with the NF, and with the chain where it is a real one.
    #[inline]
    fn reject(&self, sender: Sender, chain: Option<ChainId>, reason: DropReason, run: &mut Batch) {
        self.counters.links[sender.link.index()].drops.add(reason, run.len() as u64);
        match chain {
            Some(chain) => self.drop_in_chain(chain, reason, run),
            None => run.clear(),
        }
    }

    /// Takes everything that an NF thread which is leaving has published; afterwards its link is of no use.
    pub(crate) fn drain(&mut self, snapshot: &Snapshot, link: LinkId) {
        let Some(end) = self.links[link.index()].as_ref() else { return };
        let bursts = end.from_nf.memory().capacity() as usize / BURST + 1;
        for _ in 0..bursts {
            self.prefetch_returned();
            if self.collect(snapshot, link) == 0 {
                break;
            }
        }
    }

    /// Notes ring indexes that cannot be.
    pub(crate) fn note_faults(&mut self, link: LinkId) {
        if let Some(end) = self.links[link.index()].as_ref() {
            let faults = end.to_nf.faults() + end.from_nf.faults();
            let counter = &self.counters.links[link.index()].violations[Violation::RingIndex as usize];
            counter.add(faults.saturating_sub(counter.get()));
        }
    }
}

/// The way of packets that an NF has sent on.
const fn onwards(chain: ChainId, path: &ChainPath) -> Way {
    Way { chain, hashed: path.hashed, port: None, full: DropReason::DownstreamFull }
}
