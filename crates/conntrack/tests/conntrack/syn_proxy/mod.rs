// SPDX-License-Identifier: Apache-2.0
//! The SYN proxy between a client and a server with any numbers and options.

mod ends;

use netvm_wire::{ConnState, TcpFlags, checksum, parse};
use proptest::prelude::*;

use crate::rig::error_about;
use ends::{End, Proxy, Seen, Sent, end};

const SYN: TcpFlags = TcpFlags::SYN;
const ACK: TcpFlags = TcpFlags::ACK;

/// The shift of windows that clients are told.
const SHIFT: u8 = 7;

/// A connection through a proxy, whose handshake is complete.
struct Open {
    proxy: Proxy,
    client: End,
    server: End,
    /// The proxy's sequence number and time, as the client knows them.
    cookie: u32,
    time: Option<u32>,
    /// Whether the server has the option of timestamps.
    has_times: bool,
    /// Shifts of the windows of the client's and the server's segments.
    shifts: [u8; 2],
}

fn syn(client: &End) -> Seen {
    let End { mss, scale, sack, time, .. } = *client;
    let times = client.has_times.then_some([time, 0]);
    Seen { mss, scale, permits_sack: sack, times, ..Seen::plain(SYN, client.sequence, 0) }
}

/// The table sees again what it has let pass, and changes nothing.
fn seen_again(proxy: &mut Proxy, from: &End, frame: &[u8]) {
    let tracked = proxy.rig.look(frame);
    assert_ne!(tracked.state, ConnState::Invalid, "{:?} of {from:?}", Seen::of(frame));
    assert_eq!(proxy.translate_any(frame).map(|changed| changed == frame), Some(true));
}

/// The client's acknowledgment of a SYN+ACK.
fn ack(client: &End, of: &Seen) -> Seen {
    let times = of.times.map(|[own, _]| [client.time.wrapping_add(1), own]);
    Seen { times, ..Seen::plain(ACK, client.sequence.wrapping_add(1), of.sequence.wrapping_add(1)) }
}

/// The cookie for a client.
fn cookie(proxy: &mut Proxy, client: &End) -> Seen {
    let answer = proxy.client_gets(&syn(client).frame(client));
    assert!(proxy.table().is_empty(), "a SYN leaves no trace");
    answer
}

/// The server's answer to a SYN.
fn syn_ack(server: &End, to: &Seen) -> Seen {
    let times = to.times.filter(|_| server.has_times).map(|[client, _]| [server.time, client]);
    let scale = server.scale.filter(|_| to.scale.is_some());
    let permits_sack = server.sack && to.permits_sack;
    let plain = Seen::plain(SYN | ACK, server.sequence, to.sequence.wrapping_add(1));
    Seen { times, scale, permits_sack, mss: server.mss, window: 60_000, ..plain }
}

/// The handshake, each step of which is checked.
fn open(client: End, server: End) -> Open {
    let mut proxy = Proxy::new();
    let answer = cookie(&mut proxy, &client);
    assert_eq!((answer.flags, answer.acknowledgment), (SYN | ACK, client.sequence.wrapping_add(1)));
    assert_eq!((answer.window, answer.mss), (0, Some(if client.is_v6 { 1440 } else { 1460 })));
    assert_eq!(answer.times.map(|[_, echo]| echo), client.has_times.then_some(client.time));
    let scale = client.scale.filter(|_| client.has_times);
    assert_eq!(answer.scale, scale.map(|_| SHIFT));
    assert_eq!(answer.permits_sack, client.sack && client.has_times);

    let ack = ack(&client, &answer);
    let to_server = proxy.server_gets(&ack.frame(&client));
    assert_eq!(proxy.table().len(), 1);
    assert_eq!((to_server.flags, to_server.sequence, to_server.acknowledgment), (SYN, client.sequence, 0));
    assert_eq!((to_server.scale, to_server.permits_sack), (scale, answer.permits_sack));
    assert_eq!(to_server.times, ack.times.map(|[own, _]| [own, 0]));
    let [mss, asked] = [to_server.mss.unwrap(), client.mss.unwrap_or(536)];
    assert!(mss == 536 || mss <= asked, "{mss} of {asked}");
    assert_eq!(u32::from(to_server.window), (1000 << scale.unwrap_or(0)).min(65_535));

    let syn_ack = syn_ack(&server, &to_server);
    let [first, second] = proxy.pass(&syn_ack.frame(&server)).try_into().unwrap();
    let (Sent::Server(acknowledgment), Sent::Client(update)) = (first, second) else { unreachable!() };
    let next = [client.sequence, server.sequence, answer.sequence].map(|it| it.wrapping_add(1));
    assert_eq!((acknowledgment.flags, acknowledgment.sequence), (ACK, next[0]));
    assert_eq!((acknowledgment.acknowledgment, acknowledgment.data.len()), (next[1], 0));
    assert_eq!(acknowledgment.times, syn_ack.times.map(|[own, echo]| [echo, own]));
    let time = answer.times.map(|[own, _]| own);
    let window = if scale.is_some() { 60_000 >> SHIFT } else { 60_000 };
    let times = syn_ack.times.and(time).map(|time| [time, ack.times.unwrap()[0]]);
    assert_eq!(update, Seen { window, times, ..Seen::plain(ACK, next[2], next[0]) });
    assert_eq!(proxy.table().incomplete(), 0, "the connection is complete");
    assert_eq!(proxy.rig.only().state().name(), "established");
    let shifts = [scale.unwrap_or(0), syn_ack.scale.unwrap_or(0)];
    let has_times = syn_ack.times.is_some();
    Open { proxy, client, server, cookie: answer.sequence, time, has_times, shifts }
}

