// SPDX-License-Identifier: Apache-2.0
//! Releases of Open vSwitch: the installed one, and one of a later Debian, which `tools/setup/peer.sh openvswitch-dpdk`
//! unpacks into a folder. The tools are always the installed ones.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::machine::own_program;

/// The switch, below the root of its release.
const SWITCH: &str = "usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
/// The schema of its database.
const SCHEMA: &str = "usr/share/openvswitch/vswitch.ovsschema";
/// DPDK's drivers of the later release, below its root.
const DRIVERS: &str = "usr/lib/x86_64-linux-gnu/dpdk/pmds-25.0";
/// The variable that names the folder of the later release, if it is not beside the programs.
const FOLDER: &str = "NETVM_BENCH_OPENVSWITCH";

/// A release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The installed one.
    Installed,
    /// That of Debian 13, which also segments packets of tunnels.
    Later,
}

impl Release {
    /// The latest that is there.
    pub fn latest() -> Self {
        if Self::Later.is_there() { Self::Later } else { Self::Installed }
    }

    /// Its version and that of its DPDK, as the switch says them.
    pub fn version(self) -> String {
        let output = self.switch().arg("--version").output();
        let text =
            output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        text.lines().map(|line| line.trim_start_matches("ovs-vswitchd-dpdk ")).collect::<Vec<_>>().join(", ")
    }

    /// Whether it is there.
    pub fn is_there(self) -> bool {
        let root = self.root();
        root.join(SWITCH).exists() && root.join(SCHEMA).exists()
    }

    /// The folder that is its root.
    pub fn root(self) -> PathBuf {
        match self {
            Self::Installed => Path::new("/").to_owned(),
            Self::Later => {
                let beside = || Some(own_program().ok()?.parent()?.parent()?.join("guest/openvswitch-dpdk"));
                let folder = std::env::var_os(FOLDER).map(PathBuf::from).or_else(beside).unwrap_or_default();
                folder.join("root")
            }
        }
    }

    /// Its switch.
    pub(super) fn switch(self) -> Command {
        let root = self.root();
        match self {
            Self::Installed => Command::new(root.join(SWITCH)),
            // With the libraries of its release.
            Self::Later => {
                let mut command = Command::new(root.join("lib64/ld-linux-x86-64.so.2"));
                command.arg("--library-path").arg(root.join("usr/lib/x86_64-linux-gnu"));
                command.arg(root.join(SWITCH));
                command
            }
        }
    }

    /// The option for DPDK that names the drivers of this release, where they are not in the place that it looks at.
    pub(super) fn drivers(self) -> String {
        match self {
            Self::Installed => String::new(),
            Self::Later => format!(" -d {}", self.root().join(DRIVERS).display()),
        }
    }

    /// The schema of its database.
    pub(super) fn schema(self) -> PathBuf {
        self.root().join(SCHEMA)
    }
}
