// SPDX-License-Identifier: Apache-2.0
//! docs/how-to/move-a-guest.md, with its commands: a guest moves from one netvmd to another, each in a network
//! namespace of its own, while it has traffic.

mod libvirt;
mod qemu;
mod traffic;

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use netvm_api::{ConnectionList, PortInfo, path};
use serde_json::Value;

use crate::common::guest::{Image, Shell};
use crate::common::hosts::{self, Host, run, succeeds};
use crate::common::page::blocks;
use crate::common::{ADAPTIVE, Daemon, Folder, engine};
use qemu::{End, Net, Qemu};
pub use traffic::serve;
use traffic::{Connections, Datagrams, send_datagrams};

pub const PAGE: &str = include_str!("../../../../../docs/how-to/move-a-guest.md");

/// Connections at a time, unless a test takes as many as this variable says.
const CONNECTIONS: usize = 20;
const WANTED: &str = "NETVM_TEST_CONNECTIONS";

/// A client and two servers on one wire, which is a bridge of the kernel.
struct Site {
    client: Host,
    wire: String,
    servers: [String; 2],
}

impl Site {
    /// `mark` is in the names of each test.
    fn new(mark: &str) -> Self {
        let client = Host::bare(&format!("{mark}c"));
        let name = |part: &str| format!("nt{}{mark}{part}", std::process::id());
        let site = Self { client, wire: name("w"), servers: [name("a"), name("b")] };
        let wire = &site.wire;
        run(&format!("ip netns add {wire}"));
        run(&format!("ip -n {wire} link add br0 type bridge"));
        run(&format!("ip -n {wire} link set br0 up"));
        site.servers.iter().for_each(|server| drop(run(&format!("ip netns add {server}"))));
        let ends = site.servers.iter().map(|server| (server.as_str(), "up0"));
        for (n, (namespace, interface)) in ends.chain([(site.client.namespace(), "eth0")]).enumerate() {
            run(&format!(
                "ip link add name p{n} netns {wire} type veth peer name {interface} netns {namespace}"
            ));
            run(&format!("ip -n {wire} link set p{n} master br0 up"));
            run(&format!("ip -n {namespace} link set {interface} up"));
        }
        site.client.ip("address add 10.9.0.1/24 dev eth0");
        site
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for namespace in self.servers.iter().chain([&self.wire]) {
            let _ = succeeds(&format!("ip netns delete {namespace}"));
        }
    }
}

/// A server with netvmd, and its port for the guest.
struct Server {
    daemon: Daemon,
    socket: PathBuf,
}

impl Server {
    fn start(namespace: &str, keys: &str) -> Self {
        let folder = Arc::new(Folder::new());
        let socket = folder.0.join("guest.sock");
        // For libvirt's QEMU, too.
        let path = format!("{}\"\nsocket_mode = \"0666", socket.display());
        let page = blocks(PAGE, "toml")[0].replace("/run/netvm/guest.sock", &path);
        let group = "\n[[group]]\nname = \"edge\"\nbuffers = 8192\n";
        let text = format!("{}{group}{page}", engine(&format!("{ADAPTIVE}{keys}")));
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, env!("CARGO_BIN_EXE_netvmd")]);
        let mut daemon = Daemon::launch_as(command, folder, &text);
        daemon.await_log("serves its API on");
        Self { daemon, socket }
    }

    /// Both of a site, which start at the same time.
    fn start_both(site: &Site, keys: &str) -> [Self; 2] {
        std::thread::scope(|scope| {
            let starts = site.servers.each_ref().map(|server| scope.spawn(|| Self::start(server, keys)));
            starts.map(|start| start.join().unwrap())
        })
    }

    fn port(&self) -> PortInfo {
        let ports: Vec<PortInfo> = self.daemon.get(path::PORTS);
        ports.into_iter().find(|port| port.name == "guest").unwrap()
    }

    fn net(&self, card: &'static str) -> Net {
        Net::VhostUser { socket: self.socket.clone(), card }
    }

    /// Gives the guest's connections to another server, as the page says.
    fn hand_over(&self, to: &Self) -> u64 {
        let netvm = Path::new(env!("CARGO_BIN_EXE_netvmd")).with_file_name("netvm").display().to_string();
        let file = self.daemon.folder.0.join("connections").display().to_string();
        let call = |server: &Self| format!("{netvm} --socket {}", server.daemon.api_socket().display());
        let script: String = blocks(PAGE, "sh")[2].lines().filter(|line| !line.starts_with("scp")).fold(
            "set -e\n".to_owned(),
            |script, line| {
                let line = line.replace("/var/tmp/guest.connections", &file);
                let there = line.replace("ssh server-b netvm", &call(to));
                script + &if there == line { line.replacen("netvm", &call(self), 1) } else { there } + "\n"
            },
        );
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{script}{}", String::from_utf8_lossy(&output.stderr));
        let restored = said.lines().find_map(|line| line.strip_prefix("connections restored: "));
        restored.and_then(|number| number.replace(',', "").parse().ok()).unwrap_or_else(|| panic!("{said}"))
    }

    fn connections(&self) -> u64 {
        self.daemon.get::<ConnectionList>(&format!("{}?limit=0", path::CONNECTIONS)).counts.connections
    }
}

