//! Packets of a port of whose rules most apply to none of them: what the prefilter proves goes the way of packets without
//! rules, and the rest is looked up flow by flow. All of a flow goes one way, as the prefilter looks at nothing but what
//! names the flow, and packets of a burst are put together again in their order before anything is done with them.

use dpdk::Batch;
use netvm_flow::Moment;
use netvm_switch::Guard;
use netvm_wire::{Address, EtherType, FlowKey, MacAddr};

use crate::policy::{IngressPolicy, Shortcut, Switching};
use crate::snapshot::Snapshot;
use crate::worker::classify::l2_fast_path::{Run, Runs};
use crate::worker::classify::lookup::{Found, MOST, UNRESOLVED, look_into, prefetch, read_key};
use crate::worker::classify::packet_set::{Places, all};
use crate::worker::classify::prefilter::{ETHERNET_BITS, Screened, screen};
use crate::worker::forward::switching::Resolved;
use crate::worker::rx::dispatch::{Origin, Treatment};
use crate::worker::state::Path;

/// The same for all packets of a burst.
#[derive(Clone, Copy)]
struct Way<'a> {
    snapshot: &'a Snapshot,
    ingress: &'a IngressPolicy,
    /// The decision where no rule applies.
    decision: u32,
    /// Where that is to switch them.
    switching: Option<&'a Switching>,
    from: Origin,
}

impl Path {
    /// Sends a burst on its ways; the batch is empty afterwards.
    pub(crate) fn steer_screened(
        &mut self,
        snapshot: &Snapshot,
        ingress: &IngressPolicy,
        shortcut: &Shortcut,
        from: Origin,
        found: &mut Found,
        batch: &mut Batch,
    ) {
        for mbuf in batch.as_slice() {
            prefetch(mbuf.data());
        }
        let Screened { proven, alike } = look(ingress, shortcut, batch, found);
        if proven == 0 {
            return self.steer_each(snapshot, ingress, from, found, batch);
        }
        let switching = snapshot.policy.switching.as_ref().filter(|_| shortcut.is_switched);
        let way = Way { snapshot, ingress, decision: shortcut.decision, switching, from };
        if proven != all(batch.len()) {
            return self.steer_mixed(way, shortcut, proven, found, batch);
        }
        if alike || switching.is_none() {
            let bytes = found.lengths[..batch.len()].iter().map(|length| u64::from(*length)).sum();
            let resolved = self.resolve_alike(way, batch.len() as u8, bytes, found);
            let treatment = Treatment { decision: way.decision, resolved };
            return self.treat_alike(snapshot, ingress, treatment, from, bytes, batch);
        }
        let mut extras = [UNRESOLVED; MOST];
        self.resolve_proven(way, &Places::of(proven), &mut extras, found);
        (found.decisions, found.extras) = ([way.decision; MOST], extras);
        self.treat(snapshot, ingress, from, found, batch);
    }

    /// Where packets go that all have the Ethernet header of the first.
    #[inline(always)]
    fn resolve_alike(&mut self, way: Way<'_>, packets: u8, bytes: u64, found: &mut Found) -> Resolved {
        let Some(switching) = way.switching else { return Resolved::NONE };
        found.keys[0] = key_of(found.headers[0]);
        let run = Run { first: 0, packets, bytes: bytes as u32 };
        self.resolve_runs(way, switching, &[run], found);
        Resolved::of(found.extras[0])
    }

    /// Where the packets at these places go, which no rule matches.
    fn resolve_proven(&mut self, way: Way<'_>, places: &Places, extras: &mut [u32; MOST], found: &mut Found) {
        let Some(switching) = way.switching else { return };
        let mut runs = Runs::new();
        let mut before = None;
        for (nth, place) in places.iter().enumerate() {
            let header = found.headers[place] & ETHERNET_BITS;
            if before != Some(header) {
                found.keys[runs.list().len()] = key_of(header);
                runs.begin(nth);
                before = Some(header);
            }
            runs.add(found.lengths[place]);
        }
        self.resolve_runs(way, switching, runs.list(), found);
        for (n, run) in runs.list().iter().enumerate() {
            let first = usize::from(run.first);
            for place in &places.list()[first..first + usize::from(run.packets)] {
                extras[usize::from(*place)] = found.extras[n];
            }
        }
    }

