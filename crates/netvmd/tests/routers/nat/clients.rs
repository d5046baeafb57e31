// SPDX-License-Identifier: Apache-2.0
//! Programs in containers that reach the internet through a router that masquerades.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc;
use std::time::Duration;

use netvm_api::{ApplyReply, Status, TopTalkers, path};

use super::super::DOWNLOAD;
use super::super::common::Daemon;
use super::super::common::download::{download, serve};
use super::super::common::hosts::{Host, are_possible, within};
use super::{Background, FAR, INTERNET, Net, ROUTER, blocks, has, must};

/// Of the internet's servers.
const PORT: u16 = 7100;

/// Tells who connects, and echoes.
fn peers(host: &Host) -> mpsc::Receiver<SocketAddr> {
    let ((bound, is_bound), (peer, peers)) = (mpsc::channel(), mpsc::channel());
    host.inside(move || {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap();
        bound.send(()).unwrap();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if peer.send(stream.peer_addr().unwrap()).is_err() {
                return;
            }
            std::thread::spawn(move || {
                let mut bytes = [0; 64];
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    stream.write_all(&bytes[..count]).unwrap();
                }
            });
        }
    });
    is_bound.recv().unwrap();
    peers
}

/// Answers every DNS query of one name with 192.0.2.53.
fn name_server(host: &Host) {
    let (bound, is_bound) = mpsc::channel();
    host.inside(move || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 53)).unwrap();
        bound.send(()).unwrap();
        let mut query = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut query) {
            // RFC 1035 section 4.1: the question alone, then an A record whose name is the question's.
            let end = 12 + query[12..length].iter().position(|byte| *byte == 0).unwrap() + 5;
            let mut answer = query[..end].to_vec();
            answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
            answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 53]);
            socket.send_to(&answer, from).unwrap();
        }
    });
    is_bound.recv().unwrap();
}

/// How long a connection is idle: a minute before a release.
fn idle() -> Duration {
    let wanted = std::env::var("NETVM_TEST_SECONDS").ok().map(|text| text.parse().unwrap());
    Duration::from_secs(wanted.unwrap_or(3))
}

#[test]
fn containers_reach_the_internet_as_the_page_says() {
    if !are_possible() {
        return;
    }
    let net = Net::new('m');
    let daemon = net.start(&net.config(false, ""));
    let servers = net.run(&net.commands(1));
    assert!(!servers.is_empty(), "the page starts a server");
    programs(&net, &daemon);
    connections(&net, &daemon);
}

/// What people use.
fn programs(net: &Net, daemon: &Daemon) {
    let Net { app, internet, .. } = net;
    if has("curl") {
        must(app, "curl -sS -o /dev/null --max-time 10 http://203.0.113.1/os-release");
    }
    name_server(internet);
    if has("dig") {
        let answer = must(app, &format!("dig +short +tries=3 +time=2 @{INTERNET} example.com A"));
        assert_eq!(answer.trim(), "192.0.2.53");
    }
    let hops = must(app, &format!("busybox traceroute -n -q 2 -w 3 -m 5 {FAR}"));
    for hop in ["10.0.0.1", INTERNET, FAR] {
        assert!(hops.contains(hop), "{hop} is missing: {hops}\n{}", daemon.log());
    }
    let hops = must(app, &format!("busybox traceroute -I -n -q 2 -w 3 -m 5 {FAR}"));
    assert!(hops.contains(INTERNET) && hops.contains(FAR), "{hops}");
    if has("iperf3") {
        let _server = Background::inside(&net.far, "iperf3 -s");
        for how in ["-n 20M", "-n 20M -R", "-n 20M -P 4", "-u -b 5M -t 1"] {
            must(app, &format!("iperf3 -c {FAR} {how}"));
        }
    }
    // Nobody outside knows the containers.
    assert!(!internet.output("busybox ping -c 1 -W 1 10.0.0.12").status.success());
}

