// SPDX-License-Identifier: Apache-2.0
//! Random keys of snooping.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netvm_model::{McastRouter, PortSnooping, SnoopingConfig, StaticGroup, VlanMode};
use netvm_wire::VlanId;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

pub(super) fn of_switch() -> impl Strategy<Value = SnoopingConfig> {
    let address =
        prop_oneof![Just(Ipv4Addr::UNSPECIFIED), (1u8..=223).prop_map(|n| [n & 0x3f, 1, 2, 3].into())];
    let times = (2u32..=31_744, 1u32..=120, 1u32..=25);
    (any::<bool>(), any::<bool>(), address, times, any::<bool>()).prop_map(
        |(
            snooping,
            querier,
            querier_address,
            (interval, response, last_member_interval),
            flood_unregistered,
        )| {
            SnoopingConfig {
                snooping,
                querier: snooping && querier,
                querier_address,
                query_interval: interval,
                query_response_interval: response.min(interval - 1),
                last_member_interval,
                flood_unregistered,
            }
        },
    )
}

/// With groups of the port's VLANs.
pub(super) fn of_port(mode: VlanMode) -> impl Strategy<Value = PortSnooping> {
    let vlans: Vec<_> = match mode {
        VlanMode::Unaware => vec![None],
        VlanMode::Access(own) => vec![None, Some(own)],
        VlanMode::Trunk { vlans, native } => {
            let first = vlans.first().and_then(|span| VlanId::new(span.first).ok());
            first.map(Some).into_iter().chain(native.map(|_| None)).collect()
        }
    };
    let group = prop_oneof![
        (1u8..=255, any::<[u8; 2]>()).prop_map(|(b, [c, d])| IpAddr::V4([239, b, c, d].into())),
        any::<u32>().prop_map(|bits| IpAddr::V6(Ipv6Addr::from_bits(0xff15 << 112 | u128::from(bits)))),
    ];
    let group = (group, select(vlans)).prop_map(|(group, vlan)| StaticGroup { group, vlan });
    let router = select(vec![McastRouter::Auto, McastRouter::Off, McastRouter::On]);
    (router, any::<bool>(), 0u32..=16_384, vec(group, 0..3)).prop_map(
        |(router, fast_leave, max_groups, groups)| PortSnooping { router, fast_leave, max_groups, groups },
    )
}
