// SPDX-License-Identifier: Apache-2.0
//! TCP, by hand.

use netvm_conntrack::{Config, Refusal, Unseen, Zone};
use netvm_wire::{ConnState, TcpFlags, parse};

use super::rig::{CLIENT, SERVER};
use super::rig::{Rig, Segment, error_about, from, segment};
use ConnState::{Established, Invalid, New, Related};

const SYN: TcpFlags = TcpFlags::SYN;
const ACK: TcpFlags = TcpFlags::ACK;
const SYN_ACK: TcpFlags = TcpFlags::SYN.union(TcpFlags::ACK);
const FIN_ACK: TcpFlags = TcpFlags::FIN.union(TcpFlags::ACK);
const RST: TcpFlags = TcpFlags::RST;

/// First sequence numbers, one of them near the end of the sequence space.
const C: u32 = u32::MAX - 10;
const S: u32 = 5000;

fn client(flags: TcpFlags, sent: u32, acknowledges: u32) -> Segment {
    segment(false, flags, C.wrapping_add(sent), S + acknowledges)
}

fn server(flags: TcpFlags, sent: u32, acknowledges: u32) -> Segment {
    segment(true, flags, S + sent, C.wrapping_add(acknowledges))
}

fn state(rig: &Rig) -> &'static str {
    rig.only().state().name()
}

/// A table with a connection after its handshake.
fn established() -> Rig {
    let mut rig = Rig::new(&Config::default());
    assert_eq!(rig.pass(&client(SYN, 0, 0).frame()), New);
    assert_eq!(rig.pass(&server(SYN_ACK, 0, 1).frame()), Established);
    assert_eq!(rig.pass(&client(ACK, 1, 1).frame()), Established);
    assert_eq!((state(&rig), rig.table.incomplete()), ("established", 0));
    rig
}

#[test]
fn a_connection_goes_through_its_states() {
    let mut rig = established();
    let steps = [
        (client(FIN_ACK, 1, 1), "fin-wait"),
        (server(ACK, 1, 2), "close-wait"),
        (server(FIN_ACK, 1, 2), "last-ack"),
        (client(ACK, 2, 2), "time-wait"),
    ];
    for (segment, after) in steps {
        assert_eq!(rig.pass(&segment.frame()), Established);
        assert_eq!(state(&rig), after);
    }
    assert_eq!(rig.table.incomplete(), 1, "it may be evicted");
    assert_eq!(rig.only().packets(), [4, 3]);
    rig.wait(121);
    assert_eq!(rig.look(&client(ACK, 2, 2).frame()).state, New, "mid-stream");
}

#[test]
fn segments_may_pass_unseen() {
    let mut rig = established();
    let zone = Zone(0);
    let key = |frame: &[u8]| *parse(frame).unwrap().key();
    let [there, back] = [client(ACK, 1, 1), server(ACK, 1, 1)].map(|segment| key(&segment.frame()));
    let far = [client(ACK, 5_000_000, 7_000_000), server(ACK, 7_000_000, 5_000_000)];
    assert_eq!(rig.look(&far[0].frame()).state, Invalid);
    for (key, to_client) in [(&there, false), (&back, true)] {
        let after = rig.table.let_pass(key, zone, rig.now).unwrap();
        let ends = (after.source, after.destination, after.source_port, after.destination_port);
        assert_eq!(ends, (key.source, key.destination, key.source_port, key.destination_port), "{to_client}");
    }
    let unseen = Unseen { packets: 5000, bytes: 7_000_000 };
    assert!(rig.table.passed(&back, zone, rig.now, unseen).is_some());
    assert_eq!((rig.only().packets(), rig.only().bytes[1] > 7_000_000), ([2, 5001], true));
    for segment in far {
        assert_eq!(rig.pass(&segment.frame()), Established, "far beyond what was seen");
    }
    // What passes unseen keeps it alive.
    rig.wait(7000);
    assert!(rig.table.passed(&back, zone, rig.now, unseen).is_some());
    let timeout = Config::default().timeouts.tcp_established;
    rig.wait(timeout - 10);
    assert_eq!(rig.pass(&client(ACK, 9_000_000, 9_000_000).frame()), Established);
    // It closes whatever was not seen, and no more may pass then.
    rig.pass(&client(FIN_ACK, 10_000_000, 9_500_000).frame());
    assert_eq!(state(&rig), "fin-wait");
    assert_eq!(rig.table.let_pass(&there, zone, rig.now), None);
    assert_eq!(rig.table.passed(&back, zone, rig.now, unseen), None);
    let mut rig = established();
    assert!(rig.table.let_pass(&there, zone, rig.now).is_some());
    rig.pass(&server(RST, 3_000_000, 0).frame());
    assert_eq!(state(&rig), "close");
    assert_eq!(rig.table.let_pass(&there, zone, rig.now), None);
    // Not before the handshake.
    let mut rig = Rig::new(&Config::default());
    rig.pass(&client(SYN, 0, 0).frame());
    assert_eq!(rig.table.let_pass(&there, zone, rig.now), None);
}

