// SPDX-License-Identifier: Apache-2.0
//! One protocol in a VLAN: memberships, routers, and who queries.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use netvm_wire::Address;

use super::message::{Change, Query};
use super::query::ROBUSTNESS;
use super::settings::{PortSettings, SnoopSettings};
use super::table::Domain;

/// General queries when this switch begins to query (RFC 3376 section 8.7).
const STARTUP_QUERIES: u32 = ROBUSTNESS;

/// The querier of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuerierView {
    /// Its address; `None`: it has none.
    pub address: Option<Address>,
    /// The port it is behind; `None`: this switch.
    pub port: Option<u16>,
}

/// A port, and what is left until it ends; `None`: it does not.
pub type Membership = (u16, Option<Duration>);

/// A domain for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainView {
    /// The VLAN.
    pub vlan: u16,
    /// IGMP, or else MLD.
    pub is_v4: bool,
    /// Who queries, if somebody does.
    pub querier: Option<QuerierView>,
    /// Whether packets go only to members and routers; otherwise they are flooded.
    pub is_pruned: bool,
    /// Ports of routers.
    pub routers: Vec<Membership>,
    /// Groups and their ports.
    pub groups: Vec<(Address, Vec<Membership>)>,
}

/// A port's membership in a group, from its hosts.
#[derive(Clone, Copy, Debug)]
struct Member {
    until: Instant,
    /// A host of IGMPv1 listens at least so long, and does not say when it ends.
    v1_until: Option<Instant>,
    /// Queries for this group that are still to be sent, and when.
    last_queries: Option<(u32, Instant)>,
}

/// Another querier.
#[derive(Clone, Copy, Debug)]
struct Other {
    query: Query,
    port: u16,
    until: Instant,
}

/// A query that is due: to one port for a group, or to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub to: Option<(u16, Address)>,
}

#[derive(Debug)]
pub(super) struct DomainState {
    groups: BTreeMap<Address, BTreeMap<u16, Member>>,
    /// Learned, until when.
    routers: BTreeMap<u16, Instant>,
    other: Option<Other>,
    /// When this switch sends its next general query, and how many it still sends sooner than usual.
    own: Option<(Instant, u32)>,
    /// Memberships are complete from then on: hosts have answered the first query.
    complete_from: Option<Instant>,
    /// Whether packets are not flooded.
    is_pruned: bool,
    /// Nothing ends or is due before.
    next: Instant,
}

impl DomainState {
    pub fn new(now: Instant) -> Self {
        Self {
            groups: BTreeMap::new(),
            routers: BTreeMap::new(),
            other: None,
            own: None,
            complete_from: None,
            is_pruned: false,
            next: now,
        }
    }

    pub const fn is_pruned(&self) -> bool {
        self.is_pruned
    }

