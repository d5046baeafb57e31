// SPDX-License-Identifier: Apache-2.0
//! Interfaces and namespaces of a run, which ports are on.

use std::path::Path;
use std::process::Command;

use crate::config;
use crate::failure::{Failure, io};

/// Makes the interface that comes and goes, unless it is there.
pub fn make_link() -> Result<(), Failure> {
    let name = config::interface();
    if Path::new("/sys/class/net").join(&name).exists() {
        return Ok(());
    }
    ip(&format!("link add {name} type veth peer name {name}p"))?;
    ip(&format!("link set {name} up"))?;
    ip(&format!("link set {name}p up"))
}

pub fn remove_link() -> Result<(), Failure> {
    ip(&format!("link delete {}", config::interface()))
}

/// Makes the namespace of the container, unless it is there.
pub fn make_namespace() -> Result<(), Failure> {
    match Path::new("/run/netns").join(config::interface()).exists() {
        true => Ok(()),
        false => ip(&format!("netns add {}", config::interface())),
    }
}

pub fn remove_namespace() -> Result<(), Failure> {
    ip(&format!("netns delete {}", config::interface()))
}

pub fn ip(words: &str) -> Result<(), Failure> {
    let output =
        Command::new("ip").args(words.split(' ')).output().map_err(io("cannot start ip (iproute2)"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure::Broken(format!("ip {words}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

/// Makes both uplinks, and the bridge outside, which only the first one is connected to.
pub fn make_uplinks() -> Result<(), Failure> {
    let bridge = bridge();
    ip(&format!("link add {bridge} type bridge"))?;
    set_up(&bridge)?;
    for name in config::uplinks() {
        ip(&format!("link add {name} type veth peer name {name}p"))?;
        set_up(&name)?;
        set_up(&format!("{name}p"))?;
    }
    let [first, _] = config::uplinks();
    ip(&format!("link set {first}p master {bridge}"))
}

/// Connects the second uplink to the bridge: with netvm's own switch, that is a loop.
pub fn close_loop() -> Result<(), Failure> {
    let [_, second] = config::uplinks();
    ip(&format!("link set {second}p master {}", bridge()))
}

pub fn cut_loop() -> Result<(), Failure> {
    let [_, second] = config::uplinks();
    ip(&format!("link set {second}p nomaster"))
}

/// Removes them as far as they are there.
pub fn remove_uplinks() {
    for name in config::uplinks().into_iter().chain([bridge()]) {
        let _ = ip(&format!("link delete {name}"));
    }
}

/// Without addresses, so that the kernel sends nothing into the loop.
fn set_up(name: &str) -> Result<(), Failure> {
    // A kernel without IPv6 refuses.
    let _ = ip(&format!("link set {name} addrgenmode none"));
    ip(&format!("link set {name} up"))
}

fn bridge() -> String {
    format!("{}b", config::interface())
}
