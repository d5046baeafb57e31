// SPDX-License-Identifier: Apache-2.0
//! TCP between namespaces at once, by every kind of port on an interface of the kernel, with nothing else set.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::net::IpAddr;
use std::sync::LazyLock;
use std::time::Duration;

use common::download::{download, serve};
use common::hosts::{Host, are_possible, within};
use common::{ADAPTIVE, Daemon, EngineText, Folder, Forward, PROGRAM, engine, program};
use netlib::Options;
use netvm_api::{NfInfo, PortInfo, path};
use netvm_capture::CaptureReader;
use netvm_vnet::{SocketOptions, packet_socket};
use netvm_wire::{checksum, parse};
use rustix::process::Signal;

static ENGINE: EngineText = EngineText(LazyLock::new(|| engine(ADAPTIVE)));
/// More than windows and queues hold at once.
const BYTES: u64 = 30_000_000;

/// Not a test: runs as an NF if the environment says so.
#[test]
fn be_the_program() {
    match std::env::var(PROGRAM).as_deref() {
        Ok("takes-segments") => netlib::run(&Options::new("nf").with_offloads(), |_| Forward).unwrap(),
        Ok(_) => netlib::run(&Options::new("nf"), |_| Forward).unwrap(),
        Err(_) => {}
    }
}

/// Two hosts with addresses of one network.
fn hosts(name: &str) -> [Host; 2] {
    [1, 2].map(|n| {
        let addresses = [format!("10.44.0.{n}/24"), format!("fd44::{n}/64")];
        Host::new(&format!("{name}{n}"), &addresses.each_ref().map(String::as_str), &[])
    })
}

fn port(name: &str, kind: &str, host: &Host, more: &str) -> String {
    format!(
        "[[port]]\nname = \"{name}\"\nkind = \"{kind}\"\ninterface = \"{}\"\nforward = {{ normal = true }}\n{more}\n",
        host.port()
    )
}

/// Downloads both ways, over IPv4 and IPv6.
fn exchange(hosts: &[Host; 2]) {
    assert!(hosts[0].pings("10.44.0.2"));
    for (to, from, addresses) in [(0, 1, ["10.44.0.2", "fd44::2"]), (1, 0, ["10.44.0.1", "fd44::1"])] {
        for address in addresses {
            serve(&hosts[from], BYTES);
            let took = download(&hosts[to], address.parse::<IpAddr>().unwrap(), BYTES);
            println!("{address}: {:.1} Gbit/s", BYTES as f64 * 8e-9 / took.as_secs_f64());
        }
    }
}

fn container(n: u8, host: &Host) -> String {
    format!(
        "[[port]]\nname = \"c{n}\"\nkind = \"container\"\nnamespace = \"{}\"\nforward = {{ normal = true }}\n\
         addresses = [\"10.44.0.{n}/24\", \"fd44::{n}/64\"]\ngateways = [\"10.44.0.254\"]\n",
        host.namespace()
    )
}

fn ports(daemon: &Daemon) -> Vec<PortInfo> {
    daemon.get(path::PORTS)
}

#[test]
fn tcp_works_at_once_by_each_kind_of_port_and_between_them() {
    if !are_possible() {
        return;
    }
    let kinds = ["af_packet", "af_xdp"];
    for (n, (a, b)) in kinds.iter().flat_map(|a| kinds.iter().map(move |b| (*a, *b))).enumerate() {
        println!("{a} and {b}");
        let hosts = hosts(&format!("k{n}"));
        let config = [port("a", a, &hosts[0], ""), port("b", b, &hosts[1], "")].concat();
        let daemon = Daemon::start(&(ENGINE.to_owned() + &config));
        exchange(&hosts);
        let segments = |port: &PortInfo| port.driver_mode.contains("TCP and UDP segments");
        let ports = ports(&daemon);
        assert_eq!(ports.iter().map(segments).collect::<Vec<_>>(), [a, b].map(|kind| kind == "af_packet"));
        assert!(ports.iter().all(|port| port.rx_dropped < 1000), "{ports:?}");
    }
}

/// `ETHTOOL_STXCSUM` and `ETHTOOL_STSO` (`linux/ethtool.h`).
const CHECKSUM: u32 = 0x17;
const TSO: u32 = 0x1f;

