// SPDX-License-Identifier: Apache-2.0
//! NFs in VMs: the same programs, the same chains, the same memory.
//!
//! `NETVM_HOSTILE_SECONDS` says for how long a hostile guest runs (5 by default).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::pcap::Scratch;
use crate::support::vm::Image;
use crate::support::{
    Rig, all_is_free, chain, group, line, nf, nothing_is_out, port, rule, source, two_lines,
};
use netvm_capture::CaptureReader;
use netvm_engine::{Engine, Notice, NotifyMode, ReadyMessage};
use netvm_model::{EngineConfig, Host, Idle, OnFailure, PortConfig, PortKind, SourceConfig};
use netvm_region::NfCounter;

const TIMEOUT: Duration = Duration::from_secs(60);
const FORWARD: &str = "netvm-simple-forward";
const PROBE: &str = "examples/netvm-probe";

type Frames = Vec<(u64, u32, Vec<u8>)>;

/// Everything in a capture; `None` for one that is not of Ethernet, or broken from the start.
fn frames(path: &Path) -> Option<Frames> {
    let mut reader = CaptureReader::open(path).ok()?;
    let mut frames = Vec::new();
    while let Ok(Some(frame)) = reader.next_frame() {
        frames.push((frame.timestamp.0, frame.orig_len, frame.data.to_vec()));
    }
    Some(frames)
}

/// The generated captures that can be read.
fn captures(folder: &Path) -> Vec<(PathBuf, Frames)> {
    let paths = netvm_workload::captures::write(folder).unwrap();
    paths.into_iter().filter_map(|path| frames(&path).map(|frames| (path, frames))).collect()
}

fn capture_port(input: &Path, output: &Path) -> PortConfig {
    let kind =
        PortKind::Pcap { input: Some(input.to_owned()), output: Some(output.to_owned()), paced: false };
    port(0, "capture", kind)
}

/// Process, VM, process: every capture leaves unchanged.
#[test]
fn every_capture_passes_a_vm_between_two_processes() {
    let Some(image) = Image::of(FORWARD, &[]) else { return };
    let space = std::env::temp_dir().join(format!("netvm-vm-captures-{}", std::process::id()));
    let captures = captures(&space.join("in"));
    let longest = captures.iter().flat_map(|(_, frames)| frames).map(|frame| frame.2.len()).max().unwrap();
    let buffer_size = (longest + 320).next_multiple_of(64).max(2048) as u32;
    let idle = Host {
        groups: vec![group(0, 2048, buffer_size)],
        nfs: vec![nf(0, "a", 0), nf(1, "b", 0), nf(2, "c", 0)],
        chains: vec![chain(0, &[0, 1, 2], OnFailure::Drop, 0)],
        ..Host::default()
    };
    let mut rig = Rig::new(&EngineConfig::default());
    // A chain leads to a port: one that gives and takes nothing, while there is no capture.
    let quiet = PortConfig { kind: PortKind::Sink, ..port(0, "capture", PortKind::Sink) };
    rig.engine.apply(&Host { ports: vec![quiet.clone()], ..idle.clone() }).unwrap();
    rig.attach("a", "forward", false);
    let vm = rig.attach_vm("b", &image, false);
    rig.attach("c", "forward", false);
    for (path, expected) in &captures {
        // Before the first packet, every NF is to know where the next one is.
        rig.until(Duration::from_millis(50), |_| false);
        let output = space.join(path.file_name().unwrap());
        let before = rig.engine.chains()[0].left;
        let host = Host { ports: vec![capture_port(path, &output)], rules: vec![rule(0, 0)], ..idle.clone() };
        rig.engine.apply(&host).unwrap();
        let all = |engine: &Engine| engine.chains()[0].left == before + expected.len() as u64;
        let done = rig.until(TIMEOUT, all);
        assert!(done, "{}: {}\n{}", path.display(), rig.describe(), vm.console());
        // Closing the port completes the capture.
        rig.engine.apply(&Host { ports: vec![quiet.clone()], ..idle.clone() }).unwrap();
        let same = || frames(&output).is_some_and(|frames| frames == *expected);
        assert!(rig.until(TIMEOUT, |_| same()), "{}: not byte for byte, in order", path.display());
    }
    let sent = captures.iter().map(|(_, frames)| frames.len() as u64).sum::<u64>();
    assert!(rig.until_received(vm.id, sent), "{}", rig.describe());
    std::fs::remove_dir_all(&space).unwrap();
}

