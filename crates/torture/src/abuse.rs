// SPDX-License-Identifier: Apache-2.0
//! Peers that abuse netvmd's sockets.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType,
};

/// Random bytes, and requests that are malformed, long, or never end.
pub fn api(socket: &Path, random: &mut fastrand::Rng) {
    let Ok(mut stream) = UnixStream::connect(socket) else { return };
    let _ = stream.set_write_timeout(Some(Duration::from_millis(200)));
    let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
    let body = "x".repeat(random.usize(..200_000));
    let text = match random.u8(..5) {
        0 => (0..random.usize(..4096)).map(|_| random.char('\0'..'\u{ff}')).collect(),
        1 => format!("POST /v1/apply HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len()),
        // The body never comes to its end.
        2 => format!("POST /v1/plan HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len() + 9),
        3 => format!("DELETE /v1/policy/rules/{} HTTP/1.1\r\nhost: x\r\n\r\n", random.u32(..)),
        _ => format!(
            "POST /v1/policy/trace HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ),
    };
    // netvmd may refuse at any point.
    let _ = stream.write_all(text.as_bytes());
    let _ = stream.read(&mut [0; 4096]);
}

/// NFs that send nothing, random bytes, or unrequested descriptors.
pub fn attach(socket: &Path, random: &mut fastrand::Rng) {
    for _ in 0..random.u8(1..24) {
        let Ok(peer) = netvm_attach::connect(socket) else { return };
        let bytes: Vec<u8> = (0..random.usize(..4000)).map(|_| random.u8(..)).collect();
        match random.u8(..3) {
            0 => {}
            1 => drop(rustix::net::send(&peer, &bytes, SendFlags::DONTWAIT)),
            _ => send_descriptors(&peer, &bytes),
        }
    }
}

/// A guest that speaks no vhost-user.
pub fn guest(socket: &Path, random: &mut fastrand::Rng) {
    let Ok(mut stream) = UnixStream::connect(socket) else { return };
    let _ = stream.set_write_timeout(Some(Duration::from_millis(100)));
    for _ in 0..random.u8(1..20) {
        // The header of a vhost-user message: request, flags, size.
        let size = random.u32(..300);
        let header = [random.u32(..48), 1, size].map(u32::to_le_bytes).concat();
        let payload: Vec<u8> = (0..size).map(|_| random.u8(..)).collect();
        if stream.write_all(&header).and_then(|()| stream.write_all(&payload)).is_err() {
            return;
        }
    }
}

/// A program that connects by memif, and then writes anything into rings and descriptors.
pub fn memif(socket: &Path, random: &mut fastrand::Rng) {
    let _ = try_memif(socket, random);
}

/// Ends early if netvmd refuses.
fn try_memif(socket: &Path, random: &mut fastrand::Rng) -> std::io::Result<()> {
    const MEMORY: u64 = 1 << 16;
    const COOKIE: u32 = 0x03e3_1f20;
    let peer = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
    rustix::net::connect(&peer, &SocketAddrUnix::new(socket)?)?;
    let file = memfd_create("torture", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, MEMORY)?;
    // Memory that may shrink is refused.
    fcntl_add_seals(&file, if random.u8(..8) == 0 { SealFlags::GROW } else { SealFlags::SHRINK })?;
    let memory = File::from(file);
    let message = |kind: u8, fields: &[&[u8]]| {
        let mut bytes = [&[kind, 0][..], &fields.concat()].concat();
        bytes.resize(128, 0);
        bytes
    };
    let version = if random.u8(..8) == 0 { random.u16(..) } else { 0x200 };
    let mut messages: Vec<(Vec<u8>, Option<OwnedFd>)> = vec![
        (message(3, &[&version.to_ne_bytes()]), None),
        (message(4, &[&[0, 0], &MEMORY.to_ne_bytes()]), Some(memory.try_clone()?.into())),
    ];
    let log2_size = random.u8(..12);
    for (flags, offset) in [(1u8, 0u32), (0, 128 + (16 << log2_size))] {
        memory.write_all_at(&COOKIE.to_ne_bytes(), offset.into())?;
        let place = offset.to_ne_bytes();
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        messages.push((message(5, &[&[flags, 0, 0, 0, 0, 0], &place, &[log2_size]]), Some(event)));
    }
    messages.push((message(6, &[]), None));
    for (mut bytes, fd) in messages {
        if random.u8(..20) == 0 {
            bytes = (0..random.usize(1..200)).map(|_| random.u8(..)).collect();
        }
        let fds: Vec<BorrowedFd<'_>> = fd.iter().map(AsFd::as_fd).collect();
        send_with(&peer, &bytes, &fds);
        // The answer, which an honest client waits for.
        std::thread::sleep(Duration::from_millis(1));
    }
    for _ in 0..random.usize(..2000) {
        let at = random.u64(..MEMORY - 2);
        // Mostly the rings, with numbers that lead somewhere.
        let at = if random.u8(..8) == 0 { at } else { at % (256 + (32 << log2_size)) };
        memory.write_all_at(&(random.u16(..) % 300).to_ne_bytes(), at & !1)?;
    }
    Ok(())
}

fn send_descriptors(peer: impl AsFd, bytes: &[u8]) {
    let Ok((read, write)) = rustix::pipe::pipe() else { return };
    send_with(peer, bytes, &[read.as_fd(), write.as_fd()]);
}

/// Sends bytes with at most two descriptors.
fn send_with(peer: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)) {
        let _ =
            rustix::net::sendmsg(peer, &[std::io::IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT);
    }
}
