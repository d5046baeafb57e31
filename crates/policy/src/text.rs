// SPDX-License-Identifier: Apache-2.0
//! Formats rules on one line.

#[cfg(test)]
mod tests;

use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;

use netvm_ids::PortId;
use netvm_wire::{EtherType, Fragment, IpNet, MacAddr, PortRange, TcpFlags};

use crate::matching::Match;
use crate::names::Names;
use crate::rule::{Action, Actions, Bound, Ends, LoadLimit, Police, Rate, Rule, RuleParts, SetVlan, When};
use crate::span::{Masked, Span};

/// A part of a rule with the names to format it.
pub struct Named<'a, T> {
    of: &'a T,
    names: &'a dyn Names,
}

macro_rules! named {
    ($($type:ty: $doc:literal;)*) => {$(
        impl $type {
            #[doc = $doc]
            #[must_use]
            pub fn named<'a>(&'a self, names: &'a dyn Names) -> Named<'a, Self> {
                Named { of: self, names }
            }
        }
    )*};
}

named! {
    Match: "`from client tcp 10.0.0.0/8 > 10.1.0.0/16 :80-443 syn`; `any` if every packet fits.";
    Actions: "`mirror to span, set vlan 5, chain web`; `continue` if later rules decide.";
    Action: "`drop`, `out of server`, `chain web`.";
    When: "` (Mon-Fri 08:00-18:00, load of firewall above 60 %)`; nothing if it is always.";
    Rule: "`from client tcp > :22 (Sat,Sun) → drop`, with its name, if it has one, in front.";
}

impl Display for Named<'_, Rule> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let RuleParts { name, actions, .. } = &**self.of;
        if !name.is_empty() {
            write!(f, "{name}: ")?;
        }
        let (matches, when) = (self.of.named_match(self.names), self.of.when().named(self.names));
        write!(f, "{matches}{when} → {}", actions.named(self.names))
    }
}

impl Rule {
    /// As its match alone, with the labels by which it names ports.
    #[must_use]
    pub fn named_match<'a>(&'a self, names: &'a dyn Names) -> NamedMatch<'a> {
        NamedMatch { of: self, names }
    }
}

/// The match of a rule with the names to format it.
pub struct NamedMatch<'a> {
    of: &'a Rule,
    names: &'a dyn Names,
}

impl Display for NamedMatch<'_> {
    /// `from label app=web to db tcp`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(selection) = self.of.selection() else {
            return self.of.matches.named(self.names).fmt(f);
        };
        for (word, ends) in ["from", "to"].into_iter().zip(selection.sides()) {
            if ends == &Ends::default() {
                continue;
            }
            write!(f, "{word} ")?;
            list(f, &ends.ports, |port| self.names.port(*port))?;
            if !ends.labels.is_empty() {
                f.write_str(if ends.ports.is_empty() { "label " } else { ",label " })?;
                list(f, &ends.labels, ToString::to_string)?;
            }
            f.write_str(" ")?;
        }
        let rest = Match { from: Vec::new(), to: Vec::new(), ..self.of.matches.clone() };
        rest.named(self.names).fmt(f)
    }
}

impl Display for Named<'_, When> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let When { times, load } = self.of;
        if self.of.is_always() {
            return Ok(());
        }
        f.write_str(" (")?;
        list(f, times, |window| *window)?;
        if let Some(LoadLimit { role, bound, .. }) = load {
            let comma = if times.is_empty() { "" } else { ", " };
            let (word, percent) = match bound {
                Bound::Above(percent) => ("above", percent),
                Bound::Below(percent) => ("below", percent),
            };
            write!(f, "{comma}load of {} {word} {percent} %", self.names.role(*role))?;
        }
        f.write_str(")")
    }
}

impl Display for Named<'_, Action> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match *self.of {
            Action::Allow => f.write_str("allow"),
            Action::Drop => f.write_str("drop"),
            Action::Reject => f.write_str("reject"),
            Action::Port(port) => write!(f, "out of {}", self.names.port(port)),
            Action::Chain(chain) => write!(f, "chain {}", self.names.chain(chain)),
            Action::Normal => f.write_str("normal"),
            Action::Router(router) => write!(f, "router {}", self.names.router(router)),
        }
    }
}

