// SPDX-License-Identifier: Apache-2.0
//! NFs that fill the eventfds which they share with others: only NFs of their own trust group wait for them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::crowd::crowd;
use crate::support::hostile_guest::HostileGuest;
use crate::support::nf::raw::ends;
use crate::support::wakes::{Until, Woken, wakes};
use crate::support::{Rig, chain, line, nf, port, source, two_lines};
use netvm_attach::Hello;
use netvm_engine::{InstanceId, Notice, Violation};
use netvm_model::{EngineConfig, Forward, Host, Idle, OnFailure, PortKind, VhostDma, VhostMode};
use netvm_policy::{Action, Actions, ChainId, Match, PortId, Rule, RuleId, RuleParts};
use netvm_region::LAYOUT_VERSION;
use netvm_ring::Descriptor;
use netvm_wire::EtherType;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

const TIMEOUT: Duration = Duration::from_secs(10);

fn adaptive() -> EngineConfig {
    EngineConfig { idle: Idle::Adaptive, ..EngineConfig::default() }
}

/// Runs something that may block forever, in its own thread.
fn in_time(body: impl FnOnce() + Send + 'static) {
    let (done, is_done) = channel();
    let thread = thread::spawn(move || {
        body();
        let _ = done.send(());
    });
    match is_done.recv_timeout(TIMEOUT * 3) {
        Ok(()) => thread.join().unwrap(),
        Err(RecvTimeoutError::Disconnected) => std::panic::resume_unwind(thread.join().unwrap_err()),
        Err(RecvTimeoutError::Timeout) => panic!("a thread waits for an eventfd"),
    }
}

/// An NF without a process: this process holds its descriptors and memory.
fn admit(rig: &mut Rig, role: &str) -> InstanceId {
    let (role, name) = (role.to_owned(), "by hand".to_owned());
    let hello =
        Hello { layout: LAYOUT_VERSION, role, name, threads: 1, counters: Vec::new(), offloads: false };
    let id = rig.engine.admit(&hello, false).unwrap();
    rig.engine.activate(id);
    id
}

/// The eventfd that wakes the first thread of an NF.
fn eventfd_of(rig: &Rig, id: InstanceId) -> OwnedFd {
    let nf_thread = rig.engine.instances().iter().find(|view| view.id == id).unwrap().threads[0].nf_thread;
    rig.engine.descriptors(id).unwrap().nf_threads[nf_thread.index()].try_clone_to_owned().unwrap()
}

/// The worker that serves all ports of a test, and whose rings the test uses: the last one.
fn worker_of(rig: &Rig) -> u16 {
    rig.engine.workers().count() as u16 - 1
}

/// Applies a configuration with all its ports on that worker.
fn apply(rig: &mut Rig, host: &Host) {
    let worker = worker_of(rig) as u8;
    let mut host = host.clone();
    host.ports.iter_mut().for_each(|port| port.worker = Some(worker));
    rig.engine.apply(&host).unwrap();
}

/// How many packets an NF that this test plays returns, one at a time.
const ROUNDS: usize = 31;

/// Takes `ROUNDS` packets as this NF, and returns them one by one to a worker that sleeps. Returns the time within
/// which a quarter of them left by the port: the rest may have waited for a core.
fn time_to_be_heard(rig: &mut Rig, id: InstanceId, port: u16) -> Duration {
    let (control, worker) = (rig.control_of(id), worker_of(rig));
    // SAFETY: the only other ends of these rings, as nothing else plays this NF.
    let (mut consumer, mut producer) = unsafe { ends(&control, worker) };
    assert!(rig.until(TIMEOUT, |_| consumer.available() as usize == ROUNDS), "{}", rig.describe());
    let mut packets = [Descriptor::default(); ROUNDS];
    assert_eq!(consumer.pop(&mut packets), ROUNDS);
    let mut times = packets.map(|packet| {
        rig.until(Duration::from_millis(5), |_| false);
        let (before, start) = (rig.sent(port), Instant::now());
        assert_eq!(producer.push(&[packet]), 1);
        if producer.needs_wakeup() {
            let eventfd = rig.engine.descriptors(id).unwrap().workers[usize::from(worker)];
            rustix::io::write(eventfd, &1u64.to_ne_bytes()).unwrap();
        }
        while rig.sent(port) == before {
            assert!(start.elapsed() < TIMEOUT, "{}", rig.describe());
            thread::yield_now();
        }
        start.elapsed()
    });
    times.sort_unstable();
    times[ROUNDS / 4]
}

