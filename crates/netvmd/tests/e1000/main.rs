// SPDX-License-Identifier: Apache-2.0
//! A guest with its distribution's kernel and two cards, an e1000 and an e1000e: QEMU is the client of ports of kind
//! `e1000`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;
mod csb;
mod dpdk;
mod firmware;
mod machine;

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::guest::{Image, Reaper, Shell};
use common::hosts::{Host, are_possible};
use common::{ADAPTIVE, Daemon, Folder, engine};
use firmware::Servers;
use machine::{Boot, Guest};
use netvm_api::{PortInfo, path};
use netvm_testing::within;
use rustix::process::Signal;

/// Bytes of a file that goes each way.
const FILE_KIB: u32 = 8 << 10;

fn link(daemon: &Daemon) -> bool {
    let ports: Vec<PortInfo> = daemon.get(path::PORTS);
    ports.into_iter().find(|port| port.name == "guest").unwrap().link
}

/// The sum that `md5sum` prints.
fn sum(output: &str) -> String {
    output.split_whitespace().find(|word| word.len() == 32).unwrap_or_default().to_owned()
}

/// A tagged VLAN of the guest's interface: with tags inserted and stripped by the card, and by the guest.
fn vlan_works(shell: &mut Shell, interface: &str) {
    shell.must(&format!("ip link add link {interface} name {interface}.5 type vlan id 5"));
    shell.must(&format!("ip link set {interface}.5 up; ip addr add 10.5.0.2/24 dev {interface}.5"));
    for (to, offload) in [("off", "on"), ("on", "off")] {
        let features = shell.must(&format!("ethtool -k {interface} | grep vlan-offload"));
        for direction in ["rx", "tx"] {
            assert!(features.contains(&format!("{direction}-vlan-offload: {offload}")), "{features}");
        }
        shell.until("ping -c 1 -W 2 10.5.0.1");
        shell.must("ping -c 3 -s 1400 10.5.0.1");
        shell.must(&format!("ethtool -K {interface} rxvlan {to} txvlan {to}"));
    }
    shell.must(&format!("ip link del {interface}.5"));
}

/// Jumbo frames, each in several of the card's buffers or in one long one.
fn jumbo_frames_pass(shell: &mut Shell, host: &Host) {
    host.ip("link set eth0 mtu 9000");
    shell.must("ip link set eth0 mtu 9000");
    shell.until("ping -c 1 -W 2 10.9.0.1");
    // Unfragmented in both directions.
    shell.must("ping -c 3 -s 8972 10.9.0.1");
    assert!(host.output("busybox ping -c 3 -W 5 -s 8972 10.9.0.2").status.success());
    shell.must("ip link set eth0 mtu 1500");
    shell.until("ping -c 1 -W 2 10.9.0.1");
}

/// A file to the guest and one from it; the card does checksums and segmentation.
fn files_go_both_ways(host: &Host, shell: &mut Shell, folder: &Folder) {
    let there = folder.0.join("file");
    let make = format!("dd if=/dev/urandom of=/tmp/file bs=1024 count={FILE_KIB}");
    shell.must(&make);
    // One may still run from the last time.
    shell.must("killall httpd; httpd -p 80 -h /tmp");
    let fetched = host.output(&format!("busybox wget -q -O {} http://10.9.0.2/file", there.display()));
    assert!(fetched.status.success(), "{fetched:?}");
    let expected = host.output(&format!("busybox md5sum {}", there.display()));
    let expected = sum(&String::from_utf8(expected.stdout).unwrap());
    assert_eq!(sum(&shell.must("md5sum /tmp/file")), expected);
    let server = format!("busybox timeout 300 busybox httpd -f -p 80 -h {}", folder.0.display());
    let mut words = vec!["netns", "exec", host.namespace()];
    words.extend(server.split(' '));
    let mut server = Command::new("ip").args(words).spawn().unwrap();
    shell.until("wget -q -O /tmp/back http://10.9.0.1/file");
    let back = shell.must("md5sum /tmp/back");
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(sum(&back), expected);
}

/// Kills netvmd while the host fetches a file from the guest. Returns the next netvmd, which has taken the card over:
/// the connection goes on.
fn next_netvmd(mut daemon: Daemon, text: &str, host: &Host, shell: &mut Shell) -> Daemon {
    shell.must("dd if=/dev/urandom of=/tmp/long bs=1024 count=32768");
    let expected = sum(&shell.must("md5sum /tmp/long"));
    let mut command = Command::new("ip");
    command.args(["netns", "exec", host.namespace(), "busybox", "wget", "-q", "-O", "-"]);
    let mut fetch = command.arg("http://10.9.0.2/long").stdout(Stdio::piped()).spawn().unwrap();
    let (mut fetched, mut bytes) = (fetch.stdout.take().unwrap(), vec![0; 1 << 20]);
    fetched.read_exact(&mut bytes).unwrap();
    daemon.signal(Signal::KILL);
    let killed = Instant::now();
    daemon.wait();
    let next = Daemon::start_in(Arc::clone(&daemon.folder), text);
    assert!(link(&next), "the next netvmd has the card");
    assert!(within(Duration::from_secs(60), || host.pings("10.9.0.2")), "the guest does not answer");
    println!("the guest answers again after {:.1} s", killed.elapsed().as_secs_f64());
    fetched.read_to_end(&mut bytes).unwrap();
    assert!(fetch.wait().unwrap().success());
    let file = daemon.folder.0.join("long");
    std::fs::write(&file, bytes).unwrap();
    let found = Command::new("busybox").arg("md5sum").arg(&file).output().unwrap();
    assert_eq!(sum(&String::from_utf8(found.stdout).unwrap()), expected);
    next
}