impl Display for Named<'_, Actions> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Actions { terminal, set_vlan, queue, mirror, police, syn_proxy } = self.of;
        if let Some(police) = police {
            write!(f, "{police}, ")?;
        }
        if let Some(set_vlan) = set_vlan {
            write!(f, "{set_vlan}, ")?;
        }
        if let Some(queue) = queue {
            write!(f, "queue {}, ", self.names.queue(*queue))?;
        }
        if let Some(mirror) = mirror {
            write!(f, "mirror to {}, ", self.names.port(*mirror))?;
        }
        if *syn_proxy {
            f.write_str("syn proxy, ")?;
        }
        match terminal {
            Some(terminal) => terminal.named(self.names).fmt(f),
            None => f.write_str("continue"),
        }
    }
}

impl Display for SetVlan {
    /// `set vlan 5`, `strip vlan`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(vlan) => write!(f, "set vlan {vlan}"),
            Self::Strip => f.write_str("strip vlan"),
        }
    }
}

impl Display for Police {
    /// `police 1000 packets/s burst 100, 1000000 bit/s burst 80000`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let rate = |f: &mut Formatter<'_>, rate: Rate, unit| {
            write!(f, " {} {unit}/s burst {}", rate.per_second, rate.burst)
        };
        f.write_str("police")?;
        match (self.packets, self.bits) {
            (None, None) => f.write_str(" nothing"),
            (Some(packets), None) => rate(f, packets, "packets"),
            (None, Some(bits)) => rate(f, bits, "bit"),
            (Some(packets), Some(bits)) => {
                rate(f, packets, "packets")?;
                f.write_str(" and")?;
                rate(f, bits, "bit")
            }
        }
    }
}

impl Display for Named<'_, Match> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let matches = self.of;
        let mut words = Words { f, begun: false };
        let port = |port: &PortId| self.names.port(*port);
        words.set("from ", &matches.from, port)?;
        words.set("to ", &matches.to, port)?;
        words.ends("mac ", &matches.source_mac, &matches.destination_mac, Mac)?;
        words.set("ether ", &matches.ether_type, |kind: &EtherType| *kind)?;
        words.set("vlan ", &matches.vlan, vlans)?;
        words.set("inner vlan ", &matches.inner_vlan, vlans)?;
        words.set("", &matches.protocol, |protocol| *protocol)?;
        words.endpoints(matches)?;
        if let Some(flags) = matches.tcp_flags {
            words.next()?.write_fmt(format_args!("{}", Flags(flags)))?;
        }
        words.set("dscp ", &matches.dscp, numbers)?;
        words.set("icmp type ", &matches.icmp_type, numbers)?;
        words.set("icmp code ", &matches.icmp_code, numbers)?;
        words.set("", &matches.fragment, |kind| match kind {
            Fragment::Whole => "no fragment",
            Fragment::First => "first fragment",
            Fragment::Later => "later fragment",
        })?;
        words.set("", &matches.state, |state| state.name())?;
        words.set("arp operation ", &matches.arp_operation, numbers)?;
        if words.begun { Ok(()) } else { words.f.write_str("any") }
    }
}

/// Writes words separated by blanks.
struct Words<'a, 'f> {
    f: &'a mut Formatter<'f>,
    begun: bool,
}

