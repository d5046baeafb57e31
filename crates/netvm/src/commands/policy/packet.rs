// SPDX-License-Identifier: Apache-2.0
//! The packet of `netvm policy trace`: built from fields, given in hexadecimal, or read from a capture.

use std::fmt::Write;
use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;

use netvm_api::{RouterInfo, TraceRequest};
use netvm_capture::CaptureReader;
use netvm_wire::{BuildError, EtherType, FrameBuilder, IpProto, MacAddr, TcpFlags, VlanId};

use crate::cli::TraceArgs;
use crate::error::PacketError;

/// The packet that the command line describes. An IP packet without a destination MAC address gets the
/// address of the router on its port, if one of `routers` has the port.
pub fn read(arguments: &TraceArgs, routers: &[RouterInfo]) -> Result<TraceRequest, PacketError> {
    let (port, state) = (arguments.from.clone(), arguments.state.clone());
    if let Some(frame) = &arguments.frame {
        return Ok(TraceRequest { port, frame: frame.clone(), length: None, state });
    }
    if let Some(path) = &arguments.pcap {
        let (frame, length) = from_capture(path, arguments.packet)?;
        return Ok(TraceRequest { port, frame: hexadecimal(&frame), length: Some(length), state });
    }
    if arguments.fields.is_empty() {
        return Err(PacketError::Nothing);
    }
    let frame = from_fields(&arguments.fields, |vlan| mac_of_router(routers, &port, vlan))?;
    Ok(TraceRequest { port, frame: hexadecimal(&frame), length: None, state })
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn from_capture(path: &Path, want: u64) -> Result<(Vec<u8>, usize), PacketError> {
    let mut reader = CaptureReader::open(path)?;
    let mut have = 0;
    while !reader.is_done() {
        match reader.next_frame() {
            Ok(Some(frame)) => {
                have += 1;
                if have == want {
                    return Ok((frame.data.to_vec(), frame.data.len().max(frame.orig_len as usize)));
                }
            }
            Ok(None) => {}
            Err(error) => {
                // A frame that cannot be read counts, as in other programs.
                have += 1;
                if reader.is_done() || have == want {
                    return Err(error.into());
                }
            }
        }
    }
    Err(PacketError::NoSuchPacket { path: path.to_owned(), have, want })
}

/// The fields given so far.
#[derive(Default)]
struct Fields {
    source_mac: Option<MacAddr>,
    destination_mac: Option<MacAddr>,
    vlan: Option<VlanId>,
    ether_type: Option<EtherType>,
    source: Option<IpAddr>,
    destination: Option<IpAddr>,
    protocol: Option<IpProto>,
    source_port: u16,
    destination_port: u16,
    flags: Option<TcpFlags>,
    dscp: u8,
    length: Option<usize>,
}

/// The MAC address of a router's interface on a port.
fn mac_of_router(routers: &[RouterInfo], port: &str, vlan: Option<VlanId>) -> Option<MacAddr> {
    let mut interfaces = routers.iter().flat_map(|router| &router.interfaces);
    let vlan = vlan.map(VlanId::get);
    let interface = interfaces.find(|interface| interface.port == port && interface.vlan == vlan)?;
    interface.mac.parse().ok()
}

/// A frame with these fields. MAC addresses not given are 02:00:00:00:00:01 and, unless there is a `router` on the
/// VLAN, 02:00:00:00:00:02.
fn from_fields(
    given: &[String],
    router: impl FnOnce(Option<VlanId>) -> Option<MacAddr>,
) -> Result<Vec<u8>, PacketError> {
    let mut fields = Fields::default();
    for field in given {
        let (name, value) = field.split_once('=').ok_or_else(|| PacketError::Field(field.clone()))?;
        match name {
            "source_mac" => fields.source_mac = Some(value_of(name, value)?),
            "destination_mac" => fields.destination_mac = Some(value_of(name, value)?),
            "vlan" => {
                let number: u16 = value_of(name, value)?;
                fields.vlan = Some(VlanId::new(number).map_err(|why| wrong(name, value, &why))?);
            }
            "ether_type" => fields.ether_type = Some(value_of(name, value)?),
            "source" => fields.source = Some(value_of(name, value)?),
            "destination" => fields.destination = Some(value_of(name, value)?),
            "protocol" => fields.protocol = Some(value_of(name, value)?),
            // As in rules, and as a packet has one.
            "source_port" | "source_ports" => fields.source_port = value_of(name, value)?,
            "destination_port" | "destination_ports" => fields.destination_port = value_of(name, value)?,
            "flags" | "tcp_flags" => fields.flags = Some(flags_of(name, value)?),
            "dscp" => fields.dscp = value_of(name, value)?,
            "length" => fields.length = Some(value_of(name, value)?),
            _ => return Err(PacketError::Field(field.clone())),
        }
    }
    let mac = |last| MacAddr([2, 0, 0, 0, 0, last]);
    let router = if fields.destination.is_some() { router(fields.vlan) } else { None };
    let from = fields.source_mac.unwrap_or(mac(1));
    let to = fields.destination_mac.or(router).unwrap_or(mac(2));
    let mut frame = FrameBuilder::new(from, to).dscp(fields.dscp);
    if let Some(vlan) = fields.vlan {
        frame = frame.vlan(vlan);
    }
    frame = match (fields.source, fields.destination) {
        (Some(source), Some(destination)) => frame.ip(source, destination),
        (None, None) => frame.ether_type(fields.ether_type.unwrap_or(EtherType(0x88b5))),
        _ => return Err(PacketError::OneAddress),
    };
    frame = match fields.protocol {
        Some(IpProto::TCP) => {
            frame.tcp(fields.source_port, fields.destination_port, fields.flags.unwrap_or(TcpFlags::SYN))
        }
        Some(IpProto::UDP) => frame.udp(fields.source_port, fields.destination_port),
        Some(IpProto::ICMP | IpProto::ICMPV6) => frame.echo(false, 1, 1),
        Some(other) => frame.protocol(other),
        None => frame,
    };
    if let Some(length) = fields.length {
        frame = frame.frame_len(length);
    }
    frame.to_vec().map_err(|error| match error {
        BuildError::NoAddresses => PacketError::NoAddresses,
        other => other.into(),
    })
}

fn flags_of(name: &str, value: &str) -> Result<TcpFlags, PacketError> {
    let mut flags = TcpFlags::empty();
    for flag in value.split(',') {
        flags |= TcpFlags::from_name(&flag.to_uppercase()).ok_or_else(|| {
            wrong(name, value, &"must be a list of fin, syn, rst, psh, ack, urg, ece and cwr")
        })?;
    }
    Ok(flags)
}

fn value_of<T: FromStr<Err: std::fmt::Display>>(name: &str, value: &str) -> Result<T, PacketError> {
    value.parse().map_err(|why| wrong(name, value, &why))
}

fn wrong(name: &str, value: &str, why: &dyn std::fmt::Display) -> PacketError {
    PacketError::Value { field: name.to_owned(), value: value.to_owned(), why: why.to_string() }
}

#[cfg(test)]
mod tests {
    use netvm_wire::parse;

    use super::*;

    fn fields(text: &str) -> Result<Vec<u8>, PacketError> {
        from_fields(&text.split(' ').map(str::to_owned).collect::<Vec<_>>(), |_| None)
    }

    #[test]
    fn fields_make_a_frame() {
        let frame = fields(
            "protocol=tcp source=10.0.0.2 destination=10.0.1.2 destination_port=23 flags=syn,ack vlan=7",
        )
        .unwrap();
        let as_in_rules =
            "protocol=tcp source=10.0.0.2 destination=10.0.1.2 destination_ports=23 tcp_flags=syn,ack vlan=7";
        assert_eq!(fields(as_in_rules).unwrap(), frame);
        let key = *parse(&frame).unwrap().key();
        assert_eq!((key.protocol, key.destination_port), (IpProto::TCP, 23));
        assert_eq!(key.tcp_flags, TcpFlags::SYN | TcpFlags::ACK);
        assert_eq!(key.vlan.map(VlanId::get), Some(7));
    }

    #[test]
    fn an_ip_packet_is_for_the_router_behind_its_port() {
        let given = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let router = MacAddr([2, 9, 9, 9, 9, 9]);
        let mac_of = |text: &str| {
            let frame = from_fields(&given(text), |vlan| vlan.is_none().then_some(router)).unwrap();
            parse(&frame).unwrap().key().destination_mac
        };
        assert_eq!(mac_of("source=10.0.0.2 destination=10.0.1.2"), router);
        assert_ne!(mac_of("source=10.0.0.2 destination=10.0.1.2 vlan=7"), router);
        assert_ne!(mac_of("ether_type=0x88b6"), router);
        let chosen = mac_of("source=10.0.0.2 destination=10.0.1.2 destination_mac=02:00:00:00:00:07");
        assert_eq!(chosen, MacAddr([2, 0, 0, 0, 0, 7]));
    }

    #[test]
    fn errors_name_the_wrong_field() {
        let says = |text: &str| fields(text).unwrap_err().to_string();
        assert!(says("port=23").contains("not a field"));
        assert!(says("source=10.0.0.2").contains("go together"));
        assert!(says("protocol=tcp destination_port=23").contains("give source and destination"));
        assert!(says("vlan=5000").contains("vlan=5000"));
        assert!(says("flags=syn,hello").contains("must be a list of fin"));
    }
}