/// Turns an offload of an interface on or off, as `ethtool -K` does.
fn set_offload(interface: &str, command: u32, is_on: bool) {
    let mut value = [command, u32::from(is_on)];
    // SAFETY: a structure of integers, arrays and a union of these: zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    // SAFETY: the request (SIOCETHTOOL) and what it points to outlive the call.
    let result = unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&socket), 0x8946, &raw mut request) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_packet_socket_leaves_to_its_interface_only_what_it_does_now() {
    if !are_possible() {
        return;
    }
    let hosts = hosts("f");
    set_offload(&hosts[0].port(), CHECKSUM, false);
    let config = [port("a", "af_packet", &hosts[0], ""), port("b", "af_packet", &hosts[1], "")].concat();
    let daemon = Daemon::start(&(ENGINE.to_owned() + &config));
    let says = |n: usize, words: &str| {
        let what = format!("port {n} says {words}");
        daemon.until(&what, |daemon| ports(daemon)[n].driver_mode == format!("packet socket, {words}"));
    };
    says(0, "no offloads");
    says(1, "checksums, TCP and UDP segments");
    exchange(&hosts);
    // They change while the port is open.
    set_offload(&hosts[0].port(), CHECKSUM, true);
    set_offload(&hosts[0].port(), TSO, true);
    set_offload(&hosts[1].port(), TSO, false);
    says(0, "checksums, TCP and UDP segments");
    says(1, "checksums, some segments");
    exchange(&hosts);
}

#[test]
fn coalesced_segments_reach_an_nf_and_a_container_whole_and_right() {
    if !are_possible() {
        return;
    }
    // By AF_XDP, the sender's kernel splits its segments.
    let far = Host::new("far", &["10.44.0.1/24", "fd44::1/64"], &[]);
    let hosts = [far, Host::bare("near")];
    let config = [
        ENGINE.to_owned(),
        "[[group]]\nname = \"g\"\n".to_owned(),
        format!("[[nf]]\nrole = \"nf\"\ngroup = \"g\"\n{}", program("takes-segments")),
        "[[chain]]\nname = \"in\"\nhops = [\"nf\"]\noutput = { normal = true }\n".to_owned(),
        "[[rule]]\nfrom = \"far\"\nchain = \"in\"\nmatch = { protocol = \"tcp\" }\n".to_owned(),
        port("far", "af_xdp", &hosts[0], "gro = true"),
        container(2, &hosts[1]),
    ];
    let daemon = Daemon::start(&config.concat());
    daemon.until_running("nf");
    exchange(&hosts);
    let ports = ports(&daemon);
    println!("{ports:?}");
    let (received, coalesced) = (ports[0].rx_packets, ports[0].rx_coalesced.unwrap());
    assert!(
        coalesced > 2 * BYTES / 1448 / 2 && received + coalesced > 2 * BYTES / 1448,
        "{received} and {coalesced}"
    );
    assert_eq!(ports[1].rx_coalesced, None);
    assert!(daemon.nf("nf").threads[0].packets.received <= received);
}

#[test]
fn af_xdp_says_at_once_what_generic_mode_cannot_do() {
    if !are_possible() {
        return;
    }
    let hosts = hosts("g");
    let daemon = Daemon::start(&(ENGINE.to_owned() + &port("a", "af_xdp", &hosts[0], "generic = true")));
    let ports = ports(&daemon);
    let said = &ports[0].driver_mode;
    assert!(said.contains("af_packet"), "{said}");
}

#[test]
fn containers_have_their_interface_whatever_starts_again() {
    if !are_possible() {
        return;
    }
    let hosts = ["c1", "c2"].map(Host::bare);
    let config = ENGINE.to_owned() + &container(1, &hosts[0]) + &container(2, &hosts[1]);
    let mut daemon = Daemon::start(&config);
    exchange(&hosts);
    let mac = hosts[0].ip_output("-o link show eth0");
    assert!(hosts[0].ip_output("route show default").contains("via 10.44.0.254 dev eth0"));
    let neighbours = hosts[1].ip_output("neighbour show 10.44.0.1");

    // The container starts again.
    hosts[0].restart();
    assert!(hosts[0].pings("10.44.0.2"));
    exchange(&hosts);

    // Once more, and something keeps the old namespace: a socket that waits for its last acknowledgement, or a thread.
    let (end, wait) = std::sync::mpsc::channel::<()>();
    let left = hosts[0].inside(move || wait.recv().is_err());
    hosts[0].restart();
    exchange(&hosts);
    drop(end);
    assert!(left.join().unwrap());

    // netvmd is killed, and starts again.
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    let daemon = Daemon::start_in(std::sync::Arc::clone(&daemon.folder), &config);
    exchange(&hosts);
    let address = |text: &str| {
        text.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).map(str::to_owned)
    };
    let now = hosts[0].ip_output("-o link show eth0");
    assert_eq!((address(&now).is_some(), address(&mac)), (true, address(&now)), "the same MAC address");
    assert!(neighbours.contains(&address(&now).unwrap()), "{neighbours}");

    // A port is removed, and its interface with it; one is added while the other's packets flow.
    let _: netvm_api::ApplyReply = daemon.post(path::APPLY, &(ENGINE.to_owned() + &container(2, &hosts[1])));
    let is_gone = || !hosts[0].ip_output("-o link show").contains("eth0");
    assert!(within(Duration::from_secs(5), is_gone));
    let _: netvm_api::ApplyReply = daemon.post(path::APPLY, &config);
    exchange(&hosts);

    // An address changes: the port is closed, and makes the interface again.
    let changed = config.replace("10.44.0.1/24", "10.44.0.3/24");
    let _: netvm_api::ApplyReply = daemon.post(path::APPLY, &changed);
    assert!(hosts[0].ip_output("-o address show eth0").contains("10.44.0.3/24"));
    assert!(hosts[0].pings("10.44.0.2"));
}

