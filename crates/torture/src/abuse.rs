//! Peers that abuse netvmd's sockets.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

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

fn send_descriptors(peer: impl AsFd, bytes: &[u8]) {
    let Ok((read, write)) = rustix::pipe::pipe() else { return };
    let fds = [read.as_fd(), write.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if control.push(SendAncillaryMessage::ScmRights(&fds)) {
        let _ =
            rustix::net::sendmsg(peer, &[std::io::IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT);
    }
}
