// SPDX-License-Identifier: Apache-2.0
//! Ordinary guests: real Linux guests on vhost-user ports of a netvmd process.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use crate::common::guest::{Image, Reaper, Shell};
use crate::common::user_program::UserProgram;
use crate::common::{ADAPTIVE, Daemon, EngineText, engine, is_root, program, status_field, waited};
use netlib::{NetworkFunction, Packet, Verdict};
use netvm_api::{ApplyReply, Done, PortInfo, VmInfo, VmManualStart, VmState, path};
use netvm_model::VmAccel;
use rustix::process::{Pid, Signal, kill_process};

/// Drops TCP segments to port 23.
pub struct Firewall;

impl NetworkFunction for Firewall {
    fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
        let bytes = packet.data();
        // An IPv4 header without options after the Ethernet header.
        let is_telnet = bytes.len() > 37
            && bytes[12..14] == [8, 0]
            && bytes[14] == 0x45
            && bytes[23] == 6
            && bytes[36..38] == [0, 23];
        if is_telnet { Verdict::Drop } else { Verdict::Next }
    }
}

static ENGINE: EngineText =
    EngineText(LazyLock::new(|| engine(ADAPTIVE) + "\n[[group]]\nname = \"edge\"\nbuffers = 8192\n"));

/// Limit for guests to be back on the network after a restart of netvmd.
const RECONNECT_LIMIT: Duration = Duration::from_secs(2);

const NORMAL: &str = "forward = { normal = true }";

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), Signal::KILL).unwrap();
}

/// 10 MB that repeat one random megabyte, which is quick to make. Emulated guests take most of a minute for 50 MB.
const MAKE: &str = "(n=10; while [ $n -gt 0 ]; do cat /tmp/random; n=$((n-1)); done)";

/// Both guests make their data at the same time; returns its checksums.
fn prepare(guests: [&mut Shell; 2]) -> [String; 2] {
    let make = "dd if=/dev/urandom of=/tmp/random bs=1000000 count=1 2>/dev/null";
    let mut guests = guests;
    guests.iter_mut().for_each(|guest| {
        guest.must(&format!("({make}; {MAKE} | md5sum >/tmp/sum; mv /tmp/sum /tmp/sent) & true"));
    });
    guests.map(|guest| {
        guest.until("[ -e /tmp/sent ]");
        sum(&guest.must("cat /tmp/sent"))
    })
}

fn sum(text: &str) -> String {
    let is_sum = |word: &&str| word.len() == 32 && word.chars().all(|c| c.is_ascii_hexdigit());
    text.split_whitespace().find(is_sum).unwrap_or_else(|| panic!("no sum: {text}")).to_owned()
}

/// Sends 10 MB from one guest to the other and verifies the checksum.
fn transfer(from: &mut Shell, to: &mut Shell, address: &str, sent: &str) {
    to.must("(nc -l -p 5000 | md5sum >/tmp/got) & true");
    to.until("netstat -ltn | grep -q :5000");
    let start = Instant::now();
    from.must(&format!("{MAKE} | nc {address} 5000"));
    to.until("[ -s /tmp/got ]");
    println!("10 MB to {address} in {:.1} s", start.elapsed().as_secs_f64());
    assert_eq!(sum(&to.must("cat /tmp/got; rm /tmp/got")), sent);
}

fn no_buffer_is_lost(daemon: &Daemon) {
    daemon.until_slowly("every buffer is free or with the engine", |daemon| {
        let stats = daemon.stats();
        stats.groups.iter().flat_map(|group| &group.regions).all(|region| {
            region.in_nfs == 0 && {
                // Without traffic, guests' ports hold no buffers.
                region.free + region.in_engine == region.buffers
            }
        })
    });
}