/// Two chains in two groups: `a`, then the VM `b`; and `c` for itself.
fn two_chains() -> Host {
    let mut host = two_lines([&["a", "b"], &["c"]], [source(60, None, false), source(60, None, true)]);
    host.chains[0].on_failure = OnFailure::Standby;
    host
}

#[test]
fn a_vm_that_is_killed_loses_no_buffer_and_a_standby_takes_over() {
    let Some(image) = Image::of(FORWARD, &[]) else { return };
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&two_chains()).unwrap();
    rig.attach("a", "forward", false);
    rig.attach("c", "forward", false);
    let vm = rig.attach_vm("b", &image, false);
    let standby = rig.attach("b", "forward", true);
    let passed = rig.engine.chains()[0].left;
    assert!(rig.until(TIMEOUT, |engine| engine.chains()[0].left > passed + 10_000), "{}", rig.describe());
    let (id, others) = (vm.id, rig.engine.chains()[1].left);
    rig.kill_vm(vm);
    assert!(rig.until(TIMEOUT, |engine| !engine.is_settling()), "{}", rig.describe());
    let first_sweep = rig.notices.iter().find_map(|notice| match notice {
        Notice::Reclaimed { instance, first_sweep, .. } if *instance == id => Some(*first_sweep),
        _ => None,
    });
    assert!(first_sweep.is_some_and(|time| time < Duration::from_millis(500)), "{:?}", rig.notices);
    let took_over =
        |notice: &Notice| matches!(notice, Notice::StandbyTookOver { instance, .. } if *instance == standby);
    assert!(rig.notices.iter().any(took_over), "{:?}", rig.notices);
    let passed = rig.engine.chains()[0].left;
    assert!(rig.until(TIMEOUT, |engine| engine.chains()[0].left > passed + 1000), "{}", rig.describe());
    assert!(rig.engine.chains()[1].left > others, "the other chain stood still: {}", rig.describe());
    // The process goes, a VM comes in its place.
    rig.kill(standby);
    let vm = rig.attach_vm("b", &image, false);
    let passed = rig.engine.chains()[0].left;
    assert!(
        rig.until(TIMEOUT, |engine| engine.chains()[0].left > passed + 1000),
        "{}\n{}",
        rig.describe(),
        vm.console()
    );
    rig.engine.apply(&Host { rules: Vec::new(), ..two_chains() }).unwrap();
    assert!(rig.until(TIMEOUT, nothing_is_out), "{}", rig.describe());
    assert!(rig.until(TIMEOUT, all_is_free), "{}", rig.describe());
}

#[test]
fn a_vm_sees_the_packets_of_its_own_group_only() {
    const MARKER: &str = "a-packet-of-group-zero";
    let Some(image) = Image::of(PROBE, &["search", MARKER]) else { return };
    let space = Scratch::new();
    let mut frame = vec![2; 14];
    frame.extend(MARKER.as_bytes());
    frame.resize(200, 0);
    let mut host = two_chains();
    host.chains[0].on_failure = OnFailure::Bypass;
    host.ports[0] = space.port(0, &vec![frame; 500]);
    // A role for the probe in each group; no chain has it.
    host.nfs.extend([nf(3, "own", 0), nf(4, "other", 1)]);
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine
        .apply(&Host { rules: Vec::new(), ports: Vec::new(), chains: Vec::new(), ..host.clone() })
        .unwrap();
    rig.attach("a", "forward", false);
    rig.attach("c", "forward", false);
    rig.engine.apply(&host).unwrap();
    assert!(rig.until(TIMEOUT, |engine| engine.chains()[0].left == 500), "{}", rig.describe());
    for (role, sees) in [("other", false), ("own", true)] {
        let mut vm = rig.start_vm(role, &image, false);
        // The console is a file: what was written is there when QEMU has ended.
        assert!(rig.until(2 * TIMEOUT, |_| vm.child.try_wait().unwrap().is_some()), "{}", vm.console());
        let console = vm.console();
        let found = console
            .lines()
            .find_map(|line| line.trim().strip_prefix("probe: found ")?.split(' ').next()?.parse().ok());
        let found: u32 = found.unwrap_or_else(|| panic!("{console}"));
        assert_eq!(found > 0, sees, "{role}: {console}");
        rig.engine.departed(vm.id);
    }
}