impl Open {
    /// Bytes that the client offers or is offered, when its SYN had the option of window scaling, else the field.
    fn client_window(&self, field: u16, own: bool) -> u32 {
        let shift = match (self.client.scale.filter(|_| self.client.has_times), own) {
            (None, _) => 0,
            (Some(own), true) => own,
            (Some(_), false) => SHIFT,
        };
        u32::from(field) << shift
    }

    /// The shift of windows between proxy and server: none unless both ends have it.
    fn server_shift(&self, of: usize) -> u8 {
        let both = self.server.scale.is_some() && self.client.scale.is_some() && self.client.has_times;
        if both { self.shifts[of] } else { 0 }
    }

    /// The client sends data after `offset` bytes, and acknowledges as many of the server.
    fn client_sends(&mut self, offset: [u32; 2], sack: &[u32], window: u16) -> Seen {
        let [own, other] = offset;
        let at = |begin: u32, offset: u32| begin.wrapping_add(1).wrapping_add(offset);
        let plain = |begin| Seen::plain(ACK | TcpFlags::PSH, at(self.client.sequence, own), at(begin, other));
        let sack = |begin: u32| sack.iter().map(|it| at(begin, other).wrapping_add(*it)).collect();
        let times = |begin: u32| [self.client.time.wrapping_add(own), begin.wrapping_add(other)];
        let sent = Seen {
            window,
            times: self.time.map(times),
            sack: sack(self.cookie),
            data: vec![7; 11],
            ..plain(self.cookie)
        };
        let received = self.proxy.server_gets(&sent.frame(&self.client));
        let echo = if self.has_times { Some(self.server.time) } else { self.time };
        let expected = Seen {
            window: received.window,
            times: self.time.and(echo).map(times),
            sack: sack(self.server.sequence),
            data: vec![7; 11],
            ..plain(self.server.sequence)
        };
        assert_eq!(received, expected);
        let [offered, seen] =
            [self.client_window(window, true), u32::from(received.window) << self.server_shift(0)];
        assert!(seen == offered || seen == 65_535 && seen < offered, "{seen} of {offered}");
        received
    }

    /// The server sends data after `offset` bytes, and acknowledges as many of the client.
    fn server_sends(&mut self, offset: [u32; 2], window: u16) -> (Seen, Seen) {
        let [own, other] = offset;
        let at = |begin: u32, offset: u32| begin.wrapping_add(1).wrapping_add(offset);
        let plain = |begin| Seen::plain(ACK, at(begin, own), at(self.client.sequence, other));
        let times = |begin: u32| [begin.wrapping_add(own), self.client.time.wrapping_add(other)];
        let with_times = |begin: u32| self.has_times.then(|| times(begin));
        let data = vec![8; 12];
        let sent = Seen {
            window,
            times: with_times(self.server.time),
            data: data.clone(),
            ..plain(self.server.sequence)
        };
        let received = self.proxy.client_gets(&sent.frame(&self.server));
        let times = with_times(self.time.unwrap_or(0));
        assert_eq!(received, Seen { window: received.window, times, data, ..plain(self.cookie) });
        let offered = u32::from(window) << self.server_shift(1);
        let seen = self.client_window(received.window, false);
        let lost = if self.time.is_some() { 1 << SHIFT } else { 1 };
        assert!(
            seen <= offered && (offered - seen < lost || received.window == u16::MAX),
            "{seen} of {offered}"
        );
        (sent, received)
    }
}