#[test]
fn guests_talk_through_the_switch_and_through_a_firewall() {
    let Some(image) = Image::make(2) else { return };
    let _reaper = Reaper(Arc::clone(&image.folder));
    let text = format!("{ENGINE}{}{}", image.guest("a", NORMAL, ""), image.guest("b", NORMAL, ""));
    let daemon = Daemon::start_in(Arc::clone(&image.folder), &text);
    let (mut a, mut b) = (daemon.shell("a"), daemon.shell("b"));
    // Guests run wherever KVM does not.
    let on_kvm = netvm_vm::check_kvm("qemu-system-x86_64".as_ref());
    let expected = if on_kvm.is_ok() { VmAccel::KvmOrTcg } else { VmAccel::Tcg };
    assert_eq!(daemon.vm("a").accel, expected, "{on_kvm:?}");
    if is_root() {
        let pid = daemon.vm("a").pid.unwrap();
        assert_eq!(status_field(pid, "Uid"), "65534\t65534\t65534\t65534");
        assert_eq!(
            (status_field(pid, "NoNewPrivs"), status_field(pid, "CapEff")),
            ("1".into(), "0".repeat(16))
        );
        assert_eq!(status_field(pid, "Seccomp"), "2");
    }
    a.address(1);
    b.address(2);
    a.until("ping -c 1 -W 1 10.9.0.2");
    println!("{}", a.must("ping -c 3 10.9.0.2"));
    a.until("ping -c 1 -W 1 fd00:9::2");
    b.must("ping -c 3 fd00:9::1");
    let [from_a, from_b] = prepare([&mut a, &mut b]);
    transfer(&mut a, &mut b, "10.9.0.2", &from_a);
    transfer(&mut b, &mut a, "fd00:9::1", &from_b);

    let chains: String = [("ab", "b"), ("ba", "a")]
        .map(|(name, to)| {
            format!("\n[[chain]]\nname = \"{name}\"\nhops = [\"firewall\"]\noutput = \"{to}\"\n")
        })
        .concat();
    let forward = |chain: &str| format!("forward = {{ chain = \"{chain}\" }}");
    let text = format!(
        "{ENGINE}{}{}\n[[nf]]\nrole = \"firewall\"\n{}\n{chains}",
        image.guest("a", &forward("ab"), ""),
        image.guest("b", &forward("ba"), ""),
        program("firewall"),
    );
    let pids = [daemon.vm("a").pid, daemon.vm("b").pid];
    let _: ApplyReply = daemon.post(path::APPLY, &text);
    assert_eq!([daemon.vm("a").pid, daemon.vm("b").pid], pids, "a policy change does not disturb the guests");
    a.until("ping -c 1 -W 1 10.9.0.2");
    transfer(&mut a, &mut b, "10.9.0.2", &from_a);
    transfer(&mut b, &mut a, "fd00:9::1", &from_b);
    assert!(
        daemon.nf("firewall").threads[0].packets.received > 10_000_000 / 65_536,
        "the traffic passed the firewall"
    );
    b.must("(nc -l -p 23 >/dev/null) & sleep 1");
    assert_ne!(a.run("echo x | nc -w 3 10.9.0.2 23").1, 0, "telnet passed the firewall");
    assert!(daemon.nf("firewall").threads[0].packets.dropped > 0);
    no_buffer_is_lost(&daemon);
    for name in ["a", "b"] {
        let _: Done = daemon.post(&path::VM_STOP.replace("{vm}", name), "{\"force\": true}");
        assert_eq!(daemon.vm(name).state, VmState::Stopped);
    }
}