/// Descriptors of this process of the same eventfd as this one.
fn holders(eventfd: &OwnedFd) -> usize {
    let number = |fd: &str| {
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("eventfd-id:")).map(str::to_owned)
    };
    let own = number(&eventfd.as_raw_fd().to_string()).unwrap();
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    all.filter(|fd| number(fd.as_ref().unwrap().file_name().to_str().unwrap()).as_ref() == Some(&own)).count()
}

/// From here on, writing to it blocks until it is read.
fn fill(eventfd: BorrowedFd<'_>) {
    while rustix::io::write(eventfd, &(u64::MAX - 1).to_ne_bytes()).is_err() {
        let _ = rustix::io::read(eventfd, &mut [0; 8]);
    }
    make_blocking(eventfd);
}

/// Two groups with an NF each, `a` and `b`, whose sources have so many packets.
fn two_groups(count: [Option<u64>; 2]) -> Host {
    two_lines([&["a"], &["b"]], count.map(|count| source(60, count, true)))
}

/// Runs a test on an engine with an NF of role `a` that the test plays. Skips it where the kernel does not signal
/// eventfds for this process, because netvm promises nothing there.
fn beside_an_nf(host: Host, body: impl FnOnce(Rig, InstanceId) + Send + 'static) {
    in_time(move || {
        let mut rig = Rig::new(&EngineConfig::default());
        if rig.engine.notices().any(|notice| matches!(notice, Notice::WakesMayWait { .. })) {
            return println!("SKIP: io_setup(2) fails here");
        }
        apply(&mut rig, &host);
        let id = admit(&mut rig, "a");
        body(rig, id);
    });
}

/// Any process that shares the descriptor can do this.
fn make_blocking(fd: BorrowedFd<'_>) {
    fcntl_setfl(fd, fcntl_getfl(fd).unwrap() - OFlags::NONBLOCK).unwrap();
}

/// With a guest's port, `2`, in the first group.
fn with_guest(mut host: Host) -> (Host, PathBuf) {
    static GUESTS: AtomicU32 = AtomicU32::new(0);
    let number = GUESTS.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("netvm-notify-{}-{number}.sock", std::process::id()));
    let kind = PortKind::VhostUser { path: path.clone(), mode: VhostMode::Server, dma: VhostDma::Off };
    let mut guest = port(2, "guest", kind);
    guest.policy.forward = Forward::Normal;
    guest.group = Some(netvm_engine::GroupId(0));
    host.ports.push(guest);
    (host, path)
}

#[test]
fn a_worker_that_slept_does_not_block_on_its_own_eventfd() {
    let mut rig = Rig::new(&adaptive());
    let (host, path) = with_guest(line(&["fw"], Some(1000), true));
    apply(&mut rig, &host);
    let id = rig.attach("fw", "spin=0", false);
    let hostile = HostileGuest::connect(&path, 1 << 32);
    assert!(
        rig.until(TIMEOUT, |engine| engine.ports().iter().any(|port| port.tx_packets == 1000)),
        "{}",
        rig.describe()
    );
    assert!(rig.until(TIMEOUT, |engine| engine.ports().iter().any(|port| port.link == Some(true))));
    for eventfd in rig.engine.descriptors(id).unwrap().workers {
        make_blocking(eventfd);
    }
    rig.until(Duration::from_millis(300), |_| false);
    hostile.offer(1, 1);
    hostile.kick();
    assert!(rig.until(TIMEOUT, |_| hostile.used(1) > 0), "{}", rig.describe());
}

