// SPDX-License-Identifier: Apache-2.0
//! Two containers, netvm's namespace between them, and a slow path that forwards what misses.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netvm_kernel_flows::{Flow, Hook, Key, Mask, PortEnds, PortPrograms, Table, TableSize, Transport};
use netvm_netlink::{Requests, index_of, inside};
use netvm_vnet::{Header, Queue, ReceiveBurst, ReceiveError, Received, SendBurst, TapOptions, tap};
use netvm_wire::MacAddr;

/// Of both ports.
pub const EPOCH: u32 = 5;

pub const fn host(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 0, n + 1)
}

pub fn mac(n: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 9, n + 1])
}

pub fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What has carried packets of container `a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Nothing,
    Slow,
    Fast,
    Both,
}

pub struct Rig {
    name: String,
    pub table: Table,
    /// netvm's ends of the veth pairs, and the TAP devices.
    ends: [u32; 2],
    tap_ends: [u32; 2],
    programs: Option<[PortPrograms; 2]>,
    slow: Arc<AtomicU64>,
    /// Frames that container `a` has sent by the slow path.
    frames: Arc<Mutex<Vec<Vec<u8>>>>,
    stop: Arc<AtomicBool>,
    forwarder: Option<JoinHandle<()>>,
}

fn run(command: &str) {
    let mut words = command.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Rig {
    /// `None`, with the reason printed, if this machine cannot have it.
    pub fn new(name: &str, flows: u32) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: not root");
            return None;
        }
        let table = Table::new(TableSize { ports: 4, flows }).unwrap();
        let mut rig = Self {
            name: format!("kf{}{name}", std::process::id()),
            table,
            ends: [0; 2],
            tap_ends: [0; 2],
            programs: None,
            slow: Arc::default(),
            frames: Arc::default(),
            stop: Arc::default(),
            forwarder: None,
        };
        for part in ["f", "a", "b"] {
            run(&format!("ip netns add {}{part}", rig.name));
        }
        for (n, part) in (0..).zip(["a", "b"]) {
            rig.run(&format!(
                "ip -n {{f}} link add v{part} up type veth peer name eth0 netns {{{part}}} address {}",
                mac(n)
            ));
            rig.run(&format!("ip -n {{{part}}} link set eth0 up"));
            rig.run(&format!("ip -n {{{part}}} address add {}/24 dev eth0", host(n)));
            rig.run(&format!("ip -n {{{part}}} address add fd09::{}/64 dev eth0 nodad", n + 1));
            let (other, six) = (host(1 - n), format!("fd09::{}", 2 - n));
            for address in [other.to_string(), six] {
                rig.run(&format!("ip -n {{{part}}} neighbor add {address} lladdr {} dev eth0", mac(1 - n)));
            }
        }
        let (queues, ends) = rig.in_namespace("f", || {
            let open = |name: &str| {
                let options =
                    TapOptions { interface: name.to_owned(), queues: 1, mtu: Some(1500), offloads: true };
                tap::open(&options).unwrap().queues.pop().unwrap()
            };
            let queues = ["ta", "tb"].map(open);
            let index = |name: &str| index_of(&mut Requests::open().unwrap(), name).unwrap().unwrap();
            let ends = [["va", "ta"], ["vb", "tb"]].map(|ends| ends.map(index));
            (queues, ends)
        });
        (rig.ends, rig.tap_ends) = (ends.map(|[veth, _]| veth), ends.map(|[_, tap]| tap));
        rig.attach(Hook::allowed());
        for slot in [0, 1] {
            rig.set_mask(slot, &Mask::all());
        }
        let (slow, frames, stop) = (Arc::clone(&rig.slow), Arc::clone(&rig.frames), Arc::clone(&rig.stop));
        let each = move |frame: &[u8]| {
            if is_of_test(frame) {
                slow.fetch_add(1, Ordering::Relaxed);
            }
            frames.lock().unwrap().push(frame.to_vec());
        };
        rig.forwarder = Some(std::thread::spawn(move || forward(queues, each, &stop)));
        for sender in [0, 1] {
            rig.until_packets_arrive_from(sender);
        }
        rig.take_slow_frames();
        Some(rig)
    }

    /// Attaches the programs.
    pub fn attach(&mut self, hook: Hook) {
        let programs = self.in_namespace("f", || {
            [0, 1].map(|n| {
                let ends = PortEnds { slot: n as u32, veth: self.ends[n], tap: self.tap_ends[n] };
                self.table.set_mac(ends.slot, Some(mac(n as u8)));
                let programs = PortPrograms::attach(&self.table, &ends, hook).unwrap();
                assert_eq!(programs.hook(), hook);
                programs
            })
        });
        self.programs = Some(programs);
    }

    /// Detaches them.
    pub fn detach(&mut self) {
        self.programs = None;
    }

    /// Does something in netvm's namespace, with the ends of the veth pairs.
    pub fn between<T: Send>(&self, work: impl FnOnce([u32; 2]) -> T + Send) -> T {
        self.in_namespace("f", || work(self.ends))
    }

    /// What a command says.
    pub fn output(&self, command: &str) -> String {
        let command = command.replace("{f}", &format!("{}f", self.name));
        let mut words = command.split(' ');
        let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// The kernel drops packets until it has noticed that an interface is up, up to a second later.
    fn until_packets_arrive_from(&self, sender: u8) {
        const DISCARD: u16 = 9;
        let to = (host(1 - sender), DISCARD);
        let receiver = self.inside(usize::from(1 - sender), || UdpSocket::bind(to).unwrap());
        receiver.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let sender = self.inside(usize::from(sender), || UdpSocket::bind((host(sender), 0)).unwrap());
        let end = Instant::now() + Duration::from_secs(30);
        let arrives = || {
            sender.send_to(&[], to).unwrap();
            receiver.recv(&mut [0]).is_ok()
        };
        while !arrives() {
            assert!(Instant::now() < end, "no packet arrives at {to:?}");
        }
    }

    /// Runs a command with the names of namespaces.
    pub fn run(&self, command: &str) {
        let names = ["f", "a", "b"].iter().fold(command.to_owned(), |command, part| {
            command.replace(&format!("{{{part}}}"), &format!("{}{part}", self.name))
        });
        run(&names);
    }

    fn in_namespace<T: Send>(&self, part: &str, work: impl FnOnce() -> T + Send) -> T {
        let file = File::open(format!("/run/netns/{}{part}", self.name)).unwrap();
        inside(file.as_fd(), work).unwrap()
    }

    /// Runs something in a container.
    pub fn inside<T: Send>(&self, n: usize, work: impl FnOnce() -> T + Send) -> T {
        self.in_namespace(["a", "b"][n], work)
    }

    pub fn set_mask(&self, slot: u32, mask: &Mask) {
        self.table.set_epoch(slot, 0);
        self.table.set_mask(slot, mask);
        self.table.set_epoch(slot, EPOCH);
    }

    pub fn key_of(&self, protocol: u8, [source, destination]: [IpAddr; 2], ports: [u16; 2]) -> Key {
        Key::new(0, [mac(1), mac(0)], Transport { protocol, source, destination, ports }).unwrap()
    }

    /// Packets from `a` to `b`.
    pub fn key(&self, protocol: u8, ports: [u16; 2]) -> Key {
        self.key_of(protocol, [host(0).into(), host(1).into()], ports)
    }

    /// Packets from `b` to `a`.
    pub fn back(&self, protocol: u8, ports: [u16; 2]) -> Key {
        let [source, destination] = [host(1), host(0)].map(IpAddr::from);
        Key::new(1, [mac(0), mac(1)], Transport { protocol, source, destination, ports }).unwrap()
    }

    /// To `b`.
    pub fn flow(&self) -> Flow {
        let interface = self.ends[1];
        let (epochs, max_frame, is_tracked) = ([EPOCH; 2], 1514, false);
        let (routed, translated, continues) = (None, None, false);
        Flow { interface, slot: 1, epochs, max_frame, is_tracked, continues, routed, translated }
    }

    /// To `a`.
    pub fn flow_back(&self) -> Flow {
        Flow { interface: self.ends[0], slot: 0, ..self.flow() }
    }

    /// Packets that the kernel has forwarded by itself.
    fn fast(&self) -> u64 {
        let mut all = 0;
        self.table.dump(|_, counts| all += counts.packets).unwrap();
        all
    }

    /// The frames that container `a` has sent by the slow path since the last call.
    pub fn take_slow_frames(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.frames.lock().unwrap())
    }

    /// Does something, and says which way its packets took.
    pub fn arrives(&self, work: impl FnOnce()) -> Seen {
        let before = (self.slow.load(Ordering::Relaxed), self.fast());
        work();
        // What the slow path has not counted yet.
        let slow = || self.slow.load(Ordering::Relaxed) != before.0;
        let is_slow = netvm_testing::within(Duration::from_millis(50), slow);
        match (is_slow, self.fast() != before.1) {
            (false, false) => Seen::Nothing,
            (true, false) => Seen::Slow,
            (false, true) => Seen::Fast,
            (true, true) => Seen::Both,
        }
    }

    /// A connection from `a` to `b`, by which so many bytes go. Returns how many `a` has sent, those that it has sent
    /// again included.
    pub fn transfer(&self, ports: [u16; 2], bytes: usize) -> u64 {
        self.transfer_to(SocketAddrV4::new(host(1), ports[1]), ports, bytes)
    }

    /// The same, where `a` connects to this address in place of that of `b`.
    pub fn transfer_to(&self, to: SocketAddrV4, ports: [u16; 2], bytes: usize) -> u64 {
        let listener = self.inside(1, || TcpListener::bind((host(1), ports[1])).unwrap());
        let limit = Some(Duration::from_secs(20));
        std::thread::scope(|scope| {
            let receiver = scope.spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.set_read_timeout(limit).unwrap();
                let mut all = Vec::new();
                stream.read_to_end(&mut all).unwrap();
                all
            });
            let mut stream = self.inside(0, || {
                let options =
                    rustix::net::SocketAddrAny::from(std::net::SocketAddr::from((host(0), ports[0])));
                let family = rustix::net::AddressFamily::INET;
                let socket = rustix::net::socket(family, rustix::net::SocketType::STREAM, None).unwrap();
                rustix::net::sockopt::set_socket_reuseaddr(&socket, true).unwrap();
                rustix::net::bind(&socket, &options).unwrap();
                let to = std::net::SocketAddr::from(to);
                rustix::net::connect(&socket, &to).unwrap();
                TcpStream::from(socket)
            });
            let sent: Vec<u8> = (0..bytes).map(|n| (n * 7 + n / 251) as u8).collect();
            stream.write_all(&sent).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            assert!(receiver.join().unwrap() == sent);
            // Once the other end has closed, it has all bytes, and nothing is sent again.
            stream.set_read_timeout(limit).unwrap();
            assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
            bytes_sent(&stream)
        })
    }
}

/// `tcpi_bytes_sent` of `struct tcp_info`.
fn bytes_sent(stream: &TcpStream) -> u64 {
    const BYTES_SENT: usize = 200;
    let mut info = [0_u8; 256];
    let mut length = info.len() as libc::socklen_t;
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: the kernel writes at most `length` bytes.
    let outcome = unsafe {
        libc::getsockopt(stream.as_raw_fd(), level, name, info.as_mut_ptr().cast(), &raw mut length)
    };
    assert!(outcome == 0 && length as usize >= BYTES_SENT + 8);
    u64::from_ne_bytes(*info[BYTES_SENT..].first_chunk().unwrap())
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.forwarder.take() {
            let _ = thread.join();
        }
        for part in ["f", "a", "b"] {
            let _ = Command::new("ip").args(["netns", "delete", &format!("{}{part}", self.name)]).status();
        }
    }
}

fn part(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

/// Whether it is an IP packet to container `b`, but not neighbor discovery.
fn is_of_test(frame: &[u8]) -> bool {
    let is_icmp6 = frame[12] == 0x86 && frame.get(20) == Some(&58);
    frame[..6] == mac(1).0 && [[8, 0], [0x86, 0xdd]].contains(&[frame[12], frame[13]]) && !is_icmp6
}

/// Forwards between two TAP devices, and passes on the frames of container `a`.
fn forward(mut queues: [Queue; 2], each_of_a: impl Fn(&[u8]), stop: &AtomicBool) {
    let mut bytes = vec![0; 70_000];
    while !stop.load(Ordering::Relaxed) {
        let mut is_idle = true;
        for n in [0, 1] {
            let (mut header, mut length) = (Header::default(), 0);
            let mut burst = ReceiveBurst::default();
            burst.push([part(&mut bytes)].into_iter());
            let each = |read: &Header, received: Result<Received, ReceiveError>| {
                if let Ok(received) = received {
                    (header, length) = (*read, received.length);
                }
            };
            // SAFETY: the bytes outlive the call.
            if unsafe { burst.receive(&mut queues[n], each) } == 0 || length == 0 {
                continue;
            }
            is_idle = false;
            let frame = &mut bytes[..length];
            if n == 0 {
                each_of_a(frame);
            }
            let mut burst = SendBurst::default();
            burst.push(header, [part(frame)].into_iter());
            // SAFETY: as above.
            unsafe { burst.send(&mut queues[1 - n], |_| {}) };
        }
        if is_idle {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}
