// SPDX-License-Identifier: Apache-2.0
//! Owners that come and go, and the store's process, which is this program.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use netvm_fd_store::{MAX_FILES, Store};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(2);

/// Not a test: the store's process.
#[test]
fn be_the_store() {
    if std::env::args().any(|argument| argument == "be_the_store") {
        netvm_fd_store::serve(std::io::stdin(), TIMEOUT).unwrap();
    }
}

fn store(folder: &TempDir) -> Store {
    let mut command = Command::new(std::env::current_exe().unwrap());
    // The last two only tell it from others.
    command.args(["be_the_store", "--exact", "--nocapture", "--skip"]).arg(folder.path());
    Store::new(folder.path().join("store.sock"), command)
}

fn pair() -> (UnixStream, UnixStream) {
    UnixStream::pair().unwrap()
}

fn says(file: &OwnedFd) -> u8 {
    let mut byte = [0];
    File::from(file.try_clone().unwrap()).read_exact(&mut byte).unwrap();
    byte[0]
}

fn is_closed(mut peer: &UnixStream) -> bool {
    peer.read(&mut [0]).unwrap() == 0
}

#[test]
fn files_of_a_dead_owner_go_to_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let (store, other) = (store(&folder), store(&folder));
    let (kept, files) = store.open(b"a").unwrap();
    assert!(files.is_empty());
    let mode = std::fs::metadata(folder.path().join("store.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "for its owner's user only");
    let ends = [(); 4].map(|()| pair());
    for (number, (here, _)) in ends.iter().enumerate() {
        kept.put(number as u32 / 2, here).unwrap();
    }
    kept.put(7, &ends[0].0).unwrap();
    kept.remove(7).unwrap();
    let [a, b, c, d] = ends.map(|(_, there)| there);
    assert!(is_closed(&a) && is_closed(&c), "others took their numbers");
    // The store has read nothing of it when the owner has gone, or all.
    drop(kept);
    let (again, files) = other.open(b"a").unwrap();
    (&b).write_all(b"0").unwrap();
    (&d).write_all(b"1").unwrap();
    let said: Vec<(u32, u8)> = files.iter().map(|(number, file)| (*number, says(file))).collect();
    assert_eq!(said, [(0, b'0'), (1, b'1')]);
    assert!(store.open(b"b").unwrap().1.is_empty(), "names are apart");
    again.forget().unwrap();
    drop(files);
    assert!(is_closed(&b) && is_closed(&d));
    assert!(store.open(b"a").unwrap().1.is_empty());
}

#[test]
fn an_owner_whose_name_was_opened_again_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let (first, _) = store.open(b"a").unwrap();
    let (second, _) = store.open(b"a").unwrap();
    let (here, _there) = pair();
    second.put(0, &here).unwrap();
    let _ = first.forget();
    drop(second);
    assert_eq!(store.open(b"a").unwrap().1.len(), 1);
}

#[test]
fn files_go_when_the_other_end_of_the_first_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let (kept, _) = store.open(b"a").unwrap();
    let [(connection, peer), (memory, watcher)] = [(); 2].map(|()| pair());
    kept.put(0, &connection).unwrap();
    kept.put(1, &memory).unwrap();
    drop((kept, connection, memory));
    // What the peer has sent waits for the next owner.
    (&peer).write_all(b"x").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(store.open(b"a").unwrap().1.len(), 2);
    drop(peer);
    assert!(is_closed(&watcher));
}

#[test]
fn files_and_the_process_go_when_nobody_comes() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let (kept, _) = store.open(b"a").unwrap();
    let (here, there) = pair();
    kept.put(0, &here).unwrap();
    drop((kept, here));
    let since = Instant::now();
    assert!(is_closed(&there));
    let after = since.elapsed();
    assert!(after > TIMEOUT / 2, "{after:?}");
    let socket = folder.path().join("store.sock");
    netvm_testing::until("the process has ended", || !listens(&socket));
    // It is started again.
    assert!(store.open(b"a").unwrap().1.is_empty());
}

