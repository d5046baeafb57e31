// SPDX-License-Identifier: Apache-2.0
//! Targets that fail: with real web servers, of which one is killed and comes back.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Duration;

use netvm_api::{EventKind, NatTargetInfo};

use super::super::common::Daemon;
use super::super::common::hosts::{Host, are_possible, within};
use super::{Background, Net, PAGE, blocks, connect, must};

/// A rule beside that of the page.
const ECHO: &str = r#"
[[nat]]
name = "echo"
from = "uplink"
match = { protocol = "tcp", destination = "203.0.113.2", destination_ports = 7 }
dnat = "10.0.0.12:7"
health = { interval = 1, failures = 1 }
"#;

/// A web server whose only page is the name of its host.
fn serve(host: &Host, name: &str) -> Background {
    let folder = std::env::temp_dir().join(host.namespace());
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("name"), name).unwrap();
    Background::inside(host, &format!("busybox httpd -f -p 80 -h {}", folder.display()))
}

/// The target of this address and port, once it is as `is_as` says.
fn target(daemon: &Daemon, address: &str, is_as: impl Fn(&NatTargetInfo) -> bool) -> NatTargetInfo {
    let mut found = None;
    let is_so = within(Duration::from_secs(30), || {
        found = daemon.stats().nat_targets.into_iter().find(|it| it.target == address);
        found.as_ref().is_some_and(&is_as)
    });
    assert!(is_so, "{found:?}\n{}", daemon.log());
    found.unwrap()
}

#[test]
fn new_connections_avoid_a_target_that_was_killed_until_it_is_back() {
    if !are_possible() {
        return;
    }
    let net = Net::new('h');
    let mut servers = [Some(serve(&net.web, "web")), Some(serve(&net.app, "app"))];
    let daemon = net.start(&net.config(false, &blocks(PAGE, "toml")[2]));
    let ends = ["10.0.0.11:80", "10.0.0.12:80"];
    for end in ends {
        let it = target(&daemon, end, |it| it.up && it.checks > 0 && it.problem.is_none());
        assert_eq!((it.router, it.rules), (Some(net.router.clone()), vec!["web".to_owned()]));
    }
    let answer = || must(&net.internet, "busybox wget -q -O - http://203.0.113.2/name");
    let own = answer();
    let n = usize::from(own == "app");
    let (host, other) = if n == 0 { (&net.web, "app") } else { (&net.app, "web") };

    // SIGKILL.
    servers[n] = None;
    let down = target(&daemon, ends[n], |it| !it.up);
    assert!(down.failed >= 2 && down.problem.is_some_and(|it| it.contains("refused")));
    assert_eq!(answer(), other);
    let status: netvm_api::Status = daemon.get(netvm_api::path::STATUS);
    assert!(status.problems.iter().any(|it| it.contains("nat web is down")), "{:?}", status.problems);

    servers[n] = Some(serve(host, &own));
    target(&daemon, ends[n], |it| it.up);
    assert_eq!(answer(), own, "the source has its target again");
    let changes = || {
        let events: Vec<netvm_api::Event> = daemon.get(netvm_api::path::EVENTS);
        let is_of = |it: &&netvm_api::Event| it.subject == ends[n];
        events.iter().filter(is_of).map(|it| it.kind).collect::<Vec<_>>()
    };
    assert_eq!(changes(), [EventKind::TargetDown, EventKind::TargetUp]);

    // Without any, connections go on to where they would go: the client hears that nothing listens.
    servers = [None, None];
    ends.iter().for_each(|end| drop(target(&daemon, end, |it| !it.up)));
    assert_eq!(connect(&net.internet, "203.0.113.2:80").unwrap_err(), ErrorKind::ConnectionRefused);
    drop(servers);
}

#[test]
fn established_connections_stay_with_a_target_that_is_down() {
    if !are_possible() {
        return;
    }
    let net = Net::new('k');
    // It accepts connections until the first byte comes, and echoes on the last one.
    let ((bound, is_bound), (closed, is_closed)) = (mpsc::channel(), mpsc::channel());
    net.app.inside(move || {
        let listener = TcpListener::bind("0.0.0.0:7").unwrap();
        bound.send(()).unwrap();
        let mut byte = [0];
        let mut client = loop {
            let (mut client, _) = listener.accept().unwrap();
            if client.read(&mut byte).is_ok_and(|length| length == 1) {
                break client;
            }
        };
        drop(listener);
        closed.send(()).unwrap();
        while client.write_all(&byte).is_ok() && client.read_exact(&mut byte).is_ok() {}
    });
    is_bound.recv().unwrap();
    let daemon = net.start(&net.config(false, ECHO));
    target(&daemon, "10.0.0.12:7", |it| it.up && it.checks > it.failed);
    let mut client = connect(&net.internet, "203.0.113.2:7").unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut echo = |byte: u8| {
        let mut back = [0];
        client.write_all(&[byte]).unwrap();
        client.read_exact(&mut back).unwrap();
        assert_eq!(back, [byte], "{}", daemon.log());
    };
    echo(1);
    is_closed.recv().unwrap();
    target(&daemon, "10.0.0.12:7", |it| !it.up);
    echo(2);
}
