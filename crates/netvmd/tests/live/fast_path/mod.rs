// SPDX-License-Identifier: Apache-2.0
//! Containers whose interfaces have a fast path in the kernel.

pub mod kept;
mod layout;
mod loss;
mod property;
mod refused;
mod routed;
mod table;
mod traffic;

use std::time::Duration;

use netvm_api::{PortInfo, path};

use crate::common::Daemon;
use crate::common::hosts::{Host, within};

/// The port of a container with a fast path.
fn container(n: u8, host: &Host, more: &str) -> String {
    format!(
        "\n[[port]]\nname = \"c{n}\"\nkind = \"container\"\nnamespace = \"{}\"\nfast_path = true\n\
         addresses = [\"10.54.0.{n}/24\", \"fd54::{n}/64\"]\nforward = {{ normal = true }}\n{more}\n",
        host.namespace()
    )
}

fn port(daemon: &Daemon, name: &str) -> PortInfo {
    daemon.get::<Vec<PortInfo>>(path::PORTS).into_iter().find(|port| port.name == name).unwrap()
}

/// Whether both reach each other, over IPv4 and IPv6.
fn are_connected(hosts: &[Host; 2]) -> bool {
    hosts[0].pings("10.54.0.2")
        && hosts[1].pings("10.54.0.1")
        && hosts[0].pings("fd54::2")
        && hosts[1].pings("fd54::1")
}

/// Whether a host has an interface.
fn has_interface(host: &Host) -> bool {
    host.output_of_ip("link show dev eth0").is_some()
}

fn soon(is_so: impl FnMut() -> bool) -> bool {
    within(Duration::from_secs(20), is_so)
}
