// SPDX-License-Identifier: Apache-2.0
//! Messages of IGMP and MLD for a switch that snoops.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_switch::snoop::{
    Announcement, Change, GroupPacket, Message, PortSettings, RouterPort, SnoopSettings, Snooper,
};
use netvm_switch::{Bridge, BridgePort, VlanPort};
use netvm_wire::checksum::{fill, internet_checksum};
use netvm_wire::{IpProto, parse};

const PORTS: [u16; 2] = [1, 2];
const MAX_GROUPS: u32 = 4;

/// Reads a frame as a message, with the checksums that it should have, and lets a switch hear it by two ports.
pub fn multicast(data: &[u8]) {
    let mut frame = data.to_vec();
    let Ok(headers) = parse(&frame) else { return };
    if GroupPacket::of(headers.key()) != GroupPacket::Control {
        return;
    }
    let (start, end) = (headers.payload_offset(), headers.payload_end());
    if headers.key().protocol == IpProto(2) && end >= start + 4 {
        frame[start + 2..start + 4].fill(0);
        let sum = internet_checksum(&frame[start..end]);
        frame[start + 2..start + 4].copy_from_slice(&sum.to_be_bytes());
    }
    let _ = fill(&mut frame, &headers);
    let Ok(message) = Message::read(&frame, &headers) else { return };
    let now = Instant::now();
    let mut snooper = snooper(now);
    let mut hear = |announced| PORTS.iter().for_each(|port| snooper.hear(*port, (0, announced), now));
    match message {
        Message::Reports(reports) => {
            // A record takes eight bytes at least.
            assert!(reports.clone().count() <= frame.len() / 8 + 1);
            for (group, change) in reports {
                assert!(group.is_group_beyond_link());
                hear(Announcement::Group(group, change));
            }
        }
        Message::Query(query) => {
            let group = query.group.filter(|group| group.is_group_beyond_link());
            if let Some(group) = group {
                hear(Announcement::Group(group, Change::Join));
            }
            hear(Announcement::Query(query));
        }
        Message::Router | Message::Other => {}
    }
    let mut later = now;
    for _ in 0..3 {
        assert!(snooper.service(later).all(|query| parse(&query.frame).is_ok()));
        let _ = snooper.table();
        later += Duration::from_secs(1);
    }
    for port in PORTS {
        let members =
            snooper.views(later).iter().flat_map(|domain| domain.groups.clone()).collect::<Vec<_>>();
        let of_port =
            members.iter().flat_map(|(_, ports)| ports).filter(|(member, _)| *member == port).count();
        assert_eq!(of_port as u32, snooper.counts(port).0);
        assert!(snooper.counts(port).0 <= MAX_GROUPS);
    }
}

fn snooper(now: Instant) -> Snooper {
    let bridged =
        |port| (port, BridgePort { vlan: VlanPort::Unaware, group: None, limit: None, new_per_second: None });
    let bridge = Bridge::new(PORTS.map(bridged)).expect("two ports");
    let settings = SnoopSettings {
        querier: None,
        query_interval: Duration::from_secs(125),
        response: Duration::from_secs(10),
        last_member_interval: Duration::from_secs(1),
        floods_unregistered: true,
    };
    let port = |port| {
        let settings = PortSettings {
            has_fast_leave: port == 1,
            router: RouterPort::Auto,
            max_groups: MAX_GROUPS,
            groups: Vec::new(),
        };
        (port, settings)
    };
    Snooper::new(settings, PORTS.map(port).into_iter().collect::<BTreeMap<_, _>>(), Arc::new(bridge), now)
}
