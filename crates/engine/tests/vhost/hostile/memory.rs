// SPDX-License-Identifier: Apache-2.0
//! Guests that share memory whose access blocks, and descriptors that netvm did not ask for: neither packets nor other
//! guests wait, and netvm closes every descriptor.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::support::fuse::UnservedFile;
use crate::support::hostile_guest::{BUFFERS, ENTRIES, HostileGuest, MEMORY};
use crate::support::hostile_rig::{
    HOSTILE, OTHER, TIMEOUT, VERSION_1, fault, goes_on, is_up, rig, rig_of, socket,
};
use netvm_model::VhostDma;
use netvm_vhost_user::request::{
    SET_BACKEND_REQ_FD, SET_FEATURES, SET_LOG_BASE, SET_PROTOCOL_FEATURES, SET_VRING_CALL, SET_VRING_ERR,
    SET_VRING_KICK,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The tests count the descriptors of the whole process, so one runs at a time.
static ONE_TEST: Mutex<()> = Mutex::new(());

/// A guest that shares a file of a FUSE server that does not answer delays only itself.
fn unserved(name: &str, says: impl Fn(&HostileGuest, BorrowedFd<'_>), why: &str) {
    let _alone = ONE_TEST.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(unserved_file) = UnservedFile::open(MEMORY as u64) else { return };
    let paths = [socket(name), socket(&format!("{name}-other"))];
    let mut rig = rig_of(vec![(&paths[0], VhostDma::Off), (&paths[1], VhostDma::Off)]).unwrap();
    let mut hostile = HostileGuest::connect(&paths[0], VERSION_1);
    assert!(rig.until(TIMEOUT, |engine| is_up(engine, HOSTILE)), "{}", rig.describe());
    hostile.offer(0, 1);
    says(&hostile, unserved_file.file.as_fd());
    let says_why = rig.until(TIMEOUT, |engine| fault(engine).is_some_and(|fault| fault.contains(why)));
    assert!(says_why, "{}", rig.describe());
    assert!(hostile.is_disconnected());
    assert!(goes_on(&mut rig), "{}", rig.describe());
    // The thread that closes the file waits for its server; no other thread waits for that one.
    let _again = HostileGuest::connect(&paths[0], VERSION_1);
    let _guest = HostileGuest::connect(&paths[1], VERSION_1);
    let both_up = |engine: &_| is_up(engine, HOSTILE) && is_up(engine, OTHER);
    assert!(rig.until(TIMEOUT, both_up), "{}", rig.describe());
}

#[test]
fn memory_that_a_process_serves_is_refused() {
    unserved("served-memory", HostileGuest::replace_by, "memory-backend-memfd");
}

#[test]
fn so_is_an_eventfd_that_is_such_a_file() {
    unserved("served-kick", |hostile, file| hostile.send(SET_VRING_KICK, &[0], Some(file)), "not an eventfd");
}

#[test]
fn so_is_one_that_nobody_asked_for() {
    unserved(
        "served-else",
        |hostile, file| hostile.send(SET_FEATURES, &[VERSION_1], Some(file)),
        "violate the protocol",
    );
}

#[test]
fn nothing_that_is_refused_stays_open() {
    let _alone = ONE_TEST.lock().unwrap_or_else(PoisonError::into_inner);
    let path = socket("stays-open");
    let mut rig = rig(&path, VhostDma::Off).unwrap();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let pipe = rustix::pipe::pipe().unwrap().0;
    let messages: [(u32, &[u64], BorrowedFd<'_>); 8] = [
        (SET_FEATURES, &[VERSION_1], event.as_fd()),
        (SET_LOG_BASE, &[4096, 0], event.as_fd()),
        (SET_PROTOCOL_FEATURES, &[0], event.as_fd()),
        (SET_BACKEND_REQ_FD, &[], event.as_fd()),
        (SET_VRING_KICK, &[0], pipe.as_fd()),
        (SET_VRING_CALL, &[0], pipe.as_fd()),
        (SET_VRING_ERR, &[1 << 8], event.as_fd()),
        (99, &[], event.as_fd()),
    ];
    let before = open();
    for _ in 0..10 {
        for (request, words, fd) in messages {
            let mut hostile = HostileGuest::reach(&path);
            hostile.begin(VERSION_1);
            hostile.send(request, words, Some(fd));
            assert!(hostile.is_disconnected(), "{request} {}", rig.describe());
        }
    }
    assert!(rig.until(TIMEOUT, |_| open() <= before), "{before} before, {} now", open());
}

/// userfaultfd(2): faults in these pages of this process's mapping wait for the reader of the descriptor.
fn catch_faults(hostile: &HostileGuest) -> Option<OwnedFd> {
    const API: libc::c_ulong = 0xc018_aa3f;
    const REGISTER: libc::c_ulong = 0xc020_aa00;

    // SAFETY: takes no pointer.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) } as i32;
    if fd < 0 {
        println!("SKIP: no userfaultfd: {}", std::io::Error::last_os_error());
        return None;
    }
    // SAFETY: a new descriptor, which has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let (at, bytes) = hostile.buffers(0);
    let mut api = [0xaau64, 0, 0];
    // Missing pages.
    let mut register = [at as u64, bytes as u64, 1, 0];
    // SAFETY: structures of three and four words, as the calls take.
    unsafe {
        assert_eq!(libc::ioctl(fd.as_raw_fd(), API, api.as_mut_ptr()), 0);
        assert_eq!(libc::ioctl(fd.as_raw_fd(), REGISTER, register.as_mut_ptr()), 0);
    }
    Some(fd)
}

fn is_readable(fd: &OwnedFd, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).unwrap();
    let mut polled = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut polled, Some(&limit)).unwrap();
    polled[0].revents().contains(PollFlags::IN)
}

#[test]
fn nobody_waits_for_a_guest_that_catches_faults_in_its_own_mapping() {
    let _alone = ONE_TEST.lock().unwrap_or_else(PoisonError::into_inner);
    let path = socket("catches");
    let mut rig = rig(&path, VhostDma::Off).unwrap();
    let hostile = HostileGuest::connect(&path, VERSION_1);
    hostile.offer(0, 1);
    assert!(rig.until(TIMEOUT, |_| hostile.used(0) == ENTRIES as u16), "{}", rig.describe());
    let Some(faults) = catch_faults(&hostile) else { return };
    for turn in 2..=20 {
        // The pages are gone for both mappings.
        hostile.punch(BUFFERS, BUFFERS);
        hostile.offer(0, turn);
        let filled = rig.until(TIMEOUT, |_| hostile.used(0) == turn * ENTRIES as u16);
        assert!(filled, "turn {turn}: {}", rig.describe());
    }
    assert!(!is_readable(&faults, Duration::ZERO));
    // The descriptor would report the faults of this process.
    hostile.punch(BUFFERS, BUFFERS);
    let at = hostile.buffers(0).0 as usize;
    // SAFETY: mapped for as long as the hostile guest lives, which is until the thread has ended.
    let reader =
        std::thread::spawn(move || unsafe { std::ptr::with_exposed_provenance::<u8>(at).read_volatile() });
    assert!(is_readable(&faults, TIMEOUT));
    drop(faults);
    reader.join().unwrap();
    assert!(goes_on(&mut rig), "{}", rig.describe());
}
