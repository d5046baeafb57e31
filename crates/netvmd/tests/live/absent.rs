// SPDX-License-Identifier: Apache-2.0
//! What the configuration names and this machine does not have: when netvmd starts, and later.

use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_api::{ApplyReply, PortInfo, Severity, Status, path};

use crate::common::hosts::{self, Host, run, within};
use crate::common::{Daemon, ENGINE, Folder, forwarding_chain, program};

/// A source and a sink, which show that packets pass.
const SOURCE_AND_SINK: &str = "\n[[port]]\nname = \"s\"\nkind = \"source\"\nrate = 1000\nforward = { out = \"t\" }\n\
                    \n[[port]]\nname = \"t\"\nkind = \"sink\"\n";

fn port(name: &str, kind: &str, keys: &str) -> String {
    format!("\n[[port]]\nname = \"{name}\"\nkind = \"{kind}\"\n{keys}\nforward = {{ normal = true }}\n")
}

fn container(name: &str, host: &str, last: u8) -> String {
    let keys = format!(
        "namespace = \"{host}\"\naddresses = [\"10.98.0.{last}/24\", \"fd98::{last}/64\"]\n\
         gateways = [\"10.98.0.254\", \"fd98::fe\"]"
    );
    port(name, "container", &keys)
}

fn problems(daemon: &Daemon) -> Vec<String> {
    daemon.get::<Status>(path::STATUS).problems
}

/// The problems of one item, such as `port c`.
fn problems_of(daemon: &Daemon, item: &str) -> Vec<String> {
    problems(daemon).into_iter().filter(|text| text.starts_with(item)).collect()
}

fn sent(daemon: &Daemon, name: &str) -> u64 {
    let ports: Vec<PortInfo> = daemon.get(path::PORTS);
    ports.into_iter().find(|port| port.name == name).map_or(0, |port| port.tx_packets)
}

fn until_flowing(daemon: &Daemon) {
    let before = sent(daemon, "t");
    daemon.until("packets pass", |daemon| sent(daemon, "t") > before);
}

/// Whether the interface of a container has everything that [`container`] gives it.
fn is_whole(host: &Host) -> bool {
    let has = |words: &str, what: &str| {
        let output = host.output_of_ip(words);
        output.is_some_and(|output| output.contains(what))
    };
    has("-4 address show dev eth0", "10.98.0.")
        && has("-6 address show dev eth0", "fd98::")
        && has("-4 route", "default via 10.98.0.254")
        && has("-6 route", "default via fd98::fe")
}

