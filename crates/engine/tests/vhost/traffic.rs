// SPDX-License-Identifier: Apache-2.0
//! Guests on vhost-user ports: `dpdk-testpmd` with virtio-user ports, in processes of their own.

use std::time::{Duration, Instant};

use crate::support::guest::{Guest, Running, socket};
use crate::support::guests::{
    Guests, TIMEOUT, connected, flood, frames, goes_on, host, leaves_work, no_buffer_is_lost, segments,
    swallow, swallow_by, transfer, two_guests, view,
};
use crate::support::pcap::Scratch;
use crate::support::{Rig, chain, nf, rule};
use netvm_engine::DropReason;
use netvm_model::{
    EngineConfig, Forward, Guard, Host, Idle, OnFailure, Police, PortKind, Rate, VhostDma, VhostMode,
};
use netvm_wire::{MacAddr, checksum, parse};

fn drops(rig: &Rig, id: u16, reason: DropReason) -> u64 {
    let drops = view(&rig.engine, id).drops;
    drops.iter().find(|(why, _)| *why == reason).map_or(0, |(_, count)| *count)
}

#[test]
fn frames_pass_from_guest_to_guest_unchanged() {
    let Some((_turn, scratch, a, b)) = two_guests() else { return };
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host(&[&a, &b])).unwrap();
    assert_eq!(view(&rig.engine, 0).link, Some(false));
    assert_eq!(view(&rig.engine, 0).driver, "vhost-user");
    let sent = frames(200);
    let got = transfer(
        &mut rig,
        Guests { scratch: &scratch, sender: Guest::new(&a), receiver: Guest::new(&b) },
        &sent,
        200,
    );
    assert_eq!(got, sent);
    assert!(rig.until(TIMEOUT, |engine| view(engine, 0).link == Some(false)), "{}", rig.describe());
    let counts = view(&rig.engine, 0);
    assert_eq!(counts.rx_packets, 200);
    assert_eq!(counts.rx_bytes, sent.iter().map(|frame| frame.len() as u64).sum::<u64>());
    no_buffer_is_lost(&mut rig);
}

#[test]
fn a_port_is_opened_again_when_it_changes_and_what_is_in_its_way_is_named() {
    let scratch = Scratch::new();
    let (a, b) = (socket(scratch.path(), "a"), socket(scratch.path(), "b"));
    let mut rig = Rig::new(&EngineConfig::default());
    let mut host = host(&[&a]);
    rig.engine.apply(&host).unwrap();
    host.ports[0].queues = 2;
    rig.engine.apply(&host).unwrap();
    assert_eq!(view(&rig.engine, 0).link, Some(false));
    // The socket of a netvm that was killed is replaced; another file is not.
    drop(std::os::unix::net::UnixListener::bind(&b).unwrap());
    host.ports[0].kind = PortKind::VhostUser { path: b.clone(), mode: VhostMode::Server, dma: VhostDma::Off };
    rig.engine.apply(&host).unwrap();
    assert!(!a.exists() && b.exists());
    std::fs::write(&a, "").unwrap();
    let below_a_file = a.join("c.sock");
    host.ports[0].kind = PortKind::VhostUser { path: a, mode: VhostMode::Server, dma: VhostDma::Off };
    let error = rig.engine.apply(&host).unwrap_err().to_string();
    assert!(error.contains("port guest0") && error.contains("not a socket"), "{error}");
    // A missing directory is made, if that is possible.
    let path = scratch.path().join("missing/c.sock");
    let mut open = |path| {
        host.ports[0].kind = PortKind::VhostUser { path, mode: VhostMode::Server, dma: VhostDma::Off };
        rig.engine.apply(&host).map_err(|error| error.to_string())
    };
    open(path.clone()).unwrap();
    assert!(path.exists());
    let error = open(below_a_file).unwrap_err();
    assert!(error.contains("c.sock") && error.contains("directory"), "{error}");
}

#[test]
fn several_queues_serve_whatever_the_guest_uses() {
    let Some((_turn, scratch, a, b)) = two_guests() else { return };
    let mut rig = Rig::new(&EngineConfig::default());
    let mut host = host(&[&a, &b]);
    // Fewer queues than the guest has pairs, and more.
    (host.ports[0].queues, host.ports[1].queues) = (2, 4);
    rig.engine.apply(&host).unwrap();
    let mut sender = Guest::new(&a);
    sender.device = ",queues=4,packed_vq=1";
    let mut receiver = Guest::new(&b);
    receiver.device = ",queues=2";
    let sent = frames(100);
    let got = transfer(&mut rig, Guests { scratch: &scratch, sender, receiver }, &sent, 100);
    assert_eq!(got, sent);
    no_buffer_is_lost(&mut rig);
}