#[test]
fn a_guest_with_its_own_driver_is_on_the_switch() {
    if !are_possible() {
        return;
    }
    let Some(qemu) = netvm_vm::find_vfio_user_client(Path::new(netvm_vm::QEMU)) else {
        println!("SKIP: no QEMU with a vfio-user client (10.1 or later): ./dev setup --guests unpacks one");
        return;
    };
    let Some(image) = Image::with_e1000(dpdk::files()) else { return };
    let ipxe = firmware::find();
    let (host, tagged) = (Host::bare("e"), Host::bare("t"));
    let cards = ["card.sock", "new.sock"].map(|name| image.folder.0.join(name));
    let engine = engine(ADAPTIVE);
    let text = format!(
        r#"
        {engine}

        [[group]]
        name = "jumbo"
        buffer_size = 9344
        buffers = 4096

        [[port]]
        name = "guest"
        kind = "e1000"
        path = "{}"
        doorbells = "posted"
        mtu = 9004
        group = "jumbo"
        vlan = {{ trunk = [5], native = 1 }}
        forward = {{ normal = true }}

        [[port]]
        name = "new"
        kind = "e1000"
        model = "e1000e"
        path = "{}"
        group = "jumbo"
        vlan = {{ trunk = [5], native = 1 }}
        forward = {{ normal = true }}

        [[port]]
        name = "host"
        kind = "container"
        namespace = "{}"
        addresses = ["10.9.0.1/24", "fd00:9::1/64"]
        mtu = 9004
        group = "jumbo"
        vlan = {{ access = 1 }}
        forward = {{ normal = true }}

        [[port]]
        name = "tagged"
        kind = "container"
        namespace = "{}"
        addresses = ["10.5.0.1/24"]
        group = "jumbo"
        vlan = {{ access = 5 }}
        forward = {{ normal = true }}
        "#,
        cards[0].display(),
        cards[1].display(),
        host.namespace(),
        tagged.namespace()
    );
    let mut daemon = Daemon::start(&text);
    assert!(!link(&daemon));
    let mut guest = Guest::start(&qemu, &image.folder.0, &cards, Boot::Kernel);
    let mut shell = guest.shell(&daemon);
    assert!(link(&daemon));
    shell.until("ping -c 1 -W 2 10.9.0.1");
    shell.must("ping -c 3 -s 1400 10.9.0.1");
    shell.until("ping -6 -c 1 -W 2 fd00:9::1");
    assert!(host.pings("10.9.0.2") && host.pings("fd00:9::2"));
    files_go_both_ways(&host, &mut shell, &image.folder);
    vlan_works(&mut shell, "eth0");
    jumbo_frames_pass(&mut shell, &host);

    // netvmd is killed in the middle of a connection.
    daemon = next_netvmd(daemon, &text, &host, &mut shell);

    // The driver is unloaded and loaded again.
    shell.must("rmmod e1000");
    shell.must("insmod /modules/e1000.ko");
    shell.address(2);
    shell.until("ping -c 1 -W 2 10.9.0.1");

    // The machine is reset while it sends.
    shell.must("ping -q -A 10.9.0.1 >/dev/null & (sleep 1; reboot -f) & true");
    // QEMU serves one connection to the console.
    drop(shell);
    // Until it resets: its card's link stays up, and the console says nothing without a reader.
    std::thread::sleep(std::time::Duration::from_secs(3));
    let mut shell = guest.shell(&daemon);
    shell.until("ping -c 1 -W 2 10.9.0.1");

    // QEMU is killed, and another one takes its place, which boots by firmware, from the network.
    drop((shell, guest));
    daemon.until("the guest is gone", |daemon| !link(daemon));
    let servers = ipxe.is_some().then(|| Servers::start(&host, &image.folder.0));
    let boot = ipxe.as_deref().map_or(Boot::Kernel, Boot::Firmware);
    let mut guest = Guest::start(&qemu, &image.folder.0, &cards, boot);
    let mut shell = guest.shell(&daemon);
    drop(servers);
    assert_eq!(shell.must("cat /proc/cmdline").contains("netboot"), ipxe.is_some());
    shell.until("ping -c 1 -W 2 10.9.0.1");
    assert!(host.pings("10.9.0.2"));

    // The same with the other card.
    shell.must("ip link set eth0 down; ip addr flush dev eth0");
    shell.must("[ $(basename $(readlink /sys/class/net/eth1/device/driver)) = e1000e ]");
    shell.must("ip link set eth1 up; ip addr add 10.9.0.2/24 dev eth1");
    shell.until("ping -c 1 -W 2 10.9.0.1");
    shell.must("ping -c 3 -s 1400 10.9.0.1");
    files_go_both_ways(&host, &mut shell, &image.folder);
    shell.must("grep -q eth1-rx-0 /proc/interrupts");
    shell.must("rmmod e1000e; insmod /modules/e1000e.ko");
    shell.must("ip link set eth1 up; ip addr add 10.9.0.2/24 dev eth1");
    shell.until("ping -c 1 -W 2 10.9.0.1");
    vlan_works(&mut shell, "eth1");

    // Another driver for the first one.
    if dpdk::start(&mut shell, "eth0") {
        let answers = host.pings("10.9.0.77");
        let said = dpdk::stop(&mut shell);
        assert!(answers, "{said}");
    }
}

