// SPDX-License-Identifier: Apache-2.0
//! Test helpers: private network namespaces, veth pairs, packet memory, and the far end of the wire.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use netvm_xsk::{Interface, Memory, RxFrame, TxFrame, Umem, Xsk, XskOptions};

/// Near end of the veth pair, with AF_XDP.
pub const NEAR: &str = "near";
/// Far end of the veth pair, with ordinary sockets.
pub const FAR: &str = "far";

/// Runs a test in the network namespace of a new thread. The namespace ends with the thread, whatever happens.
pub fn isolated(body: impl FnOnce() + Send) {
    if let Some(why) = missing_requirement() {
        println!("SKIP: {why}");
        return;
    }
    let result = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                unshare_network().expect("a network namespace");
                // Without router solicitations and reports the kernel sends nothing that a test did not.
                for scope in ["all", "default"] {
                    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1");
                }
                body();
            })
            .join()
    });
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

/// Moves the calling thread to a new network namespace.
pub fn unshare_network() -> io::Result<()> {
    // SAFETY: takes no pointer; changes the calling thread only.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The requirement that this machine lacks.
fn missing_requirement() -> Option<String> {
    // SAFETY: takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        return Some("needs root (network namespaces, AF_XDP)".into());
    }
    // SAFETY: takes no pointer.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Some(format!("no AF_XDP sockets: {}", io::Error::last_os_error()));
    }
    // SAFETY: the descriptor is new, so it has no other owner.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    let tools = [("ip", "-V", "iproute2"), ("ethtool", "--version", "ethtool")];
    tools.iter().find_map(|(tool, argument, package)| {
        let e = Command::new(tool).arg(argument).output().err()?;
        Some(format!("no `{tool}` command (package {package}): {e}"))
    })
}

/// Whether a command succeeds in the calling thread's namespace.
pub fn succeeds(command: &str) -> bool {
    let mut words = command.split_whitespace();
    Command::new(words.next().unwrap()).args(words).output().is_ok_and(|output| output.status.success())
}

