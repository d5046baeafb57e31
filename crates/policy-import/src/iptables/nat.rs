// SPDX-License-Identifier: Apache-2.0
//! Targets of table `nat`.

use std::net::IpAddr;

use netvm_model::NatAction;
use netvm_wire::{IpNet, PortRange};

use super::rule::{Draft, RuleReader, Stop};
use crate::names::number;
use crate::nat::Ends;
use crate::{IpVersion, NoteReason};

impl RuleReader<'_> {
    /// The target before the next word, which translates, and its options; `start`: its first word.
    pub(super) fn translation(&mut self, draft: &mut Draft, start: usize) -> Result<NatAction, Stop> {
        let target = self.words[self.at - 1].text.clone();
        let mut ends = Ends::default();
        let mut network = None;
        while let Some(word) = self.words.get(self.at) {
            match &*word.text {
                "--random" | "--random-fully" => {
                    self.at += 1;
                    draft.notes.push((self.since(start), NoteReason::Choice));
                }
                "--persistent" => self.at += 1,
                "--to-source" | "--to-destination" | "--to-ports" | "--to" => {
                    self.at += 1;
                    let word = self.value("what to translate to")?;
                    if target == "DNAT" && word.text.contains('/') {
                        return Err(Stop::Note(self.since(start), NoteReason::TranslatedPorts));
                    }
                    let is_ports = matches!(&*target, "MASQUERADE" | "REDIRECT");
                    let read = match &*target {
                        "NETMAP" => self.network(&word.text).map(|net| network = Some(net)),
                        _ if is_ports => ports(&word.text).map(|ports| ends.ports = Some(ports)),
                        _ => self.ends(&word.text).map(|read| ends = read),
                    };
                    let expected =
                        "an address or network of the rules' IP version, or ports, as in 10.0.0.2:80";
                    read.ok_or_else(|| self.expected(expected, word))?;
                }
                _ => break,
            }
        }
        let stop = |why| Stop::Note(self.since(start), why);
        match (&*target, network, ends.addresses) {
            ("NETMAP", Some(network), _) => Ok(NatAction::Network(network)),
            ("MASQUERADE", ..) | ("SNAT", _, Some(_)) => Ok(ends.source()),
            ("REDIRECT", ..) | ("DNAT", _, Some(_)) => ends.destination(&draft.fits).map_err(stop),
            // Another port of the same address.
            _ => Err(stop(NoteReason::Translation)),
        }
    }

    /// `10.0.0.2`, `10.0.0.2-10.0.0.9:80-90`, `:80`, `[2001:db8::2]:80`.
    fn ends(&self, text: &str) -> Option<Ends> {
        let (addresses, rest) = match (text.strip_prefix('['), self.version) {
            (Some(inner), _) => inner.split_once(']').map(|(inner, rest)| (inner, rest.strip_prefix(':')))?,
            (None, IpVersion::V6) => (text, None),
            (None, IpVersion::V4) => {
                text.split_once(':').map_or((text, None), |(inner, rest)| (inner, Some(rest)))
            }
        };
        let address = |text: &str| {
            let address = text.parse::<IpAddr>().ok()?;
            (IpVersion::split(address).0 == self.version).then_some(address)
        };
        let addresses = match addresses {
            "" => None,
            list => {
                let (first, last) = list.split_once('-').unwrap_or((list, list));
                Some((address(first)?, address(last)?)).filter(|(first, last)| first <= last)
            }
        };
        let ports = match rest {
            Some(rest) => Some(ports(rest)?),
            None => None,
        };
        (addresses.is_some() || ports.is_some()).then_some(Ends { addresses, ports })
    }

    /// `10.0.0.0/24`, or one address.
    fn network(&self, text: &str) -> Option<IpNet> {
        let (address, mask) = text.split_once('/').unwrap_or((text, ""));
        let address = address.parse::<IpAddr>().ok()?;
        let length = if mask.is_empty() { self.version.bits() } else { mask.parse().ok()? };
        (IpVersion::split(address).0 == self.version).then(|| IpNet::new(address, length).ok())?
    }
}

/// `80`, `80-90`.
fn ports(text: &str) -> Option<PortRange> {
    let port = |text: &str| number(text).and_then(|port| u16::try_from(port).ok());
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    PortRange::new(port(first)?, port(last)?)
}
