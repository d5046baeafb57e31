// SPDX-License-Identifier: Apache-2.0
//! Places at which workers have to see every packet: captures, and traces. In: what runs. Out: ports whose packets the
//! kernel does not forward meanwhile, and of a traced packet, whether it forwarded its flow before.

use std::collections::{BTreeMap, HashSet};

use netvm_kernel_flows::{Key, Mask, Transport};
use netvm_model::Host;
use netvm_wire::FlowKey;

use super::{FastPaths, holds};
use crate::ids::PortId;
use crate::manager::captures::Captures;
use crate::manager::traces::{TraceRead, Traces};
use crate::port_bits::PortBits;
use crate::worker::trace::{Origin, Step, TimedStep, TracedPacket};

/// What makes workers have to see all packets of some ports.
#[derive(Clone, Copy)]
pub(crate) struct Watching<'a> {
    pub(crate) captures: &'a Captures,
    pub(crate) traces: &'a Traces,
}

impl Watching<'_> {
    /// The ports from and to which no packet may pass workers by.
    pub(super) fn ports(self, host: &Host) -> PortBits {
        let mut ports = self.traced(host);
        self.captures.add_ports(host, &mut ports);
        ports
    }

    fn traced(self, host: &Host) -> PortBits {
        let mut ports = PortBits::default();
        self.traces.add_ports(host, &mut ports);
        ports
    }
}

/// The flows that the kernel forwarded until a trace began. They are kept after its end, for what its client has not
/// read.
#[derive(Default)]
pub(super) struct Paused {
    /// What is traced now.
    traced: PortBits,
    /// Of the ports that receive these flows, when the trace began.
    masks: BTreeMap<PortId, Mask>,
    flows: HashSet<Key>,
}

impl Paused {
    /// Whether the kernel forwarded packets of these header fields that a port received.
    fn has(&self, port: PortId, fields: &FlowKey) -> bool {
        let key = self.masks.get(&port).zip(key_of(port, fields));
        key.is_some_and(|(mask, key)| self.flows.contains(&key.masked(mask)))
    }
}

/// The key of packets with these fields.
fn key_of(port: PortId, fields: &FlowKey) -> Option<Key> {
    let transport = Transport {
        protocol: fields.protocol.0,
        source: fields.source.to_ip(),
        destination: fields.destination.to_ip(),
        ports: [fields.source_port, fields.destination_port],
    };
    Key::new(port.0.into(), [fields.destination_mac, fields.source_mac], transport)
}

/// The header fields with which a port received a packet.
fn fields_of(packet: &TracedPacket) -> Option<FlowKey> {
    let mut before = None;
    for TimedStep { step, .. } in &packet.steps {
        match step {
            Step::Translated(translated) => before = Some(translated.before),
            Step::Key(fields) => {
                let Some([source, destination]) = before else { return Some(**fields) };
                return Some(FlowKey {
                    source: source.address,
                    source_port: source.port,
                    destination: destination.address,
                    destination_port: destination.port,
                    ..**fields
                });
            }
            _ => {}
        }
    }
    None
}

impl FastPaths {
    /// Notes which flows end because of a trace, before they do.
    pub(super) fn pause(&mut self, watching: Watching<'_>, host: &Host) {
        let traced = watching.traced(host);
        let Self { paused, ports, flows, .. } = self;
        if traced == paused.traced {
            return;
        }
        if paused.traced.is_empty() {
            *paused = Paused::default();
        }
        let begins = |port: PortId| traced.has(port) && !paused.traced.has(port);
        let of_trace = flows.iter().filter(|(_, flow)| begins(flow.from) || begins(flow.decided.to));
        for (key, flow) in of_trace.filter(|(_, flow)| holds(ports, flow)) {
            let mask = ports.get(&flow.from).and_then(|port| port.mask);
            paused.masks.extend(mask.map(|mask| (flow.from, mask)));
            paused.flows.insert(*key);
        }
        paused.traced = traced;
    }

    /// Adds to the steps of traced packets that the kernel forwarded their flows before, if it did.
    pub(crate) fn complete_traced(&self, mut read: TraceRead) -> TraceRead {
        for packet in &mut read.packets {
            let Origin::Port(port) = packet.from else { continue };
            let was_by_kernel = fields_of(packet).is_some_and(|fields| self.paused.has(port, &fields));
            if let Some(first) = packet.steps.first().filter(|_| was_by_kernel).cloned() {
                packet.steps.insert(1, TimedStep { step: Step::WasByKernel, ..first });
            }
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};

    use netvm_kernel_flows::Field;
    use netvm_wire::{FrameBuilder, MacAddr};

    use super::*;
    use crate::ids::WorkerId;
    use crate::worker::trace::{NatEnd, Translated};

    const PORT: PortId = PortId(3);

    fn frame(source_port: u16) -> Vec<u8> {
        let [source, destination] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        let macs = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]].map(MacAddr);
        FrameBuilder::new(macs[0], macs[1]).ip(source, destination).udp(source_port, 53).to_vec().unwrap()
    }

    fn fields(source_port: u16) -> FlowKey {
        let frame = frame(source_port);
        let mut key = FlowKey::EMPTY;
        key.read_frame(&frame, frame.len()).unwrap();
        key
    }

    fn traced(steps: Vec<Step>) -> TraceRead {
        let host = Arc::new(Host::default());
        let timed =
            |step| TimedStep { after: Duration::ZERO, worker: WorkerId(0), step, host: Arc::clone(&host) };
        let steps = steps.into_iter().map(timed).collect();
        let (at, from) = (SystemTime::now(), Origin::Port(PORT));
        let packet = TracedPacket { worker: WorkerId(0), at, from, bytes: 60, steps };
        TraceRead { packets: vec![packet], is_over: false }
    }

    #[test]
    fn a_traced_packet_says_whether_the_kernel_had_its_flow() {
        let mut paths = FastPaths::default();
        let mask = Mask::default().with(Field::SourcePort);
        paths.paused.masks.insert(PORT, mask);
        let key = Key::of_frame(PORT.0.into(), &frame(1000)).unwrap();
        paths.paused.flows.insert(key.masked(&mask));
        let says = |steps: Vec<Step>| {
            let read = paths.complete_traced(traced(steps));
            read.packets[0].steps.iter().position(|timed| timed.step == Step::WasByKernel)
        };
        let of = |fields: FlowKey| vec![Step::In(PORT), Step::Key(Box::new(fields))];
        assert_eq!(says(of(fields(1000))), Some(1));
        assert_eq!(says(of(fields(1001))), None);
        assert_eq!(says(vec![Step::In(PORT)]), None);
        // Rules see what NAT has made of it, and the kernel what it was.
        let ends = |port: u16| [port, 53].map(|port| NatEnd { address: fields(1).source, port });
        let translated = Translated { before: ends(1000), after: ends(1001), is_nat64: false, rule: None };
        let steps = vec![Step::In(PORT), Step::Translated(translated), Step::Key(Box::new(fields(1001)))];
        assert_eq!(says(steps), Some(1));
    }
}