#[test]
fn files_stay_until_somebody_comes_if_their_owner_says_so_or_until_they_are_closed() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    assert!(store.close_left(b"a").is_ok(), "without a store");
    let names: [&[u8]; 4] = [b"a 1", b"a 2", b"a 3", b"b 1"];
    let ends = names.map(|name| {
        let (kept, _) = store.take(name).unwrap();
        let (here, there) = pair();
        kept.put(0, &here).unwrap();
        kept.keep_on(name != b"a 2").unwrap();
        (kept, there)
    });
    let [(first, mut one), (second, two), (third, three), (fourth, mut four)] = ends;
    drop((first, second, fourth));
    assert!(is_closed(&two), "after the usual time");
    one.set_nonblocking(true).unwrap();
    four.set_nonblocking(true).unwrap();
    assert!(one.read(&mut [0]).is_err() && four.read(&mut [0]).is_err(), "they stay");
    store.close_left(b"a").unwrap();
    one.set_nonblocking(false).unwrap();
    assert!(is_closed(&one) && four.read(&mut [0]).is_err(), "others are not closed");
    // It has an owner.
    assert!(!third.is_lost());
    drop(third);
    assert_eq!(store.open(b"a 3").unwrap().1.len(), 1);
    // Nobody can find the store any more.
    std::fs::remove_file(folder.path().join("store.sock")).unwrap();
    four.set_nonblocking(false).unwrap();
    assert!(is_closed(&three) && is_closed(&four));
}

#[test]
fn an_owner_learns_that_the_store_has_gone() {
    let folder = tempfile::tempdir().unwrap();
    let (store, other) = (store(&folder), store(&folder));
    let (kept, _) = store.take(b"a").unwrap();
    let (here, _there) = pair();
    kept.put(0, &here).unwrap();
    // A process that has not started the store gets what is there.
    drop(kept);
    let (kept, files) = other.take(b"a").unwrap();
    assert!(files.len() == 1 && !kept.is_lost());
    kill_process(process(&folder), Signal::KILL).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !kept.is_lost() {
        assert!(Instant::now() < deadline, "it does not learn it");
    }
    let (kept, files) = store.take(b"a").unwrap();
    assert!(files.is_empty() && !kept.is_lost());
}

/// Whether a store listens.
fn listens(path: &Path) -> bool {
    let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).is_ok()
}

/// The process of the store in this folder.
fn process(folder: &TempDir) -> Pid {
    let entries = std::fs::read_dir("/proc").unwrap().map(Result::unwrap);
    let mut numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let found = numbers.find(|number: &i32| {
        let line = std::fs::read_to_string(format!("/proc/{number}/cmdline")).unwrap_or_default();
        line.contains(folder.path().to_str().unwrap())
    });
    Pid::from_raw(found.unwrap()).unwrap()
}

#[test]
fn a_store_that_is_stopped_holds_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let (kept, _) = store.open(b"a").unwrap();
    let pid = process(&folder);
    kill_process(pid, Signal::STOP).unwrap();
    // Its threads stop when they next run.
    let status = || std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !status().contains("State:\tT") {
        assert!(Instant::now() < deadline, "it does not stop");
    }
    let since = Instant::now();
    assert_eq!(store.open(b"b").unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    let (here, _there) = pair();
    assert!((0..10_000).any(|number| kept.put(number, &here).is_err()));
    assert!(since.elapsed() < Duration::from_secs(30));
    kill_process(pid, Signal::KILL).unwrap();
    assert!(store.open(b"a").unwrap().1.is_empty(), "another one is started");
}

#[test]
fn what_is_too_much_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let (kept, _) = store.open(b"a").unwrap();
    let (here, _there) = pair();
    for number in 0..MAX_FILES as u32 + 5 {
        kept.put(number, &here).unwrap();
    }
    drop(kept);
    assert_eq!(store.open(b"a").unwrap().1.len(), MAX_FILES);
    assert!(store.open(&[b'x'; 5000]).is_err());
    let nowhere = Store::new(folder.path().join("none/store.sock"), Command::new("/nowhere"));
    assert_eq!(nowhere.open(b"a").unwrap_err().kind(), std::io::ErrorKind::NotFound);
}