#[test]
fn netvmd_and_guests_restart_independently() {
    let Some(image) = Image::make(2) else { return };
    let _reaper = Reaper(Arc::clone(&image.folder));
    let text = format!(
        "{ENGINE}{}{}",
        image.guest("a", NORMAL, "cores = [0]"),
        // In a folder that netvmd creates.
        image
            .guest("b", "mode = \"client\"\nforward = { normal = true }", "")
            .replace("/sockets/b", "/sockets-of-b/b")
    );
    let mut daemon = Daemon::start_in(Arc::clone(&image.folder), &text);
    let (mut a, mut b) = (daemon.shell("a"), daemon.shell("b"));
    a.address(1);
    b.address(2);
    a.until("ping -c 1 -W 1 10.9.0.2");
    let pids = [daemon.vm("a").pid, daemon.vm("b").pid];

    // netvmd is killed and started again; then it is stopped in order and started again.
    for signal in [Signal::KILL, Signal::TERM] {
        daemon.signal(signal);
        daemon.wait();
        assert_ne!(a.run("ping -c 1 -W 1 10.9.0.2").1, 0, "netvmd is down");
        // The guest pings all the time and prints when netvmd is back.
        a.type_in(
            "n=0; until ping -c 1 -W 1 10.9.0.2 >/dev/null; do n=$((n+1)); done; echo back-again-$n-tries",
        );
        let guests_waited = || pids.iter().flatten().map(|pid| waited(*pid)).sum::<Duration>();
        let before = guests_waited();
        daemon = Daemon::start_in(Arc::clone(&image.folder), &text);
        let up = Instant::now();
        a.until("true");
        let took = up.elapsed();
        // The time without a CPU does not count.
        let delayed = waited(daemon.child.id()) + guests_waited().saturating_sub(before);
        println!(
            "back on the network {took:.2?} after netvmd serves ({signal:?}); {delayed:.2?} without a CPU"
        );
        assert_eq!([daemon.vm("a").pid, daemon.vm("b").pid], pids, "the guests kept running");
        assert!(daemon.vm("a").adopted && !daemon.vm("a").outdated && daemon.vm("b").adopted);
        if delayed > RECONNECT_LIMIT / 10 && took >= RECONNECT_LIMIT {
            println!("SKIP: time until guests are back: they and netvmd waited {delayed:.2?} for a CPU");
        } else {
            assert!(took < RECONNECT_LIMIT, "{took:?}");
        }
    }

    // QEMU is killed and restarted; the other guest keeps running.
    kill(daemon.vm("b").pid.unwrap());
    daemon.until_slowly("b has restarted", |daemon| daemon.vm("b").restarts == 1);
    assert!(daemon.vm("b").last_exit.unwrap().starts_with("ended"));
    daemon.until_slowly("b runs", |daemon| daemon.vm("b").state == VmState::Running);
    a.must("true");
    kill(daemon.vm("b").pid.unwrap());
    daemon.until_slowly("b has restarted", |daemon| daemon.vm("b").restarts == 2);
    assert_eq!(daemon.vm("b").last_exit.as_deref(), Some("killed by signal 9"));

    let mut b = daemon.shell("b");
    b.address(2);
    a.until("ping -c 1 -W 1 10.9.0.2");

    // The guest resets.
    let pid = daemon.vm("b").pid;
    b.type_in("echo b >/proc/sysrq-trigger");
    daemon.until_slowly("b has reset", |daemon| daemon.vm("b").resets > 0);
    let mut b = {
        drop(b);
        daemon.shell("b")
    };
    assert_eq!(daemon.vm("b").pid, pid, "the process is the same");
    b.address(2);
    a.until("ping -c 1 -W 1 10.9.0.2");

    // The guest panics.
    b.type_in("echo c >/proc/sysrq-trigger");
    daemon.until_slowly("b has restarted", |daemon| daemon.vm("b").restarts == 3);
    assert_eq!(daemon.vm("b").last_exit.as_deref(), Some("the guest panicked"));
    let mut b = {
        drop(b);
        daemon.shell("b")
    };
    a.must("true");
    assert_eq!(daemon.vm("a").pid, pids[0], "a kept running");
    assert_eq!((daemon.vm("a").restarts, daemon.vm("a").resets), (0, 0));
    no_buffer_is_lost(&daemon);

    // The guest shuts itself down and stays down.
    b.type_in("poweroff -f");
    daemon.until_slowly("b is down", |daemon| daemon.vm("b").state == VmState::Stopped);
    assert_eq!(daemon.vm("b").last_exit.as_deref(), Some("the guest shut down"));
    let _: Done = daemon.post(&path::VM_START.replace("{vm}", "b"), "");
    assert_eq!(daemon.vm("b").state, VmState::Running);

    // The configuration loses the VM while its guest ignores the power button.
    let text = format!("{ENGINE}{}", image.guest("a", NORMAL, "cores = [0]"));
    let pid = daemon.vm("b").pid.unwrap();
    let _: ApplyReply = daemon.post(path::APPLY, &text);
    assert!(daemon.vm("b").trouble.unwrap().contains("no longer configured"));
    daemon.until_slowly("b has ended", |_| !std::path::Path::new(&format!("/proc/{pid}")).exists());
    daemon.until("b is forgotten", |daemon| daemon.get::<Vec<VmInfo>>(path::VMS).len() == 1);
    a.must("true");

    // The file loses the other VM while netvmd is down: the next one takes it over to shut it down.
    let pid = daemon.vm("a").pid.unwrap();
    daemon.signal(Signal::TERM);
    daemon.wait();
    let daemon = Daemon::start_in(Arc::clone(&image.folder), &ENGINE);
    daemon.until_slowly("a is asked to shut down", |daemon| daemon.vm("a").state == VmState::Stopping);
    assert_eq!((daemon.vm("a").pid, daemon.vm("a").cpus), (Some(pid), 1));
    assert!(daemon.log().contains("vm a: no longer configured; shutting it down"));
    let _: Done = daemon.post(&path::VM_STOP.replace("{vm}", "a"), "{\"force\": true}");
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "it still runs: {stat}");
    daemon.until("a is forgotten", |daemon| daemon.get::<Vec<VmInfo>>(path::VMS).is_empty());
}

