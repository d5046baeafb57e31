// SPDX-License-Identifier: Apache-2.0
//! `netvm chain` and `netvm group`.

use comfy_table::Cell;
use netvm_api::{ChainInfo, ChainState, Client, GroupInfo};

use super::{select, show};
use crate::commands::counters::Columns;
use crate::error::CliError;
use crate::format::{bytes, count};
use crate::output::{Output, StateColour, lines};

/// Prints chains.
pub async fn chain(client: &Client, output: &Output, name: Option<&str>) -> Result<(), CliError> {
    let chains = select("chain", client.chains().await?, name, |chain: &ChainInfo| &chain.name)?;
    show(&chains, output, |chains| draw_chains(chains, output))
}

fn draw_chains(chains: &[ChainInfo], output: &Output) -> String {
    let counters = Columns::of(chains);
    let mut table = Columns::table(output, &[">ID", "CHAIN", "HOPS", "OUTPUT", "STATE"], &[&counters]);
    for chain in chains {
        let state = match chain.state {
            ChainState::Up => output.cell("up", StateColour::Good),
            ChainState::Bypassed => output.cell("bypassed", StateColour::Warning),
            ChainState::Down => output.cell("down", StateColour::Bad),
        };
        let mut row = vec![
            Cell::new(chain.id),
            Cell::new(&chain.name),
            Cell::new(chain.hops.join(" → ")),
            Cell::new(chain.output.as_deref().unwrap_or("-")),
            state,
        ];
        row.extend(counters.cells(chain).into_iter().map(Cell::new));
        table.add_row(row);
    }
    lines(table)
}

/// Prints trust groups.
pub async fn group(client: &Client, output: &Output, name: Option<&str>) -> Result<(), CliError> {
    let groups = select("group", client.groups().await?, name, |group: &GroupInfo| &group.name)?;
    show(&groups, output, |groups| draw_groups(groups, output))
}

fn draw_groups(groups: &[GroupInfo], output: &Output) -> String {
    let counters = Columns::of(groups);
    let first = [
        ">ID",
        "GROUP",
        ">NFS",
        ">NODE",
        "PAGES",
        ">SIZE",
        ">BUFFERS",
        ">BUFFER SIZE",
        ">FREE",
        ">IN ENGINE",
        ">IN NFS",
    ];
    let mut table = Columns::table(output, &first, &[&counters]);
    for group in groups {
        for region in &group.regions {
            let row = [
                group.id.to_string(),
                group.name.clone(),
                group.instances.to_string(),
                region.node.to_string(),
                region.pages.clone(),
                bytes(region.bytes),
                count(region.buffers.into()),
                region.buffer_size.to_string(),
                count(region.free.into()),
                count(region.in_engine.into()),
                count(region.in_nfs.into()),
            ];
            table.add_row(row.into_iter().chain(counters.cells(group)));
        }
    }
    lines(table)
}
