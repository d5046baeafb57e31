// SPDX-License-Identifier: Apache-2.0
//! Per-flow verdicts of NFs: drop the rest of the flow, skip this NF, or steer the rest elsewhere.
//!
//! ```text
//!  in:   flow cache ──▶ slot and serial of the flow into the mbuf ──▶ verdicts? ──▶ drop, elsewhere, without the hop
//!  back: DropFlow, SkipFlow, Steer… ──▶ slot and serial in the mbuf ──▶ key on reception ──▶ verdict into the table
//! ```
//!
//! - The key is the flow key on reception, even if an NF has changed the packet since: mbufs and the flow cache are
//!   private to the engine. If the slot has another flow by then, the verdict applies to this packet only.
//! - Verdicts are in a separate table, to which traffic does not write: a scan that fills the flow cache evicts no
//!   verdict, and a new policy keeps them. The table is read only at ports whose packets can reach an NF that may give
//!   verdicts.
//! - A verdict expires when its flow is idle for too long, or when its link ends: a single counter per link ends all
//!   verdicts of an NF thread. Each worker has the verdicts on packets that it received, which are all packets of a
//!   flow (RSS).

use core::cell::Cell;

use dpdk::Batch;
use netvm_flow::{CacheError, Eviction, FlowCache, MAX_BURST, New, Options, Slot, Validity};
use netvm_model::SteerTo;
use netvm_policy::UsedFields;
use netvm_switch::TICKS_PER_SECOND;
use netvm_wire::FlowKey;

use super::lookup_results::{Action, LookupResults, Steering};
use crate::ids::{LinkId, PortId, RoleId};
use crate::link::MAX_LINKS;
use crate::snapshot::ChainPath;

/// Most flows with verdicts at a time.
const FLOWS: u32 = 16_384;
/// Most verdicts on one flow.
pub(crate) const MAX_VERDICTS: usize = 4;
/// The generation of all entries: verdicts do not depend on the policy's generation.
pub(in crate::worker::state) const ANY_GENERATION: u32 = 0;

/// What becomes of the rest of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowAction {
    /// It is dropped.
    Drop,
    /// It skips this NF.
    Skip,
    /// It goes elsewhere.
    Steer(SteerTo),
}

/// A verdict of one NF thread on one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewVerdict {
    pub(crate) action: FlowAction,
    /// The role of the NF, and its hop in the chain.
    pub(crate) role: RoleId,
    pub(crate) hop: u8,
    pub(crate) link: LinkId,
    /// The verdict expires after this many seconds without a packet.
    pub(crate) seconds: u16,
}

/// A flow as its packets came in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub(crate) port: PortId,
    pub(crate) key: FlowKey,
}

/// A verdict in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) action: FlowAction,
    pub(crate) role: RoleId,
    pub(crate) hop: u8,
    pub(crate) link: LinkId,
    /// [`FlowVerdicts::epochs`] of the link when it was given.
    epoch: u32,
    /// Ticks without a packet after which it expires.
    pub(crate) idle: u32,
}

impl Verdict {
    /// The same on another link with its NF thread.
    pub(crate) fn on(self, link: LinkId) -> Self {
        Self { link, ..self }
    }
}

/// The verdicts of one worker.
pub(crate) struct FlowVerdicts {
    /// The flows with verdicts by key and port, with the time of each flow's last packet.
    pub(in crate::worker::state) table: FlowCache,
    /// By slot.
    pub(in crate::worker::state) verdicts: Box<[[Option<Verdict>; MAX_VERDICTS]]>,
    /// By [`LinkId`]: changes when all verdicts of the link end.
    epochs: Box<[Cell<u32>]>,
    /// Whether any verdict was given since the start.
    pub(in crate::worker::state) any: bool,
}

impl FlowVerdicts {
    pub(crate) fn new() -> Result<Self, CacheError> {
        let options = Options { entries: FLOWS, eviction: Eviction::Clock, idle: Options::NEVER };
        Ok(Self {
            table: FlowCache::new(&options)?,
            verdicts: vec![[None; MAX_VERDICTS]; FLOWS as usize].into(),
            epochs: (0..MAX_LINKS).map(|_| Cell::new(0)).collect(),
            any: false,
        })
    }