/// Frames are sound, none is longer than the segments that were asked for, and the payloads are those that were sent.
fn check_cut(got: &[Vec<u8>], sent: &[Vec<u8>]) {
    let payload = |frame: &[u8]| {
        let headers = parse(frame).unwrap();
        frame[headers.payload_offset()..headers.payload_end()].to_vec()
    };
    for frame in got {
        let headers = parse(frame).unwrap();
        assert_eq!(checksum::verify(frame, &headers), Ok(()), "{headers:?}");
        assert!(payload(frame).len() <= 700, "{headers:?}");
    }
    let all = |frames: &[Vec<u8>]| frames.iter().flat_map(|frame| payload(frame)).collect::<Vec<u8>>();
    assert_eq!(all(got), all(sent));
    assert_eq!(got.len(), 2 * (8 + 1));
}

#[test]
fn what_a_guest_leaves_is_done_for_guests_and_ports_that_want_it_done() {
    let Some((_turn, scratch, a, b)) = two_guests() else { return };
    let mut rig = Rig::new(&EngineConfig::default());
    let mut host = host(&[&a, &b]);
    // Flooded: to the guest, which takes packets as they are on the wire only, and to the capture.
    let mut capture = scratch.port(2, &[]);
    capture.policy.forward = Forward::Normal;
    host.ports.push(capture);
    rig.engine.apply(&host).unwrap();
    let sent = segments();
    let got = transfer(
        &mut rig,
        Guests { scratch: &scratch, sender: leaves_work(&a), receiver: Guest::new(&b) },
        &sent,
        18,
    );
    check_cut(&got, &sent);
    no_buffer_is_lost(&mut rig);
    rig.engine.apply(&Host::default()).unwrap();
    check_cut(&scratch.sent(2), &sent);
}

#[test]
fn what_a_guest_leaves_is_taken_over_by_guests_that_can() {
    let Some((_turn, scratch, a, b)) = two_guests() else { return };
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host(&[&a, &b])).unwrap();
    let mut receiver = Guest::new(&b);
    receiver.arguments = vec!["--mbuf-size=10240", "--max-pkt-len=9728"];
    receiver.commands = "port stop 1\nport config 1 rx_offload tcp_lro on\nport config 1 rx_offload tcp_cksum on\n\
                         port config 1 rx_offload udp_cksum on\nport start 1\nstart\n";
    let sent = segments();
    let got = transfer(&mut rig, Guests { scratch: &scratch, sender: leaves_work(&a), receiver }, &sent, 4);
    let lengths = |frames: &[Vec<u8>]| frames.iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(lengths(&got), lengths(&sent));
    no_buffer_is_lost(&mut rig);
}

#[test]
fn what_a_guest_leaves_is_done_before_a_chain() {
    let Some((_turn, scratch, a, b)) = two_guests() else { return };
    let mut rig = Rig::new(&EngineConfig::default());
    let mut host = host(&[&a, &b]);
    host.nfs = vec![nf(0, "a", 0)];
    host.chains = vec![chain(0, &[0], OnFailure::Drop, 1)];
    host.rules = vec![rule(0, 0)];
    rig.engine.apply(&host).unwrap();
    rig.attach("a", "forward", false);
    let sent = segments();
    let got = transfer(
        &mut rig,
        Guests { scratch: &scratch, sender: leaves_work(&a), receiver: Guest::new(&b) },
        &sent,
        18,
    );
    check_cut(&got, &sent);
    no_buffer_is_lost(&mut rig);
}

#[test]
fn guests_that_are_killed_under_load_lose_no_buffer_and_come_back() {
    let Some((_turn, _scratch, a, b)) = two_guests() else { return };
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host(&[&a, &b])).unwrap();
    let mut receiver = swallow(&b);
    connected(&mut rig, 1);
    let mut sender = flood(&a);
    for _ in 0..2 {
        goes_on(&mut rig);
        receiver.kill();
        let counted = rig.until(TIMEOUT, |engine| {
            view(engine, 1).drops.iter().any(|(reason, _)| *reason == DropReason::NoPeer)
        });
        assert!(counted, "{}", rig.describe());
        receiver = swallow(&b);
        goes_on(&mut rig);
        sender.kill();
        assert!(rig.until(TIMEOUT, |engine| view(engine, 0).link == Some(false)), "{}", rig.describe());
        no_buffer_is_lost(&mut rig);
        sender = flood(&a);
    }
    goes_on(&mut rig);
    drop((sender, receiver));
    no_buffer_is_lost(&mut rig);
}

