// SPDX-License-Identifier: Apache-2.0
//! A container with IPv6 alone and an IPv4 server: NAT64, with the page's configuration and commands.

use std::net::IpAddr;

use super::super::DOWNLOAD;
use super::super::common::download::{download, serve};
use super::super::common::hosts::{Host, are_possible, succeeds};
use super::super::common::page::blocks;
use super::super::common::{ADAPTIVE, Daemon, engine};
use super::{Background, PAGE, RouterNamespace, has, must};

/// The server by its IPv6 address.
const SERVER: &str = "64:ff9b::cb00:7101";

#[test]
fn a_container_with_ipv6_alone_reaches_an_ipv4_server() {
    if !are_possible() {
        return;
    }
    let [six, internet] = ["x6", "x4"].map(Host::bare);
    let router = format!("nx{}", std::process::id());
    let _namespace = RouterNamespace(router.clone());
    let named = |text: &str| {
        let mut text = text.replace("\"edge\"", &format!("{router:?}"));
        for (name, host) in [("six", &six), ("internet", &internet)] {
            let namespace = host.namespace();
            text = text.replace(&format!("namespace = {name:?}"), &format!("namespace = {namespace:?}"));
            text = text.replace(&format!("netns exec {name} "), &format!("netns exec {namespace} "));
        }
        text
    };
    let is_of_page = |block: &String| block.contains("64:ff9b") || block.contains("nat64 =");
    let config = blocks(PAGE, "toml").into_iter().find(is_of_page).unwrap();
    let commands = named(&blocks(PAGE, "sh").into_iter().find(is_of_page).unwrap());
    let daemon = Daemon::start(&named(&format!("{}\n{config}", engine(ADAPTIVE))));
    assert!(six.pings("2001:db8:1::1"), "{}", daemon.log());
    let mut servers = Vec::new();
    for command in commands.lines().filter(|line| line.starts_with("ip netns exec")) {
        if command.contains("httpd") {
            servers.push(Background::start(&command.replace("httpd -p", "httpd -f -p")));
        } else if !command.contains("curl") || has("curl") {
            let is_done = super::super::within(super::super::Duration::from_secs(20), || succeeds(command));
            assert!(is_done, "{command}\n{}", daemon.log());
        }
    }
    assert_eq!(servers.len(), 1, "{commands}");
    // Segments of offloads change their family, too.
    serve(&internet, DOWNLOAD);
    let took = download(&six, SERVER.parse::<IpAddr>().unwrap(), DOWNLOAD);
    println!("{DOWNLOAD} bytes in {took:?}");
    // The server sees the router's address alone.
    let pings = must(&six, &format!("busybox ping -c 3 {SERVER}"));
    assert!(pings.contains("3 packets received"), "{pings}");
    if has("iperf3") {
        let _server = Background::inside(&internet, "iperf3 -s");
        for how in ["-n 20M", "-n 20M -R", "-u -b 5M -l 1200 -t 1"] {
            must(&six, &format!("iperf3 -c {SERVER} {how}"));
        }
    }
}