/// Downloads, an idle connection, and a path with a smaller MTU.
fn connections(net: &Net, daemon: &Daemon) {
    let Net { app, internet, far, .. } = net;
    let peers = peers(far);
    let open = || {
        let to = SocketAddr::from((FAR.parse::<IpAddr>().unwrap(), PORT));
        TcpStream::connect_timeout(&to, Duration::from_secs(10)).unwrap()
    };
    let mut stream = app.inside(open).join().unwrap();
    let own = stream.local_addr().unwrap();
    let outside = peers.recv().unwrap();
    assert_eq!(outside.ip().to_string(), ROUTER, "{outside}");
    // RFC 4787 REQ-3 (port preservation): its own port is free. With several workers, only the parity (REQ-4) is kept
    // for sure: the port has to lead answers to the same worker.
    let of_workers = daemon.get::<Status>(path::STATUS).workers.len();
    assert_eq!(outside.port() & 1, own.port() & 1, "{outside} {own}");
    assert!(of_workers > 1 || outside.port() == own.port(), "{outside} {own}");

    serve(far, DOWNLOAD);
    download(app, FAR.parse::<IpAddr>().unwrap(), DOWNLOAD);
    let top: TopTalkers = daemon.get(path::TOP_TALKERS);
    let bytes = |address: &str| top.addresses.iter().find(|it| it.address == address).map(|it| it.bytes);
    // Not that which stands for the container.
    let [heavy, light] = [[FAR, "10.0.0.12"], [ROUTER, "10.0.0.11"]].map(|ends| ends.map(bytes));
    assert!(heavy.iter().all(|it| *it >= Some(DOWNLOAD)), "{top:?}");
    assert!(light.iter().all(|it| *it < Some(DOWNLOAD)) && top.connections > Some(0), "{top:?}");
    std::thread::sleep(idle());

    // The path beyond the internet's first host gets narrow: it says so in ICMP errors, which name the router.
    internet.ip(&format!("route add {FAR}/32 dev far mtu lock 1280"));
    let narrow = || app.ip_output(&format!("route get {FAR}")).contains("mtu 1280");
    let chunk = vec![7; 4000];
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(&chunk).unwrap();
    let mut answer = vec![0; chunk.len()];
    stream.read_exact(&mut answer).unwrap();
    assert!(answer == chunk && within(Duration::from_secs(5), narrow), "{}", daemon.log());
}

/// With two workers, whichever has a connection receives both its directions.
#[test]
fn connections_of_two_workers_are_translated() {
    if !are_possible() {
        return;
    }
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 2) {
        println!("SKIP: two workers need two cores");
        return;
    }
    let net = Net::new('i');
    let mut config = net.config(false, "");
    if !config.contains("cores = ") {
        config = config.replacen("[engine]\n", "[engine]\ncores = [0, 1]\n", 1);
    }
    let daemon = net.start(&config);
    let peers = peers(&net.far);
    let asking = |host: &Host| {
        host.inside(|| {
            for n in 0..100_u8 {
                let mut stream = TcpStream::connect((FAR, PORT)).unwrap();
                stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                stream.write_all(&[n]).unwrap();
                let mut answer = [0];
                stream.read_exact(&mut answer).unwrap();
                assert_eq!(answer, [n]);
            }
        })
    };
    for thread in [asking(&net.app), asking(&net.web)] {
        thread.join().unwrap();
    }
    let seen: Vec<_> = peers.try_iter().collect();
    assert_eq!(seen.len(), 200);
    assert!(seen.iter().all(|peer| peer.ip().to_string() == ROUTER), "{seen:?}");
    serve(&net.far, DOWNLOAD);
    download(&net.app, FAR.parse::<IpAddr>().unwrap(), DOWNLOAD);
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
}