    /// Ends all verdicts of a link.
    pub(crate) fn withdraw(&self, link: LinkId) {
        let epoch = &self.epochs[link.index()];
        epoch.set(epoch.get().wrapping_add(1));
    }

    /// Records a verdict; it replaces an earlier one of the same role and hop. Returns whether there was room: a flow
    /// has at most [`MAX_VERDICTS`].
    pub(crate) fn record(&mut self, flow: &Flow, new: NewVerdict, now: u32) -> bool {
        let (port, key) = (flow.port, UsedFields::default().mask(flow.key));
        let NewVerdict { action, role, hop, link, seconds } = new;
        let epoch = self.epochs[link.index()].get();
        let verdict = Verdict { action, role, hop, link, epoch, idle: u32::from(seconds) * TICKS_PER_SECOND };
        let slot = self.table.slot_of(port.0, &key);
        if let Some(slot) = slot {
            self.remove_ended(slot, now);
        }
        let slot = slot.unwrap_or_else(|| {
            let new = New { decision: 0, extra: 0, lifetime: Options::NEVER };
            let slot = self.table.insert(port.0, &key, new, Validity { generation: ANY_GENERATION, now });
            self.verdicts[slot.index()] = [None; MAX_VERDICTS];
            slot
        });
        self.table.hit(slot, 0, 0, now);
        self.any = true;
        let verdicts = &mut self.verdicts[slot.index()];
        let same =
            |other: &Option<Verdict>| other.is_some_and(|other| other.role == role && other.hop == hop);
        match verdicts.iter().position(same).or_else(|| verdicts.iter().position(Option::is_none)) {
            Some(free) => verdicts[free] = Some(verdict),
            None => return false,
        }
        true
    }

    /// A verdict that another worker had, on a link of this one.
    pub(in crate::worker::state) fn renewed(&self, verdict: Verdict) -> Verdict {
        Verdict { epoch: self.epochs[verdict.link.index()].get(), ..verdict }
    }

    /// Removes expired verdicts on a flow.
    pub(in crate::worker::state) fn remove_ended(&mut self, slot: Slot, now: u32) {
        let unused = now.wrapping_sub(self.table.entry(slot).last_used);
        for verdict in &mut self.verdicts[slot.index()] {
            let epochs = &self.epochs;
            *verdict = verdict.filter(|verdict| {
                unused <= verdict.idle && epochs[verdict.link.index()].get() == verdict.epoch
            });
        }
    }

    /// Finds flows with verdicts (bit `n` of the result for `keys[n]`) and their slots. Counts a packet for each flow
    /// found.
    pub(crate) fn look_up(&mut self, port: PortId, keys: &[FlowKey], now: u32, slots: &mut [Slot]) -> u64 {
        if !self.any {
            return 0;
        }
        let mut masked = [FlowKey::EMPTY; MAX_BURST];
        for (masked, key) in masked.iter_mut().zip(keys) {
            *masked = UsedFields::default().mask(*key);
        }
        let found = self.table.find(
            port.0,
            &masked[..keys.len()],
            Validity { generation: ANY_GENERATION, now },
            slots,
        );
        let mut left = found;
        while left != 0 {
            let slot = slots[left.trailing_zeros() as usize];
            left &= left - 1;
            self.remove_ended(slot, now);
            self.table.hit(slot, 1, 0, now);
        }
        found
    }

    /// The action of a flow's verdicts for a chain; `None` if they do not apply to it.
    pub(crate) fn action_on(&self, slot: Slot, path: &ChainPath) -> Option<Action> {
        let mut skipped = 0u16;
        let mut steered: Option<Steering> = None;
        for verdict in self.verdicts[slot.index()].iter().flatten() {
            let hop = usize::from(verdict.hop);
            if path.roles.get(hop) == Some(&verdict.role.0)
                && path.longest.get(hop).is_some_and(|most| *most > 0)
            {
                match verdict.action {
                    FlowAction::Drop => return Some(Action::DropFlow),
                    FlowAction::Skip => skipped |= 1u16.checked_shl(hop as u32).unwrap_or(0),
                    FlowAction::Steer(to) if steered.is_none_or(|first| verdict.hop < first.hop) => {
                        steered = Some(Steering { to, hop: verdict.hop });
                    }
                    FlowAction::Steer(_) => {}
                }
            }
        }
        match steered {
            Some(steering) => Some(Action::Steer(steering)),
            None => (skipped != 0).then_some(Action::SkipHops(skipped)),
        }
    }

