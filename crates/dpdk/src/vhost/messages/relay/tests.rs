use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};

use super::super::super::calls;
use super::*;
use crate::vhost_user::{GET_FEATURES, SET_FEATURES, SET_MEM_TABLE, SET_VRING_CALL, SET_VRING_ERR};

/// A relay with a guest and a library at its ends.
struct Line {
    guest: UnixStream,
    library: UnixStream,
    pending_calls: Arc<PendingCalls>,
    refused: Receiver<Refusal>,
    thread: JoinHandle<()>,
}

fn line() -> Line {
    line_kept(|_| ())
}

fn line_kept(pause_device: impl Fn(&Arc<PendingCalls>) + Send + 'static) -> Line {
    let ((guest, front), (back, library)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    let (sender, refused) = channel();
    let pending_calls = Arc::default();
    let relay = Relay { front: front.into(), back: back.into(), pending_calls: Arc::clone(&pending_calls) };
    let thread = std::thread::spawn(move || relay.run(pause_device, move |why| sender.send(why).unwrap()));
    for end in [&guest, &library] {
        end.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    }
    Line { guest, library, pending_calls, refused, thread }
}

fn bytes(request: u32, payload: &[u8]) -> Vec<u8> {
    let header = [request, 1, payload.len() as u32];
    header.iter().flat_map(|word| word.to_ne_bytes()).chain(payload.iter().copied()).collect()
}

fn write_with(to: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2 * MOST_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    assert_eq!(sendmsg(to, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()), Ok(bytes.len()));
}

/// The bytes that the library gets at once, when it reads a header.
fn received(from: &UnixStream, most: usize) -> (Vec<u8>, Vec<OwnedFd>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2 * MOST_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = vec![0; most];
    let count = recvmsg(from, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC);
    bytes.truncate(count.unwrap().bytes);
    let rights = |part| match part {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
        _ => Vec::new(),
    };
    (bytes, control.drain().flat_map(rights).collect())
}

fn is_over(mut end: &UnixStream) -> bool {
    match end.read(&mut [0]) {
        Ok(bytes) => bytes == 0,
        // The relay closed before it had read everything.
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}

fn memfd() -> OwnedFd {
    memfd_create("relayed", MemfdFlags::CLOEXEC).unwrap()
}

/// A region of a page.
fn memory(regions: u64) -> Vec<u8> {
    let region = |n: u64| [n << 12, 4096, n << 12, 0];
    let words = std::iter::once(regions).chain((0..regions).flat_map(region));
    bytes(SET_MEM_TABLE, &words.flat_map(u64::to_ne_bytes).collect::<Vec<_>>())
}

#[test]
fn messages_and_answers_pass_whole_with_what_belongs_to_them() {
    let mut line = line();
    let features = bytes(SET_FEATURES, &(1u64 << 32).to_ne_bytes());
    // Byte by byte.
    for byte in &features {
        line.guest.write_all(&[*byte]).unwrap();
    }
    assert_eq!(received(&line.library, 100).0, features);
    let fds: Vec<OwnedFd> = (0..8).map(|_| memfd()).collect();
    write_with(&line.guest, &memory(8), &fds.iter().map(AsFd::as_fd).collect::<Vec<_>>());
    let (message, got) = received(&line.library, 1000);
    assert_eq!((message, got.len()), (memory(8), 8));
    // Many at once stay in order and apart, in both directions.
    for ring in 0..100u64 {
        let error = event();
        rustix::io::write(&error, &(ring + 1).to_ne_bytes()).unwrap();
        write_with(&line.guest, &bytes(SET_VRING_ERR, &ring.to_ne_bytes()), &[error.as_fd()]);
    }
    for ring in 0..100u64 {
        let (message, fds) = received(&line.library, 20);
        let mut count = [0; 8];
        rustix::io::read(&fds[0], &mut count).unwrap();
        assert_eq!(
            (message, u64::from_ne_bytes(count)),
            (bytes(SET_VRING_ERR, &ring.to_ne_bytes()), ring + 1)
        );
        line.library.write_all(&ring.to_ne_bytes()).unwrap();
        let mut answer = [0; 8];
        line.guest.read_exact(&mut answer).unwrap();
        assert_eq!(answer, ring.to_ne_bytes());
    }
    // Closing one side closes the other.
    drop(line.guest);
    line.thread.join().unwrap();
    assert!(is_over(&line.library) && line.refused.try_recv().is_err());
}

#[test]
fn everybody_is_kept_out_before_the_library_hears_of_rings() {
    let (keep, kept) = sync_channel(0);
    let line = line_kept(move |_| keep.send(()).unwrap());
    let features = bytes(SET_FEATURES, &(1u64 << 32).to_ne_bytes());
    for _ in 0..3 {
        write_with(&line.guest, &bytes(GET_FEATURES, &[]), &[]);
        assert_eq!(received(&line.library, 12).0, bytes(GET_FEATURES, &[]));
        write_with(&line.guest, &features, &[]);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(recv(&line.library, &mut [0; 1], RecvFlags::DONTWAIT), Err(Errno::AGAIN));
        kept.recv().unwrap();
        assert_eq!(received(&line.library, 100).0, features);
    }
    drop(line.guest);
    line.thread.join().unwrap();
}

#[test]
fn the_library_has_no_eventfd_of_a_guest_to_tell_it_by() {
    // The library never has as many devices.
    let (line, device) = (line(), dpdk_sys::NETVM_VHOST_MAX_DEVICES as i32 - 2);
    let call = netvm_notify::new_eventfd().unwrap();
    let (own, none) = (3u64, 4u64 | 1 << 8);
    write_with(&line.guest, &bytes(SET_VRING_CALL, &own.to_ne_bytes()), &[call.as_fd()]);
    write_with(&line.guest, &bytes(SET_VRING_CALL, &none.to_ne_bytes()), &[]);
    let (message, fds) = received(&line.library, 20);
    assert_eq!((message, fds.len()), (bytes(SET_VRING_CALL, &own.to_ne_bytes()), 1));
    let (message, no_fds) = received(&line.library, 20);
    assert_eq!((message, no_fds.len()), (bytes(SET_VRING_CALL, &none.to_ne_bytes()), 0));
    rustix::io::write(&fds[0], &1u64.to_ne_bytes()).unwrap();
    assert_eq!(rustix::io::read(&call, &mut [0; 8]), Err(Errno::AGAIN));
    for _ in 0..2 {
        line.pending_calls.install(device);
    }
    for vring in [3, 4] {
        calls::signal(&netvm_notify::Signaller::new(), device, vring);
    }
    let mut count = [0; 8];
    rustix::io::read(&call, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1);
    calls::forget(device);
    drop(line.guest);
    line.thread.join().unwrap();
}

#[test]
fn a_refused_message_is_reported_once_the_library_has_handled_the_earlier_ones() {
    let [event, memfd] = [event(), memfd()];
    let call = bytes(SET_VRING_CALL, &0u64.to_ne_bytes());
    let many = vec![event.as_fd(); 9];
    let wrong: [(Vec<u8>, &[BorrowedFd<'_>], Refusal); 7] = [
        (bytes(SET_FEATURES, &[0; 7]), &[], Refusal::Protocol),
        (bytes(99, &[0; 8]), &[], Refusal::Protocol),
        (bytes(SET_FEATURES, &[0; 8]), &[event.as_fd()], Refusal::Protocol),
        (call.clone(), &many, Refusal::Protocol),
        (call, &[memfd.as_fd()], Refusal::NotAnEventfd),
        (memory(1), &[event.as_fd()], Refusal::ServedMemory { file_system: None }),
        // Longer than any.
        (
            [SET_FEATURES, 1, u32::MAX].iter().flat_map(|word| word.to_ne_bytes()).collect(),
            &[],
            Refusal::Protocol,
        ),
    ];
    for (message, fds, why) in wrong {
        let line = line();
        let right = bytes(SET_FEATURES, &(1u64 << 32).to_ne_bytes());
        write_with(&line.guest, &right, &[]);
        write_with(&line.guest, &message, fds);
        assert_eq!(received(&line.library, 1000).0, right);
        assert!(is_over(&line.library));
        assert!(line.refused.recv_timeout(Duration::from_millis(50)).is_err());
        drop(line.library);
        assert_eq!(line.refused.recv().unwrap(), why);
        assert!(is_over(&line.guest));
        line.thread.join().unwrap();
    }
}

#[test]
fn half_a_message_is_waited_for_in_vain_and_not_for_long() {
    let mut line = line();
    std::thread::sleep(2 * REST_TIMEOUT);
    let start = Instant::now();
    line.guest.write_all(&bytes(SET_FEATURES, &[0; 8])[..13]).unwrap();
    assert!(is_over(&line.library) && is_over(&line.guest));
    assert!(start.elapsed() >= REST_TIMEOUT, "{:?}", start.elapsed());
    line.thread.join().unwrap();
}

#[test]
fn a_guest_that_reads_no_answers_is_disconnected() {
    let mut line = line();
    // It would block without a reader.
    while line.library.write_all(&[0; 20]).is_ok() {}
    line.thread.join().unwrap();
    let mut answers = Vec::new();
    line.guest.read_to_end(&mut answers).unwrap();
    assert!(answers.len() > 200, "{}", answers.len());
}

/// Descriptors that no message needs are closed.
#[test]
fn descriptors_that_go_no_further_are_closed() {
    let memfd = memfd();
    let inode = rustix::fs::fstat(&memfd).unwrap().st_ino;
    let open = || {
        let numbers = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let stats = numbers.filter_map(|entry| std::fs::metadata(entry.path()).ok());
        stats.filter(|stat| std::os::unix::fs::MetadataExt::ino(stat) == inode).count()
    };
    let other = std::fs::File::open(format!("/proc/self/fd/{}", memfd.as_raw_fd())).unwrap();
    for request in [SET_FEATURES, SET_VRING_CALL, 99] {
        let line = line();
        write_with(&line.guest, &bytes(request, &[0; 8]), &[other.as_fd(); 8]);
        assert!(is_over(&line.library));
        drop(line.library);
        line.thread.join().unwrap();
        assert_eq!(open(), 2);
    }
}