    #[inline(always)]
    fn resolve_runs(&mut self, way: Way<'_>, switching: &Switching, runs: &[Run], found: &mut Found) {
        let policy = &way.snapshot.policy;
        let moment = Moment { generation: policy.generation, now: self.tick };
        self.find_runs(way.from.port, runs, way.decision, moment, found);
        self.switch(policy, way.ingress, switching, way.from, runs.len(), found);
    }

    /// A burst of which rules may match some packets.
    #[inline(never)]
    fn steer_mixed(
        &mut self,
        way: Way<'_>,
        shortcut: &Shortcut,
        mut proven: u64,
        found: &mut Found,
        batch: &mut Batch,
    ) {
        let Way { snapshot, ingress, from, .. } = way;
        let policy = &*snapshot.policy;
        let mut rest = Places::of(!proven & all(batch.len()));
        loop {
            let mut bad = 0u64;
            for place in rest.iter() {
                let key = &mut found.keys[place];
                bad |= u64::from(read_key(&batch.as_slice()[place], key).is_err()) << place;
                *key = policy.used.mask(*key);
            }
            if bad == 0 {
                break;
            }
            self.drop_malformed(from.port, bad, batch, found);
            proven = look(ingress, shortcut, batch, found).proven;
            rest = Places::of(!proven & all(batch.len()));
        }
        let lengths = found.lengths;
        let (mut decisions, mut extras) = ([way.decision; MOST], [UNRESOLVED; MOST]);
        for (nth, place) in rest.iter().enumerate() {
            (found.keys[nth], found.lengths[nth]) = (found.keys[place], lengths[place]);
        }
        self.find_flows(policy, ingress, from, rest.count(), found);
        if let Some(guard) = &ingress.guard {
            look_into(guard, rest.iter().map(|place| &batch.as_slice()[place]), found);
        }
        if let Some(switching) = &policy.switching {
            self.switch(policy, ingress, switching, from, rest.count(), found);
        }
        for (nth, place) in rest.iter().enumerate() {
            (decisions[place], extras[place]) = (found.decisions[nth], found.extras[nth]);
        }
        found.lengths = lengths;
        self.resolve_proven(way, &Places::of(proven), &mut extras, found);
        (found.decisions, found.extras) = (decisions, extras);
        self.treat(snapshot, ingress, from, found, batch);
    }
}

/// Screens a burst; leaves in `found` the beginning and the length of each packet. Whose sender may be another than the
/// port's guest is not proven.
#[inline(always)]
fn look(ingress: &IngressPolicy, shortcut: &Shortcut, batch: &Batch, found: &mut Found) -> Screened {
    let (prefilter, packets) = (&shortcut.prefilter, batch.as_slice());
    let Some(guard) = &ingress.guard else {
        return screen(prefilter, packets, |place, length, seen| {
            (found.headers[place], found.lengths[place]) = (seen.header, length);
        });
    };
    let mut screened = screen(prefilter, packets, |place, length, seen| {
        (found.headers[place], found.lengths[place]) = (seen.header, length);
        found.sources[place] = seen.source;
    });
    screened.proven &= !spoofed(guard, screened.proven, found);
    screened
}

/// The packets among these that a port's guest may not send as itself, or not by its address alone.
fn spoofed(guard: &Guard, of: u64, found: &Found) -> u64 {
    let mut spoofed = 0;
    let mut good = None;
    for place in Places::of(of).iter() {
        let (header, source) = (found.headers[place], found.sources[place]);
        let sender = Some((header & ETHERNET_BITS, source));
        if sender == good {
            continue;
        }
        let key = FlowKey { source: Address::from_v4_octets(source), ..key_of(header) };
        match guard.check(&key) {
            Ok(()) => good = sender,
            Err(_) => spoofed |= 1 << place,
        }
    }
    spoofed
}

/// The key of packets that have this Ethernet header, as a switch sees it: IPv4 and untagged, as they were proven to be.
#[inline(always)]
fn key_of(header: u128) -> FlowKey {
    let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = header.to_le_bytes();
    FlowKey {
        destination_mac: MacAddr([a, b, c, d, e, f]),
        source_mac: MacAddr([g, h, i, j, k, l]),
        ether_type: EtherType::IPV4,
        ..FlowKey::EMPTY
    }
}
