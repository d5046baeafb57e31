//! Out of an NF's ring: every descriptor is a claim, checked against what is expected, else against the private account, before
//! anything is done.
//!
//! Predicted cost, in bursts of 64: the low words of descriptors come from the NF's core (8 lines a burst, fetched ahead in order) and
//! are compared with what was handed out, in some 15 instructions: 4 cycles a packet; where packets come in another order the account's
//! word and the mbuf's first line besides, some 33 instructions: 8 cycles. Measured at 2.6 GHz: 5 to 6, and 8 to 9, where a line
//! takes 120 cycles from the other core; 15, and 18, where it takes 430.

use dpdk::{Batch, MbufPtr};
use netvm_ring::{Action, Descriptor, Span};

use crate::counters::LinkCounters;
use crate::drop_reason::{DropReason, Violation};
use crate::ids::{ChainId, GroupId, LinkId, MemoryId, PortId};
use crate::snapshot::{ChainPath, Snapshot, Target};
use crate::worker::chain::deliver::Way;
use crate::worker::chain::flow_verdicts::Said;
use crate::worker::classify::lookup::Flows;
use crate::worker::state::{BURST, Path};

/// Descriptors that are taken from one NF thread in a turn, or a burst less one more.
const MOST: usize = 4 * BURST;
/// Shortest packet that an NF may send: an Ethernet header.
const MIN_LENGTH: u16 = 14;

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
        let (mut count, mut alike) = (0, true);
        while count < MOST {
            let mut packets = Batch::new();
            let (mut taken, mut verdict) = self.take_expected(sender, &mut alike, &mut packets);
            if taken == 0 {
                (taken, verdict) = self.take_noted(sender, &mut packets);
            }
            if taken == 0 {
                if self.look_around(link) {
                    continue;
                }
                taken = self.refuse(sender);
            }
            if taken == 0 {
                break;
            }
            count += taken;
            self.act(snapshot, sender, verdict, &mut packets);
        }
        self.counters.links[link.index()].returned.add(count as u64);
        count
    }

    /// Takes packets that come back in the order in which they were handed out, with descriptors that say the same, into a batch that
    /// has room for all; returns how many there were, and what they say. As long as they are `alike`, row by row.
    #[inline(always)]
    fn take_expected(&mut self, sender: Sender, alike: &mut bool, run: &mut Batch) -> (usize, Verdict) {
        let nothing = (0, Verdict::of(Descriptor::default()));
        let Self { links, memories, expected, counters, .. } = self;
        let Some(end) = links[sender.link.index()].as_deref_mut() else { return nothing };
        let Some(memory) = memories[sender.memory.index()].as_deref() else { return nothing };
        let Some(expected) = expected[end.source.index()].as_deref_mut() else { return nothing };
        let Some(first) = end.from_nf.peek_known() else { return nothing };
        let (bits, stride) = (first.verdict_bits(), memory.region().geometry().stride);
        let (spans, mbufs) = expected.front();
        let room = spans.len().min(run.room());
        let mut taken = if *alike { end.from_nf.take_same(&spans[..room], bits) } else { 0 };
        if taken == 0 {
            *alike = false;
            let mut next = spans.iter().zip(mbufs);
            taken = end.from_nf.take_known(room, |descriptor| {
                let Some((handed, mbuf)) = next.next() else { return false };
                let span = descriptor.span();
                bits.are_of(descriptor) && (span == *handed || is_moved(*handed, span, *mbuf, stride))
            });
        }
        // SAFETY: whoever handed these packets out forgot them, and they are expected once.
        unsafe { run.adopt(&mbufs[..taken]) };
        expected.forget_front(taken);
        counters.links[end.source.index()].expected.set(expected.len() as u64);
        // What comes next crosses while this is acted on.
        end.from_nf.prefetch_known(BURST as u32);
        (taken, Verdict::of(first))
    }

    /// Takes packets that the account has, as [`Path::take_expected`] does.
    #[inline]
    fn take_noted(&mut self, sender: Sender, run: &mut Batch) -> (usize, Verdict) {
        let nothing = (0, Verdict::of(Descriptor::default()));
        let Self { links, memories, .. } = self;
        let Some(end) = links[sender.link.index()].as_deref_mut() else { return nothing };
        let Some(memory) = memories[sender.memory.index()].as_deref() else { return nothing };
        let Some(first) = end.from_nf.peek_known() else { return nothing };
        let (bits, stride) = (first.verdict_bits(), memory.region().geometry().stride);
        let taking_back = memory.taking_back(self.id);
        let (places, room) = run.spare();
        let mut taken = 0;
        // What is out of the ordinary is left where it is: so this loop has few values to keep.
        end.from_nf.take_known(room, |descriptor| {
            let span = descriptor.span();
            if !(bits.are_of(descriptor) & may_be(span, stride)) {
                return false;
            }
            let Ok(mut mbuf) = taking_back.buffer(span.buffer()) else { return false };
            // SAFETY: the span lies in the buffer, which is the mbuf's buffer; a packet that was handed out has one segment.
            unsafe { mbuf.set_bounds_unchecked(span.offset(), span.length()) };
            // SAFETY: fewer than `room` have been taken before this one.
            unsafe { places.add(taken).write(mbuf.into_raw().as_ptr()) };
            taken += 1;
            true
        });
        // What comes next crosses while this is acted on.
        end.from_nf.prefetch_known(BURST as u32);
        // SAFETY: so many were written, which nobody else owns.
        unsafe { run.assume_added(taken) };
        (taken, Verdict::of(first))
    }

    /// Takes a descriptor that names no packet of the sender's, or one that is not where it says; returns how many were taken.
    #[cold]
    fn refuse(&mut self, sender: Sender) -> usize {
        let Self { links, memories, counters, flows, .. } = self;
        let Some(end) = links[sender.link.index()].as_deref_mut() else { return 0 };
        let Some(memory) = memories[sender.memory.index()].as_deref() else { return 0 };
        let counters = &counters.links[sender.link.index()];
        let taking_back = memory.taking_back(self.id);
        end.from_nf.take_known(1, |descriptor| {
            match taking_back.buffer(descriptor.buffer()) {
                Ok(_) => counters.drops.add(DropReason::BadSpan, 1),
                Err(violation) => without_packet(counters, flows, sender.link, descriptor, violation),
            }
            true
        })
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
            Some(Action::Withdraw) | None => self.reject(sender, Some(chain), DropReason::BadAction, run),
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

/// Whether an NF may say that a packet is there.
#[inline(always)]
fn may_be(span: Span, stride: u32) -> bool {
    (u32::from(span.offset()) + u32::from(span.length()) <= stride) & (span.length() >= MIN_LENGTH)
}

/// Whether it is the packet that was handed out, at another place of its buffer, where it may be; its mbuf says so then.
#[inline(never)]
fn is_moved(handed: Span, span: Span, mbuf: MbufPtr, stride: u32) -> bool {
    if handed.buffer() != span.buffer() || !may_be(span, stride) {
        return false;
    }
    // SAFETY: a packet that is expected is nobody else's; the span lies in its buffer, and it has one segment.
    unsafe { mbuf.borrow().set_bounds_unchecked(span.offset(), span.length()) };
    true
}

/// A descriptor that names no packet of the sender's: a word without one, or a violation.
#[cold]
fn without_packet(
    counters: &LinkCounters,
    flows: &Flows,
    link: LinkId,
    descriptor: Descriptor,
    violation: Violation,
) {
    let is_word = descriptor.action() == Action::Withdraw as u8 && violation == Violation::BufferOutOfRange;
    if is_word {
        flows.words.withdraw(link);
    } else {
        counters.violations[violation as usize].add(1);
    }
}

/// The way of packets that an NF has sent on.
const fn onwards(chain: ChainId, path: &ChainPath) -> Way {
    Way { chain, hashed: path.hashed, port: None, full: DropReason::DownstreamFull }
}