#[test]
fn a_new_connection_may_follow_in_time_wait() {
    let mut rig = established();
    rig.pass(&client(FIN_ACK, 1, 1).frame());
    rig.pass(&server(FIN_ACK, 1, 2).frame());
    rig.pass(&client(ACK, 2, 2).frame());
    let again = client(SYN, 100_000, 0).frame();
    assert_eq!(rig.look(&again).state, New);
    assert_eq!(state(&rig), "time-wait", "a SYN that rules drop changes nothing");
    assert_eq!(rig.pass(&again), New);
    assert_eq!((state(&rig), rig.table.len(), rig.table.ended().replaced), ("syn-sent", 1, 1));
}

#[test]
fn both_ends_may_open_at_once() {
    let mut rig = Rig::new(&Config::default());
    rig.pass(&client(SYN, 0, 0).frame());
    assert_eq!(rig.pass(&segment(true, SYN, S, 0).frame()), Established);
    assert_eq!(rig.pass(&client(SYN_ACK, 0, 1).frame()), Established);
    assert_eq!(rig.pass(&server(SYN_ACK, 0, 1).frame()), Established);
    assert_eq!(rig.pass(&client(ACK, 1, 1).frame()), Established);
    assert_eq!(state(&rig), "established");
}

#[test]
fn segments_outside_of_the_windows_are_invalid() {
    let mut rig = established();
    let data = |segment: Segment| Segment { data: 500, ..segment }.frame();
    assert_eq!(rig.pass(&data(client(ACK, 1, 1))), Established);
    assert_eq!(rig.pass(&data(client(ACK, 1, 1))), Established, "a retransmission");
    assert_eq!(rig.pass(&data(client(ACK, 1100, 1))), Invalid, "more than the server has offered");
    assert_eq!(rig.pass(&data(server(ACK, 1, 502))), Invalid, "acknowledges what was not sent");
    assert_eq!(rig.pass(&data(server(ACK, 1, 501))), Established);
    assert_eq!(
        rig.pass(&server(ACK, 501, 501u32.wrapping_sub(70_000)).frame()),
        Invalid,
        "an old acknowledgment"
    );
    assert_eq!(rig.only().packets(), [4, 2]);
}

#[test]
fn windows_scale_only_if_both_ends_do() {
    for (server_scale, fits) in [(Some(0), true), (None, false)] {
        let mut rig = Rig::new(&Config::default());
        rig.pass(&Segment { scale: Some(7), ..client(SYN, 0, 0) }.frame());
        rig.pass(&Segment { scale: server_scale, ..server(SYN_ACK, 0, 1) }.frame());
        rig.pass(&client(ACK, 1, 1).frame());
        let far = Segment { data: 100, ..server(ACK, 100_000, 1) };
        assert_eq!(rig.pass(&far.frame()), if fits { Established } else { Invalid });
    }
}

#[test]
fn a_reset_must_be_the_next_segment_to_close() {
    let mut rig = established();
    assert_eq!(rig.pass(&server(RST, 90_000, 0).frame()), Invalid);
    assert_eq!(rig.pass(&server(RST, 500, 0).frame()), Established, "its receiver challenges it");
    assert_eq!(state(&rig), "established");
    assert_eq!(rig.pass(&server(RST, 1, 0).frame()), Established);
    assert_eq!((state(&rig), rig.table.incomplete()), ("close", 1));
}

