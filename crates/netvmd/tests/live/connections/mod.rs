// SPDX-License-Identifier: Apache-2.0
//! A stateful firewall: docs/how-to/connections.md, with its configuration and commands.

mod flood;
mod log;
mod saved;
mod syn_proxy;

use std::process::{Child, Command};
use std::time::Duration;

use netvm_api::{ConnectionInfo, ConnectionList, FlushedConnections, TraceReply, TraceRequest, path};

use crate::common::hosts::{self, Host, within};
use crate::common::page::blocks;
use crate::common::{Daemon, ENGINE};

const PAGE: &str = include_str!("../../../../../docs/how-to/connections.md");

/// The configuration of the page that has this text, for hosts in place of the names.
fn config(text: &str, hosts: [(&str, &Host); 2]) -> String {
    let config = blocks(PAGE, "toml").into_iter().find(|config| config.contains(text)).unwrap();
    let config = hosts.into_iter().fold(config, |config, (name, host)| {
        config.replace(&format!("namespace = \"{name}\""), &format!("namespace = {:?}", host.namespace()))
    });
    format!("{ENGINE}{config}")
}

/// The commands that the page runs in the office and outside.
fn commands(office: &Host, outside: &Host) -> Vec<String> {
    let found = blocks(PAGE, "sh");
    let block = found.iter().find(|block| block.contains("netns exec")).unwrap();
    let named = |line: &str| {
        line.replace("exec office", &format!("exec {}", office.namespace()))
            .replace("exec outside", &format!("exec {}", outside.namespace()))
    };
    block.lines().filter(|line| line.starts_with("ip netns exec")).map(named).collect()
}

/// A program in the background; ends on drop.
struct Background(Child);

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The connections that a query selects.
fn list(daemon: &Daemon, query: &str) -> Vec<ConnectionInfo> {
    daemon.get::<ConnectionList>(&format!("{}?{query}", path::CONNECTIONS)).connections
}

fn flush(daemon: &Daemon, query: &str) -> u64 {
    let (status, body) = daemon.request("DELETE", &format!("{}?{query}", path::CONNECTIONS), "");
    assert_eq!(status, 200, "{body}");
    serde_json::from_str::<FlushedConnections>(&body).unwrap().ended
}

#[test]
fn only_the_office_opens_connections_and_they_are_listed_and_flushed() {
    if !hosts::are_possible() {
        return;
    }
    let [office, outside] = ["co", "ci"].map(Host::bare);
    let daemon = Daemon::start(&config("\"mail\"", [("office", &office), ("outside", &outside)]));
    let [server, ping, get] = &commands(&office, &outside)[..] else { panic!("three commands") };
    let words: Vec<&str> = server.trim_end_matches(" &").split(' ').collect();
    let _server = Background(Command::new(words[0]).args(&words[1..]).spawn().unwrap());
    for command in [ping, get] {
        let works = within(Duration::from_secs(20), || hosts::succeeds(command));
        assert!(works, "{command}: {}", daemon.log());
    }
    let once = "busybox ping -c 1 -W 1 10.0.0.1";
    assert!(!outside.output(once).status.success(), "the outside can only answer");

    let icmp = list(&daemon, "protocol=icmp");
    assert!(!icmp.is_empty() && icmp.iter().all(|one| one.port == "office"), "{icmp:?}");
    assert!(icmp.iter().all(|one| one.source.starts_with("10.0.0.1:")), "{icmp:?}");
    let answered = list(&daemon, "protocol=6&l4_port=80&address=10.0.0.0/30&port=office&zone=0");
    let answered: Vec<_> = answered.iter().filter(|one| one.state == "time-wait").collect();
    let [get] = answered[..] else { panic!("{answered:?}") };
    assert_eq!((&*get.protocol, &*get.destination), ("tcp", "10.0.0.2:80"));
    assert!(get.packets >= 4 && get.reply_packets >= 4 && get.reply_bytes > 400, "{get:?}");
    assert_eq!((get.answered, get.rule.as_deref(), get.tcp.len()), (true, None, 2), "{get:?}");
    assert!(get.tcp.iter().all(|end| end.fin && end.window > 0), "{get:?}");
    assert_eq!((&get.translated_source, &get.translated_destination), (&None, &None));
    let by_id = list(&daemon, &format!("id={}", get.id));
    assert!(by_id.len() == 1 && by_id[0].source == get.source, "{by_id:?}");
    assert_eq!(list(&daemon, "state=time-wait&protocol=tcp").len(), answered.len());
    for none in [
        "id=0-0-4000000000",
        "state=syn-sent",
        "protocol=udp",
        "l4_port=81",
        "address=10.0.0.3",
        "port=outside",
        "limit=0",
    ] {
        assert_eq!(list(&daemon, none), [], "{none}");
    }

    let flushed = flush(&daemon, "l4_port=80");
    assert!(flushed >= 1);
    assert_eq!(list(&daemon, "protocol=tcp"), []);
    daemon.until("the counters say so", |daemon| {
        let counts = daemon.stats().connections.unwrap();
        // Of the connection that was opened, most packets found the decision there.
        (counts.flushed, counts.connections, counts.decided > 0) == (flushed, icmp.len() as u64, true)
    });
    let (_, metrics) = daemon.request("GET", path::METRICS, "");
    assert!(metrics.contains("netvm_connections_ended_total{by=\"flush\"}"), "{metrics}");
    assert_eq!(flush(&daemon, ""), icmp.len() as u64);
    assert!(hosts::succeeds(ping), "connections begin again");
}

