//! Random packets between few ends, compared with a model that is slow and obvious: a list of connections, each with all
//! segments so far. It computes windows anew for each segment, from numbers that do not wrap.

use netvm_conntrack::{Config, TICKS_PER_SECOND, Zone};
use netvm_wire::{ConnState, IpProto, TcpFlags};
use proptest::collection::vec;
use proptest::prelude::*;

use super::rig::{CLIENT, Rig, SERVER, Segment, error_about, from};

/// Sequence numbers begin here; they wrap soon.
const BASES: [u32; 2] = [u32::MAX - 1200, 0x7fff_ff00];

/// What one end sends.
#[derive(Clone, Debug)]
enum What {
    /// Sequence number, relative to what the model expects next; the same for the acknowledgment.
    Tcp {
        flags: TcpFlags,
        sequence: i64,
        acknowledgment: i64,
        window: u16,
        scale: Option<u8>,
        data: u16,
    },
    Udp,
    UdpFirst {
        identifier: u16,
    },
    UdpLater {
        identifier: u16,
    },
    Echo {
        is_reply: bool,
    },
    /// About what the other end has sent, or could have: TCP with this sequence number, relative; UDP; an echo.
    ErrorAboutTcp {
        sequence: i64,
    },
    ErrorAboutUdp,
    ErrorAboutEcho {
        is_reply: bool,
    },
}

#[derive(Clone, Debug)]
struct Event {
    is_server: bool,
    zone: u16,
    /// Ticks before it.
    wait: u32,
    is_accepted: bool,
    what: What,
}

fn flags() -> impl Strategy<Value = TcpFlags> {
    let (syn, ack, fin, rst) = (TcpFlags::SYN, TcpFlags::ACK, TcpFlags::FIN, TcpFlags::RST);
    prop_oneof![
        3 => Just(syn), 4 => Just(syn | ack), 10 => Just(ack), 3 => Just(fin | ack), 1 => Just(rst),
        1 => Just(rst | ack), 1 => Just(syn | fin), 1 => Just(TcpFlags::empty()), 1 => Just(ack | TcpFlags::PSH),
    ]
}

fn near() -> impl Strategy<Value = i64> {
    prop_oneof![
        12 => Just(0i64), 1 => Just(1i64), 1 => Just(-1i64), 1 => -600i64..600, 1 => -70_000i64..70_000,
        1 => Just(1_000_000_000i64),
    ]
}

fn tcp() -> impl Strategy<Value = What> {
    let window = prop_oneof![Just(0u16), Just(1), Just(1000), Just(u16::MAX)];
    let scale = prop_oneof![3 => Just(None), 1 => Just(Some(0u8)), 2 => Just(Some(7)), 1 => Just(Some(15))];
    let data = prop_oneof![3 => Just(0u16), 1 => Just(1), 1 => Just(500)];
    (flags(), near(), near(), window, scale, data).prop_map(
        |(flags, sequence, acknowledgment, window, scale, data)| What::Tcp {
            flags,
            sequence,
            acknowledgment,
            window,
            scale: scale.filter(|_| flags.contains(TcpFlags::SYN)),
            data,
        },
    )
}

