// SPDX-License-Identifier: Apache-2.0
//! A SYN proxy: the configuration of docs/how-to/connections.md, a flood, and real clients beside it.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use netvm_api::{Event, EventKind, path};
use netvm_wire::{FrameBuilder, MacAddr, TcpFlags};

use super::{Background, config};
use crate::common::hosts::{self, Host, within};
use crate::common::{Daemon, Folder, download};

/// A pcap file of SYNs from as many addresses.
fn syns(count: u32) -> Vec<u8> {
    let mut file = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0];
    file.extend([0, 0, 0xffff, 1u32].iter().flat_map(|word| word.to_le_bytes()));
    for number in 0..count {
        let source = std::net::Ipv4Addr::from_bits(0xc633_0000 + number);
        let frame = FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 9]), MacAddr([2, 0, 0, 0, 0, 8]))
            .ip(source.into(), [10, 0, 0, 2].into())
            .tcp(1000, 80, TcpFlags::SYN)
            .numbers(number, 0)
            .to_vec()
            .unwrap();
        let length = frame.len() as u32;
        file.extend([0, 0, length, length].iter().flat_map(|word| word.to_le_bytes()));
        file.extend(frame);
    }
    file
}

#[test]
fn a_syn_proxy_keeps_a_flood_from_the_table_and_lets_clients_in() {
    const FLOOD: u32 = 50_000;
    const BYTES: u64 = 20_000_000;
    if !hosts::are_possible() {
        return;
    }
    let [clients, server] = ["pc", "ps"].map(Host::bare);
    let folder = Arc::new(Folder::new());
    let [input, output] = ["syns.pcap", "answers.pcap"].map(|name| folder.0.join(name));
    std::fs::write(&input, syns(FLOOD)).unwrap();
    let attacker = format!(
        "[[port]]\nname = \"attacker\"\nkind = \"pcap\"\ninput = {input:?}\noutput = {output:?}\n\
         acl_in = \"deny\"\nforward = {{ normal = true }}\ntrack = true\n"
    );
    let text = config("syn_proxy", [("clients", &clients), ("server", &server)]);
    let daemon = Daemon::start_in(folder, &text);
    let http = format!("ip netns exec {} busybox httpd -f -p 80 -h /usr/lib", server.namespace());
    let words: Vec<&str> = http.split(' ').collect();
    let _http = Background(Command::new(words[0]).args(&words[1..]).spawn().unwrap());
    // The client speaks first, then the server; with all options, and with none.
    let get = format!(
        "timeout 9 ip netns exec {} busybox wget -q -O /dev/null http://10.0.0.2/os-release",
        clients.namespace()
    );
    assert!(within(Duration::from_secs(30), || hosts::succeeds(&get)), "{}", daemon.log());
    let flooded = text.replace("from = \"clients\"", "from = [\"clients\", \"attacker\"]") + &attacker;
    let _: netvm_api::ApplyReply = daemon.post(path::APPLY, &flooded);
    for timestamps in [1, 0] {
        let set = format!("busybox sysctl -w net.ipv4.tcp_timestamps={timestamps}");
        assert!(clients.output(&set).status.success());
        download::serve(&server, BYTES);
        download::download(&clients, [10, 0, 0, 2], BYTES);
        assert!(hosts::succeeds(&get), "{}", daemon.log());
    }
    daemon.until("all SYNs of the flood are answered", |daemon| {
        daemon.stats().connections.is_some_and(|counts| counts.cookies_sent > FLOOD.into())
    });
    let counts = daemon.stats().connections.unwrap();
    assert!(counts.connections <= 6 && counts.begun <= 40 && counts.cookies_accepted >= 4, "{counts:?}");
    let answers = std::fs::metadata(&output).map_or(0, |file| file.len());
    assert!(answers > u64::from(FLOOD) * 60, "the attacker has its answers: {answers} bytes");
    daemon.until("an event names the port that is flooded", |daemon| {
        let events: Vec<Event> = daemon.get(path::EVENTS);
        events.iter().any(|event| event.kind == EventKind::SynFlood && event.subject == "attacker")
    });
    // A port that is closed is not, until the handshake is complete.
    let closed = get.replace("10.0.0.2/", "10.0.0.2:443/");
    let words: Vec<&str> = closed.split(' ').collect();
    let status = Command::new(words[0]).args(&words[1..]).status().unwrap();
    // 124: nothing came in the time that it was given.
    assert!(!status.success() && status.code() != Some(124), "it is reset: {status}");
}