#[test]
fn a_hostile_guest_stops_nobody_else() {
    let Some(image) = Image::of(PROBE, &["scribble", "88172645463325252"]) else { return };
    let seconds = std::env::var("NETVM_HOSTILE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(5);
    let mut host = two_chains();
    host.chains[0] = chain(0, &[1], OnFailure::Drop, 1);
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host).unwrap();
    rig.attach("c", "forward", false);
    let vm = rig.attach_vm("b", &image, false);
    let (start, mut last) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(seconds) {
        assert!(!rig.until(Duration::from_millis(200), |_| false));
        // With patience: on a machine with much else to do a worker may have to wait for its core.
        let moves = rig.until(TIMEOUT, |engine| engine.chains()[1].left > last);
        assert!(moves, "the honest chain stands still: {}", rig.describe());
        last = rig.engine.chains()[1].left;
    }
    rig.kill_vm(vm);
    assert!(rig.until(TIMEOUT, |engine| !engine.is_settling()), "{}", rig.describe());
    let chain = &rig.engine.chains()[0];
    assert!(chain.left <= chain.entered, "{} packets left, {} were handed out", chain.left, chain.entered);
    rig.engine.apply(&Host { rules: Vec::new(), ..host }).unwrap();
    assert!(rig.until(TIMEOUT, nothing_is_out), "{}", rig.describe());
    assert!(rig.until(TIMEOUT, all_is_free), "{}", rig.describe());
    let honest = &rig.engine.chains()[1];
    assert!(honest.drops.is_empty() && honest.left == honest.entered, "{}", rig.describe());
}

#[test]
fn a_vm_with_one_possible_processor_is_told_what_to_change() {
    let Some(mut image) = Image::of(FORWARD, &[]) else { return };
    image.processors = "1,maxcpus=1";
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&line(&["a"], Some(1), true)).unwrap();
    let mut vm = rig.start_vm("a", &image, false);
    let ReadyMessage::Failed { reason } = rig.ready_message(&mut vm) else { panic!("it attached") };
    assert!(reason.contains("maxcpus=2"), "{reason}");
    rig.kill_vm(vm);
    assert!(rig.until(TIMEOUT, |engine| !engine.is_settling()), "{}", rig.describe());
}

#[test]
fn a_vm_has_threads_and_regions_as_a_process_does() {
    const COUNT: u64 = 50_000;
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("SKIP: two workers want two cores");
        return;
    }
    let Some(mut image) = Image::of(FORWARD, &[]) else { return };
    (image.threads, image.processors, image.notify) = (2, "2", NotifyMode::Doorbell);
    // As on a machine with two NUMA nodes: the group has a region on each.
    let config = EngineConfig { cores: vec![0, 1], nodes: vec![vec![0], vec![1]], ..EngineConfig::default() };
    let mut host = line(&["a", "b"], Some(COUNT), true);
    host.engine = config.clone();
    let mut rig = Rig::new(&config);
    rig.engine
        .apply(&Host { rules: Vec::new(), ports: vec![host.ports[1].clone()], ..host.clone() })
        .unwrap();
    let vm = rig.attach_vm("a", &image, false);
    rig.attach("b", "forward", false);
    rig.engine.apply(&host).unwrap();
    assert!(
        rig.until(TIMEOUT, |engine| engine.chains()[0].left == COUNT),
        "{}\n{}",
        rig.describe(),
        vm.console()
    );
    assert!(rig.until_received(vm.id, COUNT), "{}", rig.describe());
    let view = rig.engine.instances().into_iter().find(|view| view.id == vm.id).unwrap();
    assert_eq!(view.threads.len(), 2);
}