#[test]
fn a_refused_connection_is_not_kept() {
    let mut rig = Rig::new(&Config::default());
    rig.pass(&client(SYN, 0, 0).frame());
    let refusal = RST.union(ACK);
    assert_eq!(rig.pass(&segment(true, refusal, 0, C.wrapping_add(2)).frame()), Invalid, "of another SYN");
    assert_eq!(rig.pass(&segment(true, refusal, 0, C.wrapping_add(1)).frame()), Established);
    assert_eq!((state(&rig), rig.table.incomplete()), ("close", 1));
}

#[test]
fn a_guessed_syn_does_not_disturb_a_connection() {
    for handshake in [false, true] {
        let mut rig = Rig::new(&Config::default());
        rig.pass(&client(SYN, 0, 0).frame());
        rig.pass(&server(SYN_ACK, 0, 1).frame());
        if handshake {
            rig.pass(&client(ACK, 1, 1).frame());
        }
        assert_eq!(rig.pass(&segment(false, SYN, 77_000_000, 0).frame()), Established, "a challenge follows");
        assert_eq!(rig.pass(&client(ACK, 1, 1).frame()), Established);
        assert_eq!(state(&rig), "established");
    }
}

#[test]
fn an_answer_acknowledges_the_syn_but_not_all_of_its_data() {
    for (acknowledged, answer) in [(0, Invalid), (1, Established), (101, Established), (102, Invalid)] {
        let mut rig = Rig::new(&Config::default());
        rig.pass(&Segment { data: 100, ..client(SYN, 0, 0) }.frame());
        assert_eq!(rig.pass(&server(SYN_ACK, 0, acknowledged).frame()), answer, "{acknowledged}");
    }
}

#[test]
fn flags_that_no_end_sends_are_invalid() {
    for flags in [TcpFlags::empty(), SYN | TcpFlags::FIN, SYN | RST, TcpFlags::FIN, TcpFlags::PSH] {
        assert_eq!(Rig::new(&Config::default()).pass(&client(flags, 0, 0).frame()), Invalid);
        assert_eq!(established().pass(&client(flags, 1, 1).frame()), Invalid);
    }
}

#[test]
fn mid_stream_begins_a_connection_by_option() {
    for pick_up in [false, true] {
        let mut rig = Rig::new(&Config { pick_up, ..Config::default() });
        let (ack, fin) = (client(ACK, 9, 9).frame(), client(FIN_ACK, 9, 9).frame());
        assert_eq!(rig.look(&fin).state, Invalid);
        assert_eq!(rig.confirm(&fin), Err(Refusal::NotNew));
        assert_eq!(rig.pass(&ack), if pick_up { New } else { Invalid });
        if pick_up {
            assert_eq!(rig.only().left(rig.now), 3000, "until there is an answer");
            assert_eq!(rig.pass(&server(ACK, 777, 9).frame()), Established);
            assert_eq!(rig.only().left(rig.now), 74_400);
        }
    }
}

#[test]
fn an_error_is_related_if_it_can_be_about_a_segment() {
    let mut rig = established();
    let sent = Segment { data: 500, ..client(ACK, 1, 1) }.frame();
    rig.pass(&sent);
    let tracked = rig.look(&error_about(&sent, SERVER, CLIENT));
    assert_eq!((tracked.state, tracked.is_reply, tracked.connection.is_some()), (Related, true, true));
    assert_eq!(rig.look(&error_about(&sent, "192.0.2.1", CLIENT)).state, Related, "of a router");
    assert_eq!(rig.look(&error_about(&sent, SERVER, "10.0.0.3")).state, Invalid, "not to its sender");
    for (sent, state) in [(600, Invalid), (501, Related)] {
        assert_eq!(rig.look(&error_about(&client(ACK, sent, 1).frame(), SERVER, CLIENT)).state, state);
    }
    let of_server = error_about(&server(ACK, 1, 1).frame(), CLIENT, SERVER);
    let tracked = rig.look(&of_server);
    assert_eq!((tracked.state, tracked.is_reply), (Related, false));
    assert_eq!(rig.table.len(), 1);
}

#[test]
fn padding_is_no_data() {
    let mut rig = established();
    let mut frame = from(false).tcp(1000, 80, ACK).numbers(C.wrapping_add(1), S + 1).to_vec().unwrap();
    frame.resize(60, 0);
    for _ in 0..3 {
        assert_eq!(rig.pass(&frame), Established);
    }
    assert_eq!(rig.pass(&server(ACK, 1, 2).frame()), Invalid, "the client has sent nothing");
}