/// Runs a command in the calling thread's namespace.
pub fn run(command: &str) {
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Creates the veth pair with `queues` queues each way and brings it up.
pub fn veth(queues: u32) {
    let queues = format!("numrxqueues {queues} numtxqueues {queues}");
    run(&format!("ip link add {NEAR} {queues} type veth peer name {FAR} {queues}"));
    for end in [NEAR, FAR] {
        run(&format!("ip link set {end} up"));
    }
    wait_until_up();
}

/// Waits until the kernel reports both ends as up, as an end sends nothing before.
pub fn wait_until_up() {
    let up = |end| {
        let output = Command::new("ip").args(["link", "show", "dev", end]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains("state UP")
    };
    until(|| up(NEAR) && up(FAR));
}

/// Packet memory as netvm maps it: one memfd mapping, with buffers from some page on.
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    first: usize,
    pub stride: u32,
    pub buffers: u32,
}

// SAFETY: the mapping belongs to the process; buffers are accessed through raw pointers only.
unsafe impl Send for Region {}
// SAFETY: as above; tests divide the buffers between threads.
unsafe impl Sync for Region {}

impl Region {
    pub fn new(buffers: u32, stride: u32) -> Self {
        Self::at(buffers, stride, 3 * 4096)
    }

    pub fn at(buffers: u32, stride: u32, first: usize) -> Self {
        let len = (first + buffers as usize * stride as usize).next_multiple_of(4096);
        // SAFETY: the name ends in zero; the descriptor is new; the kernel chooses the address of the mapping.
        let base = unsafe {
            let fd = libc::memfd_create(c"xsk-test".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0, "memfd: {}", io::Error::last_os_error());
            let fd = OwnedFd::from_raw_fd(fd);
            assert_eq!(libc::ftruncate(fd.as_raw_fd(), len as libc::off_t), 0);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), len, access, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        assert_ne!(base, libc::MAP_FAILED, "mmap: {}", io::Error::last_os_error());
        Self { base: NonNull::new(base.cast()).unwrap(), len, first, stride, buffers }
    }

    pub fn memory(&self) -> Memory {
        let Self { base, len, first, stride, buffers } = *self;
        Memory { base, len, first_buffer: first, stride, buffers, headroom: 0 }
    }

    pub fn umem(&self) -> Umem {
        // SAFETY: one readable and writable mapping, unmapped after the test; no reference points into it.
        unsafe { Umem::new(&self.memory()) }.unwrap()
    }

    fn place(&self, buffer: u32, offset: u16, len: usize) -> *mut u8 {
        assert!(buffer < self.buffers && offset as usize + len <= self.stride as usize);
        // SAFETY: within the mapping, as checked above.
        unsafe {
            self.base.as_ptr().add(self.first + buffer as usize * self.stride as usize + offset as usize)
        }
    }

    pub fn write(&self, buffer: u32, offset: u16, bytes: &[u8]) {
        // SAFETY: `place` checks the range, and the test has the buffer.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.place(buffer, offset, bytes.len()), bytes.len());
        };
    }

    pub fn read(&self, frame: RxFrame) -> Vec<u8> {
        let mut bytes = vec![0; frame.len as usize];
        let from = self.place(frame.buffer, frame.offset, bytes.len());
        // SAFETY: `place` checks the range, and the test has the buffer.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        bytes
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the range of this mapping; the kernel holds its own reference to pinned pages.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// An ordinary packet socket on an interface.
pub struct PacketSocket(OwnedFd);

impl PacketSocket {
    pub fn new(interface: &str) -> Self {
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: takes no pointer; the descriptor is new.
        let fd = unsafe {
            let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
            assert!(fd >= 0, "packet socket: {}", io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd)
        };
        let wire = Self(fd);
        wire.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 64 << 20);
        wire.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 64 << 20);
        wire.set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1);
        let name = std::ffi::CString::new(interface).unwrap();
        // SAFETY: the name ends in zero; zero bytes are a valid sockaddr_ll; bind gets its size.
        unsafe {
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = protocol;
            address.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
            let length = size_of::<libc::sockaddr_ll>() as u32;
            assert_eq!(libc::bind(wire.0.as_raw_fd(), ptr::from_ref(&address).cast(), length), 0);
        }
        wire
    }

    fn set(&self, level: i32, name: i32, value: i32) {
        // SAFETY: the kernel reads four bytes.
        let result =
            unsafe { libc::setsockopt(self.0.as_raw_fd(), level, name, ptr::from_ref(&value).cast(), 4) };
        assert_eq!(result, 0, "option {name}: {}", io::Error::last_os_error());
    }

    pub fn send(&self, frame: &[u8]) {
        self.try_send(frame).unwrap();
    }

    pub fn try_send(&self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: the kernel reads the bytes of the slice.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The next frame, waiting up to `timeout`.
    pub fn receive(&self, timeout: Duration) -> Option<Vec<u8>> {
        if !readable(&self.0, timeout) {
            return None;
        }
        let mut frame = vec![0; 65_536];
        // SAFETY: the kernel writes at most the length of the buffer.
        let got = unsafe {
            libc::recv(self.0.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), libc::MSG_DONTWAIT)
        };
        match usize::try_from(got) {
            Ok(len) => {
                frame.truncate(len);
                Some(frame)
            }
            Err(_) if io::Error::last_os_error().kind() == ErrorKind::WouldBlock => None,
            Err(_) => panic!("recv: {}", io::Error::last_os_error()),
        }
    }
}

/// Waits until a condition holds; fails the test on timeout.
#[track_caller]
pub fn until(condition: impl FnMut() -> bool) {
    netvm_testing::until("the condition holds", condition);
}

/// Waits until a descriptor is readable.
pub fn readable(fd: &impl AsFd, timeout: Duration) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd on the stack.
    let ready = unsafe { libc::poll(&raw mut poll, 1, timeout.as_millis() as i32) };
    assert!(ready >= 0, "poll: {}", io::Error::last_os_error());
    poll.revents & libc::POLLIN != 0
}

/// An Ethernet frame of `len` bytes with a content that depends on its number.
pub fn frame(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    bytes[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]); // IEEE 802 local experimental
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for byte in &mut bytes[14..] {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = state as u8;
    }
    bytes
}

