// SPDX-License-Identifier: Apache-2.0
//! [`translate`]: new first bytes for a packet.

use netvm_wire::{EtherType, Fragment, IpProto, parse_prefix};

use super::Untranslatable;
use super::error::translate_error;
use super::front::Front;
use super::icmp;
use super::ip::{Ip, has_source_route};
use super::packet::{Counterpart, Original, Packets, Translated};
use super::transport::{Sums, translate_transport};

const ETHERNET: usize = 14;
const TAG: usize = 4;

/// Translates a packet to the other family. `front` then has its new first bytes; on an error, it has no meaning.
///
/// # Errors
/// [`Untranslatable`].
pub fn translate(
    packet: &Original<'_>,
    to: &Counterpart,
    front: &mut Front,
) -> Result<Translated, Untranslatable> {
    let headers = parse_prefix(packet.front, packet.length).map_err(|_| Untranslatable::Malformed)?;
    let l3 = headers.l3_offset();
    let is_plain_ethernet = l3 == ETHERNET + TAG * usize::from(headers.vlan_tags());
    if !headers.key().is_ip() || !is_plain_ethernet {
        return Err(Untranslatable::Malformed);
    }
    let bytes = packet.front.get(l3..).unwrap_or_default();
    let old = Ip::read(bytes)?;
    if old.is_v4() && has_source_route(bytes, old.header) {
        return Err(Untranslatable::SourceRoute);
    }
    let new = old.translated(to.ends.source, to.ends.destination)?;
    let bytes = bytes.get(..old.header + old.payload).unwrap_or(bytes);
    let ether_type = if new.is_v4() { EtherType::IPV4 } else { EtherType::IPV6 };
    front.clear();
    front.put(packet.front.get(..l3 - 2).unwrap_or_default())?;
    front.put(&ether_type.0.to_be_bytes())?;
    let packets = Packets { bytes, old, new };
    let is_icmp = matches!(old.protocol, IpProto::ICMP | IpProto::ICMPV6);
    if is_icmp && headers.key().fragment != Fragment::Whole {
        return Err(Untranslatable::FragmentedIcmp);
    }
    let from_l3 = if is_icmp && icmp::query(old.protocol, headers.key().icmp_type).is_none() {
        translate_error(&packets, to, front)?
    } else {
        new.write(to.identification, front)?;
        let sums = if packet.is_partial { Sums::Partial } else { Sums::Whole };
        translate_transport(&packets, to.ends.ports, sums, front)?
    };
    Ok(Translated { replaced: l3 + from_l3.replaced, length: l3 + from_l3.length, ..from_l3 })
}
