// SPDX-License-Identifier: Apache-2.0
//! The database in which Open vSwitch finds its configuration when it starts.

use std::path::Path;
use std::process::Command;

use super::process::{run, tool};
use super::{PortKinds, Setup};
use crate::error::BenchError;
use crate::machine::{Cores, huge_pages_are_worthwhile};

/// Memory in MiB for Open vSwitch's default of 262,144 mbufs.
const MEMORY_MIB: u32 = 1024;
/// Memory in MiB with guests: Open vSwitch allocates a pool for each.
const GUESTS_MEMORY_MIB: u32 = 2560;

/// `ovs-vsctl` on the database in `folder`.
pub(super) fn vsctl(folder: &Path) -> Command {
    let mut command = tool("ovs-vsctl");
    command.arg(format!("--db=unix:{}/db.sock", folder.display()));
    command
}

/// Writes the switch's start configuration.
///
/// # Errors
/// [`BenchError::Peer`] with the tool's message.
pub(super) fn configure(folder: &Path, setup: Setup<'_>, cores: Cores) -> Result<(), BenchError> {
    run(vsctl(folder).args(["--no-wait", "init"]))?;
    let memory = if huge_pages_are_worthwhile() {
        "--in-memory".to_owned()
    } else {
        // Without --legacy-mem, Open vSwitch adds --in-memory, which conflicts with --no-huge.
        let mib = match setup.ends {
            PortKinds::Guests(_) => GUESTS_MEMORY_MIB,
            _ => MEMORY_MIB,
        };
        format!("--no-huge --legacy-mem --no-shconf -m {mib}")
    };
    let drivers = setup.ends.release().drivers();
    let plugin = folder.join("traffic.so");
    let extra = format!("{memory} --no-pci --no-telemetry{drivers} -d {}", plugin.display());
    run(vsctl(folder).args(["--no-wait", "set", "Open_vSwitch", "."]).args([
        "other_config:dpdk-init=true".to_owned(),
        format!("other_config:dpdk-extra={extra}"),
        format!("other_config:pmd-cpu-mask={}", mask(cores.engine)),
        format!("other_config:dpdk-lcore-mask={}", mask(cores.nf)),
        format!("other_config:smc-enable={}", setup.signature_cache),
        format!("other_config:userspace-tso-enable={}", setup.ends.have_tso()),
    ]))
}

/// A core as a hexadecimal mask.
fn mask(core: u32) -> String {
    format!("0x{:x}{}", 1 << (core % 4), "0".repeat(core as usize / 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_has_one_bit() {
        for core in [0, 1, 3, 4, 63] {
            let mask = mask(core);
            assert_eq!(u64::from_str_radix(mask.trim_start_matches("0x"), 16), Ok(1 << core));
        }
        assert_eq!(mask(130).len(), 2 + 33);
    }
}
