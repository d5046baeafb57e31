// SPDX-License-Identifier: Apache-2.0
//! Monitoring of netvmd: events, metrics, the web page; and peers that misuse them.

mod access;
pub mod browser;
mod capture;
mod events;
mod metrics;
mod page;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::common::hosts::within;
use super::common::{Daemon, ENGINE, forwarding_chain, program};

/// A name that an NF gives a counter of its own.
pub const HOSTILE: &str = "<img src=x onerror=document.title='broken'>";

/// A loopback address that is free now.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A chain, a rule that drops, and the web page.
fn watched(address: SocketAddr) -> String {
    format!(
        "{ENGINE}\n[api]\nweb = \"{address}\"\n{}\
         \n[[port]]\nname = \"noise\"\nkind = \"source\"\nsize = 60\nrate = 500\n\
         \n[[rule]]\nname = \"no-noise\"\nfrom = \"noise\"\ndrop = true\n",
        forwarding_chain("a", &program("counting"))
    )
}

/// A virtual router between a source and a sink.
pub fn router(name: &str) -> String {
    let port = |name: &str, kind: &str| format!("\n[[port]]\nname = \"{name}\"\nkind = \"{kind}\"\n");
    format!(
        "{}rate = 10\n{}\n[[router]]\nname = \"{name}\"\n\
         \n[[router.interface]]\nname = \"lan\"\nport = \"r-in\"\naddresses = [\"10.1.0.1/24\"]\n\
         \n[[router.interface]]\nname = \"wan\"\nport = \"r-out\"\naddresses = [\"10.2.0.1/24\"]\n\
         \n[[rule]]\nfrom = \"r-in\"\nrouter = \"{name}\"\n",
        port("r-in", "source"),
        port("r-out", "sink"),
    )
}

/// One request over TCP: status, head and body.
fn ask(address: SocketAddr, request: &str, headers: &[&str], body: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let length = body.len();
    let mut head =
        format!("{request} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n");
    headers.iter().for_each(|header| head.extend([header, "\r\n"]));
    stream.write_all(format!("{head}\r\n{body}").as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), head.to_lowercase(), body.to_owned())
}

fn token(daemon: &Daemon) -> String {
    std::fs::read_to_string(daemon.folder.run_dir().join("token")).unwrap().trim().to_owned()
}

fn authorization(daemon: &Daemon) -> String {
    format!("authorization: Bearer {}", token(daemon))
}

/// Waits until the page is served.
fn until_served(address: SocketAddr) {
    let is_served = || TcpStream::connect(address).is_ok();
    assert!(within(Duration::from_secs(20), is_served), "nothing listens on {address}");
}

pub fn is_there(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let found = found.is_ok_and(|status| status.success());
    if !found {
        println!(
            "SKIP: {program} is not installed (apt-get install --no-install-recommends prometheus chromium)"
        );
    }
    found
}
