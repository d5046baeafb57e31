// SPDX-License-Identifier: Apache-2.0
//! Random packets between few ends, compared with a model that is slow and obvious: a list of connections, each with
//! all segments so far. It computes windows anew for each segment, from numbers that do not wrap.

mod connection;
mod events;

use connection::{Conn, Protocol, Seen, answered, kind};
use events::{Event, What, event};
use netvm_conntrack::{Config, TICKS_PER_SECOND, Zone};
use netvm_wire::{ConnState, IpProto, TcpFlags};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::rig::{CLIENT, Rig, SERVER, Segment, error_about, from, segment};

/// Sequence numbers begin here; they wrap soon.
const BASES: [u32; 2] = [u32::MAX - 1200, 0x7fff_ff00];

/// The fragments of a packet whose first one was seen.
struct Fragments {
    by_server: bool,
    zone: u16,
    identifier: u16,
    until: u32,
}

#[derive(Default)]
struct Model {
    config: Config,
    now: u32,
    connections: Vec<Conn>,
    fragments: Vec<Fragments>,
}

impl Model {
    fn find(&self, protocol: Protocol, zone: u16) -> Option<usize> {
        self.connections
            .iter()
            .position(|it| it.protocol == protocol && it.zone == zone && self.now <= it.deadline)
    }

    /// What TCP expects next of an end.
    fn next(&self, server: bool, zone: u16) -> i64 {
        self.find(Protocol::Tcp, zone).map_or(0, |n| self.connections[n].end(server))
    }

    fn segment(&self, event: &Event) -> Option<Seen> {
        let What::Tcp { flags, sequence, acknowledgment, window, scale, data } = event.what else {
            return None;
        };
        Some(Seen {
            by_server: event.is_server,
            flags,
            sequence: self.next(event.is_server, event.zone) + sequence,
            acknowledgment: self.next(!event.is_server, event.zone) + acknowledgment,
            window,
            scale,
            data: data.into(),
        })
    }

    /// The state of a packet, which rules accept or drop.
    fn handle(&mut self, event: &Event) -> ConnState {
        let segment = self.segment(event);
        let protocol = match event.what {
            What::Tcp { .. } => Protocol::Tcp,
            What::Echo { is_reply } => Protocol::Echo(event.is_server != is_reply),
            What::ErrorAboutTcp { sequence } => return self.error_about_tcp(event, sequence),
            What::ErrorAboutUdp => return self.error(event, Protocol::Udp),
            What::ErrorAboutEcho { is_reply } => {
                return self.error(event, Protocol::Echo(event.is_server == is_reply));
            }
            What::Udp | What::UdpFirst { .. } | What::UdpLater { .. } => Protocol::Udp,
        };
        match event.what {
            What::UdpFirst { identifier } => self.note_fragments(event, identifier),
            What::UdpLater { identifier } => return self.later(event, identifier),
            _ => {}
        }
        let known = self.find(protocol, event.zone);
        let Some(n) = known else { return self.unknown(event, protocol, segment) };
        let connection = &mut self.connections[n];
        if let Some(segment) = &segment {
            if kind(segment.flags) == Some("syn") && ["time-wait", "close"].contains(&connection.state) {
                if event.is_accepted {
                    self.connections.remove(n);
                    self.unknown(event, protocol, Some(*segment));
                }
                return ConnState::New;
            }
            match connection.handle(segment) {
                None => return ConnState::Invalid,
                Some(false) => return answered(connection, event.is_server),
                Some(true) => {}
            }
        }
        connection.is_answered |= connection.began_by_server != event.is_server;
        connection.deadline = self.now + connection.seconds(&self.config, self.now) * TICKS_PER_SECOND;
        answered(connection, event.is_server)
    }

    fn unknown(&mut self, event: &Event, protocol: Protocol, segment: Option<Seen>) -> ConnState {
        let flags = segment.and_then(|it| kind(it.flags));
        let begins = match protocol {
            Protocol::Tcp => flags == Some("syn") || flags == Some("ack") && self.config.pick_up,
            Protocol::Udp => true,
            Protocol::Echo(by_server) => by_server == event.is_server,
        };
        if !begins {
            return ConnState::Invalid;
        }
        if event.is_accepted {
            self.connections.retain(|it| it.protocol != protocol || it.zone != event.zone);
            let is_liberal = flags == Some("ack");
            let mut new = Conn {
                protocol,
                zone: event.zone,
                began_by_server: event.is_server,
                is_answered: false,
                created: self.now,
                deadline: 0,
                segments: segment.into_iter().collect(),
                state: if is_liberal { "established" } else { "syn-sent" },
                is_liberal,
            };
            new.deadline = self.now + new.seconds(&self.config, self.now) * TICKS_PER_SECOND;
            self.connections.push(new);
        }
        ConnState::New
    }

