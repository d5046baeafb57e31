// SPDX-License-Identifier: Apache-2.0
//! Parses the matches of iptables rules.

use std::net::IpAddr;

use netvm_wire::{IpProto, MacAddr, TcpFlags};

use super::rule::{Draft, RuleReader, Stop};
use super::words::Word;
use crate::algebra::{Field, Ranges, other_flags, other_macs, prefix_range, state_values};
use crate::names::{conn_state, dscp, number, protocol, tcp_flag};
use crate::{IpVersion, NoteReason};
use netvm_policy::Masked;
use netvm_policy::{Match, mac_bits};

impl RuleReader<'_> {
    /// Parses the option before the next word.
    pub(super) fn matches(&mut self, draft: &mut Draft, start: usize, negated: bool) -> Result<(), Stop> {
        let option = self.words[self.at - 1].text.clone();
        // Before iptables 1.4.3 the exclamation mark followed the option.
        let has_value = !matches!(&*option, "-f" | "--fragment" | "--syn");
        let negated = negated != (has_value && self.skip("!"));
        let version = self.version;
        match &*option {
            "-s" | "--source" | "--src" => self.addresses(draft, Field::Source(version), start, negated),
            "-d" | "--destination" | "--dst" => {
                self.addresses(draft, Field::Destination(version), start, negated)
            }
            "--src-range" => self.address_range(draft, Field::Source(version), negated),
            "--dst-range" => self.address_range(draft, Field::Destination(version), negated),
            "-p" | "--protocol" | "--proto" => self.protocol(draft, negated),
            "-i" | "--in-interface" | "--physdev-in" => self.interface(draft, true, start, negated),
            "-o" | "--out-interface" | "--physdev-out" => self.interface(draft, false, start, negated),
            "-f" | "--fragment" if version == IpVersion::V4 => {
                draft.field(Field::Fragment, &Ranges::single(2), negated);
                Ok(())
            }
            "--sport" | "--source-port" | "--sports" | "--source-ports" => {
                self.ports(draft, &[Field::SourcePorts], negated)
            }
            "--dport" | "--destination-port" | "--dports" | "--destination-ports" => {
                self.ports(draft, &[Field::DestinationPorts], negated)
            }
            "--ports" => self.ports(draft, &[Field::SourcePorts, Field::DestinationPorts], negated),
            "--tcp-flags" => self.tcp_flags(draft, negated),
            "--syn" => {
                let (syn, others) = (TcpFlags::SYN, TcpFlags::FIN | TcpFlags::RST | TcpFlags::ACK);
                flags(draft, Masked::<u8>::new(syn.bits(), (syn | others).bits()), negated);
                Ok(())
            }
            "--icmp-type" | "--icmpv6-type" => self.icmp(draft, negated),
            "--mac-source" => self.mac(draft, negated),
            "--dscp" | "--dscp-class" => {
                let value = self.value("a code point")?;
                let point = number(&value.text)
                    .filter(|point| *point < 64)
                    .or_else(|| dscp(&value.text).map(Into::into));
                let Some(point) = point else {
                    return Err(self.expected("a code point up to 63", value).into());
                };
                draft.field(Field::Dscp, &Ranges::single(point.into()), negated);
                Ok(())
            }
            "--tos" => self.tos(draft, start, negated),
            "--ctstate" | "--state" => self.states(draft, start, negated),
            option if option.starts_with("--ct") => Err(self.without(start, NoteReason::ConnectionState)),
            _ => Err(self.without(start, NoteReason::Match)),
        }
    }

    /// `10.0.0.0/8`, `10.0.0.0/255.0.0.0`, `10.0.0.1`, or several separated by commas.
    fn addresses(
        &mut self,
        draft: &mut Draft,
        field: Field,
        start: usize,
        negated: bool,
    ) -> Result<(), Stop> {
        let word = self.value("an address")?;
        let mut ranges = vec![];
        for text in word.text.split(',') {
            let (address, mask) =
                text.split_once('/').map_or((text, None), |(address, mask)| (address, Some(mask)));
            let bits = self.version.bits();
            let Some(value) = self.address(address) else { return Err(self.no_address(word).into()) };
            let length = match mask {
                None => bits,
                Some(mask) => {
                    match (number(mask).filter(|length| *length <= bits.into()), self.address(mask)) {
                        (Some(length), _) => length as u8,
                        (None, Some(mask)) => {
                            let length = (mask << (128 - bits)).leading_ones() as u8;
                            if prefix_range(u128::MAX >> (128 - bits), length, bits).0 != mask {
                                return Err(Stop::Note(self.since(start), NoteReason::Mask));
                            }
                            length
                        }
                        (None, None) => {
                            return Err(self.expected("a length or mask after the /", word).into());
                        }
                    }
                }
            };
            ranges.push(prefix_range(value, length, bits));
        }
        draft.field(field, &Ranges::union(ranges), negated);
        Ok(())
    }

    fn address_range(&mut self, draft: &mut Draft, field: Field, negated: bool) -> Result<(), Stop> {
        let word = self.value("a range of addresses")?;
        let (first, last) = word.text.split_once('-').unwrap_or((&word.text, &word.text));
        let (Some(first), Some(last)) = (self.address(first), self.address(last)) else {
            return Err(self.no_address(word).into());
        };
        if first > last {
            return Err(self.expected("the lower address first", word).into());
        }
        draft.field(field, &Ranges::one(first, last), negated);
        Ok(())
    }

    /// An address of the rules' IP version.
    fn address(&self, text: &str) -> Option<u128> {
        let (version, value) = IpVersion::split(text.parse::<IpAddr>().ok()?);
        (version == self.version).then_some(value)
    }

    fn no_address(&self, word: &Word<'_>) -> super::IptablesError {
        let expected = match self.version {
            IpVersion::V4 => "IPv4 addresses",
            IpVersion::V6 => "IPv6 addresses",
        };
        self.expected(expected, word)
    }

    fn protocol(&mut self, draft: &mut Draft, negated: bool) -> Result<(), Stop> {
        let word = self.value("a protocol")?;
        match protocol(&word.text) {
            // 0 means all.
            _ if word.text == "all" => Ok(()),
            Some(0) => Ok(()),
            Some(protocol) => {
                draft.field(Field::Protocol, &Ranges::single(protocol.into()), negated);
                Ok(())
            }
            None => Err(self.expected("a protocol by name or number", word).into()),
        }
    }

    fn interface(
        &mut self,
        draft: &mut Draft,
        comes_in: bool,
        start: usize,
        negated: bool,
    ) -> Result<(), Stop> {
        let name = self.value("an interface")?;
        if name.text == "+" && !negated {
            return Ok(());
        }
        let named = self.interfaces.named(&name.text, '+');
        let mut ports = named.clone();
        if negated {
            let all = self.interfaces.all();
            ports = all.into_iter().filter(|port| !named.contains(port)).collect();
        }
        // "Not this one" applies to ports that the list should have, if it is not complete.
        let is_known = self.interfaces.is_complete() || name.text == "+";
        if ports.is_empty() && negated && is_known {
            draft.narrow(&[]);
            return Ok(());
        }
        if ports.is_empty() || (named.is_empty() && !is_known) {
            return Err(Stop::Note(self.since(start), NoteReason::Interface));
        }
        let place = match comes_in {
            true => Match { from: ports, ..Match::default() },
            false => Match { to: ports, ..Match::default() },
        };
        draft.narrow(&[place]);
        Ok(())
    }

    /// `80`, `80:90`, `:90`, `80:`, or several separated by commas.
    fn ports(&mut self, draft: &mut Draft, fields: &[Field], negated: bool) -> Result<(), Stop> {
        let word = self.value("ports")?;
        let mut ranges = vec![];
        for text in word.text.split(',') {
            let (first, last) = text.split_once(':').unwrap_or((text, text));
            let open = text.contains(':');
            let port = |text: &str, end: u16| match text {
                "" => open.then_some(end),
                _ => number(text)?.try_into().ok(),
            };
            match (port(first, 0), port(last, u16::MAX)) {
                (Some(first), Some(last)) if first <= last => ranges.push((first.into(), last.into())),
                _ => return Err(self.expected("ports as numbers, as in 80,1024:65535", word).into()),
            }
        }
        let ports = Ranges::union(ranges);
        draft.transport = true;
        draft.ports = true;
        if negated {
            for field in fields {
                draft.field(*field, &ports, true);
            }
        } else {
            draft.narrow(&fields.iter().filter_map(|field| field.among(&ports)).collect::<Vec<_>>());
        }
        Ok(())
    }

    fn tcp_flags(&mut self, draft: &mut Draft, negated: bool) -> Result<(), Stop> {
        let mut list = |expected| -> Result<u8, Stop> {
            let word = self.value(expected)?;
            let mut flags = TcpFlags::empty();
            for name in word.text.split(',') {
                // Without ECE and CWR, which iptables lacks.
                let all = TcpFlags::from_bits_truncate(0x3f);
                let flag = match name {
                    "ALL" => Some(all),
                    "NONE" => Some(TcpFlags::empty()),
                    _ => tcp_flag(name),
                };
                flags |= flag.ok_or_else(|| self.expected(expected, word))?;
            }
            Ok(flags.bits())
        };
        let (mask, value) =
            (list("flags to look at, as in SYN,ACK")?, list("flags that are set, as in SYN")?);
        if value & !mask != 0 {
            // The compared flags include masked-out ones, so nothing matches.
            draft.transport = true;
            let tcp = Match { protocol: vec![IpProto::TCP], ..Match::default() };
            draft.narrow(negated.then_some(tcp).as_slice());
            return Ok(());
        }
        flags(draft, Masked::<u8>::new(value, mask), negated);
        Ok(())
    }

    fn mac(&mut self, draft: &mut Draft, negated: bool) -> Result<(), Stop> {
        let word = self.value("a MAC address")?;
        let mac: MacAddr = word.text.parse().map_err(|_| self.expected("a MAC address", word))?;
        let mac = [Masked::<u64>::new(mac_bits(mac), 0xffff_ffff_ffff)];
        let macs = if negated { other_macs(&mac).unwrap_or_default() } else { mac.to_vec() };
        draft.narrow(&[Match { source_mac: macs, ..Match::default() }]);
        Ok(())
    }

    /// `RELATED,ESTABLISHED`.
    fn states(&mut self, draft: &mut Draft, start: usize, negated: bool) -> Result<(), Stop> {
        let word = self.value("states of connections")?;
        let mut states = vec![];
        for name in word.text.split(',') {
            match name {
                "SNAT" | "DNAT" => return Err(Stop::Note(self.since(start), NoteReason::ConnectionState)),
                _ => states
                    .push(conn_state(name).ok_or_else(|| self.expected("states, as in NEW,RELATED", word))?),
            }
        }
        draft.field(Field::State, &state_values(&states), negated);
        Ok(())
    }

    /// `0x10/0x3f`, on the whole byte.
    fn tos(&mut self, draft: &mut Draft, start: usize, negated: bool) -> Result<(), Stop> {
        let word = self.value("a byte and a mask")?;
        let (value, mask) = word.text.split_once('/').unwrap_or((&word.text, "0xff"));
        let byte = |text: &str| number(text).filter(|number| *number < 256);
        let (Some(value), Some(mask)) = (byte(value), byte(mask)) else {
            return Err(self.expected("a byte and a mask, as in 0x20/0xfc", word).into());
        };
        if mask & 3 != 0 {
            return Err(Stop::Note(self.since(start), NoteReason::EcnBits));
        }
        let points =
            (0..64).filter(|point| point << 2 & mask == value).map(|point| (point.into(), point.into()));
        draft.field(Field::Dscp, &Ranges::union(points), negated);
        Ok(())
    }
}

/// Narrows to TCP with these flags, or without them if negated.
fn flags(draft: &mut Draft, flags: Masked<u8>, negated: bool) {
    let tcp = |flags| Match { protocol: vec![IpProto::TCP], tcp_flags: Some(flags), ..Match::default() };
    draft.transport = true;
    match negated {
        false => draft.narrow(&[tcp(flags)]),
        true => draft.narrow(&other_flags(flags).map(tcp).collect::<Vec<_>>()),
    }
}
