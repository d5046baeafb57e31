// SPDX-License-Identifier: Apache-2.0
//! Guests whose call descriptors cannot be written to: netvm does not wait for them.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::Rig;
use crate::support::crowd::crowd;
use crate::support::hostile_guest::HostileGuest;
use crate::support::hostile_rig::{
    HOSTILE, TIMEOUT, VERSION_1, fault, fault_notices, goes_on, is_up, rig, socket, view,
};
use crate::support::wakes::{Until, Woken, wakes};
use netvm_engine::Engine;
use netvm_model::VhostDma;
use netvm_notify::new_eventfd;
use netvm_vhost_user::request::SET_VRING_CALL;
use rustix::event::{EventfdFlags, eventfd};

/// An eventfd whose count has no room, in blocking mode.
fn full_eventfd() -> OwnedFd {
    let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    fd
}

/// Other descriptors without room, and their other ends.
fn full_pipe() -> (OwnedFd, OwnedFd) {
    let (end, fd) = rustix::pipe::pipe().unwrap();
    fill(fd.try_clone().unwrap().into());
    (fd, end)
}

fn full_socket() -> (OwnedFd, OwnedFd) {
    let (end, socket) = UnixStream::pair().unwrap();
    fill(OwnedFd::from(socket.try_clone().unwrap()).into());
    (socket.into(), end.into())
}

fn fill(mut file: std::fs::File) {
    rustix::io::ioctl_fionbio(&file, true).unwrap();
    while file.write(&[0; 1]).is_ok() {}
    rustix::io::ioctl_fionbio(&file, false).unwrap();
}

/// The longest time without a packet at the sink, until shortly after `done`.
fn longest_silence(rig: &mut Rig, mut done: impl FnMut(&Engine) -> bool) -> Duration {
    let (mut sent, mut since, mut longest) = (rig.sent(1), Instant::now(), Duration::ZERO);
    let mut end = None;
    let over = rig.until(TIMEOUT, |engine| {
        let now = view(engine, 1).tx_packets;
        if now != sent {
            (sent, since) = (now, Instant::now());
        }
        longest = longest.max(since.elapsed());
        if end.is_none() && done(engine) {
            end = Some(Instant::now());
        }
        end.is_some_and(|end| end.elapsed() > Duration::from_millis(500))
    });
    assert!(over, "silent for {longest:?}: {}", rig.describe());
    longest
}

/// A hostile guest that has such a descriptor as the call of a ring.
fn connect(path: &Path, ring: u64, fd: &OwnedFd) -> HostileGuest {
    let hostile = HostileGuest::connect(path, VERSION_1);
    hostile.send(SET_VRING_CALL, &[ring], Some(fd.as_fd()));
    hostile.offer(ring, 1);
    hostile
}

/// What a full eventfd of a ring does to netvm and to other guests.
fn full_count(name: &str, dma: VhostDma, ring: u64) {
    let path = socket(name);
    let Some(mut rig) = rig(&path, dma) else { return };
    let fd = full_eventfd();
    let hostile = connect(&path, ring, &fd);
    hostile.wait_until_handled();
    for turn in 1..=9 {
        assert!(rig.until(TIMEOUT, |_| hostile.used(ring) == 256 * turn), "{}", rig.describe());
        hostile.offer(ring, turn + 1);
        assert!(goes_on(&mut rig));
    }
    assert!(
        is_up(&rig.engine, HOSTILE) && fault(&rig.engine).is_none() && fault_notices(&rig) == 0,
        "{}",
        rig.describe()
    );
    // It was notified.
    let mut count = [0; 8];
    rustix::io::read(&fd, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), u64::MAX);
}

#[test]
fn nobody_waits_for_a_full_eventfd_when_packets_are_sent() {
    full_count("call-sent", VhostDma::Off, 0);
}

#[test]
fn nor_when_packets_are_taken() {
    full_count("call-taken", VhostDma::Off, 1);
}

#[test]
fn nor_when_a_dma_engine_has_copied() {
    full_count("call-dma", VhostDma::Device("dma_skeleton4".to_owned()), 0);
}

#[test]
fn a_guest_is_told_seldom_by_what_thousands_wait_for() {
    let path = socket("call-crowd");
    let mut rig = rig(&path, VhostDma::Off).unwrap();
    let fd = new_eventfd().unwrap();
    let hostile = connect(&path, 0, &fd);
    let mut turn = 1u16;
    let mut take = || {
        let offered = turn.wrapping_mul(256);
        if hostile.used(0) == offered {
            turn = turn.wrapping_add(1);
            hostile.offer(0, turn % 256);
        }
    };
    assert!(
        wakes(&mut rig, Woken { eventfd: &fd, port: 1 }, Until { time: TIMEOUT, wakes: 100 }, &mut take)
            >= 100,
        "{}",
        rig.describe()
    );
    let (crowd, cost) = crowd(fd.as_fd(), Duration::from_millis(8));
    let time = Duration::from_secs(3);
    let calls = wakes(&mut rig, Woken { eventfd: &fd, port: 1 }, Until { time, wakes: u64::MAX }, &mut take);
    assert!(calls > 0 && cost * (calls as u32) < time / 20, "{calls} calls of {cost:?}");
    drop(crowd);
    assert!(
        wakes(
            &mut rig,
            Woken { eventfd: &fd, port: 1 },
            Until { time: Duration::from_secs(60), wakes: 100 },
            &mut take
        ) >= 100,
        "{}",
        rig.describe()
    );
}

/// A guest whose call descriptor is no eventfd.
fn no_eventfd(name: &str, (fd, _end): &(OwnedFd, OwnedFd)) {
    for ring in [0, 1] {
        let path = socket(name);
        let mut rig = rig(&path, VhostDma::Off).unwrap();
        let mut hostile = connect(&path, ring, fd);
        let silence = longest_silence(&mut rig, |_| hostile.is_alone());
        assert!(silence < Duration::from_secs(1), "{silence:?}");
        let says = |engine: &Engine| fault(engine).is_some_and(|fault| fault.contains("not an eventfd"));
        assert!(rig.until(TIMEOUT, |engine| !is_up(engine, HOSTILE) && says(engine)), "{}", rig.describe());
        // It connects again once it has a real eventfd.
        let _rogue = connect(&path, ring, &new_eventfd().unwrap());
        assert!(rig.until(TIMEOUT, |engine| is_up(engine, HOSTILE)), "{}", rig.describe());
        assert_eq!(fault(&rig.engine), None);
    }
}

#[test]
fn a_guest_with_a_pipe_as_call_is_disconnected() {
    no_eventfd("call-pipe", &full_pipe());
}

#[test]
fn so_is_one_that_wants_to_be_told_by_a_socket() {
    no_eventfd("call-socket", &full_socket());
}
