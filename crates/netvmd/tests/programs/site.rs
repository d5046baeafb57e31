// SPDX-License-Identifier: Apache-2.0
//! Two hosts, and a chain with a program between them.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use netvm_api::{NfInfo, NfState};

use crate::common::hosts::{self, Host, succeeds, within};
use crate::common::{Daemon, ENGINE};

/// The program of most tests: the kernel's bridge joins both interfaces. It forwards every frame and changes none.
pub const BRIDGE: &str = "ip link delete br0 2>/dev/null; ip link add br0 type bridge && ip link set left master br0 && ip link set right master br0 && \
                          ip link set br0 up && exec sleep infinity";

/// Two hosts whose packets to each other pass chain `out`, and chain `in` on the way back.
pub struct Site {
    pub client: Host,
    pub server: Host,
    /// The role of the program, which no other test has.
    pub role: String,
}

impl Site {
    /// `None`, with the reason printed, if this machine cannot have it.
    pub fn new(name: &str) -> Option<Self> {
        if !hosts::are_possible() {
            return None;
        }
        let host = |part: &str| Host::bare(&format!("{name}{part}"));
        Some(Self { client: host("c"), server: host("s"), role: format!("p{}{name}", std::process::id()) })
    }

    pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

    /// The configuration with these keys of the program and of the chains.
    pub fn config(&self, program: &str, chain: &str) -> String {
        let Self { client, server, role } = self;
        let port = |name: &str, host: &Host, number: u8| {
            format!(
                "[[port]]\nname = \"{name}\"\nkind = \"container\"\nnamespace = {:?}\naddresses = [\"10.77.0.{number}/24\"]\n\
                 forward = {{ chain = \"{}\" }}\n",
                host.namespace(),
                if number == 1 { "out" } else { "in" },
            )
        };
        // Two AF_XDP ports fill their rings with buffers of the group.
        let engine = ENGINE.replace("buffers = 2048", "buffers = 8192");
        format!(
            "{engine}\n{}{}\n[[nf]]\nrole = \"{role}\"\ngroup = \"edge\"\n{program}\n\
             [[chain]]\nname = \"out\"\nhops = [\"{role}\"]\noutput = \"server\"\n{chain}\n\
             [[chain]]\nname = \"in\"\nhops = [\"{role}\"]\noutput = \"client\"\nreverse = \"out\"\n{chain}\n",
            port("client", client, 1),
            port("server", server, 2),
        )
    }

    pub fn start(&self, program: &str, chain: &str) -> Daemon {
        Daemon::start(&self.config(program, chain))
    }

    /// `attach` and `command` of a shell script.
    pub fn script(attach: &str, script: &str) -> String {
        format!("attach = {attach:?}\ncommand = [\"sh\", \"-c\", {script:?}]\n")
    }

    pub fn pings(&self) -> bool {
        self.client.pings("10.77.0.2")
    }

    /// Whether one ping is answered.
    pub fn pings_once(&self) -> bool {
        self.client.output("busybox ping -c 1 -W 1 10.77.0.2").status.success()
    }

    /// Packets from the client to the server that the kernel has dropped: the queue of an interface fills up while
    /// its reader gets no core.
    pub fn dropped_by_kernel(&self) -> u64 {
        let count = |host: &Host, counter: &str| -> u64 {
            let output = host.output(&format!("cat /sys/class/net/eth0/statistics/{counter}"));
            String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
        };
        count(&self.client, "tx_dropped") + count(&self.server, "rx_dropped")
    }

    pub fn nf(&self, daemon: &Daemon) -> NfInfo {
        daemon.nf(&self.role)
    }

    pub fn until(&self, daemon: &Daemon, state: NfState) {
        daemon.until(&format!("the program is {state:?}"), |daemon| self.nf(daemon).state == state);
    }

    /// Sends bytes by TCP to the server, which sends them back. Returns whether they came back within some seconds.
    pub fn echoes(&self, bytes: usize) -> bool {
        let sent = (0..bytes).map(|n| (n * 7 + n / 251) as u8).collect();
        self.echoes_text(sent, Duration::from_secs(20))
    }

    /// The same for these bytes, within a time.
    pub fn echoes_text(&self, sent: Vec<u8>, limit: Duration) -> bool {
        let (ready, is_ready) = std::sync::mpsc::channel();
        let server = self.server.inside(move || {
            let listener = TcpListener::bind((Self::SERVER, 0)).unwrap();
            ready.send(listener.local_addr().unwrap()).unwrap();
            let Ok((mut stream, _)) = listener.accept() else { return };
            stream.set_read_timeout(Some(limit)).unwrap();
            let mut copy = stream.try_clone().unwrap();
            // The client may give up.
            let _ = std::io::copy(&mut stream, &mut copy);
        });
        let address = is_ready.recv().unwrap();
        let client = self.client.inside(move || -> std::io::Result<bool> {
            let mut stream = TcpStream::connect_timeout(&address, limit)?;
            stream.set_read_timeout(Some(limit))?;
            stream.set_write_timeout(Some(limit))?;
            let (to, mut from) = (sent.clone(), stream.try_clone()?);
            let reader = std::thread::spawn(move || {
                let mut back = vec![0; to.len()];
                from.read_exact(&mut back).map(|()| back == to)
            });
            stream.write_all(&sent)?;
            reader.join().unwrap()
        });
        let echoed = client.join().unwrap();
        // Without a connection it waits for ever.
        if echoed.is_ok() && within(2 * limit, || server.is_finished()) {
            server.join().unwrap();
        }
        echoed.unwrap_or(false)
    }
}

impl Drop for Site {
    /// Removes what a killed netvmd leaves.
    fn drop(&mut self) {
        for instance in 0..2 {
            let _ = succeeds(&format!("ip netns delete nf-{}.{instance}", self.role));
        }
        let _ = std::fs::remove_dir_all(std::env::temp_dir().join(&self.role));
    }
}
