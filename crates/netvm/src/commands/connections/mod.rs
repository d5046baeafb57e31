// SPDX-License-Identifier: Apache-2.0
//! `netvm conn`.

mod draw;
mod saved;

use netvm_api::{Client, ConnectionQuery};

use crate::cli::{ConnCommand, ConnFilter};
use crate::error::CliError;
use crate::format::count;
use crate::output::Output;
pub use draw::present;

/// Connections that are shown in full at a time.
const MAX_SHOWN: usize = 50;

/// Runs a `conn` command.
pub async fn connections(client: &Client, output: &Output, command: ConnCommand) -> Result<(), CliError> {
    match command {
        ConnCommand::List { limit, filter } => {
            let list = client.connections(&query(filter, Some(limit))).await?;
            if output.json { output.value(&list) } else { output.text(&draw::list(&list, output)) }
        }
        ConnCommand::Show { id, filter } => {
            let list = client.connections(&ConnectionQuery { id, ..query(filter, Some(MAX_SHOWN)) }).await?;
            match &list.connections[..] {
                [] => Err(CliError::NoConnection),
                connections if output.json => output.value(&connections),
                connections => output.text(&draw::in_full(connections)),
            }
        }
        ConnCommand::Save { file, filter } => saved::save(client, output, &file, &query(filter, None)).await,
        ConnCommand::Load { file } => saved::load(client, output, &file).await,
        ConnCommand::Watch => watch(client, output).await,
        ConnCommand::Flush { filter, all: _ } => {
            let flushed = client.flush_connections(&query(filter, None)).await?;
            if output.json {
                output.value(&flushed)
            } else {
                output.text(&format!("connections ended: {}\n", count(flushed.ended)))
            }
        }
        ConnCommand::Stats => {
            let counts = client.connections(&query(ConnFilter::default(), Some(0))).await?.counts;
            if output.json { output.value(&counts) } else { output.text(&draw::counts(&counts)) }
        }
        ConnCommand::Targets => {
            let targets = client.stats().await?.nat_targets;
            if output.json { output.value(&targets) } else { output.text(&draw::targets(&targets, output)) }
        }
    }
}

fn query(filter: ConnFilter, limit: Option<usize>) -> ConnectionQuery {
    let ConnFilter { address, l4_port, protocol, state, port, zone } = filter;
    ConnectionQuery { id: None, address, l4_port, protocol, state, port, zone, limit }
}

/// Prints what happens to connections, until netvmd ends.
async fn watch(client: &Client, output: &Output) -> Result<(), CliError> {
    let mut events = client.watch_connections().await?;
    if output.terminal && !output.json {
        eprintln!("waiting for connections to begin and end; Ctrl-C ends it");
    }
    while let Some(event) = events.next().await? {
        let text = if output.json { serde_json::to_string(&event)? + "\n" } else { draw::event(&event) };
        output.text(&text)?;
    }
    Ok(())
}
