// SPDX-License-Identifier: Apache-2.0
//! What remains after sockets, interfaces and processes end, and where the buffers go.

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Bench, NEAR, Region, frame, isolated, readable, run, until, veth, wait_until_up};
use netvm_xsk::{Attached, Interface, KickError, Mode, OpenError, QueueError, RxFrame, TxFrame, XskOptions};

/// Whether an XDP program is attached to the near end.
fn attached() -> bool {
    let output = Command::new("ip").args(["link", "show", "dev", NEAR]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).contains("prog/xdp")
}

#[test]
fn dropping_the_interface_detaches_the_program() {
    isolated(|| {
        veth(1);
        for mode in [Mode::Native, Mode::Generic] {
            assert!(!attached());
            let interface = Interface::open(NEAR, XskOptions { mode, ..XskOptions::default() }).unwrap();
            assert!(attached());
            drop(interface);
            assert!(!attached());
        }
    });
}

#[test]
fn an_interface_is_promiscuous_only_while_it_is_open() {
    isolated(|| {
        veth(1);
        let promiscuity = || {
            let output = Command::new("ip").args(["-d", "link", "show", "dev", NEAR]).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            text.split_once("promiscuity ").unwrap().1.split(' ').next().unwrap().to_owned()
        };
        let interface =
            Interface::open(NEAR, XskOptions { promiscuous: true, ..XskOptions::default() }).unwrap();
        assert_eq!(promiscuity(), "1");
        drop(interface);
        assert_eq!(promiscuity(), "0");
    });
}

const CHILD: &str = "NETVM_XSK_CHILD";

/// The child process of the next test.
#[test]
#[ignore = "started by a_killed_process_leaves_nothing_behind"]
fn child_holds_the_interface() {
    if std::env::var_os(CHILD).is_none() {
        println!("SKIP: part of another test");
        return;
    }
    let region = Region::new(64, 2048);
    let interface = Interface::open(NEAR, XskOptions::default()).unwrap();
    let mut xsk = interface.queue(0, &region.umem()).unwrap();
    xsk.fill(&[1, 2, 3]);
    println!("ready");
    std::thread::sleep(Duration::from_secs(30));
}

struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_process_leaves_nothing_behind() {
    isolated(|| {
        veth(1);
        let mut child = KillOnDrop(
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "lifecycle::child_holds_the_interface", "--ignored", "--nocapture"])
                .env(CHILD, "1")
                .stdout(Stdio::piped())
                .spawn()
                .unwrap(),
        );
        let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.ends_with("ready")), "the child failed");
        assert!(attached());
        let refused = Interface::open(NEAR, XskOptions::default()).unwrap_err();
        assert!(matches!(refused, OpenError::ProgramAttached { .. }), "{refused}");
        let pid = format!("(pid {})", child.0.id());
        assert!(refused.to_string().contains(&pid), "{refused}");

        child.0.kill().unwrap();
        child.0.wait().unwrap();
        assert!(!attached());
        let mut bench = Bench::on_veth(Region::new(64, 2048), XskOptions::default());
        bench.wire.send(&frame(1, 60));
        assert_eq!(bench.receive(1), [frame(1, 60)]);
        bench.close();
    });
}

#[test]
fn close_returns_the_buffers_of_every_ring() {
    isolated(|| {
        let mut bench = Bench::new(Region::new(64, 2048), XskOptions::default());
        let receive_into = bench.xsk.held();
        // Leaves sent frames uncompleted, received frames unread, and frames unsent.
        for round in 0..2 {
            let burst: Vec<TxFrame> =
                bench.free.drain(..5).map(|buffer| TxFrame { buffer, offset: 0, len: 60 }).collect();
            burst.iter().for_each(|f| bench.region.write(f.buffer, 0, &frame(1, 60)));
            assert_eq!(bench.xsk.tx(&burst), 5);
            if round == 0 {
                bench.xsk.kick().unwrap();
            }
        }
        for n in 0..7 {
            bench.wire.send(&frame(n, 60));
        }
        let mut out = [RxFrame::default(); 2];
        let mut got = 0;
        until(|| {
            got += bench.xsk.rx(&mut out[got..]);
            got == 2
        });
        bench.free.extend(out.map(|f| f.buffer));
        assert_eq!(bench.xsk.held(), receive_into + 10 - 2);
        bench.close();
    });
}