    /// The ticks without a packet for which a flow still skips all NFs of a chain, if it does.
    pub(crate) fn released(&mut self, flow: &Flow, path: &ChainPath, now: u32) -> Option<u32> {
        let slot = self.table.slot_of(flow.port.0, &UsedFields::default().mask(flow.key))?;
        self.remove_ended(slot, now);
        let all = (1u32 << path.roles.len()).checked_sub(1).filter(|all| *all != 0)?;
        match self.action_on(slot, path)? {
            Action::SkipHops(hops) if u32::from(hops) == all => {}
            _ => return None,
        }
        self.verdicts[slot.index()].iter().flatten().map(|verdict| verdict.idle).min()
    }

    /// Counts packets of a flow that workers have not seen.
    pub(crate) fn passed(&mut self, flow: &Flow, packets: u32, bytes: u64, now: u32) {
        if let Some(slot) = self.table.slot_of(flow.port.0, &UsedFields::default().mask(flow.key)) {
            self.table.hit(slot, packets, bytes, now);
        }
    }

    /// Where NFs of a role at a hop have steered a flow.
    pub(crate) fn steered(&mut self, flow: &Flow, role: RoleId, hop: u8, now: u32) -> Option<SteerTo> {
        let slot = self.table.slot_of(flow.port.0, &UsedFields::default().mask(flow.key))?;
        self.remove_ended(slot, now);
        self.verdicts[slot.index()].iter().flatten().find_map(|verdict| match verdict.action {
            FlowAction::Steer(to) if (verdict.role, verdict.hop) == (role, hop) => Some(to),
            _ => None,
        })
    }

    /// Ends whatever steers a flow.
    pub(crate) fn end_steering(&mut self, flow: &Flow) {
        let Some(slot) = self.table.slot_of(flow.port.0, &UsedFields::default().mask(flow.key)) else {
            return;
        };
        for verdict in &mut self.verdicts[slot.index()] {
            verdict.take_if(|verdict| matches!(verdict.action, FlowAction::Steer(_)));
        }
    }

    /// For views: the verdicts on a flow, each with the ticks until it expires if no packet follows.
    pub(crate) fn of_flow(
        &self,
        port: PortId,
        key: &FlowKey,
        now: u32,
    ) -> [Option<(Verdict, u32)>; MAX_VERDICTS] {
        let mut held = [None; MAX_VERDICTS];
        if !self.any {
            return held;
        }
        let Some(slot) = self.table.slot_of(port.0, &UsedFields::default().mask(*key)) else { return held };
        let unused = now.wrapping_sub(self.table.entry(slot).last_used);
        for (held, verdict) in held.iter_mut().zip(&self.verdicts[slot.index()]) {
            *held = verdict
                .filter(|verdict| self.epochs[verdict.link.index()].get() == verdict.epoch)
                .and_then(|verdict| Some((verdict, verdict.idle.checked_sub(unused)?)));
        }
        held
    }

    /// Whether any NF has given a verdict yet.
    pub(crate) const fn any(&self) -> bool {
        self.any
    }
}

/// Writes each packet's flow to its mbuf: the slot in the flow cache, and the serial number of the entry.
pub(crate) fn note_flows(cache: &FlowCache, port: PortId, results: &LookupResults, batch: &mut Batch) {
    for ((mbuf, key), slot) in batch.as_mut_slice().iter_mut().zip(&results.keys).zip(&results.slots) {
        let entry = cache.entry(*slot);
        // Another flow of this burst may have taken the slot in the meantime.
        let is_its_own = entry.port() == port.0 && entry.key() == *key;
        mbuf.set_user_data(if is_its_own { [slot.index() as u32, entry.serial] } else { [u32::MAX, 0] });
    }
}