fn ends() -> impl Strategy<Value = (End, End)> {
    any::<bool>().prop_flat_map(|is_v6| (end(false, is_v6), end(true, is_v6)))
}

proptest! {
    #[test]
    fn both_ends_see_a_connection_of_their_own(
        (client, server) in ends(),
        windows in prop::array::uniform4(any::<u16>()),
        moves: bool,
    ) {
        let mut open = open(client, server);
        open.client_sends([0, 0], &[], windows[0]);
        open.server_sends([0, 11], windows[1]);
        if moves {
            open.proxy.move_connection();
        }
        open.client_sends([11, 0], &[24, 36], windows[2]);
        open.server_sends([12, 22], windows[3]);
        // Repeated.
        open.client_sends([0, 0], &[], windows[0]);
    }

    #[test]
    fn packets_may_pass_several_ports_that_track(sequences: [u32; 2]) {
        let [client, server] = [(PLAIN, sequences[0]), (SERVER, sequences[1])]
            .map(|(end, sequence)| End { sequence, scale: Some(2), ..end });
        let mut open = open(client, server);
        let apart = server.sequence.wrapping_sub(open.cookie);
        prop_assume!((1 << 19..u32::MAX - (1 << 19)).contains(&apart));
        for n in 0..3 {
            let to_server = open.client_sends([11 * n, 12 * n], &[], 500).frame(&client);
            seen_again(&mut open.proxy, &client, &to_server);
            let (_, to_client) = open.server_sends([12 * n, 11 * n + 11], 500);
            seen_again(&mut open.proxy, &server, &to_client.frame(&server));
        }
    }

    #[test]
    fn the_answer_to_a_syn_can_be_lost_and_repeated((client, server) in ends()) {
        let mut proxy = Proxy::new();
        let answer = cookie(&mut proxy, &client);
        let first = proxy.server_gets(&ack(&client, &answer).frame(&client));
        // The SYN to the server is lost. The client may send nothing but probes.
        let probe = Seen { sequence: client.sequence, ..ack(&client, &answer) };
        prop_assert_eq!(proxy.server_gets(&probe.frame(&client)), first.clone());
        let opening = syn_ack(&server, &first).frame(&server);
        let all: Vec<_> = (0..2).map(|_| format!("{:?}", proxy.pass(&opening))).collect();
        prop_assert_eq!(&all[0], &all[1]);
        prop_assert_eq!(proxy.table().len(), 1);
    }

    #[test]
    fn a_client_may_begin_anew_before_the_server_answers((client, server) in ends(), sequence: u32) {
        let mut proxy = Proxy::new();
        let answer = cookie(&mut proxy, &client);
        proxy.server_gets(&ack(&client, &answer).frame(&client));
        let again = End { sequence, ..client };
        let answer = proxy.client_gets(&syn(&again).frame(&again));
        let to_server = proxy.server_gets(&ack(&again, &answer).frame(&again));
        prop_assert_eq!(to_server.sequence, sequence);
        let update = proxy.pass(&syn_ack(&server, &to_server).frame(&server));
        let is_open = matches!(&update[..], [_, Sent::Client(it)] if it.sequence == answer.sequence.wrapping_add(1));
        prop_assert!(is_open, "{update:?}");
    }

    #[test]
    fn only_the_cookie_proves_an_address(client in end(false, false), acknowledgment: u32, sequence: u32) {
        let mut proxy = Proxy::new();
        let answer = cookie(&mut proxy, &client);
        let right = ack(&client, &answer);
        prop_assume!(acknowledgment != right.acknowledgment);
        prop_assume!(![0, 1].contains(&right.sequence.wrapping_sub(sequence)));
        let wrong = [
            Seen { acknowledgment, ..right.clone() },
            Seen { sequence, ..right.clone() },
            Seen { flags: TcpFlags::RST, ..right.clone() },
            Seen { flags: ACK | TcpFlags::FIN, ..right.clone() },
            Seen { flags: ACK | SYN, ..right.clone() },
        ];
        for wrong in wrong {
            let sent = proxy.pass(&wrong.frame(&client));
            prop_assert!(sent.is_empty(), "{:?}: {:?}", wrong, sent);
        }
        // One that is too old.
        proxy.rig.wait(129);
        prop_assert!(proxy.pass(&right.frame(&client)).is_empty());
        prop_assert!(proxy.table().is_empty());
    }

    #[test]
    fn hostile_segments_do_no_harm(
        (client, server) in ends(), frames in prop::collection::vec((any::<bool>(), 0u8..64, any::<[u8; 60]>()), 1..20),
    ) {
        let mut open = open(client, server);
        for (is_server, flags, bytes) in frames {
            let from = if is_server { &open.server } else { &open.client };
            let mut frame = Seen::plain(TcpFlags::from_bits_retain(flags), 0, 0).frame(from);
            frame.truncate(frame.len() - 20);
            frame.extend(bytes);
            let at = frame.len() - 60;
            let ports: [u8; 4] = if is_server { [0, 80, 3, 232] } else { [3, 232, 0, 80] };
            frame[at..at + 4].copy_from_slice(&ports);
            frame[at + 12] |= 0x50;
            if !from.is_v6 {
                let length = (frame.len() - 14) as u16;
                frame[16..18].copy_from_slice(&length.to_be_bytes());
            } else {
                frame[18..20].copy_from_slice(&60u16.to_be_bytes());
            }
            open.proxy.translate_any(&frame);
        }
    }
}