/// Starts the guest's servers.
fn prepare(shell: &mut Shell) {
    shell.must("ip link set eth0 up && ip addr add 10.9.0.2/24 dev eth0");
    shell.must(
        "(NFTEST_PROGRAM=moving-guest /guest be_the_program --exact --nocapture >/tmp/log 2>&1) & true",
    );
    shell.until("grep -q serves /tmp/log");
}

/// The guest has booted anew where it arrived: with QEMU 7.2 and its translator, guests crash now and then then, on a
/// TAP device, too.
#[derive(Debug)]
struct Crashed;

/// What a migration did to the traffic.
struct Moved {
    datagrams: Datagrams,
    /// Messages of connections, and bytes of the stream.
    exchanged: [u64; 2],
    qemu: Value,
}

impl Moved {
    fn print(&self, name: &str) {
        let Self { datagrams, exchanged: [messages, bytes], qemu } = self;
        let (down, total) = (&qemu["downtime"], &qemu["total-time"]);
        let Datagrams { sent, lost, twice, pause } = datagrams;
        println!(
            "{name}: pause {} ms, {lost} of {sent} datagrams lost, {twice} twice; {messages} messages, {bytes} bytes; \
             QEMU's downtime {down} ms of {total} ms",
            pause.as_millis()
        );
    }
}

/// A guest that can move.
trait GuestMove {
    /// Moves it, and ends it where it was; returns what QEMU says of it.
    fn moves(&mut self) -> Value;

    /// What the guest says of itself.
    fn says(&self, has_moved: bool) -> String;
}

/// A guest of QEMUs of the test's own, from the first to the second.
struct ByQmp<'a, F> {
    qemus: [&'a mut Qemu; 2],
    /// Called when the guest has traffic.
    before: F,
}

impl<F: FnMut()> GuestMove for ByQmp<'_, F> {
    fn moves(&mut self) -> Value {
        (self.before)();
        let [from, to] = &mut self.qemus;
        let said = from.migrate_to(to);
        from.kill();
        said
    }

    fn says(&self, has_moved: bool) -> String {
        self.qemus[usize::from(has_moved)].shell().run("cat /tmp/log; dmesg | tail -n 30; free").0
    }
}

/// Moves a guest that has traffic in so many connections.
fn move_guest(client: &Host, count: usize, guest: &mut impl GuestMove) -> Result<Moved, Crashed> {
    // An emulated guest echoes some hundred messages a second.
    let interval = Duration::from_millis(100 + 5 * count as u64);
    let connections = Connections::open(client, count, interval);
    let stop = Arc::new(AtomicBool::new(false));
    let datagrams = send_datagrams(client, Arc::clone(&stop));
    let until_round = |rounds: u64, says: &dyn Fn() -> String| {
        if hosts::within(Duration::from_secs(60), || connections.rounds() >= rounds) {
            return Ok(());
        }
        let said = says();
        // The file of the program that `prepare` has started.
        if said.contains("can't open '/tmp/log'") {
            println!("the guest has crashed: {said}");
            return Err(Crashed);
        }
        panic!("{} of {rounds} rounds; the guest says: {said}", connections.rounds());
    };
    until_round(2 * count as u64, &|| guest.says(false))?;
    let qemu = guest.moves();
    until_round(connections.rounds() + 3 * count as u64, &|| guest.says(true))?;
    stop.store(true, Ordering::Relaxed);
    Ok(Moved { datagrams: datagrams.join().unwrap(), exchanged: connections.end(), qemu })
}

fn image() -> Option<Image> {
    if !hosts::are_possible() {
        return None;
    }
    Image::with_program(2, "guest")
}

#[test]
fn a_guest_moves_with_its_connections_and_rules() {
    let Some(image) = image() else { return };
    once_more(|attempt| moves_with_connections_and_rules(&image, attempt));
}

/// Tries a second time after a crash of the guest.
fn once_more(test: impl Fn(u32) -> Result<(), Crashed>) {
    test(0).or_else(|_| test(1)).unwrap();
}