#[test]
fn guests_that_make_their_socket_are_connected_to_whenever_it_is_there() {
    let Some((_turn, _scratch, a, b)) = two_guests() else { return };
    let mut host = host(&[&a, &b]);
    for (port, path) in host.ports.iter_mut().zip([&a, &b]) {
        port.kind = PortKind::VhostUser { path: path.clone(), mode: VhostMode::Client, dma: VhostDma::Off };
    }
    let guest = |path| {
        let mut guest = Guest::new(path);
        guest.device = ",server=1";
        guest
    };
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host).unwrap();
    for _ in 0..2 {
        let mut receiver = guest(&b);
        receiver.arguments = vec!["--forward-mode=rxonly", "--port-topology=loop"];
        let mut sender = guest(&a);
        sender.arguments = vec!["--forward-mode=txonly", "--port-topology=loop"];
        let guests = (receiver.start(), sender.start());
        goes_on(&mut rig);
        drop(guests);
        for path in [&a, &b] {
            std::fs::remove_file(path).unwrap();
        }
        assert!(rig.until(TIMEOUT, |engine| view(engine, 1).link == Some(false)), "{}", rig.describe());
        no_buffer_is_lost(&mut rig);
    }
}

#[test]
fn a_guard_holds_and_a_rate_does() {
    let Some((_turn, _scratch, a, b)) = two_guests() else { return };
    let mut rig = Rig::new(&EngineConfig::default());
    let mut host = host(&[&a, &b]);
    let guard = Guard { macs: vec![MacAddr([2, 0, 0, 0, 0, 9])], addresses: Vec::new() };
    host.ports[0].policy.guard = Some(guard);
    rig.engine.apply(&host).unwrap();
    let receiver = swallow(&b);
    connected(&mut rig, 1);
    let sender = flood(&a);
    assert!(rig.until(TIMEOUT, |engine| view(engine, 0).rx_packets > 10_000), "{}", rig.describe());
    assert!(drops(&rig, 0, DropReason::Spoofed) > 5000, "{}", rig.describe());
    assert_eq!(rig.sent(1), 0, "{}", rig.describe());
    // Its own address, and a rate.
    host.ports[0].policy.guard = None;
    let rate = Rate { per_second: 1000, burst: 100 };
    host.ports[0].policy.police_in = Some(Police { packets: Some(rate), bits: None });
    let start = Instant::now();
    rig.engine.apply(&host).unwrap();
    assert!(rig.until(TIMEOUT, |engine| view(engine, 1).tx_packets > 300), "{}", rig.describe());
    let (sent, most) = (rig.sent(1), 1000.0 * start.elapsed().as_secs_f64() + 101.0);
    assert!(sent as f64 <= most, "{sent} packets, at most {most}");
    assert!(drops(&rig, 0, DropReason::Policed) > 1000, "{}", rig.describe());
    drop((sender, receiver));
}

#[test]
fn busy_guests_tell_nobody() {
    let Some((_turn, _scratch, a, b)) = two_guests() else { return };
    // A worker that sleeps enables notifications.
    let mut host = host(&[&a, &b]);
    host.engine.idle = Idle::Poll;
    let mut rig = Rig::new(&host.engine);
    rig.engine.apply(&host).unwrap();
    let receiver = swallow(&b);
    connected(&mut rig, 1);
    let sender = flood(&a);
    goes_on(&mut rig);
    let (writes, before) = ([&sender, &receiver].map(Running::writes), rig.sent(1));
    assert!(rig.until(TIMEOUT, |engine| view(engine, 1).tx_packets > before + 10_000), "{}", rig.describe());
    for (guest, before) in [&sender, &receiver].into_iter().zip(writes) {
        // More than 300 bursts, of which none was worth a word.
        assert!(guest.writes() - before < 100, "{} calls", guest.writes() - before);
    }
}

#[test]
fn silent_guests_cost_no_time() {
    let Some((_turn, _scratch, a, b)) = two_guests() else { return };
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host(&[&a, &b])).unwrap();
    let guests = (swallow(&a), swallow_by(&b, ",packed_vq=1"));
    for id in 0..2 {
        connected(&mut rig, id);
    }
    let costs_no_time = |rig: &Rig| {
        // Until the worker sleeps; then its sleeps of a second are counted.
        std::thread::sleep(Duration::from_millis(200));
        let counted = || {
            let workers = rig.engine.workers().map(|worker| worker.counters);
            workers.map(|counters| (counters.sleeps.get(), counters.turns.get())).next().unwrap()
        };
        let before = counted();
        std::thread::sleep(Duration::from_secs(1));
        let now = counted();
        let (sleeps, turns) = (now.0 - before.0, now.1 - before.1);
        // Of 20 ms each, with the time of spinning before the first of them only.
        assert!((1..=200).contains(&sleeps), "{sleeps} sleeps in {turns} turns");
        assert!(turns < 2000, "{sleeps} sleeps in {turns} turns");
    };
    costs_no_time(&rig);
    drop(guests);
    costs_no_time(&rig);
}
