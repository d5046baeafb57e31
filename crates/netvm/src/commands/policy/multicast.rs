// SPDX-License-Identifier: Apache-2.0
//! `netvm mdb`.

use netvm_api::{Client, MulticastDomain, MulticastInfo, MulticastMember};

use crate::error::CliError;
use crate::format::{count, duration};
use crate::output::{Output, lines};

/// Prints groups, queriers and routers, and the ports' parts in snooping.
pub async fn multicast(client: &Client, output: &Output) -> Result<(), CliError> {
    let info = client.multicast().await?;
    if output.json { output.value(&info) } else { output.text(&draw(&info, output)) }
}

fn draw(info: &MulticastInfo, output: &Output) -> String {
    let mut groups = output.table(&["MULTICAST GROUP", ">VLAN", "PORT", ">EXPIRES IN"]);
    for domain in &info.domains {
        for group in &domain.groups {
            for member in &group.ports {
                let (vlan, left) = (domain.vlan.to_string(), left(member));
                groups.add_row([group.group.clone(), vlan, member.port.clone(), left]);
            }
        }
    }
    let mut queriers = output.table(&[">VLAN", "PROTOCOL", "QUERIER", "ROUTERS AT", "MULTICAST GOES"]);
    for domain in &info.domains {
        let routers = domain.routers.iter().map(|router| router.port.as_str());
        queriers.add_row([
            domain.vlan.to_string(),
            domain.protocol.clone(),
            querier(domain),
            routers.collect::<Vec<_>>().join(", "),
            if domain.pruned { "to members" } else { "everywhere" }.to_owned(),
        ]);
    }
    let mut ports = output.table(&["PORT", ">GROUPS", ">REPORTS AND QUERIES", ">REFUSED", ">OVER LIMIT"]);
    for port in &info.ports {
        ports.add_row([
            port.port.clone(),
            port.groups.to_string(),
            count(port.messages),
            count(port.refused),
            count(port.over_limit),
        ]);
    }
    [groups, queriers, ports].map(lines).join("\n")
}

fn querier(domain: &MulticastDomain) -> String {
    let address = domain.querier.as_deref().unwrap_or("without address");
    match &domain.querier_port {
        Some(port) => format!("{address} at {port}"),
        None if domain.has_querier => format!("netvm, {address}"),
        None => "none".to_owned(),
    }
}

fn left(member: &MulticastMember) -> String {
    member.left_s.map_or_else(|| "never".to_owned(), |left| duration(left as f64))
}