impl<'f> Words<'_, 'f> {
    fn next(&mut self) -> Result<&mut Formatter<'f>, fmt::Error> {
        if self.begun {
            self.f.write_str(" ")?;
        }
        self.begun = true;
        Ok(self.f)
    }

    fn set<T, D: Display>(&mut self, word: &str, set: &[T], show: impl Fn(&T) -> D) -> fmt::Result {
        if set.is_empty() {
            return Ok(());
        }
        let f = self.next()?;
        f.write_str(word)?;
        list(f, set, show)
    }

    /// Source and destination, if either is set.
    fn ends<T: Copy, D: Display>(
        &mut self,
        word: &str,
        source: &[T],
        destination: &[T],
        show: impl Fn(T) -> D,
    ) -> fmt::Result {
        if source.is_empty() && destination.is_empty() {
            return Ok(());
        }
        let f = self.next()?;
        f.write_str(word)?;
        for (n, set) in [source, destination].into_iter().enumerate() {
            f.write_str(if n == 0 { "" } else { " > " })?;
            match set {
                [] => f.write_str("any")?,
                set => list(f, set, |element| show(*element))?,
            }
        }
        Ok(())
    }

    /// `10.0.0.0/8 :1024-65535 > 10.1.0.0/16 :80`.
    fn endpoints(&mut self, matches: &Match) -> fmt::Result {
        let Match { source, source_ports, destination, destination_ports, .. } = matches;
        let is_any = |nets: &[IpNet], ports: &[PortRange]| nets.is_empty() && ports.is_empty();
        if is_any(source, source_ports) && is_any(destination, destination_ports) {
            return Ok(());
        }
        self.endpoint(source, source_ports)?;
        self.next()?.write_str(">")?;
        self.endpoint(destination, destination_ports)
    }

    fn endpoint(&mut self, nets: &[IpNet], ports: &[PortRange]) -> fmt::Result {
        match nets {
            [] => self.next()?.write_str("any")?,
            nets => self.set("", nets, |net| Net(*net))?,
        }
        self.set(":", ports, |ports| *ports)
    }
}

fn list<T, D: Display>(f: &mut Formatter<'_>, set: &[T], show: impl Fn(&T) -> D) -> fmt::Result {
    for (n, element) in set.iter().enumerate() {
        f.write_str(if n == 0 { "" } else { "," })?;
        show(element).fmt(f)?;
    }
    Ok(())
}

/// A prefix; a host prefix without its length.
struct Net(IpNet);

impl Display for Net {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (self.0.network(), self.0.length()) {
            (IpAddr::V4(address), 32) => address.fmt(f),
            (IpAddr::V6(address), 128) => address.fmt(f),
            _ => self.0.fmt(f),
        }
    }
}

/// `02:00:00:00:00:01`, `02:00:00:00:00:00/ff:ff:ff:00:00:00`.
struct Mac(Masked<u64>);

impl Display for Mac {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        const BITS: u64 = (1 << 48) - 1;
        let mac = |bits: u64| {
            let [_, _, a, b, c, d, e, f] = bits.to_be_bytes();
            MacAddr([a, b, c, d, e, f])
        };
        mac(self.0.value).fmt(f)?;
        if self.0.mask & BITS == BITS { Ok(()) } else { write!(f, "/{}", mac(self.0.mask)) }
    }
}

/// `syn,!ack`; `no flags`.
struct Flags(Masked<u8>);

impl Display for Flags {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Masked { value, mask } = self.0;
        if mask == u8::MAX && value == 0 {
            return f.write_str("no flags");
        }
        if mask == 0 {
            return f.write_str("any flags");
        }
        let mut comma = "";
        for (name, flag) in TcpFlags::all().iter_names().filter(|(_, flag)| flag.bits() & mask != 0) {
            let not = if flag.bits() & value == 0 { "!" } else { "" };
            write!(f, "{comma}{not}{}", name.to_ascii_lowercase())?;
            comma = ",";
        }
        Ok(())
    }
}

fn numbers<T: Copy + PartialEq + Display>(span: &Span<T>) -> impl Display + use<T> {
    let Span { first, last } = *span;
    fmt::from_fn(move |f| if first == last { first.fmt(f) } else { write!(f, "{first}-{last}") })
}

/// 0 means untagged.
fn vlans(span: &Span<u16>) -> impl Display + use<> {
    let span = *span;
    fmt::from_fn(move |f| match (span.first, span.last) {
        (0, 0) => f.write_str("none"),
        (0, last) => write!(f, "none-{last}"),
        _ => numbers(&span).fmt(f),
    })
}
