//! A router of the kernel between two TAP devices, whose nftables rules write the state of each packet into its DSCP.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use netvm_wire::{ConnState, MacAddr};
use rustix::thread::LinkNameSpaceType;

/// The kernel's interfaces, by side: the clients' and the servers'.
const NAMES: [&str; 2] = ["clients", "servers"];
/// Hosts of each side.
const HOSTS: u32 = 2;
/// Without a packet that has to come for so long, the kernel has dropped it.
const LOSS_TIMEOUT: Duration = Duration::from_secs(5);
/// The kernel forwards a packet before the call that sends it returns, so one that has not come by then was dropped.
const DROP_TIMEOUT: Duration = Duration::from_millis(5);

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
pub fn run(command: &str) {
    let mut words = command.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
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
    /// With these nftables rules.
    pub fn new(rules: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("ntct{}n{number}", std::process::id());
        run(&format!("ip netns add {namespace}"));
        let mut router = Self { namespace, wires: Vec::new() };
        let inside = File::open(format!("/run/netns/{}", router.namespace)).unwrap();
        let enter = || {
            rustix::thread::move_into_link_name_space(inside.as_fd(), Some(LinkNameSpaceType::Network))
                .unwrap();
            NAMES.map(tap)
        };
        router.wires = std::thread::scope(|scope| scope.spawn(enter).join().unwrap()).into();
        for (side, name) in NAMES.iter().enumerate() {
            router.ip(&format!("link set {name} address {} up", mac(side, true)));
            router.ip(&format!("address add 10.0.{side}.254/24 dev {name}"));
            for host in 1..=HOSTS {
                let neighbour = format!("10.0.{side}.{host} lladdr {} dev {name}", mac(side, false));
                router.ip(&format!("neighbour add {neighbour}"));
            }
        }
        router.exec("busybox sysctl -w net.ipv4.ip_forward=1");
        for setting in ["all.rp_filter", "clients.rp_filter", "servers.rp_filter", "all.send_redirects"] {
            router.exec(&format!("busybox sysctl -w net.ipv4.conf.{setting}=0"));
        }
        let file = std::env::temp_dir().join(&router.namespace);
        std::fs::write(&file, rules).unwrap();
        router.exec(&format!("nft -f {}", file.display()));
        std::fs::remove_file(file).unwrap();
        router
    }

    fn ip(&self, words: &str) {
        run(&format!("ip -n {} {words}", self.namespace));
    }

    fn exec(&self, command: &str) {
        run(&format!("ip netns exec {} {command}", self.namespace));
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
            let wait = rustix::time::Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
            if rustix::event::poll(&mut ready, Some(&wait)).unwrap() == 0 {
                continue;
            }
            let length = wire.read(&mut bytes).unwrap();
            if bytes[12..14] == [8, 0] && bytes[18..20] == identification.to_be_bytes() {
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
