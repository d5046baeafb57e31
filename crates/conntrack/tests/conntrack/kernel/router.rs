// SPDX-License-Identifier: Apache-2.0
//! A router of the kernel between two TAP devices, whose nftables rules write the state of each packet into its DSCP.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use netvm_wire::{ConnState, MacAddr};
use rustix::thread::LinkNameSpaceType;

/// What is on the two sides of a router.
pub struct Sides {
    /// The kernel's interfaces.
    pub names: [&'static str; 2],
    /// Its addresses, with the lengths of the networks.
    pub addresses: [&'static str; 2],
    /// The hosts of each side.
    pub hosts: [[&'static str; 2]; 2],
}

/// Clients and servers.
const SIDES: Sides = Sides {
    names: ["clients", "servers"],
    addresses: ["10.0.0.254/24", "10.0.1.254/24"],
    hosts: [["10.0.0.1", "10.0.0.2"], ["10.0.1.1", "10.0.1.2"]],
};
/// The TTL of frames, and of what the kernel itself sends.
const TTL: u8 = 64;
/// Without a packet that has to come for so long, the kernel has dropped it.
const LOSS_TIMEOUT: Duration = Duration::from_secs(5);
/// The kernel forwards a packet before the call that sends it returns, so one that has not come by then was dropped.
const DROP_TIMEOUT: Duration = Duration::from_millis(1);

/// The states by DSCP.
pub const STATES: &str = "table ip t { chain f { type filter hook forward priority 0;
 ct state new ip dscp set 1 accept
 ct state established ip dscp set 2 accept
 ct state related ip dscp set 3 accept
 ct state invalid ip dscp set 4 accept
 }
}";

pub fn mac(side: usize, of_kernel: bool) -> MacAddr {
    MacAddr([2, 0, 0, 0, side as u8, u8::from(of_kernel)])
}

/// A namespace with the kernel's router, and what is at the ends of its two interfaces.
pub struct Router {
    namespace: String,
    wires: Vec<File>,
}

/// Runs a command that succeeds.
pub fn run(command: &str) -> String {
    let mut words = command.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A TAP device of the namespace that this thread is in.
fn tap(name: &str) -> File {
    let file = File::options().read(true).write(true).open("/dev/net/tun").unwrap();
    // SAFETY: zero bytes are a valid ifreq; TUNSETIFF reads and writes one.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        assert_eq!(libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request), 0);
    }
    file
}

impl Router {
    /// Between clients and servers, with these nftables rules.
    pub fn new(rules: &str) -> Self {
        let router = Self::between(&SIDES);
        let file = std::env::temp_dir().join(&router.namespace);
        std::fs::write(&file, rules).unwrap();
        router.exec(&format!("nft -f {}", file.display()));
        std::fs::remove_file(file).unwrap();
        router
    }

    /// Without rules.
    pub fn between(sides: &Sides) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("ntct{}n{number}", std::process::id());
        run(&format!("ip netns add {namespace}"));
        let mut router = Self { namespace, wires: Vec::new() };
        let inside = File::open(format!("/run/netns/{}", router.namespace)).unwrap();
        let enter = || {
            rustix::thread::move_into_link_name_space(inside.as_fd(), Some(LinkNameSpaceType::Network))
                .unwrap();
            sides.names.map(tap)
        };
        router.wires = std::thread::scope(|scope| scope.spawn(enter).join().unwrap()).into();
        for (side, name) in sides.names.iter().enumerate() {
            router.ip(&format!("link set {name} address {} up", mac(side, true)));
            router.ip(&format!("address add {} dev {name}", sides.addresses[side]));
            for host in sides.hosts[side] {
                router.ip(&format!("neighbour add {host} lladdr {} dev {name}", mac(side, false)));
            }
        }
        router.exec("busybox sysctl -w net.ipv4.ip_forward=1");
        for setting in ["rp_filter", "send_redirects"] {
            for name in ["all"].iter().chain(&sides.names) {
                router.exec(&format!("busybox sysctl -w net.ipv4.conf.{name}.{setting}=0"));
            }
        }
        router
    }

    fn ip(&self, words: &str) {
        run(&format!("ip -n {} {words}", self.namespace));
    }

    /// Runs a command in the router's namespace; returns what it prints.
    pub fn exec(&self, command: &str) -> String {
        run(&format!("ip netns exec {} {command}", self.namespace))
    }

    /// The state that the kernel gives a frame from this side, which has this identification.
    pub fn state(&mut self, from: usize, frame: &[u8], identification: u16) -> Option<ConnState> {
        let out = self.pass(from, &[frame.to_vec()], identification, 1);
        out.first().and_then(|frame| ConnState::ALL.get(usize::from(frame[15] >> 2)).copied())
    }

    /// The frames with this identification that leave on the other side after those from this side, until there are
    /// `expected` of them or it is clear that there are not.
    pub fn pass(
        &mut self,
        from: usize,
        frames: &[Vec<u8>],
        identification: u16,
        expected: usize,
    ) -> Vec<Vec<u8>> {
        frames.iter().for_each(|frame| self.wires[from].write_all(frame).unwrap());
        let timeout = if expected == 0 { DROP_TIMEOUT } else { LOSS_TIMEOUT };
        let (end, mut out, mut bytes) = (Instant::now() + timeout, Vec::new(), [0; 2048]);
        while (expected == 0 || out.len() < expected) && Instant::now() < end {
            let wire = &mut self.wires[1 - from];
            let mut ready = [rustix::event::PollFd::new(wire, rustix::event::PollFlags::IN)];
            let wait = rustix::time::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            if rustix::event::poll(&mut ready, Some(&wait)).unwrap() == 0 {
                continue;
            }
            let length = wire.read(&mut bytes).unwrap();
            // Packets of the kernel itself, such as errors, may have any identification; their TTL is whole.
            let is_forwarded = bytes[22] < TTL;
            if bytes[12..14] == [8, 0] && is_forwarded && bytes[18..20] == identification.to_be_bytes() {
                out.push(bytes[..length].to_vec());
            }
        }
        out
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.namespace]).status();
    }
}
