// SPDX-License-Identifier: Apache-2.0
//! `netvm fleet`: configurations of many hosts in etcd.

mod contents;
mod local;
mod plans;
mod show;
mod waves;

use netvm_fleet::{Compare, Etcd, EtcdArgs, HostKey, HostName, Operation};
use serde_json::json;

use crate::cli::FleetCommand;
use crate::error::{CliError, FleetError};
use crate::output::Output;
use contents::Contents;
use local::Local;

/// Runs a command.
pub async fn fleet(output: &Output, etcd: &EtcdArgs, command: FleetCommand) -> Result<(), CliError> {
    let etcd = etcd.client().map_err(FleetError::Etcd)?;
    match command {
        FleetCommand::Status => show::status(output, &Contents::read(&etcd).await?),
        FleetCommand::Plan { path } => {
            let local = Local::read(&path)?;
            let plans = plans::plans(output, &local, &Contents::read(&etcd).await?)?;
            plans::show(output, &plans)
        }
        FleetCommand::Apply { path, how } => {
            let local = Local::read(&path)?;
            let contents = Contents::read(&etcd).await?;
            let plans = plans::plans(output, &local, &contents)?;
            waves::apply(output, &etcd, waves::Change { local, contents, plans }, how).await
        }
        FleetCommand::Release { name } => release(output, &etcd, name).await,
    }
}

async fn release(output: &Output, etcd: &Etcd, host: HostName) -> Result<(), CliError> {
    let contents = Contents::read(etcd).await?;
    let known = contents.hosts.get(&host).cloned().unwrap_or_default();
    if let Some(status) = known.status {
        return Err(FleetError::InUse { host, machine: status.machine }.into());
    }
    let Some((_, revision)) = known.machine else { return Err(FleetError::NotTaken(host).into()) };
    let (machine, status) = (host.key(HostKey::Machine), host.key(HostKey::Status));
    let conditions = [Compare::Revision(machine.clone(), revision), Compare::Revision(status, 0)];
    let done = etcd.txn(&conditions, &[Operation::Delete(machine.clone())], &[]).await;
    if !done.map_err(FleetError::Etcd)?.succeeded {
        return Err(FleetError::Changed { key: machine, left: Vec::new() }.into());
    }
    let message = format!("the next machine that starts netvmd as {host} gets the name");
    if output.json {
        output.value(&json!({ "message": message }))
    } else {
        output.text(&format!("{message}\n"))
    }
}