#[test]
fn a_closed_queue_can_be_reopened_at_once() {
    isolated(|| {
        veth(1);
        let region = Region::new(64, 2048);
        let interface = Interface::open(NEAR, XskOptions::default()).unwrap();
        let wire = crate::common::PacketSocket::new(crate::common::FAR);
        for round in 0..15u32 {
            let mut xsk = interface.queue(0, &region.umem()).unwrap();
            assert_eq!(xsk.fill(&[round, round + 1]), 2);
            wire.send(&frame(u64::from(round), 60));
            assert!(readable(&xsk, Duration::from_secs(2)), "round {round}");
            let mut out = [RxFrame::default(); 2];
            assert_eq!(xsk.rx(&mut out), 1);
            assert_eq!(region.read(out[0]), frame(u64::from(round), 60));
            assert_eq!(xsk.close().unwrap(), [round + 1]);
        }
        drop(interface);
        for _ in 0..5 {
            let interface = Interface::open(NEAR, XskOptions::default()).unwrap();
            assert_eq!(interface.mode(), Attached::Native);
            drop(interface.queue(0, &region.umem()).unwrap());
        }
    });
}

#[test]
fn buffers_are_held_until_the_last_copy_of_the_socket_closes() {
    isolated(|| {
        let bench = Bench::new(Region::new(64, 2048), XskOptions::default());
        let held = bench.xsk.held() as usize;
        let copy = bench.xsk.as_fd().try_clone_to_owned().unwrap();
        let start = Instant::now();
        let still = bench.xsk.close().unwrap_err();
        assert!(start.elapsed() >= Duration::from_secs(5));
        assert_eq!(still.count(), held);
        assert!(still.to_string().contains(&format!("queue 0 of {NEAR}")), "{still}");
        let still = still.wait(Duration::from_millis(10)).unwrap_err();
        drop(copy);
        assert_eq!(still.wait(Duration::from_secs(5)).unwrap().len(), held);
    });
}

#[test]
fn a_removed_interface_is_reported_and_returns_all_buffers() {
    isolated(|| {
        let mut bench = Bench::new(Region::new(64, 2048), XskOptions::default());
        run(&format!("ip link del {NEAR}"));
        let buffer = bench.free.pop().unwrap();
        assert_eq!(bench.xsk.tx(&[TxFrame { buffer, offset: 0, len: 60 }]), 1);
        assert!(matches!(bench.xsk.kick(), Err(KickError::Gone)));
        let gone = bench.interface.queue(0, &bench.region.umem()).unwrap_err();
        assert!(matches!(gone, QueueError::Gone { .. }), "{gone}");
        bench.close();
    });
}

#[test]
fn a_downed_interface_sends_its_frames_when_it_is_up() {
    isolated(|| {
        let mut bench = Bench::new(Region::new(64, 2048), XskOptions::default());
        run(&format!("ip link set {NEAR} down"));
        let buffer = bench.free.pop().unwrap();
        bench.region.write(buffer, 0, &frame(3, 60));
        assert_eq!(bench.xsk.tx(&[TxFrame { buffer, offset: 0, len: 60 }]), 1);
        assert!(matches!(bench.xsk.kick(), Err(KickError::Down)));
        assert!(bench.xsk.has_to_send());
        run(&format!("ip link set {NEAR} up"));
        wait_until_up();
        bench.xsk.kick().unwrap();
        assert!(!bench.xsk.has_to_send());
        assert_eq!(bench.wire.receive(Duration::from_secs(1)), Some(frame(3, 60)));
        assert_eq!(bench.complete(), 1);
        bench.wire.send(&frame(4, 60));
        assert_eq!(bench.receive(1), [frame(4, 60)]);
        bench.close();
    });
}
