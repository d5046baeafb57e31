// SPDX-License-Identifier: Apache-2.0
//! Network namespaces for tests.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::Command;
use std::thread::JoinHandle;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace, gone at the end.
pub struct Namespace {
    pub name: String,
    /// The outer end of its veth pair, once it is plugged.
    pub outer: String,
}

impl Namespace {
    /// A namespace of a test; `None` if the kernel or the user does not allow it.
    pub fn new(test: &str, number: u8) -> Option<Self> {
        let id = std::process::id() % 1_000_000;
        let name = format!("netvm-{test}-{id}-{number}");
        let outer = format!("nv{}{id}x{number}", &test[..1]);
        run(&format!("ip netns add {name}")).then_some(Self { name, outer })
    }

    /// Makes a veth pair with one end, `eth0`, inside; returns whether that worked.
    pub fn plug(&self, address: Ipv4Addr) -> bool {
        let Self { name, outer } = self;
        run(&format!("ip link add {outer} type veth peer name eth0 netns {name}"))
            && run(&format!("ip link set {outer} up"))
            && run(&format!("ip -n {name} address add {address}/24 dev eth0"))
            && run(&format!("ip -n {name} link set eth0 up"))
    }

    fn open(&self) -> File {
        File::open(format!("/run/netns/{}", self.name)).unwrap()
    }

    /// Takes the calling thread into the namespace.
    pub fn enter(&self) {
        enter(&self.open());
    }

    /// Runs `work` on a thread inside.
    pub fn inside<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let file = self.open();
        std::thread::spawn(move || {
            enter(&file);
            work()
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        run(&format!("ip netns delete {}", self.name));
    }
}

fn enter(namespace: &File) {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
}

/// Runs a command; returns whether it succeeded.
pub fn run(command: &str) -> bool {
    let mut words = command.split(' ');
    Command::new(words.next().unwrap()).args(words).output().is_ok_and(|output| output.status.success())
}
