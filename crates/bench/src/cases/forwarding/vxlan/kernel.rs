// SPDX-License-Identifier: Apache-2.0
//! The kernel's bridge between the namespaces, or between one and a VXLAN device.

use super::super::container::hosts::{PORTS, run};
use super::topology::{FAR_VTEP, NEAR_VTEP, NEAR_VTEP_NET, VNI};
use crate::error::BenchError;

const BRIDGE: &str = "nvbr";
const TUNNEL: &str = "nvvx";

/// The bridge and its tunnel; removed on drop.
pub struct Bridge;

impl Bridge {
    /// Makes them.
    ///
    /// # Errors
    /// A command failed.
    pub fn new(has_tunnel: bool) -> Result<Self, BenchError> {
        let [near, far] = PORTS;
        run(&format!("link add {BRIDGE} type bridge"))?;
        let own = Self;
        run(&format!("link set {BRIDGE} up"))?;
        run(&format!("link set {near} master {BRIDGE}"))?;
        if has_tunnel {
            run(&format!("address add {NEAR_VTEP_NET} dev {far}"))?;
            run(&format!(
                "link add {TUNNEL} mtu 1500 type vxlan id {VNI} local {NEAR_VTEP} remote {FAR_VTEP} dstport 4789 dev {far}"
            ))?;
            run(&format!("link set {TUNNEL} up master {BRIDGE}"))?;
        } else {
            run(&format!("link set {far} master {BRIDGE}"))?;
        }
        Ok(own)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        // A tunnel ends with its interface.
        let _ = run(&format!("link delete {BRIDGE}"));
    }
}
