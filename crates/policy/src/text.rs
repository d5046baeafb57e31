//! Formats rules on one line.

use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;

use netvm_ids::PortId;
use netvm_wire::{EtherType, Fragment, IpNet, MacAddr, PortRange, TcpFlags};

use crate::matching::Match;
use crate::names::Names;
use crate::rule::{Action, Actions, Police, Rate, Rule, RuleParts, SetVlan};
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
    Rule: "`from client tcp > :22 → drop`, with its name, if it has one, in front.";
}

impl Display for Named<'_, Rule> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let RuleParts { name, matches, actions, .. } = &**self.of;
        if !name.is_empty() {
            write!(f, "{name}: ")?;
        }
        write!(f, "{} → {}", matches.named(self.names), actions.named(self.names))
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

#[cfg(test)]
mod tests {
    use netvm_ids::{ChainId, QueueId, RouterId, RuleId};
    use netvm_wire::{ConnState, IpProto, VlanId};
    use proptest::prelude::*;
    use std::borrow::Cow;

    use super::*;
    use crate::arbitrary::rules;

    struct Fixed;

    impl Names for Fixed {
        fn port(&self, port: PortId) -> Cow<'_, str> {
            let known = ["client", "server"].get(port.index());
            known.map_or_else(|| format!("port{port}").into(), |name| (*name).into())
        }

        fn chain(&self, _: ChainId) -> Cow<'_, str> {
            "web".into()
        }

        fn router(&self, _: RouterId) -> Cow<'_, str> {
            "blue".into()
        }

        fn queue(&self, _: QueueId) -> Cow<'_, str> {
            "voice".into()
        }
    }

    fn nets(text: &str) -> Vec<IpNet> {
        text.split(' ').map(|net| net.parse().unwrap()).collect()
    }

    #[test]
    fn matches_read_as_sentences() {
        let full = Match {
            from: vec![PortId(0)],
            protocol: vec![IpProto::TCP],
            source: nets("10.0.0.0/8"),
            destination: nets("10.1.0.0/16 10.2.0.1/32"),
            destination_ports: vec![PortRange::new(80, 443).unwrap(), PortRange::single(8080)],
            tcp_flags: Some(Masked::<u8>::new(2, 0x12)),
            ..Match::default()
        };
        let layer2 = Match {
            to: vec![PortId(1), PortId(2)],
            source_mac: vec![Masked::<u64>::new(0x0200_0000_0001, u64::MAX)],
            destination_mac: vec![Masked::<u64>::new(1 << 40, 1 << 40)],
            ether_type: vec![EtherType::ARP, EtherType(0x88cc)],
            vlan: vec![Span { first: 0, last: 5 }, Span::single(7)],
            inner_vlan: vec![Span::single(0)],
            arp_operation: vec![Span::single(1)],
            ..Match::default()
        };
        let rest = Match {
            source_ports: vec![PortRange::single(53)],
            dscp: vec![Span { first: 46, last: 47 }],
            icmp_type: vec![Span::single(8)],
            fragment: vec![Fragment::First, Fragment::Later],
            state: vec![ConnState::New],
            ..Match::default()
        };
        let cases = [
            (full, "from client tcp 10.0.0.0/8 > 10.1.0.0/16,10.2.0.1 :80-443,8080 syn,!ack"),
            (
                layer2,
                "to server,port2 mac 02:00:00:00:00:01 > 01:00:00:00:00:00/01:00:00:00:00:00 ether arp,0x88cc \
                 vlan none-5,7 inner vlan none arp operation 1",
            ),
            (rest, "any :53 > any dscp 46-47 icmp type 8 first fragment,later fragment new"),
            (Match::default(), "any"),
        ];
        for (matches, text) in cases {
            assert_eq!(matches.named(&Fixed).to_string(), text);
        }
    }

    #[test]
    fn rules_say_what_they_do() {
        let rate = |per_second, burst| Some(Rate { per_second, burst });
        let actions = Actions {
            terminal: Some(Action::Chain(ChainId(0))),
            set_vlan: VlanId::new(5).ok().map(SetVlan::Tag),
            queue: Some(QueueId(0)),
            mirror: Some(PortId(2)),
            police: Some(Police { packets: rate(1000, 10), bits: rate(8000, 80) }),
            syn_proxy: false,
        };
        let mut rule = Rule::from(RuleParts {
            id: RuleId(3),
            name: "to web".to_owned(),
            matches: Match::default(),
            actions,
        });
        let text = "to web: any → police 1000 packets/s burst 10 and 8000 bit/s burst 80, set vlan 5, \
                    queue voice, mirror to port2, chain web";
        assert_eq!(rule.named(&Fixed).to_string(), text);
        rule.actions = Actions { set_vlan: Some(SetVlan::Strip), ..Actions::default() };
        rule.name.clear();
        assert_eq!(rule.named(&Fixed).to_string(), "any → strip vlan, continue");
        rule.actions = Actions { terminal: Some(Action::Allow), syn_proxy: true, ..Actions::default() };
        assert_eq!(rule.named(&Fixed).to_string(), "any → syn proxy, allow");
        rule.actions = Actions { terminal: Some(Action::Port(PortId(1))), ..Actions::default() };
        assert_eq!(rule.named(&Fixed).to_string(), "any → out of server");
    }

    proptest! {
        /// The text covers every field.
        #[test]
        fn different_matches_read_differently(rules in rules(2)) {
            let [a, b] = [&rules[0].matches, &rules[1].matches];
            let text = |matches: &Match| matches.named(&Fixed).to_string();
            prop_assert!(a == b || text(a) != text(b));
        }
    }
}