/// Bytes of each download between receivers of several kinds; `./dev check-release` asks for more.
fn bytes() -> u64 {
    std::env::var("NETVM_TEST_BYTES").ok().map_or(BYTES, |text| text.parse().unwrap())
}

#[test]
fn every_byte_is_right_whatever_the_receivers_take() {
    if !are_possible() {
        return;
    }
    // The server; clients by the switch, by an NF that takes no segments, by two trust groups, and with a smaller MTU.
    let bare = [1, 2, 3, 4].map(|n| Host::bare(&format!("b{n}")));
    let small = Host::new("b5", &["10.44.0.5/24", "fd44::5/64"], &[]);
    small.ip("link set eth0 mtu 1400");
    let mut config = ENGINE.to_owned() + &port("c5", "af_packet", &small, "");
    config += &(1..).zip(&bare).map(|(n, host)| container(n, host)).collect::<String>();
    let folder = Folder::new();
    let path = folder.0.join("mirror.pcap");
    // Copies of what the second client gets, unless there is too much for a file.
    let is_mirrored = bytes() == BYTES;
    config += &format!("[[port]]\nname = \"copies\"\nkind = \"pcap\"\noutput = {path:?}\n");
    if is_mirrored {
        config += "[[rule]]\nname = \"copy\"\nfrom = \"c1\"\nmirror = \"copies\"\nmatch = { destination = \"10.44.0.2\" }\n";
    }
    for group in ["g", "h"] {
        config += &format!("[[group]]\nname = \"{group}\"\nbuffers = 4096\n");
    }
    for (role, group, kind) in
        [("plain", "g", "plain"), ("first", "g", "plain"), ("second", "h", "takes-segments")]
    {
        config += &format!("[[nf]]\nrole = \"{role}\"\ngroup = \"{group}\"\n{}", program(kind));
    }
    for (client, hops) in [(3, "[\"plain\"]"), (4, "[\"first\", \"second\"]")] {
        for (name, from, to, port) in [("to", 1, client, client), ("of", client, 1, 1)] {
            config += &format!("[[chain]]\nname = \"{name}{client}\"\nhops = {hops}\noutput = \"c{port}\"\n");
            config += &format!(
                "[[rule]]\nname = \"{name}{client}\"\nfrom = \"c{from}\"\nchain = \"{name}{client}\"\n\
                 match = {{ protocol = \"tcp\", destination = [\"10.44.0.{to}\", \"fd44::{to}\"] }}\n"
            );
        }
    }
    let mut daemon = Daemon::start(&config);
    ["plain", "first", "second"].iter().for_each(|role| drop(daemon.until_running(role)));
    for (n, client) in (2..).zip(bare[1..].iter().chain([&small])) {
        assert!(bare[0].pings(&format!("10.44.0.{n}")) && bare[0].pings(&format!("fd44::{n}")));
        for (to, from, address) in [
            (client, &bare[0], "10.44.0.1".to_owned()),
            (&bare[0], client, format!("fd44::{n}")),
            (client, &bare[0], "fd44::1".to_owned()),
            (&bare[0], client, format!("10.44.0.{n}")),
        ] {
            serve(from, bytes());
            let took = download(to, address.parse::<IpAddr>().unwrap(), bytes());
            println!("{address}, client {n}: {:.1} Gbit/s", bytes() as f64 * 8e-9 / took.as_secs_f64());
        }
    }
    let received = |role: &str| daemon.nf(role).threads[0].packets.received;
    assert!(received("plain") > 4 * bytes() / 1514 && received("second") > 4 * bytes() / 1514);
    lie(&bare[1]);
    serve(&bare[0], BYTES);
    download(&bare[1], "10.44.0.1".parse::<IpAddr>().unwrap(), BYTES);
    daemon.until("all buffers back", |daemon| {
        daemon.stats().groups.iter().flat_map(|group| &group.regions).all(|region| region.in_nfs == 0)
    });
    // It writes the rest of the file.
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success());
    let mut mirrored = CaptureReader::open(&path).unwrap();
    let mut data = 0;
    while let Some(frame) = mirrored.next_frame().unwrap() {
        assert!(frame.data.len() <= 1514);
        let headers = parse(frame.data).unwrap();
        checksum::verify(frame.data, &headers).unwrap();
        data += frame.data.len() as u64;
    }
    assert!(!is_mirrored || data > 2 * BYTES, "{data}");
}

