// SPDX-License-Identifier: Apache-2.0
//! What a record says, in words: comments in files, and lines of text.

use netvm_api::{CaptureInfo, CaptureInterface};
use netvm_capture::Timestamp;
use netvm_capture::blocks::PacketDirection;
use netvm_capture_ring::{Direction, NONE_U8, Origin, Record};
use netvm_ring::VerdictKind;
use netvm_wire::parse_prefix;

/// The direction in a file. What goes into an NF or a router comes from the engine, and is inbound there.
pub(crate) const fn direction(record: &Record) -> PacketDirection {
    match record.direction {
        Direction::None => PacketDirection::Unknown,
        Direction::In | Direction::FromKernel => PacketDirection::Inbound,
        Direction::Out | Direction::ToKernel => PacketDirection::Outbound,
    }
}

/// `chain out hop 1 (firewall), verdict drop, dropped: verdict, from port client`; empty if nothing is known.
pub(crate) fn comment(info: &CaptureInfo, record: &Record) -> String {
    let mut parts = Vec::new();
    if let Some((name, roles)) = info.chains.get(&record.chain) {
        let hop = usize::from(record.hop);
        parts.push(match roles.get(hop) {
            Some(role) => format!("chain {name} hop {} ({role})", hop + 1),
            None => format!("chain {name}"),
        });
    }
    match record.direction {
        Direction::ToKernel => parts.push("punted".to_owned()),
        Direction::FromKernel => parts.push("from the kernel".to_owned()),
        Direction::None | Direction::In | Direction::Out => {}
    }
    if record.verdict != NONE_U8 {
        parts.push(format!("verdict {}", verdict(info, record)));
    }
    if record.reason != NONE_U8 {
        let reason = info.reasons.get(usize::from(record.reason));
        parts.push(format!("dropped: {}", reason.map_or("unknown", String::as_str)));
    }
    let here = info.interfaces.get(usize::from(record.interface)).map(|point| point.name.as_str());
    let port = |number| info.ports.get(number).filter(|port| here != Some(port));
    parts.extend(match &record.origin {
        Origin::Unknown => None,
        Origin::Port(number) => port(number).map(|port| format!("from port {port}")),
        Origin::Nf(number) => info.roles.get(number).map(|role| format!("made by {role}")),
    });
    parts.join(", ")
}

/// An NF's verdict, with the name of what it sends the packet to.
fn verdict(info: &CaptureInfo, record: &Record) -> String {
    let port = || info.ports.get(&record.argument);
    let role = || info.roles.get(&record.argument);
    let chain = || info.chains.get(&record.argument).map(|(name, _)| name);
    let (kind, name) = match VerdictKind::from_raw(record.verdict) {
        Some(VerdictKind::Next) => ("next", None),
        Some(VerdictKind::Drop) => ("drop", None),
        Some(VerdictKind::Port) => ("port", port()),
        Some(VerdictKind::Role) => ("role", role()),
        Some(VerdictKind::DropFlow) => ("drop-flow", None),
        Some(VerdictKind::SkipFlow) => ("skip-flow", None),
        Some(VerdictKind::Hold) => ("hold", None),
        Some(VerdictKind::SteerChain) => ("steer-flow to chain", chain()),
        Some(VerdictKind::SteerRole) => ("steer-flow to role", role()),
        Some(VerdictKind::SteerPort) => ("steer-flow to port", port()),
        Some(VerdictKind::SteerBack) => ("steer-flow back", None),
        None => ("unknown", None),
    };
    name.map_or_else(|| kind.to_owned(), |name| format!("{kind} {name}"))
}

