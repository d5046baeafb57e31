// SPDX-License-Identifier: Apache-2.0
//! Claims of neighbour discovery messages (RFC 4861).
//!
//! Redirects are checked by their sender only, as their option names another host's address on purpose. Whether a port
//! may send router advertisements and redirects at all is up to the rules.

use netvm_wire::{Address, EtherType, FlowKey, Fragment, IpProto, MacAddr};

use super::{Guard, Spoofed, is_group};

const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
/// Multicast listener reports (RFC 2710, RFC 3810).
const LISTENER_REPORTS: [u8; 3] = [131, 132, 143];

/// Options (RFC 4861 section 4.6.1).
const SOURCE_LINK_LAYER: u8 = 1;
const TARGET_LINK_LAYER: u8 = 2;

#[inline]
pub(super) fn is_discovery(key: &FlowKey) -> bool {
    is_icmpv6(key) && matches!(key.icmp_type, ROUTER_SOLICITATION..=REDIRECT)
}

/// Whether hosts send this message type before they own an address.
pub(super) fn may_be_unspecified(key: &FlowKey) -> bool {
    let kind = key.icmp_type;
    is_icmpv6(key) && (matches!(kind, ROUTER_SOLICITATION | SOLICITATION) || LISTENER_REPORTS.contains(&kind))
}

#[inline]
fn is_icmpv6(key: &FlowKey) -> bool {
    key.ether_type == EtherType::IPV6 && key.protocol == IpProto::ICMPV6
}

impl Guard {
    /// Checks a neighbour discovery message, from the ICMPv6 header to the end of the packet.
    pub(super) fn check_discovery(&self, key: &FlowKey, message: &[u8]) -> Result<(), Spoofed> {
        if key.fragment != Fragment::Whole {
            return Err(Spoofed::NeighbourMalformed);
        }
        // Offset of the options, and the option with the sender's own MAC address (RFC 4861 sections 4.1 to 4.4).
        let (options, own) = match key.icmp_type {
            ROUTER_SOLICITATION => (8, SOURCE_LINK_LAYER),
            ROUTER_ADVERTISEMENT => (16, SOURCE_LINK_LAYER),
            SOLICITATION => (24, SOURCE_LINK_LAYER),
            ADVERTISEMENT => (24, TARGET_LINK_LAYER),
            _ => return Ok(()),
        };
        let (fixed, options) = message.split_at_checked(options).ok_or(Spoofed::NeighbourMalformed)?;
        let is_unspecified = key.source == Address::UNSPECIFIED;
        let claims = match key.icmp_type {
            ADVERTISEMENT => true,
            // Duplicate address detection for a tentative address (RFC 4862 section 5.4.2).
            SOLICITATION => is_unspecified,
            _ => false,
        };
        if claims && !self.owns_target(fixed, key.source_mac)? {
            return Err(Spoofed::NeighbourTarget);
        }
        for option in Options(options) {
            match option? {
                // The unspecified address has no MAC address (RFC 4861 sections 4.1 and 4.3).
                (SOURCE_LINK_LAYER, _) if is_unspecified => return Err(Spoofed::NeighbourMalformed),
                (kind, address) if kind == own => {
                    let address: &[u8; 6] = address.try_into().map_err(|_| Spoofed::NeighbourMalformed)?;
                    if MacAddr(*address) != key.source_mac {
                        return Err(Spoofed::NeighbourMac);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn owns_target(&self, fixed: &[u8], mac: MacAddr) -> Result<bool, Spoofed> {
        let target = fixed.last_chunk().ok_or(Spoofed::NeighbourMalformed)?;
        let target = Address::from_v6_octets(*target);
        Ok(!is_group(target) && self.owns(target, mac))
    }
}

/// Iterates over the options of a message: type and value of each.
struct Options<'a>(&'a [u8]);

impl<'a> Iterator for Options<'a> {
    type Item = Result<(u8, &'a [u8]), Spoofed>;

    fn next(&mut self) -> Option<Self::Item> {
        let (kind, length) = match self.0 {
            [] => return None,
            [kind, length, ..] if *length > 0 => (*kind, usize::from(*length) * 8),
            // RFC 4861 section 4.6: a length of 0 makes the whole packet invalid.
            _ => return self.malformed(),
        };
        let Some((option, rest)) = self.0.split_at_checked(length) else { return self.malformed() };
        self.0 = rest;
        option.get(2..).map(|value| Ok((kind, value)))
    }
}

impl Options<'_> {
    fn malformed<T>(&mut self) -> Option<Result<T, Spoofed>> {
        self.0 = &[];
        Some(Err(Spoofed::NeighbourMalformed))
    }
}