#[test]
fn what_is_missing_is_a_problem_of_its_own_port_which_opens_when_it_comes() {
    if !hosts::are_possible() {
        return;
    }
    let folder = Arc::new(Folder::new());
    let (late, xdp) = (Host::absent("late"), Host::absent("xdp"));
    let packet = Host::absent("pkt");
    let inside = |name: &str| folder.0.join(name).display().to_string();
    // The names of the interfaces that netvmd is to make are taken.
    let taken = ["tt", "th"].map(|part| format!("nt{}{part}", std::process::id()));
    taken.iter().for_each(|name| drop(run(&format!("ip link add {name} type bridge"))));
    // netvmd makes folders of sockets, but nothing can be in this one yet.
    std::fs::write(folder.0.join("guests"), "").unwrap();
    let text = [
        ENGINE.to_owned(),
        SOURCE_AND_SINK.to_owned(),
        container("c", late.namespace(), 1),
        port("x", "af_xdp", &format!("interface = \"{}\"", xdp.port())),
        port("p", "af_packet", &format!("interface = \"{}\"", packet.port())),
        port("n", "pci", "address = \"ffff:1f:1f.7\""),
        port("v", "vhost-user", &format!("path = \"{}\"", inside("guests/v.sock"))),
        port("q", "vhost-user", &format!("mode = \"client\"\npath = \"{}\"", inside("guests/q.sock"))),
        port("t2", "tap", &format!("interface = \"{}\"", taken[0])),
        port("h", "host", &format!("interface = \"{}\"\naddresses = [\"10.98.1.1/24\"]", taken[1])),
        port("m", "memif", &format!("path = \"{}\"", inside("guests/m.sock"))),
        port("w", "memif", &format!("role = \"client\"\npath = \"{}\"", inside("w.sock"))),
        port("e", "e1000", &format!("path = \"{}\"", inside("guests/e.sock"))),
        port("i", "pcap", &format!("input = \"{}\"", inside("in.pcap"))),
        port("o", "pcap", &format!("output = \"{}\"", inside("out/o.pcap"))),
    ]
    .concat();
    let daemon = Daemon::start_in(Arc::clone(&folder), &text);
    until_flowing(&daemon);
    for (port, remedy) in [
        ("c", "start the container"),
        ("x", "`ip link` lists the interfaces"),
        ("p", "`ip link` lists the interfaces"),
        ("n", "ffff:1f:1f.7"),
        ("v", "guests"),
        ("e", "guests"),
        ("t2", "ip link delete"),
        ("h", "ip link delete"),
        ("m", "guests"),
        ("i", "in.pcap"),
        ("o", "out"),
    ] {
        let found = problems_of(&daemon, &format!("port {port}:"));
        assert!(matches!(&found[..], [one] if one.contains(remedy)), "{port}: {found:?}");
    }
    // A client waits for its guest.
    daemon.until("it says so", |daemon| {
        let says = |port: &str, why: &str| problems_of(daemon, port).iter().any(|text| text.contains(why));
        says("port q:", "no guest has created") && says("port w:", "start the server that creates it")
    });

    late.appear();
    taken.iter().for_each(|name| drop(run(&format!("ip link delete {name}"))));
    [&xdp, &packet].iter().for_each(|host| host.plug_in_new());
    std::fs::remove_file(folder.0.join("guests")).unwrap();
    std::fs::create_dir(folder.0.join("guests")).unwrap();
    std::fs::create_dir(folder.0.join("out")).unwrap();
    let empty = [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0];
    std::fs::write(folder.0.join("in.new"), empty).unwrap();
    std::fs::rename(folder.0.join("in.new"), folder.0.join("in.pcap")).unwrap();
    // What the other side is to make has tests of its own, with guests and programs: `added::guests`, `memif`.
    let stays = ["port n:", "port q:", "port w:"];
    daemon.until("all but the NIC are open", |daemon| {
        let stays = |text: &String| stays.iter().any(|port| text.starts_with(port));
        problems(daemon).iter().all(|text| stays(text) || text.ends_with(": link down"))
    });
    for name in &taken {
        let link = run(&format!("ip -details link show {name}"));
        assert!(link.contains(" tun type tap"), "{link}");
    }
    assert!(is_whole(&late), "{}", daemon.log());
    assert!(Path::new(&inside("guests/v.sock")).exists() && Path::new(&inside("out/o.pcap")).exists());
    until_flowing(&daemon);
}

#[test]
fn an_apply_with_a_missing_interface_does_the_rest_and_warns() {
    let daemon = Daemon::start(&ENGINE);
    let text = format!("{ENGINE}{SOURCE_AND_SINK}{}", port("x", "af_packet", "interface = \"none0\""));
    let reply: ApplyReply = daemon.post(path::APPLY, &text);
    let warns = |code: &str| {
        reply.warnings.iter().any(|warning| warning.code == code && warning.severity == Severity::Warning)
    };
    assert!(warns("config::absent"), "{reply:?}");
    until_flowing(&daemon);
    assert_eq!(problems_of(&daemon, "port x:").len(), 1);
    // It goes without a trace.
    let _: ApplyReply = daemon.post(path::APPLY, &format!("{ENGINE}{SOURCE_AND_SINK}"));
    assert_eq!(problems(&daemon), [""; 0]);
}