#[test]
fn an_nf_is_woken_ahead_of_packets_but_seldom_for_those_that_go_elsewhere() {
    in_time(|| {
        let mut rig = Rig::new(&adaptive());
        let (mut host, path) = with_guest(line(&["fw"], Some(0), true));
        // Packets of the guest do not match.
        let matches = Match { from: vec![PortId(2)], ether_type: vec![EtherType::ARP], ..Match::default() };
        let actions = Actions { terminal: Some(Action::Chain(ChainId(0))), ..Actions::default() };
        host.rules.push(Rule::from(RuleParts { id: RuleId(1), name: String::new(), matches, actions }));
        apply(&mut rig, &host);
        let id = admit(&mut rig, "fw");
        let eventfd = eventfd_of(&rig, id);
        let control = rig.control_of(id);
        // SAFETY: the only other ends of these rings, as nothing else plays this NF.
        let (mut consumer, _) = unsafe { ends(&control, worker_of(&rig)) };
        let hostile = HostileGuest::connect(&path, 1 << 32);
        assert!(rig.until(TIMEOUT, |engine| engine.ports().iter().any(|port| port.link == Some(true))));
        let mut turn: u16 = 0;
        let mut sent = 0;
        let mut sends = || {
            assert!(consumer.prepare_wait(), "it was handed a packet");
            // The worker falls asleep meanwhile; on a busy machine, later.
            thread::sleep(Duration::from_millis(if sent < 200 { 1 } else { 10 }));
            sent += 1;
            turn = (turn + 1) % 256;
            hostile.offer(1, turn);
            hostile.kick();
            while hostile.used(1) != turn * 256 {
                thread::yield_now();
            }
        };
        let start = Instant::now();
        assert!(
            wakes(
                &mut rig,
                Woken { eventfd: &eventfd, port: 1 },
                Until { time: TIMEOUT, wakes: 11 },
                &mut sends
            ) >= 11,
            "{}",
            rig.describe()
        );
        assert!(start.elapsed() > Duration::from_millis(50), "{:?}", start.elapsed());
    });
}

#[test]
fn a_worker_does_not_wait_for_the_eventfd_of_an_nf() {
    beside_an_nf(two_groups([None; 2]), |mut rig, id| {
        rig.attach("b", "forward", false);
        fill(eventfd_of(&rig, id).as_fd());
        let control = rig.control_of(id);
        // SAFETY: the only other ends of these rings, as nothing else plays this NF.
        let (mut consumer, _) = unsafe { ends(&control, worker_of(&rig)) };
        // It announces that it sleeps, and makes room for packets: these must wake it.
        for _ in 0..3 {
            assert!(rig.until(TIMEOUT, |_| consumer.available() > 100), "{}", rig.describe());
            let _ = consumer.prepare_wait();
            while consumer.pop(&mut [Descriptor::default(); 64]) > 0 {}
            let before = rig.sent(3);
            rig.until(Duration::from_millis(20), |_| false);
            let more = |engine: &netvm_engine::Engine| engine.ports()[3].tx_packets > before + 10_000;
            assert!(rig.until(TIMEOUT, more), "{}", rig.describe());
        }
    });
}

#[test]
fn the_manager_does_not_wait_for_the_eventfd_of_an_nf() {
    let host = two_groups([Some(0); 2]);
    beside_an_nf(host.clone(), move |mut rig, id| {
        for eventfd in rig.engine.descriptors(id).unwrap().nf_threads {
            fill(eventfd);
        }
        // A changed table wakes all threads that sleep.
        let mut other = host.clone();
        other.nfs.push(nf(2, "c", 0));
        other.chains[0] = chain(0, &[0, 2], OnFailure::Drop, 1);
        apply(&mut rig, &other);
        rig.engine.dismiss(id);
        rig.until(Duration::from_millis(100), |_| false);
        rig.engine.departed(id);
        assert!(rig.until(TIMEOUT, |engine| engine.instances().is_empty()), "{}", rig.describe());
        apply(&mut rig, &host);
    });
}

/// Longer than a wake of an honest group takes (`netvm_notify::RateLimit`).
const MIN_WAKE_TIME: Duration = Duration::from_millis(8);