/// `app=web tier=front`.
fn list(interface: &CaptureInterface) -> String {
    interface.labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

/// What a file says of a capture point: `port client, app=web tier=front`.
pub(crate) fn with_labels(interface: &CaptureInterface) -> String {
    let labels = list(interface);
    let separator = if labels.is_empty() { "" } else { ", " };
    format!("{}{separator}{labels}", interface.description)
}

/// A line of text for the labels of a capture point; empty if it has none.
pub(crate) fn labels(interface: &CaptureInterface) -> String {
    let labels = list(interface);
    if labels.is_empty() { labels } else { format!("{} is {labels}\n", interface.description) }
}

/// A line of text for a packet: time of day in UTC, capture point, direction, addresses, length and the comment.
pub(crate) fn line(info: &CaptureInfo, record: &Record, time: Timestamp, packet: &[u8]) -> String {
    let time = jiff::Timestamp::from_nanosecond(time.as_nanos().into()).unwrap_or(jiff::Timestamp::MAX);
    let time = time.strftime("%H:%M:%S.%6f");
    let point = info.interfaces.get(usize::from(record.interface)).map_or("?", |point| point.name.as_str());
    let in_or_out = match direction(record) {
        PacketDirection::Inbound => "in ",
        PacketDirection::Outbound => "out",
        PacketDirection::Unknown => "-  ",
    };
    let what = match parse_prefix(packet, record.original as usize) {
        Ok(headers) => {
            let key = headers.key();
            let vlan = key.vlan.map_or_else(String::new, |vlan| format!(" vlan {vlan}"));
            match key.five_tuple() {
                Some(tuple) => format!("{tuple}{vlan}"),
                None => format!("{} > {} {}{vlan}", key.source_mac, key.destination_mac, key.ether_type),
            }
        }
        Err(_) => "malformed".to_owned(),
    };
    let comment = comment(info, record);
    let comment = if comment.is_empty() { comment } else { format!(" ({comment})") };
    let length = record.original;
    format!("{time} {point} {in_or_out} {what}, {length} bytes{comment}\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_record_is_described_in_words() {
        let interface = |name: &str| CaptureInterface {
            name: name.to_owned(),
            description: String::new(),
            labels: BTreeMap::new(),
        };
        let info = CaptureInfo {
            id: 1,
            interfaces: vec![interface("client"), interface("out:2")],
            chains: [(3, ("out".to_owned(), vec!["fw".to_owned(), "scan".to_owned()]))].into(),
            ports: [(0, "client".to_owned()), (1, "server".to_owned())].into(),
            roles: [(4, "ids".to_owned())].into(),
            reasons: vec!["rule".to_owned(), "verdict".to_owned()],
        };
        let record = Record { origin: Origin::Port(0), original: 60, ..Record::at(0, Direction::In) };
        assert_eq!(comment(&info, &record), "");
        let record = Record { chain: 3, hop: 1, verdict: 1, reason: 1, ..record };
        let dropped = Record { interface: 1, direction: Direction::None, ..record };
        assert_eq!(
            comment(&info, &dropped),
            "chain out hop 2 (scan), verdict drop, dropped: verdict, from port client"
        );
        let sent = Record { verdict: 2, argument: 1, reason: NONE_U8, ..dropped };
        assert!(comment(&info, &sent).contains("verdict port server"));
        let steered = Record { verdict: VerdictKind::SteerChain as u8, argument: 3, ..sent };
        assert!(comment(&info, &steered).contains("verdict steer-flow to chain out"));
        let held = Record { verdict: VerdictKind::Hold as u8, ..sent };
        assert!(comment(&info, &held).contains("verdict hold"));
        let made = Record { origin: Origin::Nf(4), ..record };
        assert!(comment(&info, &made).ends_with(", made by ids"), "{}", comment(&info, &made));
        let line = line(&info, &dropped, Timestamp::new(3661, 5_000), &[0; 20]);
        assert!(line.starts_with("01:01:01.000005 out:2 -   "), "{line}");
        assert!(line.ends_with(
            "60 bytes (chain out hop 2 (scan), verdict drop, dropped: verdict, from port client)\n"
        ));
    }
}