#[test]
fn a_container_that_restarts_gets_its_interface_back_after_any_gap() {
    if !hosts::are_possible() {
        return;
    }
    let host = Host::bare("away");
    let text = format!("{ENGINE}{SOURCE_AND_SINK}{}", container("c", host.namespace(), 1));
    let daemon = Daemon::start(&text);
    daemon.until("its interface is there", |_| is_whole(&host));
    for gap in [0, 5, 40, 300, 1300, 2500] {
        host.vanish();
        std::thread::sleep(Duration::from_millis(gap));
        if gap > 1000 {
            assert_eq!(problems_of(&daemon, "port c:").len(), 1, "after {gap} ms");
        }
        host.appear();
        let begin = Instant::now();
        assert!(within(Duration::from_secs(20), || is_whole(&host)), "after {gap} ms: {}", daemon.log());
        println!("gap {gap} ms: back in {} ms", begin.elapsed().as_millis());
        daemon.until("no problem is left", |daemon| problems(daemon).is_empty());
    }
    // The same when only a new apply looks: nothing changes, and the status is that of now.
    host.vanish();
    daemon.until("it is listed", |daemon| problems_of(daemon, "port c:").len() == 1);
    host.appear();
    let _: ApplyReply = daemon.post(path::APPLY, &text);
    daemon.until("it is whole", |_| is_whole(&host));
    daemon.until("no problem is left", |daemon| problems(daemon).is_empty());
    until_flowing(&daemon);
}

#[test]
fn addresses_and_gateways_come_back_with_the_link() {
    if !hosts::are_possible() {
        return;
    }
    let host = Host::bare("flap");
    let daemon = Daemon::start(&format!("{ENGINE}{}", container("c", host.namespace(), 1)));
    daemon.until("its interface is there", |_| is_whole(&host));
    for pause in [0, 200] {
        host.ip("link set eth0 down");
        std::thread::sleep(Duration::from_millis(pause));
        host.ip("link set eth0 up");
        daemon.until("they are back", |_| is_whole(&host));
    }
    // What somebody took away stays away while the link does.
    host.ip("link set eth0 down");
    std::thread::sleep(Duration::from_millis(300));
    assert!(!is_whole(&host));
}

/// Container engines leave such a namespace (`--network none`).
#[test]
fn a_namespace_without_ipv6_gets_it_on_the_interface_that_wants_it() {
    if !hosts::are_possible() {
        return;
    }
    let (both, only_v4) = (Host::bare("six"), Host::bare("four"));
    for host in [&both, &only_v4] {
        for of in ["all", "default"] {
            let set = format!("busybox sysctl -w net.ipv6.conf.{of}.disable_ipv6=1");
            assert!(host.output(&set).status.success());
        }
    }
    let keys = format!("namespace = \"{}\"\naddresses = [\"10.98.0.2/24\"]", only_v4.namespace());
    let text = format!("{ENGINE}{}{}", container("c", both.namespace(), 1), port("d", "container", &keys));
    let daemon = Daemon::start(&text);
    daemon.until("it has all addresses", |_| is_whole(&both));
    assert!(only_v4.ip_output("-4 address show dev eth0").contains("10.98.0.2"));
    assert_eq!(only_v4.ip_output("-6 address show dev eth0"), "", "nobody asked for it");
    assert_eq!(problems(&daemon), [""; 0]);
}

#[test]
fn an_interface_in_the_way_is_a_problem_until_it_is_gone() {
    if !hosts::are_possible() {
        return;
    }
    let host = Host::bare("taken");
    host.ip("link add eth0 type veth peer name other");
    let text = format!("{ENGINE}{SOURCE_AND_SINK}{}", container("c", host.namespace(), 1));
    let daemon = Daemon::start(&text);
    until_flowing(&daemon);
    let found = problems_of(&daemon, "port c:");
    assert!(matches!(&found[..], [one] if one.contains("ip link delete")), "{found:?}");
    assert!(daemon.log().contains("has an interface eth0 already"), "a warning names it: {}", daemon.log());
    host.ip("link delete eth0");
    daemon.until("it is open", |_| is_whole(&host));
    daemon.until("no problem is left", |daemon| problems(daemon).is_empty());
}

