// SPDX-License-Identifier: Apache-2.0
//! `netvm vm`.

mod console;

use netvm_api::{Client, ClientError, StopVm, VmInfo, VmState};

use crate::cli::VmCommand;
use crate::error::CliError;
use crate::format::duration;
use crate::output::{Output, StateColour, lines};

/// Runs a `vm` command.
pub async fn vm(client: &Client, output: &Output, command: VmCommand) -> Result<(), CliError> {
    match command {
        VmCommand::List => {
            let vms = client.vms().await?;
            if output.json { output.value(&vms) } else { output.text(&draw(&vms, output)) }
        }
        VmCommand::Start { name } => output.done(&client.start_vm(&name).await?),
        VmCommand::Stop { name, force } => output.done(&client.stop_vm(&name, StopVm { force }).await?),
        VmCommand::Console { name } => {
            if client.socket().is_none() {
                return Err(ClientError::NotRemote { what: "`netvm vm console`" }.into());
            }
            let vms = client.vms().await?;
            let Some(vm) = vms.iter().find(|vm| vm.name == name) else {
                let known = vms.into_iter().map(|vm| vm.name).collect();
                return Err(CliError::Unknown { what: "VM", name, known });
            };
            Ok(console::attach(vm).await?)
        }
        VmCommand::Args { name } => {
            let manual_start = client.vm_manual_start(&name).await?;
            if output.json {
                return output.value(&manual_start.command);
            }
            output.text(&format!("{}\n", manual_start.shell))
        }
        VmCommand::LibvirtXml { name } => {
            let manual_start = client.vm_manual_start(&name).await?;
            if output.json {
                output.value(&manual_start.libvirt_xml)
            } else {
                output.text(&manual_start.libvirt_xml)
            }
        }
    }
}

fn draw(vms: &[VmInfo], output: &Output) -> String {
    if vms.is_empty() {
        return "no VMs: add [[vm]] to the configuration\n".to_owned();
    }
    let mut table = output.table(&[
        "VM",
        "STATE",
        "AS",
        ">CPUS",
        ">MIB",
        ">PID",
        ">UP",
        ">RESTARTS",
        ">RESETS",
        "LAST EXIT",
    ]);
    for vm in vms {
        let (word, colour) = match vm.state {
            VmState::Running if vm.outdated => ("running, outdated", StateColour::Warning),
            VmState::Running if vm.trouble.is_some() => ("running", StateColour::Bad),
            VmState::Running => ("running", StateColour::Good),
            VmState::Starting => ("starting", StateColour::Warning),
            VmState::Paused => ("paused", StateColour::Warning),
            VmState::Stopping => ("stopping", StateColour::Warning),
            VmState::Backoff => ("backoff", StateColour::Bad),
            VmState::Stopped => ("stopped", StateColour::Warning),
            VmState::Awaited => ("awaited", StateColour::Warning),
        };
        let guest = vm.role.as_ref().map_or_else(|| vm.ports.join(","), |role| format!("nf {role}"));
        let some = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        table.add_row([
            comfy_table::Cell::new(&vm.name),
            output.cell(word, colour),
            guest.into(),
            vm.cpus.into(),
            vm.memory.into(),
            some(vm.pid.map(|pid| pid.to_string())).into(),
            some(vm.uptime_s.map(duration)).into(),
            vm.restarts.into(),
            vm.resets.into(),
            some(vm.last_exit.clone()).into(),
        ]);
    }
    let mut text = lines(table);
    for vm in vms {
        text.extend(vm.trouble.iter().map(|trouble| format!("{}: {trouble}\n", vm.name)));
    }
    text
}