/// A guest that restarts or panics ends its VM; the engine then takes its buffers back as after a kill.
#[test]
fn a_guest_that_restarts_or_panics_is_one_that_is_gone() {
    for how in ["reboot -f", "echo c >/proc/sysrq-trigger"] {
        let script = format!("nf & read enter; {how}");
        let Some(image) = Image::with("/bin/busybox", &["sh", "-c", &script], Some(FORWARD)) else { return };
        let mut rig = Rig::new(&EngineConfig::default());
        let host = line(&["a"], None, false);
        rig.engine.apply(&host).unwrap();
        let mut vm = rig.attach_vm("a", &image, false);
        assert!(
            rig.until(TIMEOUT, |engine| engine.chains()[0].left > 1000),
            "{}\n{}",
            rig.describe(),
            vm.console()
        );
        vm.press_enter();
        let ended = rig.until(TIMEOUT, |_| vm.child.try_wait().unwrap().is_some());
        assert!(ended, "{how}: QEMU goes on\n{}", vm.console());
        rig.engine.departed(vm.id);
        assert!(rig.until(TIMEOUT, |engine| !engine.is_settling()), "{}", rig.describe());
        rig.engine.apply(&Host { rules: Vec::new(), ..host }).unwrap();
        assert!(rig.until(TIMEOUT, all_is_free), "{how}: {}", rig.describe());
    }
}

/// A VM that polls would sleep for at most 1 ms while it waits, and make the worker and a process behind it sleep too:
/// with a doorbell all of them sleep until there is something.
#[test]
fn a_doorbell_wakes_workers_processes_and_the_vm() {
    const COUNT: u64 = 60;
    let Some(mut image) = Image::of(FORWARD, &[]) else { return };
    image.notify = NotifyMode::Doorbell;
    let mut rig = Rig::new(&EngineConfig { idle: Idle::Adaptive, ..EngineConfig::default() });
    let mut host = line(&["a", "b"], None, true);
    let slow = SourceConfig { rate: Some(20), lossless: true, count: Some(COUNT), ..SourceConfig::default() };
    host.ports[0] = port(0, "in", PortKind::Source(slow));
    rig.engine
        .apply(&Host { ports: vec![host.ports[1].clone()], rules: Vec::new(), ..host.clone() })
        .unwrap();
    let vm = rig.attach_vm("a", &image, false);
    let process = rig.attach("b", "forward", false);
    // How often the worker, the VM and the process have slept.
    let sleeps = |rig: &Rig| {
        let views = rig.engine.instances();
        let of = |id| views.iter().find(|view| view.id == id).unwrap().threads[0].standard;
        let worker = rig.engine.workers().map(|worker| worker.counters.sleeps.get()).sum::<u64>();
        [worker, of(vm.id)[NfCounter::Sleeps as usize], of(process)[NfCounter::Sleeps as usize]]
    };
    let since = |before: [u64; 3], now: [u64; 3]| [0, 1, 2].map(|n| now[n] - before[n]);
    rig.until(Duration::from_millis(200), |_| false);
    let before = sleeps(&rig);
    rig.until(Duration::from_secs(1), |_| false);
    let idle = since(before, sleeps(&rig));
    assert!(idle.iter().all(|count| *count < 300), "sleeps of all that are idle for a second: {idle:?}");
    let before = sleeps(&rig);
    rig.engine.apply(&host).unwrap();
    assert!(
        rig.until(TIMEOUT, |engine| engine.chains()[0].left == COUNT),
        "{}\n{}",
        rig.describe(),
        vm.console()
    );
    // Asleep when each packet comes, every 50 ms; left alone, NFs would have slept for 100 ms each time.
    let [_, vm_sleeps, process_sleeps] = since(before, sleeps(&rig));
    assert!(vm_sleeps > COUNT * 3 / 4 && process_sleeps > COUNT * 3 / 4, "{vm_sleeps} {process_sleeps}");
}