    fn note_fragments(&mut self, event: &Event, identifier: u16) {
        let (by_server, zone) = (event.is_server, event.zone);
        self.fragments.push(Fragments {
            by_server,
            zone,
            identifier,
            until: self.now + 30 * TICKS_PER_SECOND,
        });
    }

    fn later(&self, event: &Event, identifier: u16) -> ConnState {
        let is_its = |it: &Fragments| {
            (it.by_server, it.zone, it.identifier) == (event.is_server, event.zone, identifier)
                && self.now < it.until
        };
        match self.find(Protocol::Udp, event.zone) {
            _ if !self.fragments.iter().any(is_its) => ConnState::Invalid,
            Some(n) => answered(&self.connections[n], event.is_server),
            None => ConnState::New,
        }
    }

    fn error(&self, event: &Event, about: Protocol) -> ConnState {
        if self.find(about, event.zone).is_some() { ConnState::Related } else { ConnState::Invalid }
    }

    fn error_about_tcp(&self, event: &Event, sequence: i64) -> ConnState {
        let Some(n) = self.find(Protocol::Tcp, event.zone) else { return ConnState::Invalid };
        let (connection, sender) = (&self.connections[n], !event.is_server);
        let back = connection.window(event.is_server).max(66_000);
        let fits = connection.is_known(sender) && (-back..=0).contains(&sequence);
        if connection.is_liberal || fits { ConnState::Related } else { ConnState::Invalid }
    }
}

fn wrapped(server: bool, number: i64) -> u32 {
    BASES[usize::from(server)].wrapping_add(number as u32)
}

/// The frame of an event, with numbers as the model expects them now.
fn frame(event: &Event, model: &Model) -> Vec<u8> {
    let (server, zone) = (event.is_server, event.zone);
    let udp = |server: bool| if server { (53, 1000) } else { (1000, 53) };
    let (a, b) = udp(server);
    let (to, by) = if server { (CLIENT, SERVER) } else { (SERVER, CLIENT) };
    let about = |frame: Vec<u8>| error_about(&frame, by, to);
    let payload = [1; 16];
    match event.what {
        What::Tcp { .. } => {
            let it = model.segment(event).unwrap();
            let segment = Segment {
                is_server: server,
                flags: it.flags,
                sequence: wrapped(server, it.sequence),
                acknowledgment: wrapped(!server, it.acknowledgment),
                window: it.window,
                scale: it.scale,
                data: it.data as usize,
            };
            segment.frame()
        }
        What::Udp => from(server).udp(a, b).to_vec().unwrap(),
        What::UdpFirst { identifier } => {
            from(server).fragment(identifier, 0, true).udp(a, b).payload(&payload).to_vec().unwrap()
        }
        What::UdpLater { identifier } => {
            let fragment = from(server).fragment(identifier, 3, false).protocol(IpProto::UDP);
            fragment.payload(&payload).to_vec().unwrap()
        }
        What::Echo { is_reply } => from(server).echo(is_reply, 7, 1).to_vec().unwrap(),
        What::ErrorAboutTcp { sequence } => {
            let number = wrapped(!server, model.next(!server, zone) + sequence);
            about(segment(!server, TcpFlags::ACK, number, 0).frame())
        }
        What::ErrorAboutUdp => about(from(!server).udp(b, a).to_vec().unwrap()),
        What::ErrorAboutEcho { is_reply } => about(from(!server).echo(is_reply, 7, 1).to_vec().unwrap()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn states_are_those_of_the_model(events in vec(event(), 1..60), pick_up: bool, restart in 0usize..120) {
        let config = Config { pick_up, ..Config { sessions: 64, fragments: 64, ..Config::default() } };
        let mut rig = Rig::new(&config);
        // Ticks wrap, too.
        rig.now = u32::MAX - 500;
        let mut model = Model { config, ..Model::default() };
        for (n, event) in events.iter().enumerate() {
            rig.now = rig.now.wrapping_add(event.wait);
            model.now += event.wait;
            if n == restart {
                // Fragments are not saved.
                rig.restart(&model.config, 4_000_000_000);
                model.fragments.clear();
            }
            rig.zone = Zone(event.zone);
            let frame = frame(event, &model);
            let tracked = if event.is_accepted { rig.pass(&frame) } else { rig.look(&frame).state };
            prop_assert_eq!(tracked, model.handle(event), "event {}: {:?}", n, event);
            let live = model.connections.iter().filter(|it| model.now <= it.deadline);
            let expected: Vec<_> = live.map(|it| it.began_by_server).collect();
            prop_assert_eq!(rig.table.page(0, 64, rig.now).count(), expected.len(), "event {}: {:?}", n, event);
        }
    }
}