#[test]
fn nfs_and_vms_that_cannot_start_do_not_keep_netvmd_from_starting() {
    let folder = Arc::new(Folder::new());
    let link = folder.0.join("nf");
    let own = std::env::current_exe().unwrap();
    let late = program("forward").replace(&own.display().to_string(), &link.display().to_string());
    let vm = "\n[[vm]]\nname = \"g\"\nports = [\"v\"]\nimage = \"/none.img\"\n";
    let guest = port("v", "vhost-user", &format!("path = \"{}\"", folder.0.join("v.sock").display()));
    let text = [
        ENGINE.as_str(),
        &forwarding_chain("a", &late),
        &forwarding_chain("b", &program("forward")),
        &guest,
        vm,
    ]
    .concat();
    let daemon = Daemon::start_in(folder, &text);
    daemon.until_flowing("b");
    let found = problems_of(&daemon, "nf a-nf cannot be started:");
    assert!(matches!(&found[..], [one] if one.contains("nf")), "{found:?}");
    let found = problems_of(&daemon, "vm g cannot be started:");
    assert!(matches!(&found[..], [one] if one.contains("/none.img")), "{found:?}");
    // It does not prevent other changes, either.
    let _: ApplyReply = daemon.post(path::APPLY, &(text + &forwarding_chain("c", &program("forward"))));
    daemon.until_flowing("c");
    std::os::unix::fs::symlink(&own, &link).unwrap();
    daemon.until_flowing("a");
    assert_eq!(problems_of(&daemon, "nf a-nf").len(), 0);
}

#[test]
fn one_network_with_a_router_starts_without_the_interface_of_its_port() {
    if !hosts::are_possible() {
        return;
    }
    let wan = Host::absent("wan");
    let name = format!("r{}", std::process::id());
    let text = format!(
        "{ENGINE}{SOURCE_AND_SINK}\n[[port]]\nname = \"wan\"\nkind = \"af_packet\"\ninterface = \"{}\"\nforward = {{ router = \"{name}\" }}\n\
         \n[[router]]\nname = \"{name}\"\n[[router.interface]]\nname = \"wan\"\nport = \"wan\"\naddresses = [\"10.97.0.1/24\"]\n",
        wan.port()
    );
    let mut daemon = Daemon::start(&text);
    until_flowing(&daemon);
    assert_eq!(problems_of(&daemon, "port wan:").len(), 1);
    wan.plug_in_new();
    wan.ip("address add 10.97.0.2/24 dev eth0");
    daemon.until("it is open", |daemon| problems(daemon).is_empty());
    assert!(wan.pings("10.97.0.1"), "{}", daemon.log());
    daemon.purge();
}

/// The container's namespace of Docker and others, which is another one after each restart: the name is given to it
/// again.
#[test]
fn a_name_that_is_attached_to_another_namespace_takes_the_port_there() {
    if !hosts::are_possible() {
        return;
    }
    let host = Host::absent("att");
    let start = || {
        let process = Process(Command::new("unshare").args(["--net", "sleep", "1000"]).spawn().unwrap());
        let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
        let pid = process.0.id().to_string();
        assert!(within(Duration::from_secs(10), || namespace(&pid) != namespace("self")));
        run(&format!("ip netns attach {} {pid}", host.namespace()));
        process
    };
    let first = start();
    // By its process ID, too, which no other process will have.
    let by_id = port(
        "d",
        "container",
        &format!("namespace = \"{}\"\ninterface = \"eth1\"\naddresses = [\"10.93.0.1/24\"]", first.0.id()),
    );
    let daemon =
        Daemon::start(&format!("{ENGINE}{SOURCE_AND_SINK}{}{by_id}", container("c", host.namespace(), 1)));
    daemon.until("both are there", |_| is_whole(&host) && host.output_of_ip("link show dev eth1").is_some());
    drop(first);
    host.vanish();
    let _second = start();
    daemon.until("it is in the second", |_| is_whole(&host));
    daemon.until("only the process is missing", |daemon| {
        matches!(&problems(daemon)[..], [one] if one.starts_with("port d:") && one.contains("start the container"))
    });
    until_flowing(&daemon);
}

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
