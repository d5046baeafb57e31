// SPDX-License-Identifier: Apache-2.0
//! The log of connections, also on a full disk; and clients that watch.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use netvm_api::{Client, ConnectionEvent, Event, EventKind, LoggedConnection, path};
use rustix::process::Signal;

use super::flush;
use crate::common::hosts::{self, Host, within};
use crate::common::{Daemon, ENGINE, Folder};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 2);

fn config(hosts: [&Host; 2], log: &str) -> String {
    let port = |name: &str, host: &Host| {
        format!(
            "\n[[port]]\nname = \"{name}\"\nkind = \"af_xdp\"\ninterface = \"{}\"\nforward = {{ normal = true }}\ntrack = true\n",
            host.port()
        )
    };
    let [client, server] = hosts;
    format!(
        "{}{}{}\n[[rule]]\nname = \"pass\"\nmatch = {{ source = \"10.8.0.0/24\" }}\nallow = true\n",
        ENGINE.replace("[engine]\n", &format!("[engine]\n{log}")),
        port("client", client),
        port("server", server)
    )
}

/// Sends a datagram from each of `count` sockets.
fn open_many(client: &Host, count: usize) {
    let send = move || {
        for _ in 0..count {
            UdpSocket::bind(("0.0.0.0", 0)).unwrap().send_to(b"x", (SERVER, 9)).unwrap();
            std::thread::sleep(Duration::from_micros(200));
        }
    };
    client.inside(send).join().unwrap();
}

fn lines(file: &Path) -> Vec<ConnectionEvent> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    // The last line may not be whole yet.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect()
}

/// A file system of this size.
struct Disk(Folder);

impl Disk {
    fn new(size: &str) -> Self {
        let folder = Folder::new();
        hosts::run(&format!("mount -t tmpfs -o size={size} tmpfs {}", folder.0.display()));
        Self(folder)
    }

    fn resize(&self, size: &str) {
        hosts::run(&format!("mount -o remount,size={size} {}", self.0.0.display()));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = hosts::succeeds(&format!("umount -l {}", self.0.0.display()));
    }
}

#[test]
fn a_full_disk_loses_lines_that_are_counted_and_nothing_else() {
    if !hosts::are_possible() {
        return;
    }
    let disk = Disk::new("64k");
    let file = disk.0.0.join("connections.jsonl");
    let client = Host::new("lc", &["10.8.0.1/24"], &[]);
    let server = Host::new("ls", &["10.8.0.2/24"], &[]);
    let log = format!(
        "connections = {{ log = {{ file = {file:?}, what = \"connections\" }}, timeouts = {{ udp = 600 }} }}\n"
    );
    let mut daemon = Daemon::start(&config([&client, &server], &log));
    assert!(client.pings("10.8.0.2"), "{}", daemon.log());
    // Hosts send ICMPv6 by themselves.
    let pings = || -> Vec<LoggedConnection> {
        let opened = lines(&file).into_iter().filter_map(|line| match line {
            ConnectionEvent::Opened(it) => Some(it),
            _ => None,
        });
        opened.filter(|it| it.protocol == "icmp").collect()
    };
    daemon.until("the ping is in the log", |_| !pings().is_empty());
    let ping = &pings()[0];
    assert_eq!((&*ping.port, ping.rule.as_deref()), ("client", Some("pass")));
    assert!(ping.source.starts_with("10.8.0.1:") && ping.time.ends_with('Z'), "{ping:?}");

    open_many(&client, 1000);
    daemon.until("lines are lost", |daemon| daemon.stats().connections.unwrap().log_lost > 100);
    assert!(client.output("busybox ping -c 1 -W 2 10.8.0.2").status.success(), "traffic goes on");
    let whole = lines(&file).len();
    assert!(whole > 100, "{whole}");
    daemon.until("an event says so", |daemon| {
        let events: Vec<Event> = daemon.get(path::EVENTS);
        let lost = events.iter().filter(|event| event.kind == EventKind::ConnectionLogLost);
        lost.clone().count() >= 1 && lost.clone().all(|event| event.message.contains("No space left"))
    });
    let (_, metrics) = daemon.request("GET", path::METRICS, "");
    assert!(metrics.contains("netvm_connections_log_lost_lines_total"), "{metrics}");

    disk.resize("4m");
    open_many(&client, 50);
    daemon.until("lines are written again", |_| lines(&file).len() >= whole + 30);
    // Rotation.
    let old = file.with_extension("1");
    std::fs::rename(&file, &old).unwrap();
    daemon.signal(Signal::HUP);
    daemon.until("the next lines are in a new file", |_| {
        open_many(&client, 1);
        file.exists()
    });
    open_many(&client, 10);
    daemon.until("the new file has lines", |_| !lines(&file).is_empty());
    let before = daemon.stats().connections.unwrap();
    let flushed = flush(&daemon, "");
    assert!(flushed >= 900, "{flushed}");
    daemon.until("closings are in the log", |daemon| {
        daemon.stats().connections.unwrap().log_lines >= before.log_lines + flushed
    });
    let ends: BTreeSet<String> = lines(&file)
        .into_iter()
        .filter_map(|line| if let ConnectionEvent::Closed(it) = line { Some(it.why) } else { None })
        .collect();
    assert!(ends.contains("flushed"), "{ends:?}");
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success());
}

#[test]
fn clients_watch_connections_begin_and_end() {
    if !hosts::are_possible() {
        return;
    }
    let client = Host::new("wc", &["10.8.0.1/24"], &[]);
    let server = Host::new("ws", &["10.8.0.2/24"], &[]);
    let daemon = Daemon::start(&config([&client, &server], ""));
    assert!(client.pings("10.8.0.2"), "{}", daemon.log());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let api = Client::new(Some(&daemon.api_socket()));
    let mut events = runtime.block_on(api.watch_connections()).unwrap();
    // Workers hear of the watcher within some tenths of a second.
    let mut next = |sends: &dyn Fn()| {
        runtime.block_on(async {
            for _ in 0..100 {
                sends();
                if let Ok(event) = tokio::time::timeout(Duration::from_millis(300), events.next()).await {
                    return event.unwrap().unwrap();
                }
            }
            panic!("no event")
        })
    };
    let opened = loop {
        match next(&|| open_many(&client, 1)) {
            ConnectionEvent::Opened(opened) if opened.protocol == "udp" => break opened,
            _ => {}
        }
    };
    assert_eq!((&*opened.protocol, &*opened.destination, &*opened.port), ("udp", "10.8.0.2:9", "client"));
    assert!(within(Duration::from_secs(5), || flush(&daemon, "protocol=17") > 0));
    let closed = loop {
        match next(&|| ()) {
            ConnectionEvent::Closed(closed) if closed.connection.protocol == "udp" => break closed,
            _ => {}
        }
    };
    assert_eq!((&*closed.why, closed.packets, closed.reply_packets), ("flushed", 1, 0));
    assert!(closed.bytes >= 43 && closed.begun <= closed.connection.time, "{closed:?}");
}
