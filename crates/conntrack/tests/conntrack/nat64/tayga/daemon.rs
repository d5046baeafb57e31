// SPDX-License-Identifier: Apache-2.0
//! tayga in a network namespace, and a packet socket at its TUN device.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::LinkNameSpaceType;

use crate::kernel::run;

const DEVICE: &str = "nat64";

/// A running tayga. It translates packets in the order in which it gets them.
pub struct Tayga {
    namespace: String,
    configuration: std::path::PathBuf,
    child: Child,
    socket: OwnedFd,
    index: i32,
    /// Packets that show that those before are translated.
    markers: u32,
}

impl Tayga {
    /// With this configuration, besides the name of the device. `None`: this machine has no tayga.
    pub fn new(configuration: &str) -> Option<Self> {
        let is_there = |folder: &str| std::path::Path::new(folder).join("tayga").exists();
        let can_run = rustix::process::geteuid().is_root() && std::path::Path::new("/dev/net/tun").exists();
        if !can_run || !["/usr/sbin", "/usr/bin", "/sbin"].into_iter().any(is_there) {
            println!("SKIP: tayga as the oracle needs root, TUN devices and the package tayga");
            return None;
        }
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let namespace = format!("nttg{}n{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        run(&format!("ip netns add {namespace}"));
        for interfaces in ["all", "default"] {
            let setting = format!("net.ipv6.conf.{interfaces}.disable_ipv6=1");
            run(&format!("ip netns exec {namespace} busybox sysctl -w {setting}"));
        }
        let file = std::env::temp_dir().join(&namespace);
        std::fs::write(&file, format!("tun-device {DEVICE}\n{configuration}")).unwrap();
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &namespace, "tayga", "--nodetach", "--config"]).arg(&file);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut show = Command::new("ip");
        show.args(["-n", &namespace, "link", "show", DEVICE]).stdout(Stdio::null()).stderr(Stdio::null());
        netvm_testing::until("tayga makes a device", || show.status().unwrap().success());
        run(&format!("ip -n {namespace} link set {DEVICE} up mtu 1500"));
        let inside = std::fs::File::open(format!("/run/netns/{namespace}")).unwrap();
        let enter = || {
            rustix::thread::move_into_link_name_space(inside.as_fd(), Some(LinkNameSpaceType::Network))
                .unwrap();
            packet_socket()
        };
        let (socket, index) = std::thread::scope(|scope| scope.spawn(enter).join().unwrap());
        Some(Self { namespace, configuration: file, child, socket, index, markers: 0 })
    }

    /// What becomes of an IP packet: none, or one or more.
    pub fn translate(&mut self, packet: &[u8], marker: impl Fn(u32) -> Vec<u8>) -> Vec<Vec<u8>> {
        self.markers += 1;
        let text = self.markers.to_be_bytes();
        self.send(packet);
        self.send(&marker(self.markers));
        let mut packets = Vec::new();
        netvm_testing::until("tayga answers", || {
            while let Some(packet) = self.receive() {
                if packet.ends_with(&text) && packet[0] >> 4 == 6 {
                    return true;
                }
                packets.push(packet);
            }
            false
        });
        packets
    }

    fn send(&self, packet: &[u8]) {
        let protocol: u16 = if packet[0] >> 4 == 4 { 0x0800 } else { 0x86dd };
        let address = link_address(protocol, self.index);
        // SAFETY: the buffer and the address are valid for these lengths.
        let sent = unsafe {
            let (data, to) = (packet.as_ptr().cast(), (&raw const address).cast());
            libc::sendto(self.socket.as_raw_fd(), data, packet.len(), 0, to, size_of_val(&address) as u32)
        };
        assert_eq!(sent, packet.len() as isize, "{}", std::io::Error::last_os_error());
    }

    /// A packet of tayga, if one comes soon.
    fn receive(&self) -> Option<Vec<u8>> {
        let mut ready = [rustix::event::PollFd::new(&self.socket, rustix::event::PollFlags::IN)];
        let wait = rustix::time::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        if rustix::event::poll(&mut ready, Some(&wait)).unwrap() == 0 {
            return None;
        }
        let (mut address, mut bytes) = (link_address(0, 0), vec![0; 65_536]);
        let mut length = size_of_val(&address) as u32;
        // SAFETY: the buffers are valid for the lengths given.
        let received = unsafe {
            let (data, from) = (bytes.as_mut_ptr().cast(), (&raw mut address).cast());
            libc::recvfrom(self.socket.as_raw_fd(), data, bytes.len(), 0, from, &raw mut length)
        };
        bytes.truncate(usize::try_from(received).unwrap());
        (address.sll_pkttype != libc::PACKET_OUTGOING).then_some(bytes)
    }
}

fn link_address(protocol: u16, index: i32) -> libc::sockaddr_ll {
    // SAFETY: zero bytes are a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index;
    address
}

/// A packet socket at the device, and the index of the device.
fn packet_socket() -> (OwnedFd, i32) {
    let all = libc::ETH_P_ALL as u16;
    let name = std::ffi::CString::new(DEVICE).unwrap();
    // SAFETY: the name ends with a zero byte, the address is valid for its length, and the descriptor is new.
    unsafe {
        let index = libc::if_nametoindex(name.as_ptr()) as i32;
        let socket = libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM, i32::from(all.to_be()));
        assert!(index > 0 && socket >= 0);
        let (socket, address) = (OwnedFd::from_raw_fd(socket), link_address(all, index));
        let bound = libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32);
        assert_eq!(bound, 0);
        (socket, index)
    }
}

impl Drop for Tayga {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = Command::new("ip").args(["netns", "delete", &self.namespace]).status();
        let _ = std::fs::remove_file(&self.configuration);
    }
}