fn what() -> impl Strategy<Value = What> {
    let identifier = 0u16..2;
    prop_oneof![
        16 => tcp(),
        2 => Just(What::Udp),
        1 => identifier.clone().prop_map(|identifier| What::UdpFirst { identifier }),
        1 => identifier.prop_map(|identifier| What::UdpLater { identifier }),
        2 => any::<bool>().prop_map(|is_reply| What::Echo { is_reply }),
        2 => near().prop_map(|sequence| What::ErrorAboutTcp { sequence }),
        1 => Just(What::ErrorAboutUdp),
        1 => any::<bool>().prop_map(|is_reply| What::ErrorAboutEcho { is_reply }),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let wait = prop_oneof![8 => 0u32..3, 2 => 0u32..400, 1 => 0u32..2000];
    let zone = prop_oneof![5 => Just(0u16), 1 => Just(1u16)];
    (any::<bool>(), zone, wait, prop::bool::weighted(0.9), what()).prop_map(
        |(is_server, zone, wait, is_accepted, what)| Event { is_server, zone, wait, is_accepted, what },
    )
}

/// A segment with numbers that do not wrap.
#[derive(Clone, Copy, Debug)]
struct Seen {
    by_server: bool,
    flags: TcpFlags,
    sequence: i64,
    acknowledgment: i64,
    window: u16,
    scale: Option<u8>,
    data: i64,
}

impl Seen {
    fn has(&self, flags: TcpFlags) -> bool {
        self.flags.contains(flags)
    }

    fn end(&self) -> i64 {
        let flag = |flag| i64::from(self.has(flag));
        self.sequence + self.data + flag(TcpFlags::SYN) + flag(TcpFlags::FIN)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Protocol {
    Tcp,
    Udp,
    /// By whether the server has sent the request.
    Echo(bool),
}

#[derive(Clone, Debug)]
struct Conn {
    protocol: Protocol,
    zone: u16,
    began_by_server: bool,
    is_answered: bool,
    created: u32,
    deadline: u32,
    /// All valid segments, in order.
    segments: Vec<Seen>,
    state: &'static str,
    is_liberal: bool,
}

impl Conn {
    fn of(&self, server: bool) -> impl DoubleEndedIterator<Item = &Seen> + Clone {
        self.segments.iter().filter(move |it| it.by_server == server)
    }

    /// The segments of an end that count: from its last SYN on.
    fn counting(&self, server: bool) -> Vec<Seen> {
        let all: Vec<_> = self.of(server).copied().collect();
        let first = all.iter().rposition(|it| it.has(TcpFlags::SYN)).unwrap_or(0);
        all[first..].to_vec()
    }

    fn is_known(&self, server: bool) -> bool {
        self.of(server).next().is_some()
    }

    fn end(&self, server: bool) -> i64 {
        self.counting(server).iter().map(Seen::end).max().unwrap_or(0)
    }

    fn acknowledged(&self, server: bool) -> Option<i64> {
        self.of(server).filter(|it| it.has(TcpFlags::ACK)).map(|it| it.acknowledgment).max()
    }

    fn fin(&self, server: bool) -> Option<i64> {
        self.of(server).rev().find(|it| it.has(TcpFlags::FIN)).map(Seen::end)
    }

    fn syn(&self, server: bool) -> Option<i64> {
        self.of(server).rev().find(|it| it.has(TcpFlags::SYN)).map(|it| it.sequence + 1)
    }

    /// The largest window that an end has offered, each scaled as the options said when it came.
    fn windows(&self, server: bool) -> Vec<(Seen, i64)> {
        let mut windows = Vec::new();
        for (n, it) in self.segments.iter().enumerate().filter(|(_, it)| it.by_server == server) {
            let scale = |server: bool| {
                let syns = self.segments[..n].iter().rev();
                syns.clone()
                    .find(|it| it.by_server == server && it.has(TcpFlags::SYN))
                    .and_then(|it| it.scale)
            };
            let shift = match (scale(server), scale(!server)) {
                (Some(own), Some(_)) if !it.has(TcpFlags::SYN) => own.min(14),
                _ => 0,
            };
            windows.push((*it, (i64::from(it.window) << shift).max(1)));
        }
        windows
    }

    fn window(&self, server: bool) -> i64 {
        self.windows(server).iter().map(|(_, window)| *window).max().unwrap_or(0)
    }

    /// The sequence number up to which an end may send.
    fn offered(&self, server: bool) -> i64 {
        let acknowledging = self.windows(!server).into_iter().filter(|(it, _)| it.has(TcpFlags::ACK));
        let offered = acknowledging.map(|(it, window)| it.acknowledgment + window).max();
        // The window of the other end's SYN, before it has acknowledged anything.
        let by_syn = (0..self.segments.len()).rev().find_map(|at| {
            let before = Self { segments: self.segments[..at].to_vec(), ..self.clone() };
            let it = &self.segments[at];
            let restarts = it.by_server == server && (it.has(TcpFlags::SYN) || !before.is_known(server));
            let offers = restarts && before.acknowledged(!server).is_none();
            offers.then(|| it.end() + before.window(!server))
        });
        offered.max(by_syn).unwrap()
    }

    fn in_window(&self, it: &Seen) -> bool {
        let (own, other) = (it.by_server, !it.by_server);
        if self.is_liberal || !self.is_known(own) || !self.is_known(other) {
            return true;
        }
        let data = it.sequence <= self.offered(own) && it.end() >= self.end(own) - self.window(other);
        let back = self.window(own).max(66_000);
        let acknowledges = (self.end(other) - back..=self.end(other)).contains(&it.acknowledgment);
        data && (acknowledges || !it.has(TcpFlags::ACK))
    }

    /// The state that a segment gives its packet, after it has changed the connection.
    fn handle(&mut self, it: &Seen) -> Option<bool> {
        let (own, other) = (it.by_server, !it.by_server);
        let is_reply = own != self.began_by_server;
        let kind = kind(it.flags)?;
        let answers = self.is_known(other)
            && self.syn(other).is_some_and(|syn| (syn..=self.end(other)).contains(&it.acknowledgment));
        let opens = ["syn-sent", "syn-recv"].contains(&self.state);
        let permitted = match kind {
            "ack" | "fin" if self.state == "syn-sent" => false,
            "synack" if opens => answers,
            "rst" if self.state == "syn-sent" && is_reply => it.has(TcpFlags::ACK) && answers,
            "rst" if self.state == "syn-sent" => it.sequence == self.end(own),
            "rst" => self.is_liberal || self.acknowledged(other).is_none_or(|last| it.sequence >= last),
            _ => true,
        };
        if !permitted {
            return None;
        }
        let is_syn = kind.starts_with("syn");
        if is_syn && !opens || kind == "syn" && self.state == "syn-recv" {
            return Some(false);
        }
        if !is_syn && !self.in_window(it) {
            return None;
        }
        let is_end = self.is_known(own) && it.sequence == self.end(own);
        let exact = is_end || self.acknowledged(other).is_none_or(|last| it.sequence == last);
        if kind == "rst" && self.state == "established" && !exact {
            return Some(false);
        }
        self.segments.push(*it);
        let both_fin = self.fin(own).is_some() && self.fin(other).is_some();
        let acks_fin = self.fin(other).is_some_and(|fin| it.acknowledgment >= fin);
        self.state = match (self.state, kind) {
            (_, "rst") => "close",
            ("time-wait" | "close", _) => self.state,
            ("syn-sent", "synack") => "syn-recv",
            ("syn-recv", "ack") if !is_reply => "established",
            ("last-ack", "ack") if acks_fin => "time-wait",
            (_, "fin") if both_fin => "last-ack",
            ("close-wait", "fin") => "close-wait",
            (_, "fin") => "fin-wait",
            ("fin-wait", "ack") if acks_fin => "close-wait",
            (state, _) => state,
        };
        Some(true)
    }

    fn seconds(&self, config: &Config, now: u32) -> u32 {
        let times = &config.timeouts;
        let tcp = match self.state {
            "syn-sent" => times.tcp_syn_sent,
            "syn-recv" => times.tcp_syn_recv,
            "established" => times.tcp_established,
            "fin-wait" => times.tcp_fin_wait,
            "close-wait" => times.tcp_close_wait,
            "last-ack" => times.tcp_last_ack,
            "time-wait" => times.tcp_time_wait,
            _ => times.tcp_close,
        };
        match self.protocol {
            Protocol::Tcp if self.is_answered => tcp,
            Protocol::Tcp => tcp.min(300),
            Protocol::Udp if self.is_answered && now - self.created > 2 * TICKS_PER_SECOND => {
                times.udp_stream
            }
            Protocol::Udp => times.udp,
            Protocol::Echo(_) => times.icmp,
        }
    }
}

fn kind(flags: TcpFlags) -> Option<&'static str> {
    let (syn, ack, fin, rst) = (TcpFlags::SYN, TcpFlags::ACK, TcpFlags::FIN, TcpFlags::RST);
    let flags = flags & (syn | ack | fin | rst);
    let kinds = [
        (syn, "syn"),
        (syn | ack, "synack"),
        (fin | ack, "fin"),
        (ack, "ack"),
        (rst, "rst"),
        (rst | ack, "rst"),
    ];
    kinds.into_iter().find(|(it, _)| *it == flags).map(|(_, kind)| kind)
}

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

/// The state of a packet that belongs to a connection.
fn answered(connection: &Conn, by_server: bool) -> ConnState {
    let is_answer = connection.began_by_server != by_server;
    if connection.is_answered || is_answer { ConnState::Established } else { ConnState::New }
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
            about(super::rig::segment(!server, TcpFlags::ACK, number, 0).frame())
        }
        What::ErrorAboutUdp => about(from(!server).udp(b, a).to_vec().unwrap()),
        What::ErrorAboutEcho { is_reply } => about(from(!server).echo(is_reply, 7, 1).to_vec().unwrap()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn states_are_those_of_the_model(events in vec(event(), 1..60), pick_up: bool) {
        let config = Config { pick_up, ..Config { sessions: 64, fragments: 64, ..Config::default() } };
        let mut rig = Rig::new(&config);
        // Ticks wrap, too.
        rig.now = u32::MAX - 500;
        let mut model = Model { config, ..Model::default() };
        for (n, event) in events.iter().enumerate() {
            rig.now = rig.now.wrapping_add(event.wait);
            model.now += event.wait;
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
