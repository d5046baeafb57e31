// SPDX-License-Identifier: Apache-2.0
//! A VXLAN tunnel of Open vSwitch: one bridge with the near interface and the tunnel, and one with the interface that
//! leads to the other VTEP, which has this VTEP's address.

use std::path::Path;

use super::release::Release;
use super::{BRIDGE, NORMAL, Ovs, PortKinds, Setup, Switch, feed, tool};
use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::probe::ip;

/// The bridge that the datagrams leave by, and the tunnel.
pub const UNDERLAY: &str = "br1";
const TUNNEL: &str = "vx0";

/// A tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// The near interface, and the one that leads to the other VTEP.
    pub interfaces: [&'static str; 2],
    /// This VTEP with its prefix length, and the other one.
    pub vteps: [&'static str; 2],
    /// The network.
    pub vni: u32,
    /// Longest packet between the VTEPs.
    pub mtu: u16,
    /// The release that is measured. The later one has `userspace-tso-enable`; the installed one drops segments that
    /// are for a tunnel.
    pub release: Release,
}

impl Switch {
    /// Starts a switch below `sandbox` that switches the packets of an interface through a tunnel.
    ///
    /// # Errors
    /// [`BenchError::Peer`] with its message.
    pub fn with_tunnel(sandbox: &Path, tunnel: Tunnel, cores: Cores) -> Result<Self, BenchError> {
        let flows = &[NORMAL.to_owned()];
        let setup = Setup { flows, signature_cache: false, tracks: false, ends: PortKinds::Tunnel(tunnel) };
        Ovs::start(sandbox, setup, cores).map(Self)
    }
}

impl Ovs {
    /// Sets up the bridges, the tunnel and the flows.
    pub(super) fn connect_tunnel(&self, tunnel: &Tunnel, flows: &[String]) -> Result<(), BenchError> {
        let Tunnel { interfaces: [near, far], vteps: [own, other], vni, mtu, .. } = tunnel;
        for bridge in [BRIDGE, UNDERLAY] {
            self.configured(&format!("add-br {bridge} -- set bridge {bridge} datapath_type=netdev"))?;
        }
        self.configured(&format!(
            "add-port {BRIDGE} {near} -- set interface {near} type=system -- \
             add-port {BRIDGE} {TUNNEL} -- set interface {TUNNEL} type=vxlan options:remote_ip={other} options:key={vni} \
             -- add-port {UNDERLAY} {far} -- set interface {far} type=system -- \
             set interface {UNDERLAY} mtu_request={mtu}"
        ))?;
        ip(&["address", "add", own, "dev", UNDERLAY])?;
        ip(&["link", "set", UNDERLAY, "up"])?;
        for bridge in [BRIDGE, UNDERLAY] {
            let mut command = tool("ovs-ofctl");
            command.args(["add-flows", bridge, "-"]).env("OVS_RUNDIR", &self.folder);
            feed(&mut command, &flows.join("\n"))?;
        }
        Ok(())
    }
}