#[test]
fn netvmd_starts_a_guest_with_both_cards_and_says_when_they_are_lost() {
    if !are_possible() {
        return;
    }
    if netvm_vm::find_vfio_user_client(Path::new(netvm_vm::QEMU)).is_none() {
        println!("SKIP: no QEMU with a vfio-user client (10.1 or later): ./dev setup --guests unpacks one");
        return;
    }
    let Some(image) = Image::with_e1000(Vec::new()) else { return };
    let _reaper = Reaper(Arc::clone(&image.folder));
    let host = Host::bare("v");
    let folder = image.folder.0.display();
    let port = |name: &str, model: &str| {
        format!(
            r#"
            [[port]]
            name = "{name}"
            kind = "e1000"
            model = "{model}"
            path = "{folder}/sockets/{name}.sock"
            forward = {{ normal = true }}
            "#
        )
    };
    let engine = engine(ADAPTIVE);
    let text = format!(
        r#"
        {engine}
        {}
        {}
        [[port]]
        name = "host"
        kind = "container"
        namespace = "{}"
        addresses = ["10.9.0.1/24", "fd00:9::1/64"]
        forward = {{ normal = true }}

        [[vm]]
        name = "vm"
        ports = ["old", "new"]
        kernel = "{folder}/kernel"
        initrd = "{folder}/initrd"
        append = "quiet panic=-1"
        memory = 192
        accel = "tcg"
        user = "root"
        "#,
        port("old", "e1000"),
        port("new", "e1000e"),
        host.namespace()
    );
    let mut daemon = Daemon::start_in(Arc::clone(&image.folder), &text);
    let mut shell = daemon.shell("vm");
    shell.address(2);
    shell.until("ping -c 1 -W 2 10.9.0.1");
    shell.must("ip link set eth1 up; ip addr add 10.9.1.2/24 dev eth1");
    shell.must("[ $(basename $(readlink /sys/class/net/eth1/device/driver)) = e1000e ]");
    daemon.until_slowly("the guest has booted", |daemon| daemon.vm("vm").trouble.is_none());
    let pid = daemon.vm("vm").pid;

    // The next netvmd takes the cards over with the guest, whether this one is killed or ends in order.
    for signal in [Signal::KILL, Signal::TERM] {
        daemon.signal(signal);
        daemon.wait();
        daemon = Daemon::start_in(Arc::clone(&image.folder), &text);
        daemon.until_slowly("the guest is taken over", |daemon| daemon.vm("vm").adopted);
        assert_eq!((daemon.vm("vm").pid, daemon.vm("vm").trouble), (pid, None));
        shell.until("ping -c 1 -W 2 10.9.0.1");
    }

    // QEMU does not connect to a new netvmd, which says so if nothing has kept the cards. One time in ten QEMU 11.1
    // aborts when its vfio-user server dies (its thread `IO vfio-user` gets SIGABRT). netvmd then starts the VM again.
    drop(shell);
    daemon.kill_store();
    daemon.signal(Signal::KILL);
    daemon.wait();
    daemon = Daemon::start_in(Arc::clone(&image.folder), &text);
    daemon.until_slowly("the guest is taken over, or started again", |daemon| {
        let vm = daemon.vm("vm");
        vm.pid.is_some() && vm.adopted == vm.trouble.is_some()
    });
    if !daemon.vm("vm").adopted {
        assert_ne!(daemon.vm("vm").pid, pid);
        daemon.shell("vm").address(2);
        return;
    }
    assert_eq!(daemon.vm("vm").pid, pid);
    let trouble = daemon.vm("vm").trouble.unwrap_or_default();
    assert!(
        trouble.contains("card at port old is lost") && trouble.contains("netvm vm stop vm"),
        "{trouble}"
    );
}