    /// The ports of learned routers.
    pub fn routers(&self) -> impl Iterator<Item = u16> + '_ {
        self.routers.keys().copied()
    }

    pub fn groups(&self) -> impl Iterator<Item = (Address, impl Iterator<Item = u16> + '_)> + '_ {
        self.groups.iter().map(|(group, members)| (*group, members.keys().copied()))
    }

    pub fn has_member(&self, group: Address, port: u16) -> bool {
        self.groups.get(&group).is_some_and(|members| members.contains_key(&port))
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.routers.is_empty() && self.other.is_none() && self.own.is_none()
    }

    /// Removes ports that are not to stay, as routers or as members. Calls `gone` for each membership.
    pub fn retain_ports(&mut self, stays: impl Fn(u16) -> (bool, bool), mut gone: impl FnMut(u16)) {
        for members in self.groups.values_mut() {
            members.extract_if(.., |port, _| !stays(*port).1).for_each(|(port, _)| gone(port));
        }
        self.groups.retain(|_, members| !members.is_empty());
        let is_router = |port| stays(port) == (true, true);
        self.routers.retain(|port, _| is_router(*port));
        self.other.take_if(|other| !is_router(other.port));
    }

    /// What a host says of a group. Returns whether the group's ports changed, and by how much the port's groups did.
    pub fn change(&mut self, cx: &At<'_>, group: Address, change: Change) -> i8 {
        let At { port, now, .. } = *cx;
        match change {
            Change::Join | Change::JoinV1 => {
                let until = now + self.membership(cx.settings);
                let members = self.groups.entry(group).or_default();
                let known = members.get(&port).copied();
                let v1_until = match change {
                    Change::JoinV1 => Some(until),
                    _ => known.and_then(|known| known.v1_until),
                };
                members.insert(port, Member { until, v1_until, last_queries: None });
                self.next = self.next.min(until);
                i8::from(known.is_none())
            }
            Change::Leave if cx.of_port.has_fast_leave => -i8::from(self.remove(group, port)),
            Change::Leave | Change::Block => {
                self.ask_for_others(cx, group);
                0
            }
        }
    }

    /// Shortens a membership that a host has ended, and asks whether others remain. Another querier does so itself,
    /// and is heard.
    fn ask_for_others(&mut self, cx: &At<'_>, group: Address) {
        let At { port, now, settings, .. } = *cx;
        if self.own.is_none() {
            return;
        }
        let Some(member) = self.groups.get_mut(&group).and_then(|members| members.get_mut(&port)) else {
            return;
        };
        let has_v1 = member.v1_until.is_some_and(|until| until > now);
        if has_v1 || member.last_queries.is_some() {
            return;
        }
        member.until = member.until.min(now + settings.last_member_interval * ROBUSTNESS);
        member.last_queries = Some((ROBUSTNESS, now));
        self.next = now;
    }

    /// A membership lasts so long after a report (RFC 3376 section 8.4), by the times of the querier.
    fn membership(&self, settings: &SnoopSettings) -> Duration {
        let of_other = self.other.map(|other| other.query);
        let interval = of_other.and_then(|query| query.interval).unwrap_or(settings.query_interval);
        let response = of_other.map_or(settings.response, |query| query.response);
        interval * ROBUSTNESS + response
    }

    /// Removes a membership. Returns whether there was one.
    fn remove(&mut self, group: Address, port: u16) -> bool {
        let Some(members) = self.groups.get_mut(&group) else { return false };
        let was_there = members.remove(&port).is_some();
        if members.is_empty() {
            self.groups.remove(&group);
        }
        was_there
    }

    /// A multicast router has been heard. Returns whether it is new.
    pub fn router(&mut self, cx: &At<'_>) -> bool {
        let until = cx.now + cx.settings.querier_lives();
        self.next = self.next.min(until);
        self.routers.insert(cx.port, until).is_none()
    }

    /// A query has been heard. Returns whether it is the first of a router.
    pub fn query(&mut self, cx: &At<'_>, query: Query) -> bool {
        let At { port, now, settings, .. } = *cx;
        let has_address = query.source.v4_bits() != Some(0);
        if let Some(group) = query.group {
            if query.may_end {
                let until = now + query.response * ROBUSTNESS;
                let members = self.groups.get_mut(&group).into_iter().flatten();
                for (_, member) in members.filter(|(member, _)| **member != port) {
                    let keeps = member.v1_until.is_some_and(|until| until > now);
                    if !keeps {
                        member.until = member.until.min(until);
                    }
                }
                self.next = self.next.min(until);
            }
            return false;
        }
        let own = settings.querier.and_then(|own| own.address(query.source.is_v4()));
        let known = self.other.filter(|other| other.until > now).map(|other| other.query.source);
        // 0.0.0.0 is no address: who has one is preferred.
        let rank = |source: Address| (source.v4_bits() == Some(0), source);
        let beats = |other: Option<Address>| other.is_none_or(|other| rank(query.source) <= rank(other));
        let yields = match settings.querier {
            // Between two without addresses, both query.
            Some(_) if !has_address => false,
            _ => beats(own),
        };
        if yields && beats(known) {
            let interval = query.interval.unwrap_or(settings.query_interval);
            let until = now + interval * ROBUSTNESS + query.response / 2;
            self.other = Some(Other { query, port, until });
            self.own = None;
            self.complete_from.get_or_insert(now + query.response);
            self.next = now;
        }
        has_address && self.router(cx)
    }

    /// Ends what has ended, and says which queries are due. `gone`: called for each membership that ended. Returns
    /// whether ports changed.
    pub fn service(
        &mut self,
        settings: &SnoopSettings,
        now: Instant,
        due: &mut Vec<Due>,
        mut gone: impl FnMut(u16),
    ) -> bool {
        if now < self.next {
            return false;
        }
        self.other.take_if(|other| other.until <= now);
        if settings.querier.is_none() {
            self.own = None;
        } else if self.other.is_none() {
            let (at, left) = self.own.unwrap_or((now, STARTUP_QUERIES));
            self.own = Some(if at > now {
                (at, left)
            } else {
                due.push(Due { to: None });
                let left = left.saturating_sub(1);
                let interval = if left > 0 { settings.query_interval / 4 } else { settings.query_interval };
                (now + interval, left)
            });
            self.complete_from.get_or_insert(now + settings.response);
        }
        if self.other.is_none() && self.own.is_none() {
            self.complete_from = None;
        }
        let mut changed = false;
        for (group, members) in &mut self.groups {
            for (port, member) in &mut *members {
                if let Some((left, at)) = member.last_queries.filter(|(left, at)| *left > 0 && *at <= now) {
                    due.push(Due { to: Some((*port, *group)) });
                    member.last_queries = Some((left - 1, at + settings.last_member_interval));
                }
            }
            members.extract_if(.., |_, member| member.until <= now).for_each(|(port, _)| {
                changed = true;
                gone(port);
            });
        }
        self.groups.retain(|_, members| !members.is_empty());
        changed |= self.routers.extract_if(.., |_, until| *until <= now).count() > 0;
        let is_pruned = self.complete_from.is_some_and(|from| from <= now);
        changed |= std::mem::replace(&mut self.is_pruned, is_pruned) != is_pruned;
        self.next = self.next_time(now);
        changed
    }

    /// When something ends or is due next.
    fn next_time(&self, now: Instant) -> Instant {
        let members = self.groups.values().flat_map(BTreeMap::values);
        let members = members.flat_map(|member| {
            let query = member.last_queries.filter(|(left, _)| *left > 0).map(|(_, at)| at);
            [Some(member.until), query].into_iter().flatten()
        });
        let complete = self.complete_from.filter(|from| *from > now);
        let times = members.chain(self.routers.values().copied()).chain(complete);
        let times = times.chain(self.other.map(|other| other.until)).chain(self.own.map(|(at, _)| at));
        times.min().unwrap_or(now + Duration::from_secs(3600))
    }

    /// Has the next call of [`Self::service`] look at everything, and query again, also behind new ports.
    pub const fn look_again(&mut self, has_new_ports: bool, now: Instant) {
        self.next = now;
        if has_new_ports {
            self.own = None;
        }
    }

    pub fn view(&self, domain: Domain, own: Option<Address>, now: Instant) -> DomainView {
        let left = |until: &Instant| Some(until.saturating_duration_since(now));
        let other = |other: Other| QuerierView {
            address: Some(other.query.source).filter(|source| source.v4_bits() != Some(0)),
            port: Some(other.port),
        };
        let own = self.own.map(|_| QuerierView { address: own, port: None });
        let of_group = |members: &BTreeMap<u16, Member>| {
            members.iter().map(|(port, member)| (*port, left(&member.until))).collect()
        };
        DomainView {
            vlan: domain.vlan,
            is_v4: domain.is_v4,
            querier: self.other.map(other).or(own),
            is_pruned: self.is_pruned,
            routers: self.routers.iter().map(|(port, until)| (*port, left(until))).collect(),
            groups: self.groups.iter().map(|(group, members)| (*group, of_group(members))).collect(),
        }
    }
}

/// A port that has received something, and when.
pub(super) struct At<'a> {
    pub port: u16,
    pub now: Instant,
    pub settings: &'a SnoopSettings,
    pub of_port: &'a PortSettings,
}