#[test]
fn a_vm_that_cannot_start_is_refused_with_the_reason() {
    let Some(image) = Image::make(1) else { return };
    let _reaper = Reaper(Arc::clone(&image.folder));
    let folder = image.folder.0.clone();
    let good = format!("{ENGINE}{}", image.guest("a", NORMAL, "start = false"));
    let daemon = Daemon::start_in(Arc::clone(&image.folder), &good);
    assert_eq!(daemon.vm("a").state, VmState::Stopped);
    let old = folder.join("old-qemu");
    std::fs::write(&old, "#!/bin/sh\necho QEMU emulator version 4.2.1\n").unwrap();
    let not_qemu = folder.join("not-qemu");
    std::fs::write(&not_qemu, "#!/bin/sh\necho hello\n").unwrap();
    for file in [&old, &not_qemu] {
        std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let secret = folder.join("secret");
    std::fs::write(&secret, "x").unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let kernel = format!("kernel = \"{}/kernel\"", folder.display());
    let mut cases = vec![
        ("start = false", "qemu = \"qemu-of-nobody\"".to_owned(), "install qemu-system-x86"),
        (
            "start = false",
            format!("qemu = \"{}\"", old.display()),
            "is QEMU 4.2.1, but netvm needs 7.2.0 or newer",
        ),
        ("start = false", format!("qemu = \"{}\"", not_qemu.display()), "does not print a version"),
        (kernel.as_str(), "kernel = \"/nonexistent\"".to_owned(), "named by `kernel`"),
        ("memory = 128", "memory = 1048576".to_owned(), "lower its `memory`"),
        ("start = false", "node = 3".to_owned(), "no NUMA node 3"),
        ("start = false", "user = \"no-such-user\"".to_owned(), "no-such-user"),
        ("start = false", "cores = [1000]".to_owned(), "core 1000"),
    ];
    let closed = folder.join("closed");
    std::fs::create_dir(&closed).unwrap();
    if is_root() {
        cases.push((
            "/sockets/a.sock\"",
            "/closed/a.sock\"\nmode = \"client\"".to_owned(),
            "cannot create files in that folder",
        ));
        cases.push((
            kernel.as_str(),
            format!("kernel = \"{}\"", secret.display()),
            "is not readable for QEMU's user (uid 65534)",
        ));
    }
    for (from, to, words) in cases {
        let (status, error) = daemon.post_failing(path::APPLY, good.replace(from, &to));
        let said = error.diagnostics.iter().map(|found| &found.message).chain([&error.message]);
        assert!(said.into_iter().any(|text| text.contains(words)), "{to}: {error:?}");
        assert_eq!(status, 422, "{to}: {error}");
    }

    // An error that only a start shows: the file is not a kernel.
    let spoiled = folder.join("no-kernel");
    std::fs::write(&spoiled, "no kernel at all").unwrap();
    let text =
        good.replace(&kernel, &format!("kernel = \"{}\"", spoiled.display())).replace("start = false", "");
    let (status, error) = daemon.post_failing(path::APPLY, text);
    assert!(
        status == 500 && error.message.contains("vm a did not start: ended before QMP answered"),
        "{error}"
    );
    daemon.until("it is down, as before", |daemon| daemon.vm("a").state == VmState::Stopped);

    // Unknown names.
    for path in [path::VM_START, path::VM_STOP] {
        let (status, error) = daemon.post_failing(&path.replace("{vm}", "zz"), "{}");
        assert!(status == 404 || status == 415, "{error}");
    }
    let manual_start: VmManualStart = daemon.get(&path::VM_MANUAL_START.replace("{vm}", "a"));
    assert!(
        manual_start.shell.contains("memory-backend-memfd") && manual_start.libvirt_xml.contains("vhostuser")
    );
}

#[test]
fn an_externally_started_guest_is_followed_and_taken_over() {
    let Some(image) = Image::make(1) else { return };
    let text = format!("{ENGINE}{}", image.guest("a", NORMAL, "start = \"manual\""));
    let mut daemon = Daemon::start_in(Arc::clone(&image.folder), &text);
    daemon.until("it is awaited", |daemon| daemon.vm("a").state == VmState::Awaited);
    let mut qemu = UserProgram::shell(&daemon, "a");
    daemon.until_slowly("it is running", |daemon| daemon.vm("a").state == VmState::Running);
    assert_eq!((daemon.vm("a").pid, daemon.vm("a").adopted), (Some(qemu.pid()), false));
    daemon.signal(Signal::TERM);
    daemon.wait();
    daemon = Daemon::start_in(Arc::clone(&image.folder), &text);
    daemon.until_slowly("it is taken over", |daemon| daemon.vm("a").adopted);
    assert_eq!(daemon.vm("a").pid, Some(qemu.pid()));
    let linked = |daemon: &Daemon| daemon.get::<Vec<PortInfo>>(path::PORTS)[0].link;
    daemon.until_slowly("its driver is up", linked);
    let _: Done = daemon.post(&path::VM_STOP.replace("{vm}", "a"), "{\"force\": true}");
    assert_eq!(daemon.vm("a").state, VmState::Awaited);
    assert!(qemu.until_ended(&daemon).success());
}

#[test]
fn a_guest_that_does_not_boot_is_reported_with_its_output() {
    let Some(image) = Image::make(1) else { return };
    let _reaper = Reaper(Arc::clone(&image.folder));
    let text = format!("{ENGINE}{}", image.guest("a", NORMAL, "boot_timeout = 1"));
    // Starts only a shell.
    let text = text.replace("panic=-1", "panic=-1 rdinit=/bin/busybox -- sh");
    let daemon = Daemon::start_in(Arc::clone(&image.folder), &text);
    daemon.until_slowly("it is late", |daemon| daemon.vm("a").trouble.is_some());
    let trouble = daemon.vm("a").trouble.unwrap();
    assert!(trouble.contains("no driver came up at its ports within 1 s; "), "{trouble}");
    assert!(daemon.log().contains("see `netvm vm console a`"), "{}", daemon.log());
    let mut shell = daemon.shell("a");
    shell.type_in("exec /init");
    daemon.until_slowly("it has booted, late", |daemon| daemon.vm("a").trouble.is_none());
    drop(shell);
    // A QEMU that is stopped answers nothing: force ends it, also while an ordinary stop waits for its answer.
    let pid = daemon.vm("a").pid.unwrap();
    let stopped = Pid::from_raw(pid.cast_signed()).unwrap();
    kill_process(stopped, Signal::STOP).unwrap();
    let start = Instant::now();
    std::thread::scope(|scope| {
        let patient = scope.spawn(|| {
            let _: Done = daemon.post(&path::VM_STOP.replace("{vm}", "a"), "");
        });
        // By now the ordinary stop waits for QEMU's answer.
        std::thread::sleep(Duration::from_secs(1));
        let _: Done = daemon.post(&path::VM_STOP.replace("{vm}", "a"), "{\"force\": true}");
        patient.join().unwrap();
    });
    assert!(start.elapsed() < Duration::from_secs(25), "{:?}", start.elapsed());
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "QEMU still runs");
    assert_eq!(daemon.vm("a").state, VmState::Stopped);
}