#[test]
fn an_eventfd_that_thousands_wait_for_is_signalled_rarely() {
    let mut rig = Rig::new(&EngineConfig::default());
    apply(&mut rig, &two_groups([None; 2]));
    rig.attach("b", "forward", false);
    let id = admit(&mut rig, "a");
    let eventfd = eventfd_of(&rig, id);
    let control = rig.control_of(id);
    // SAFETY: the only other ends of these rings, as nothing else plays this NF.
    let (mut consumer, mut producer) = unsafe { ends(&control, worker_of(&rig)) };
    // It announces that it sleeps whenever it has taken its packets.
    let mut sleep = || {
        let mut packets = [Descriptor::default(); 64];
        let count = consumer.pop(&mut packets);
        producer.push(&packets[..count]);
        let _ = consumer.prepare_wait();
    };
    assert!(
        wakes(
            &mut rig,
            Woken { eventfd: &eventfd, port: 3 },
            Until { time: TIMEOUT, wakes: 100 },
            &mut sleep
        ) >= 100
    );
    let (crowd, cost) = crowd(eventfd.as_fd(), MIN_WAKE_TIME);
    let time = Duration::from_secs(3);
    let count =
        wakes(&mut rig, Woken { eventfd: &eventfd, port: 3 }, Until { time, wakes: u64::MAX }, &mut sleep);
    println!("{cost:?} each");
    assert!(count > 0 && cost * (count as u32) < time / 20, "{count} wakes of {cost:?}");
    let view = rig.engine.instances().into_iter().find(|view| view.id == id).unwrap();
    assert!(view.threads[0].violations.iter().any(|(violation, _)| *violation == Violation::CostlyWake));
    // As before, some time after they have gone.
    drop(crowd);
    assert!(
        wakes(
            &mut rig,
            Woken { eventfd: &eventfd, port: 3 },
            Until { time: Duration::from_secs(60), wakes: 100 },
            &mut sleep
        ) >= 100
    );
}

#[test]
fn an_nf_does_not_block_on_an_eventfd_that_another_group_has_filled() {
    let busy = EngineConfig { idle: Idle::Poll, ..EngineConfig::default() };
    let mut rig = Rig::new(&busy);
    let mut host = two_groups([Some(0); 2]);
    host.engine = busy;
    apply(&mut rig, &host);
    let (hostile, honest) = (admit(&mut rig, "a"), admit(&mut rig, "b"));
    rig.engine.descriptors(hostile).unwrap().workers.into_iter().for_each(fill);
    let fds = rig.engine.descriptors(honest).unwrap().workers;
    let eventfds: Vec<OwnedFd> =
        fds.into_iter().map(|eventfd| eventfd.try_clone_to_owned().unwrap()).collect();
    in_time(move || {
        for eventfd in eventfds {
            rustix::io::write(eventfd, &1u64.to_ne_bytes()).unwrap();
        }
    });
}

#[test]
fn each_group_wakes_a_worker_that_sleeps() {
    let mut rig = Rig::new(&adaptive());
    apply(&mut rig, &two_groups([Some(ROUNDS as u64); 2]));
    let nfs = [("a", 1), ("b", 3)].map(|(role, out)| (role, admit(&mut rig, role), out));
    for (role, id, out) in nfs {
        let time = time_to_be_heard(&mut rig, id, out);
        // Without a wake-up, a worker sleeps for 20 ms.
        assert!(time < Duration::from_millis(5), "{role}: {time:?}");
    }
}

#[test]
fn eventfds_are_closed_with_their_group() {
    let mut rig = Rig::new(&adaptive());
    let host = two_groups([Some(0), Some(ROUNDS as u64)]);
    apply(&mut rig, &host);
    let (first, second) = (admit(&mut rig, "a"), admit(&mut rig, "b"));
    let eventfd = rig.engine.descriptors(first).unwrap().workers[0].try_clone_to_owned().unwrap();
    assert!(holders(&eventfd) > 1);
    rig.engine.departed(first);
    let mut without = host.clone();
    without.groups.remove(0);
    without.ports.drain(..2);
    without.nfs.remove(0);
    without.chains.remove(0);
    without.rules.remove(0);
    apply(&mut rig, &without);
    assert!(rig.until(TIMEOUT, |_| holders(&eventfd) == 1), "{}", holders(&eventfd));
    let time = time_to_be_heard(&mut rig, second, 3);
    assert!(time < Duration::from_millis(5), "{time:?}");
}
