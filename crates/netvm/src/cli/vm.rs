// SPDX-License-Identifier: Apache-2.0
//! `netvm vm`.

use clap::Subcommand;

use crate::complete::{Names, names};

/// `netvm vm`.
#[derive(Debug, Subcommand)]
pub enum VmCommand {
    /// List VMs: state, ports and restarts
    List,
    /// Start a stopped VM
    Start {
        /// The VM's name
        #[arg(add = names(&[Names::Vms]))]
        name: String,
    },
    /// Shut a VM down by its ACPI power button, and power it off after 20 s. It stays down until you start it
    Stop {
        /// The VM's name
        #[arg(add = names(&[Names::Vms]))]
        name: String,
        /// Power off at once
        #[arg(long)]
        force: bool,
    },
    /// Attach this terminal to a VM's serial console; ^] detaches
    Console {
        /// The VM's name
        #[arg(add = names(&[Names::Vms]))]
        name: String,
    },
    /// Print QEMU's command line, to run the VM by hand
    Args {
        /// The VM's name
        #[arg(add = names(&[Names::Vms]))]
        name: String,
    },
    /// Print the VM as a libvirt domain, for `virsh define`
    LibvirtXml {
        /// The VM's name
        #[arg(add = names(&[Names::Vms]))]
        name: String,
    },
}