fn moves_with_connections_and_rules(image: &Image, attempt: u32) -> Result<(), Crashed> {
    let site = Site::new("mm");
    let [a, b] = Server::start_both(&site, "connections = { pick_up = false }\n");
    let folder: &Path = &image.folder.0;
    let mut from = Qemu::start(folder, &format!("from{attempt}"), &a.net(""), End::First);
    // It waits while the guest boots.
    let mut to = Qemu::start(folder, &format!("to{attempt}"), &b.net(""), End::Second);
    prepare(&mut from.shell());
    let count = std::env::var(WANTED).map_or(CONNECTIONS, |number| number.parse().unwrap());
    let before = || assert!(a.hand_over(&b) >= count as u64);
    let moved = move_guest(&site.client, count, &mut ByQmp { qemus: [&mut from, &mut to], before })?;
    moved.print("vhost-user");
    assert_eq!(moved.datagrams.twice, 0);
    assert!(moved.datagrams.lost < moved.datagrams.sent / 2 && moved.exchanged[1] > 0);
    // Here it is, and there it is not.
    b.daemon.until("the port is up", |_| b.port().link);
    a.daemon.until("the other port is down", |_| !a.port().link);
    assert!(b.connections() >= count as u64);
    // Rules and guard hold here, too.
    let mut shell = to.shell();
    shell.must("(nc -l -p 23 >/dev/null) & (nc -l -p 24 >/dev/null) & true");
    assert!(hosts::within(Duration::from_secs(20), || {
        site.client.output("busybox nc -w 1 10.9.0.2 24").status.success()
    }));
    assert!(!site.client.output("busybox nc -w 1 10.9.0.2 23").status.success());
    shell.must("ip addr add 10.9.0.3/24 dev eth0");
    shell.must("(ping -c 3 -I 10.9.0.3 10.9.0.1 >/dev/null) & true");
    let spoofed = |daemon: &Daemon| {
        daemon.stats().drops.ports.get("guest").and_then(|drops| drops.get("spoofed")).copied()
    };
    b.daemon.until("the guard drops its packets", |daemon| spoofed(daemon) > Some(0));
    Ok(())
}

/// Moves a guest on a TAP device of the kernel's bridge.
fn move_with_tap(image: &Image, round: u32) -> Result<Moved, Crashed> {
    let site = Site::new("mn");
    for server in &site.servers {
        run(&format!("ip -n {server} link add br0 type bridge"));
        run(&format!("ip -n {server} tuntap add tap0 mode tap"));
        for interface in ["up0", "tap0"] {
            run(&format!("ip -n {server} link set {interface} master br0 up"));
        }
        run(&format!("ip -n {server} link set br0 up"));
    }
    let [a, b] = site.servers.each_ref().map(|server| Net::Tap { namespace: server.clone() });
    let mut from = Qemu::start(&image.folder.0, &format!("tap{round}-from"), &a, End::First);
    prepare(&mut from.shell());
    let mut to = Qemu::start(&image.folder.0, &format!("tap{round}-to"), &b, End::Second);
    move_guest(&site.client, CONNECTIONS, &mut ByQmp { qemus: [&mut from, &mut to], before: || {} })
}

/// Moves a guest from port to port, with its connections.
fn move_between_ports(image: &Image, name: &str, card: &'static str) -> Result<Moved, Crashed> {
    let site = Site::new("mo");
    let [a, b] = Server::start_both(&site, "");
    let mut from = Qemu::start(&image.folder.0, &format!("{name}-from"), &a.net(card), End::First);
    prepare(&mut from.shell());
    let mut to = Qemu::start(&image.folder.0, &format!("{name}-to"), &b.net(card), End::Second);
    let before = || assert!(a.hand_over(&b) > 0);
    move_guest(&site.client, CONNECTIONS, &mut ByQmp { qemus: [&mut from, &mut to], before })
}

/// For `./dev check-release`: the pause beside that of a guest on a TAP device, also of a guest that cannot announce
/// itself.
#[test]
fn a_migration_pauses_like_one_of_a_tap() {
    if std::env::var_os(WANTED).is_none() {
        println!("SKIP: {WANTED} does not ask for more than one migration");
        return;
    }
    let Some(image) = image() else { return };
    for round in 0..2 {
        match std::panic::catch_unwind(AssertUnwindSafe(|| move_with_tap(&image, round))) {
            Ok(Ok(moved)) => moved.print("TAP"),
            Ok(Err(_)) | Err(_) => println!("TAP: the guest has not survived"),
        }
        for (name, kind, card) in
            [("plain", "vhost-user", ""), ("silent", "vhost-user, announced by netvm", ",guest_announce=off")]
        {
            once_more(|attempt| {
                let moved = move_between_ports(&image, &format!("{name}{round}{attempt}"), card)?;
                moved.print(kind);
                assert_eq!(moved.datagrams.twice, 0);
                Ok(())
            });
        }
    }
}
