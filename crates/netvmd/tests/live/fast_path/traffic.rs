// SPDX-License-Identifier: Apache-2.0
//! Datagrams from one container to another, and which way they take.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::Daemon;
use crate::common::hosts::Host;

use super::port;

/// Packets of a port that the kernel has forwarded.
pub fn hits(daemon: &Daemon, name: &str) -> u64 {
    port(daemon, name).rx_by_kernel.unwrap()
}

/// Sends datagrams to a port of another container, one in half a millisecond, until it is dropped.
pub struct Stream {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// Datagrams that have arrived.
    arrived: Arc<AtomicU64>,
}

impl Stream {
    /// From `hosts[0]` to `hosts[1]`, which has the address `to`.
    pub fn start(hosts: &[Host; 2], to: &str, udp_port: u16) -> Self {
        let (stop, arrived) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut threads = vec![receive(&hosts[1], udp_port, &stop, &arrived)];
        let (end, to) = (Arc::clone(&stop), (to.to_owned(), udp_port));
        threads.push(hosts[0].inside(move || {
            let socket = UdpSocket::bind(("::", 0)).or_else(|_| UdpSocket::bind(("0.0.0.0", 0))).unwrap();
            let socket = if to.0.contains(':') { socket } else { UdpSocket::bind(("0.0.0.0", 0)).unwrap() };
            while !end.load(Ordering::Relaxed) {
                // The way may be closed for a moment.
                let _ = socket.send_to(&[7; 100], (&*to.0, to.1));
                std::thread::sleep(Duration::from_micros(500));
            }
        }));
        Self { stop, threads, arrived }
    }

    /// Receives in another container, too, as when the first one has ended.
    pub fn receive_in(&mut self, host: &Host, udp_port: u16) {
        self.threads.push(receive(host, udp_port, &self.stop, &self.arrived));
    }

    pub fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    /// How many arrive in some time.
    pub fn arrive_within(&self, time: Duration) -> u64 {
        let before = self.arrived();
        std::thread::sleep(time);
        self.arrived() - before
    }
}

fn receive(host: &Host, udp_port: u16, stop: &Arc<AtomicBool>, arrived: &Arc<AtomicU64>) -> JoinHandle<()> {
    let (stop, arrived) = (Arc::clone(stop), Arc::clone(arrived));
    let (bound, is_bound) = std::sync::mpsc::channel();
    let thread = host.inside(move || {
        let socket = UdpSocket::bind(("::", udp_port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        bound.send(()).unwrap();
        while !stop.load(Ordering::Relaxed) {
            if socket.recv(&mut [0; 200]).is_ok() {
                arrived.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    is_bound.recv().unwrap();
    thread
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