/// Sends packets from a container that lie about their offload work.
fn lie(host: &Host) {
    let send = || {
        let mut random = 1u64;
        let mut next = move || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            random >> 33
        };
        let options = SocketOptions { interface: "eth0".to_owned(), queues: 1 };
        let socket = packet_socket::open(&options).unwrap().queues.remove(0);
        let mut taken = 0;
        for _ in 0..20_000 {
            let mut frame: Vec<u8> = (0..14 + next() % 3000).map(|_| next() as u8).collect();
            frame[..14].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9, 8, 0]);
            if next() % 2 == 0 && frame.len() > 60 {
                // As far as the headers go: TCP over IPv4 or IPv6.
                match next() % 2 {
                    0 => frame[14..24].copy_from_slice(&[0x45, 0, 0, next() as u8, 0, 0, 0, 0, 64, 6]),
                    _ => frame[12..21].copy_from_slice(&[
                        0x86,
                        0xdd,
                        0x60,
                        0,
                        0,
                        0,
                        next() as u8,
                        next() as u8,
                        6,
                    ]),
                }
            }
            let kind = [0, 1, 3, 4, 5, 0x81, 0x84, 0xff][next() as usize % 8];
            let mut header = vec![[0, 1, 2, 4, 0xff][next() as usize % 5], kind];
            // Header length, segment size, checksum start and offset.
            for _ in 0..4 {
                let word = if next() % 4 == 0 { next() as u16 } else { next() as u16 % 100 };
                header.extend_from_slice(&word.to_le_bytes());
            }
            taken += u32::from(rustix::io::write(&socket, &[header, frame].concat()).is_ok());
        }
        taken
    };
    let taken = host.inside(send).join().unwrap();
    println!("the kernel took {taken} of 20000 lies");
    assert!(taken > 100);
}

/// Exchanges data between containers through NFs, each a group and a program. Returns how many packets each NF got.
fn through(name: &str, nfs: &[(&str, &str)]) -> Vec<u64> {
    let hosts = [1, 2].map(|n| Host::bare(&format!("{name}{n}")));
    let mut config = ENGINE.to_owned();
    for group in ["g", "h"] {
        config += &format!("[[group]]\nname = \"{group}\"\nbuffers = 4096\n");
    }
    for (n, host) in (1..).zip(&hosts) {
        config += &container(n, host).replace("forward = { normal = true }\n", "");
    }
    let mut hops = Vec::new();
    for (n, (group, kind)) in nfs.iter().enumerate() {
        config += &format!("[[nf]]\nrole = \"nf{n}\"\ngroup = \"{group}\"\n{}", program(kind));
        hops.push(format!("nf{n}"));
    }
    for (from, to) in [("c1", "c2"), ("c2", "c1")] {
        config += &format!("[[chain]]\nname = \"{from}\"\nhops = {hops:?}\noutput = \"{to}\"\n");
        config += &format!("[[rule]]\nname = \"{from}\"\nfrom = \"{from}\"\nchain = \"{from}\"\n");
    }
    let daemon = Daemon::start(&config);
    hops.iter().for_each(|role| drop(daemon.until_running(role)));
    exchange(&hosts);
    let nfs: Vec<NfInfo> = daemon.get(path::NFS);
    nfs.iter().map(|nf| nf.threads.iter().map(|thread| thread.packets.received).sum()).collect()
}

#[test]
fn nfs_get_segments_whole_only_if_all_of_their_group_take_them() {
    if !are_possible() {
        return;
    }
    let (takes, plain) = ("takes-segments", "plain");
    // Four downloads; the answers are packets, too.
    let (whole, cut) = (4 * BYTES / 2500, 4 * BYTES / 1514);
    let received = through("w", &[("g", takes), ("g", takes)]);
    assert!(received.iter().all(|packets| *packets < whole), "{received:?}");
    let received = through("m", &[("g", takes), ("g", plain)]);
    assert!(received.iter().all(|packets| *packets > cut), "{received:?}");
    // Copies for another group are cut.
    let received = through("o", &[("g", takes), ("h", takes)]);
    assert!(received[0] < whole && received[1] > cut, "{received:?}");
}