/// A UDP frame of flow `flow`, so that the kernel spreads flows over the queues.
pub fn udp_frame(flow: u16) -> Vec<u8> {
    let mut bytes = frame(u64::from(flow), 80);
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[14..34].copy_from_slice(&[0x45, 0, 0, 66, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes[34..36].copy_from_slice(&(1000 + flow).to_be_bytes());
    bytes[36..38].copy_from_slice(&[0, 53]);
    bytes[38..40].copy_from_slice(&46u16.to_be_bytes());
    bytes
}

/// Lengths from the shortest to the longest frame of an MTU of 1500.
pub fn length(number: u64) -> usize {
    60 + (number * 37 % (1514 - 60 + 1)) as usize
}

/// A near end with one socket that uses all buffers of the region.
pub struct Bench {
    pub region: Region,
    pub interface: Interface,
    pub xsk: Xsk,
    pub free: Vec<u32>,
    pub wire: PacketSocket,
}

impl Bench {
    /// Creates a veth pair in the current namespace and a socket with `region` on the near end. Fills half of the
    /// buffers.
    pub fn new(region: Region, options: XskOptions) -> Self {
        veth(1);
        Self::on_veth(region, options)
    }

    pub fn on_veth(region: Region, options: XskOptions) -> Self {
        let interface = Interface::open(NEAR, options).unwrap();
        let mut xsk = interface.queue(0, &region.umem()).unwrap();
        let mut free: Vec<u32> = (0..region.buffers).rev().collect();
        let half = free.len() / 2;
        let taken = xsk.fill(&free[half..]);
        free.drain(half..half + taken);
        Self { region, interface, xsk, free, wire: PacketSocket::new(FAR) }
    }

    /// Receives up to `count` frames for up to 5 s, and refills their buffers.
    pub fn receive(&mut self, count: usize) -> Vec<Vec<u8>> {
        let end = Instant::now() + Duration::from_secs(5);
        let mut got = Vec::new();
        let mut frames = [RxFrame::default(); 32];
        while got.len() < count && Instant::now() < end {
            let want = frames.len().min(count - got.len());
            let n = self.xsk.rx(&mut frames[..want]);
            for frame in &frames[..n] {
                got.push(self.region.read(*frame));
                assert_eq!(self.xsk.fill(&[frame.buffer]), 1);
            }
            self.xsk.kick().unwrap();
            if n == 0 {
                readable(&self.xsk, Duration::from_millis(20));
            }
        }
        got
    }

    /// Receives the frames that are there, refills their buffers, and returns the number of frames.
    pub fn receive_now(&mut self) -> usize {
        let mut frames = [RxFrame::default(); 64];
        let n = self.xsk.rx(&mut frames);
        let buffers: Vec<u32> = frames[..n].iter().map(|f| f.buffer).collect();
        assert_eq!(self.xsk.fill(&buffers), n);
        n
    }

    /// Sends frames from free buffers and waits until all of them have completed.
    pub fn send(&mut self, frames: &[Vec<u8>]) {
        let mut queue = Vec::new();
        for bytes in frames {
            let buffer = self.free.pop().unwrap();
            let offset = 64 + (buffer % 100) as u16;
            self.region.write(buffer, offset, bytes);
            queue.push(TxFrame { buffer, offset, len: bytes.len() as u16 });
        }
        let mut sent = 0;
        let end = Instant::now() + Duration::from_secs(5);
        while (sent < queue.len() || self.xsk.in_flight() > 0) && Instant::now() < end {
            sent += self.xsk.tx(&queue[sent..]);
            self.xsk.kick().unwrap();
            self.complete();
        }
        assert_eq!((sent, self.xsk.in_flight()), (queue.len(), 0));
    }

    /// Takes completed buffers back.
    pub fn complete(&mut self) -> usize {
        let mut buffers = [0; 32];
        let n = self.xsk.completed(&mut buffers);
        self.free.extend_from_slice(&buffers[..n]);
        n
    }

    /// Closes the socket and checks that every buffer returns exactly once.
    pub fn close(self) {
        let Self { region, xsk, mut free, .. } = self;
        let held = xsk.held();
        let back = xsk.close().unwrap();
        assert_eq!(back.len(), held as usize);
        free.extend(back);
        free.sort_unstable();
        assert_eq!(free, (0..region.buffers).collect::<Vec<_>>());
    }
}