const PLAIN: End = End {
    is_server: false,
    is_v6: false,
    sequence: 1_000_000,
    time: 77,
    mss: Some(1460),
    scale: Some(9),
    sack: true,
    has_times: true,
};
const SERVER: End = End { is_server: true, sequence: 9, time: 5, ..PLAIN };

#[test]
fn a_server_that_refuses_resets_the_client() {
    let mut proxy = Proxy::new();
    let answer = cookie(&mut proxy, &PLAIN);
    let to_server = proxy.server_gets(&ack(&PLAIN, &answer).frame(&PLAIN));
    let reset = Seen { window: 0, ..Seen::plain(TcpFlags::RST | ACK, 0, to_server.sequence + 1) };
    let seen = proxy.client_gets(&reset.frame(&SERVER));
    assert_eq!(seen, Seen { sequence: answer.sequence.wrapping_add(1), ..reset });
    assert_eq!(proxy.rig.only().state().name(), "close");
    // It begins another connection.
    let again = End { sequence: 4, ..PLAIN };
    let answer = proxy.client_gets(&syn(&again).frame(&again));
    let to_server = proxy.server_gets(&ack(&again, &answer).frame(&again));
    assert_eq!(to_server.sequence, 4);
    assert_eq!(proxy.rig.only().state().name(), "syn-sent");
}

#[test]
fn errors_about_segments_are_translated() {
    let mut open = open(PLAIN, SERVER);
    let (sent, received) = open.server_sends([0, 0], 500);
    let error_about = |seen: &Seen| {
        let mut error = error_about(&seen.frame(&SERVER), "10.0.0.1", "10.0.0.2");
        let headers = parse(&error).unwrap();
        checksum::fill(&mut error, &headers).unwrap();
        error
    };
    let error = error_about(&received);
    assert_eq!(open.proxy.rig.look(&error).state, ConnState::Related);
    let translated = open.proxy.translate_any(&error).unwrap();
    assert_eq!(translated, error_about(&sent));
    // As the server knows its numbers, the client cannot.
    let error = error_about(&sent);
    assert_eq!(open.proxy.rig.look(&error).state, ConnState::Invalid);
}

#[test]
fn a_flood_of_syns_leaves_no_trace_and_closed_connections_end() {
    let mut open = open(PLAIN, SERVER);
    for number in 0..1000 {
        let other = End { sequence: number, is_v6: true, ..PLAIN };
        open.proxy.client_gets(&syn(&other).frame(&other));
    }
    assert_eq!(open.proxy.table().len(), 1);
    let fin = TcpFlags::FIN | ACK;
    let [client, server, cookie] =
        [PLAIN.sequence, SERVER.sequence, open.cookie].map(|it| it.wrapping_add(1));
    open.proxy.server_gets(&Seen::plain(fin, client, cookie).frame(&PLAIN));
    open.proxy.client_gets(&Seen::plain(fin, server, client + 1).frame(&SERVER));
    let last = open.proxy.server_gets(&Seen::plain(ACK, client + 1, cookie.wrapping_add(1)).frame(&PLAIN));
    assert_eq!(last.acknowledgment, server + 1);
    assert_eq!(open.proxy.rig.only().state().name(), "time-wait");
}
