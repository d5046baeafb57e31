// SPDX-License-Identifier: Apache-2.0
//! Published ports: from outside, from another container, and from the host.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use netvm_api::{ApplyReply, NeighbourInfo, path};

use super::super::common::hosts::{Host, are_possible, asking, within};
use super::super::common::{Daemon, Folder};
use super::{Net, ROUTER, must, succeeds};

#[test]
fn a_published_port_is_reached_from_outside_and_from_containers() {
    if !are_possible() {
        return;
    }
    let net = Net::new('p');
    let daemon = net.start(&net.config(false, ""));
    let commands = net.commands(2);
    let get = commands.iter().find(|command| command.contains("exec") && command.contains(":8080")).unwrap();
    let is_reached = || super::succeeds(get);
    assert!(!is_reached(), "nothing is published yet");
    let _: ApplyReply = daemon.post(path::APPLY, &net.config(true, ""));
    let servers = net.run(&commands);
    assert!(servers.len() == 1 && commands.len() == 3, "{commands:?}");
    // And no longer.
    let _: ApplyReply = daemon.post(path::APPLY, &net.config(false, ""));
    assert!(within(Duration::from_secs(10), || !is_reached()), "{}", daemon.log());
}

/// netvmd in a namespace, which is the host and has a port of kind `host`.
#[test]
fn the_host_and_containers_reach_each_other_by_a_published_port() {
    if !are_possible() {
        return;
    }
    let (net, host) = (Net::new('q'), Host::bare("qh"));
    let port = "[[port]]\nname = \"host\"\nkind = \"host\"\ninterface = \"lan0\"\naddresses = [\"10.0.0.3/24\"]\n\
                forward = { normal = true }\n";
    let mut command = Command::new("ip");
    command.args(["netns", "exec", host.namespace(), env!("CARGO_BIN_EXE_netvmd")]);
    let mut daemon = Daemon::launch_as(command, Arc::new(Folder::new()), &net.config(true, port));
    daemon.await_log("serves its API on");
    assert!(within(Duration::from_secs(20), || host.output_of_ip("address show dev lan0").is_some()));
    host.ip("route add 203.0.113.2/32 via 10.0.0.1");
    let servers = net.run(&net.commands(2)[..1]);
    assert_eq!(servers.len(), 1);
    must(&host, "busybox wget -q -O /dev/null http://203.0.113.2:8080/os-release");
    must(&net.app, "busybox wget -q -O /dev/null http://203.0.113.2:8080/os-release");
}

const BOTH_ENDS: &str = r#"
[[nat]]
name = "service"
match = { protocol = "udp", destination = "203.0.113.2", destination_ports = 5300 }
dnat = "10.0.0.11:53"

[[nat]]
name = "as-router"
to = "switch"
match = { protocol = "udp", destination = "10.0.0.11" }
snat = "masquerade"
"#;

#[test]
fn packets_wait_for_their_next_hop_though_both_ends_are_translated() {
    if !are_possible() {
        return;
    }
    let net = Net::new('u');
    let daemon = net.start(&net.config(false, BOTH_ENDS));
    let (bound, is_bound) = mpsc::channel();
    net.web.inside(move || {
        let socket = UdpSocket::bind("0.0.0.0:53").unwrap();
        bound.send(()).unwrap();
        let mut datagram = [0; 64];
        while let Ok((_, from)) = socket.recv_from(&mut datagram) {
            // Nobody may hear it any more.
            let _ = socket.send_to(from.ip().to_string().as_bytes(), from);
        }
    });
    is_bound.recv().unwrap();
    let neighbours = path::NEIGHBOURS.replace("{router}", &net.router);
    let is_known = || {
        let all: Vec<NeighbourInfo> = daemon.get(&neighbours);
        all.iter().any(|one| one.address == "10.0.0.11")
    };
    for host in [&net.internet, &net.app, &net.internet, &net.app] {
        let delete = format!("ip -n netvm-{} neigh flush to 10.0.0.11", net.router);
        assert!(within(Duration::from_secs(10), || succeeds(&delete) && !is_known()), "{}", daemon.log());
        let ask = || {
            let socket = asking(ROUTER.parse().unwrap(), 5300, Duration::from_secs(5));
            (0..3).for_each(|_| assert_eq!(socket.send(b"who asks?").unwrap(), 9));
            let mut answer = [0; 64];
            let mut next = || {
                let length = socket.recv(&mut answer).map_err(|error| error.kind())?;
                Ok::<_, ErrorKind>(String::from_utf8(answer[..length].to_vec()).unwrap())
            };
            [next(), next(), next()]
        };
        let answers = host.inside(ask).join().unwrap();
        let expected = [(); 3].map(|()| Ok("10.0.0.1".to_owned()));
        assert_eq!(answers, expected, "{:?}\n{}", daemon.stats().drops, daemon.log());
    }
}
