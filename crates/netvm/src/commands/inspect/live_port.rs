// SPDX-License-Identifier: Apache-2.0
//! `netvm port live`, `add` and `del`.

use netvm_api::{AddPort, Client, LivePortInfo, RemovePort};

use super::show;
use crate::cli::PortCommand;
use crate::error::CliError;
use crate::format::{labels, or_dash};
use crate::output::{Output, lines};

/// Runs a command for ports beside the configuration file.
pub async fn live_port(client: &Client, output: &Output, command: PortCommand) -> Result<(), CliError> {
    match command {
        PortCommand::Live => {
            let ports = client.live_ports().await?;
            show(&ports, output, |ports| draw(ports, output))
        }
        PortCommand::Add { lines, owner, id } => {
            let port = AddPort { owner, id: id.unwrap_or_default(), toml: lines.join("\n"), lease: None };
            let added = client.add_port(&port).await?;
            if output.json {
                return output.value(&added);
            }
            output.of_machine(added.warnings.iter());
            output.text(&format!("{}\n", added.message))
        }
        PortCommand::Del { id, owner } => output.done(&client.remove_port(&RemovePort { owner, id }).await?),
    }
}

fn draw(ports: &[LivePortInfo], output: &Output) -> String {
    if ports.is_empty() {
        return "no ports beside the configuration file: `netvm port add` adds one\n".to_owned();
    }
    let mut table = output.table(&["PORT", "OWNER", "OWNER ID", "LABELS", "STATE"]);
    for port in ports {
        table.add_row([
            port.port.clone(),
            port.owner.clone(),
            port.id.clone(),
            or_dash(labels(&port.labels)),
            port.problem.as_ref().map_or_else(|| "open".to_owned(), |why| format!("waits: {why}")),
        ]);
    }
    lines(table)
}