#[test]
fn a_packet_is_traced_in_any_state() {
    let port = |name: &str, track: bool| {
        format!(
            "\n[[port]]\nname = \"{name}\"\nkind = \"sink\"\nacl_in = \"deny\"\nforward = {{ normal = true }}\ntrack = {track}\n"
        )
    };
    let rule = "\n[[rule]]\nname = \"answers\"\nmatch = { state = \"established\" }\nallow = true\n";
    let daemon = Daemon::start(&format!("{ENGINE}{}{}{rule}", port("a", true), port("b", false)));
    let frame = netvm_wire::FrameBuilder::new(netvm_wire::MacAddr([2; 6]), netvm_wire::MacAddr([4; 6]));
    let frame =
        frame.ip("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()).udp(1, 2).to_vec().unwrap();
    let frame: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
    let trace = |port: &str, state: Option<&str>| {
        let request = TraceRequest {
            port: port.to_owned(),
            frame: frame.clone(),
            length: None,
            state: state.map(str::to_owned),
        };
        daemon.request("POST", path::TRACE, serde_json::to_string(&request).unwrap())
    };
    for (state, shown, passes) in [
        (None, " state new", false),
        (Some("new"), " state new", false),
        (Some("established"), " state established", true),
        (Some("related"), " state related", false),
        (Some("invalid"), " state invalid", false),
        (Some("untracked"), " udp, ", false),
    ] {
        let (status, reply) = trace("a", state);
        let reply: TraceReply = serde_json::from_str(&reply).unwrap_or_else(|_| panic!("{status}: {reply}"));
        assert!(reply.steps[1].contains(shown), "{reply:?}");
        assert_eq!(reply.rule.is_some(), passes, "{state:?}: {reply:?}");
        assert_eq!(reply.steps.last().unwrap() == "dropped: denied", !passes, "{state:?}: {reply:?}");
    }
    assert_eq!(trace("b", Some("untracked")).0, 200);
    for (port, state, message) in [("a", "open", "established"), ("b", "new", "track = true")] {
        let (status, reply) = trace(port, Some(state));
        assert!(status == 422 && reply.contains(message), "{reply}");
    }
}

#[test]
fn wrong_queries_and_hosts_that_track_nothing_are_told_so() {
    let sink = "\n[[port]]\nname = \"p\"\nkind = \"sink\"\nforward = { normal = true }\n";
    let daemon = Daemon::start(&format!("{ENGINE}{sink}"));
    for method in ["GET", "DELETE"] {
        let (status, message) = daemon.request(method, path::CONNECTIONS, "");
        assert!(status == 404 && message.contains("track = true"), "{message}");
    }
    assert_eq!(daemon.stats().connections, None);
    let tracking = sink.replace("forward", "track = true\nforward");
    let _: netvm_api::ApplyReply = daemon.post(path::APPLY, &format!("{ENGINE}{tracking}"));
    assert_eq!(list(&daemon, ""), []);
    let wrong = [
        ("GET", "address=10.0.0.1/8", 422),
        ("GET", "protocol=tcpp", 422),
        ("GET", "zone=70000", 422),
        ("GET", "zone=1", 422),
        ("DELETE", "zone=1", 422),
        ("GET", "state=open", 422),
        ("GET", "id=7", 422),
        ("GET", "adress=10.0.0.1", 422),
        ("GET", "port=q", 404),
        ("DELETE", "limit=3", 422),
        ("DELETE", "adress=10.0.0.1", 422),
    ];
    for (method, query, expected) in wrong {
        let (status, message) = daemon.request(method, &format!("{}?{query}", path::CONNECTIONS), "");
        assert_eq!(status, expected, "{method} {query}: {message}");
    }
}
