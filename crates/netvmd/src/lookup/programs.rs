// SPDX-License-Identifier: Apache-2.0
//! Programs, users and cores of NFs and VMs.

use netvm_config::{Missing, MissingKind};
use netvm_model::{Host, NfConfig, NfStart, VmConfig};

use super::Lookup;
use crate::account::Account;
use crate::process::program::Program;
use crate::vms::{VmProblem, VmSpec};

impl Lookup {
    /// What an NF needs and this machine lacks.
    pub(super) fn nf(&self, item: usize, nf: &NfConfig) -> Vec<Missing> {
        let missing = |key, message| Missing { table: "nf", item, key, message, kind: MissingKind::Missing };
        let (command, user, cores, limits) = match &nf.start {
            NfStart::Managed { command, user, cores, limits, .. } => (command, user, cores, limits),
            NfStart::Ports(pair) => (&pair.command, &pair.user, &pair.cores, &pair.limits),
            NfStart::External { users } => {
                let errors = users.iter().filter_map(|user| Account::find(user).err());
                return errors.map(|error| missing("attach_users", error.to_string())).collect();
            }
        };
        let mut found: Vec<Missing> = self.core("nf", item, cores).into_iter().collect();
        for folder in limits.writable.iter().filter(|folder| !folder.is_dir()) {
            let text = format!("no folder {}: create it (mkdir -p), or name another", folder.display());
            found.push(missing("writable", text));
        }
        let account = match self.is_root.then(|| Account::find(user)).transpose() {
            Ok(account) => account,
            Err(error) => {
                found.push(missing("user", error.to_string()));
                None
            }
        };
        let program = command.first().map(|name| Program::find(name, account));
        if let Some(Err(error)) = program {
            found.push(missing("command", error.to_string()));
        }
        found
    }

    /// What a VM needs and this machine lacks.
    pub(super) fn vm(&self, item: usize, vm: &VmConfig, host: &Host) -> Vec<Missing> {
        let problems = VmSpec::find(host, vm, self.is_root, &self.cores).err().unwrap_or_default();
        let missing = |problem: VmProblem| Missing {
            table: "vm",
            item,
            key: problem.key(),
            message: problem.to_string(),
            kind: MissingKind::Missing,
        };
        problems.into_iter().map(missing).collect()
    }
}