/// Connections go on while a worker is added, and while it ends.
#[test]
fn connections_outlive_changes_of_cores() {
    if !are_possible() {
        return;
    }
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 2) {
        println!("SKIP: two workers need two cores");
        return;
    }
    let net = Net::new('c');
    let own = net.config(false, "");
    let others: Vec<&str> = own.lines().filter(|line| !line.starts_with("cores = ")).collect();
    let config =
        |cores: &str| others.join("\n").replacen("[engine]\n", &format!("[engine]\ncores = {cores}\n"), 1);
    let daemon = net.start(&config("[0]"));
    let _peers = peers(&net.far);
    let (change, changes) = mpsc::channel::<()>();
    let (done, is_done) = mpsc::channel();
    let talk = move || {
        let mut streams = [(); 60].map(|()| TcpStream::connect((FAR, PORT)).unwrap());
        let mut round = 0_u8;
        loop {
            for stream in &mut streams {
                stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                stream.write_all(&[round]).unwrap();
                let mut answer = [0];
                stream.read_exact(&mut answer).unwrap();
                assert_eq!(answer, [round]);
            }
            round = round.wrapping_add(1);
            done.send(()).unwrap();
            if changes.recv().is_err() {
                return;
            }
        }
    };
    let talker = net.app.inside(talk);
    is_done.recv().unwrap();
    for cores in ["[0, 1]", "[1]", "[0, 1]", "[0]"] {
        let _: ApplyReply = daemon.post(path::APPLY, &config(cores));
        change.send(()).unwrap();
        assert!(is_done.recv().is_ok(), "{cores}: {}", daemon.log());
    }
    drop(change);
    talker.join().unwrap();
}

/// A container that opens connections from all its ports uses up its own quota, and not the router's ports.
#[test]
fn a_container_that_uses_many_ports_leaves_enough_for_others() {
    if !are_possible() {
        return;
    }
    let net = Net::new('f');
    let daemon = net.start(&net.config(false, "[engine.connections]\nper_source = 1000\n"));
    let scan = || {
        for port in 2000..8000 {
            // Some ports may be in use.
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).ok();
            let _ = socket.map(|socket| socket.send_to(&[0], (FAR, 9)));
        }
    };
    net.app.inside(scan).join().unwrap();
    daemon
        .until("its quota is used up", |daemon| format!("{:?}", daemon.stats().drops).contains("conn-quota"));
    let peers = peers(&net.far);
    let connect = || (0..100).for_each(|_| drop(TcpStream::connect((FAR, PORT)).unwrap()));
    net.web.inside(connect).join().unwrap();
    assert_eq!(peers.iter().take(100).filter(|peer| peer.ip().to_string() == ROUTER).count(), 100);
}

/// The page's CGNAT: customers have addresses of the pool, and a block each.
#[test]
fn customers_of_a_cgnat_have_ports_of_their_own_blocks() {
    if !are_possible() {
        return;
    }
    let net = Net::new('g');
    let daemon = net.start_with_pool(&net.config(false, &blocks(super::PAGE, "toml")[3]));
    let peers = peers(&net.internet);
    let mut seen = Vec::new();
    for host in [&net.app, &net.web] {
        let connect = || {
            let streams = [0; 20].map(|_| TcpStream::connect((INTERNET, PORT)).unwrap());
            std::thread::sleep(Duration::from_millis(50));
            streams.len()
        };
        let count = host.inside(connect).join().unwrap();
        let of_host: Vec<SocketAddr> = (0..count).map(|_| peers.recv().unwrap()).collect();
        let blocks: Vec<_> = of_host.iter().map(|peer| (peer.ip(), peer.port() / 512)).collect();
        let IpAddr::V4(address) = of_host[0].ip() else { panic!("{of_host:?}") };
        assert!(
            (16..32).contains(&address.octets()[3]) && address.octets()[..3] == [198, 51, 100],
            "{address}"
        );
        assert!(blocks.iter().all(|block| *block == blocks[0]), "{of_host:?}\n{}", daemon.log());
        seen.push(blocks[0]);
    }
    assert_ne!(seen[0], seen[1], "each customer has a block of its own");
}
