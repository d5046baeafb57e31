// SPDX-License-Identifier: Apache-2.0
//! One bond: the links of its members, LACP, and who carries packets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_lacp::{Bond as Lacp, Settings, System};
use netvm_model::{BondConfig, BondMode, LacpRate};
use netvm_wire::MacAddr;

use crate::ids::PortId;
use crate::manager::ports::{BondMemberView, BondView};
use crate::snapshot::{ControlFrame, ControlFrames};

/// The priority of this host in LACP, and the standard's default.
const SYSTEM_PRIORITY: u16 = 0x8000;

/// The members that carry packets, in the order of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Carrying {
    pub(super) senders: Vec<PortId>,
    pub(super) receivers: Vec<PortId>,
}

#[derive(Debug)]
struct Member {
    port: PortId,
    /// When its link came up; `None`: it is down.
    up_since: Option<Instant>,
    frames: Arc<ControlFrames>,
}

#[derive(Debug)]
pub(super) struct BondState {
    config: BondConfig,
    members: Vec<Member>,
    lacp: Option<Lacp>,
    carrying: Carrying,
}

impl BondState {
    pub(super) fn new(bond: PortId, config: &BondConfig, system: MacAddr) -> Self {
        let lacp = (config.mode == BondMode::Lacp).then(|| {
            let system = System { priority: SYSTEM_PRIORITY, mac: system.0 };
            let is_fast = config.lacp_rate == LacpRate::Fast;
            // A key of 0 is none.
            let mut lacp = Lacp::new(Settings { system, key: bond.0 + 1, is_fast });
            config.members.iter().for_each(|member| lacp.add(number(*member)));
            lacp
        });
        let member = |port: &PortId| Member { port: *port, up_since: None, frames: Arc::default() };
        let members = config.members.iter().map(member).collect();
        Self { config: config.clone(), members, lacp, carrying: Carrying::default() }
    }

    /// With new settings; `None` if its mode or address is another. Members that stay keep their state.
    pub(super) fn follow(mut self, config: &BondConfig) -> Option<Self> {
        if (self.config.mode, self.config.mac) != (config.mode, config.mac) {
            return None;
        }
        let mut before: BTreeMap<PortId, Member> =
            std::mem::take(&mut self.members).into_iter().map(|member| (member.port, member)).collect();
        for port in &config.members {
            let new = || Member { port: *port, up_since: None, frames: Arc::default() };
            self.members.push(before.remove(port).unwrap_or_else(new));
        }
        if let Some(lacp) = &mut self.lacp {
            before.keys().for_each(|gone| lacp.remove(number(*gone)));
            config.members.iter().for_each(|member| lacp.add(number(*member)));
            lacp.set_fast(config.lacp_rate == LacpRate::Fast);
        }
        self.carrying.senders.retain(|port| config.members.contains(port));
        self.carrying.receivers.retain(|port| config.members.contains(port));
        self.config = config.clone();
        Some(self)
    }

    /// Looks at links and received frames, and decides who carries packets. Returns the members that have frames to
    /// send.
    pub(super) fn observe(
        &mut self,
        config: &BondConfig,
        link_of: &dyn Fn(PortId) -> bool,
        now: Instant,
    ) -> Vec<PortId> {
        for member in &mut self.members {
            let is_up = link_of(member.port);
            if is_up != member.up_since.is_some() {
                member.up_since = is_up.then_some(now);
                if let Some(lacp) = &mut self.lacp {
                    lacp.set_link(number(member.port), is_up, now);
                }
            }
            if let (Some(lacp), Some(frame)) = (&mut self.lacp, member.frames.take_received()) {
                lacp.receive(number(member.port), &frame, now);
            }
        }
        let due = self.lacp.as_mut().map_or_else(Vec::new, |lacp| lacp.poll(now));
        let mut sends = Vec::new();
        for (to, frame) in due {
            let Some(member) = self.members.iter().find(|member| number(member.port) == to) else { continue };
            member.frames.send([ControlFrame::from(frame)]);
            sends.push(member.port);
        }
        self.carrying = self.decide(config, now);
        sends
    }

    fn decide(&self, config: &BondConfig, now: Instant) -> Carrying {
        let delay = Duration::from_millis(config.up_delay.into());
        // A member without packets to lose needs no delay.
        let is_ready = |member: &&Member| {
            let carries = self.carrying.senders.contains(&member.port);
            member.up_since.is_some_and(|since| carries || now.saturating_duration_since(since) >= delay)
        };
        let first = || {
            let any = || self.members.iter().find(|member| member.up_since.is_some());
            let port = self.members.iter().find(is_ready).or_else(any).map(|member| member.port);
            let ports: Vec<PortId> = port.into_iter().collect();
            Carrying { senders: ports.clone(), receivers: ports }
        };
        let carrying = match &self.lacp {
            None => first(),
            Some(lacp) if lacp.partner().is_none() && config.lacp_fallback => first(),
            Some(lacp) => {
                let view = |member: &&Member| lacp.member(number(member.port));
                let is_up = |member: &&Member| member.up_since.is_some();
                let receivers = self.members.iter().filter(is_up);
                let receivers: Vec<&Member> =
                    receivers.filter(|member| view(member).is_some_and(|view| view.collects)).collect();
                let distributes = |member: &&&Member| view(member).is_some_and(|view| view.distributes);
                let mut senders: Vec<&Member> = receivers.iter().filter(distributes).copied().collect();
                if senders.iter().any(&is_ready) {
                    senders.retain(|member| is_ready(member));
                }
                let ports = |members: Vec<&Member>| members.iter().map(|member| member.port).collect();
                Carrying { senders: ports(senders), receivers: ports(receivers) }
            }
        };
        if carrying.senders.len() < config.min_links as usize { Carrying::default() } else { carrying }
    }

    pub(super) const fn carrying(&self) -> &Carrying {
        &self.carrying
    }

    pub(super) const fn has_lacp(&self) -> bool {
        self.lacp.is_some()
    }

    /// Whether switches outside have to be told where addresses are: the other end of LACP knows it.
    pub(super) fn announces(&self) -> bool {
        self.lacp.as_ref().is_none_or(|lacp| lacp.partner().is_none())
    }

    pub(super) fn members(&self) -> impl Iterator<Item = (PortId, &Arc<ControlFrames>)> {
        self.members.iter().map(|member| (member.port, &member.frames))
    }

    pub(super) fn frames_of(&self, port: PortId) -> Option<&ControlFrames> {
        self.members.iter().find(|member| member.port == port).map(|member| &*member.frames)
    }

    pub(super) fn view(&self) -> BondView {
        let partner = self.lacp.as_ref().and_then(Lacp::partner).map(|(system, _)| system);
        let member = |member: &Member| BondMemberView {
            port: member.port,
            link: member.up_since.is_some(),
            sends: self.carrying.senders.contains(&member.port),
            receives: self.carrying.receivers.contains(&member.port),
            partner: self.lacp.as_ref().and_then(|lacp| {
                let partner = lacp.member(number(member.port))?.partner?;
                Some(MacAddr(partner.system.mac))
            }),
        };
        BondView { partner, members: self.members.iter().map(member).collect() }
    }
}

/// The number of a port in LACP, where 0 is none.
const fn number(port: PortId) -> u16 {
    port.0 + 1
}
