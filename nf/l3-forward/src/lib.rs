// SPDX-License-Identifier: Apache-2.0
//! A router with static routes.
//!
//! Like the L3 forwarder of NetVM (section 5.1 of its paper), it caches routes in a hash table by 5-tuple, so that only
//! the first packet of a flow needs a longest-prefix match, see [`Routes`].
#![forbid(unsafe_code)]

mod neighbour;
mod oversize;
mod prefixes;
mod router;
mod routes;

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Parser;
use netvm_nf_common::{CommonArgs, Failure, Live, MalformedPolicy, run as run_nf};
use netvm_wire::MacAddr;

pub use prefixes::Prefixes;
pub use router::{COUNTERS, Router};
pub use routes::{NextHop, Routes};

/// The program's name.
pub const NAME: &str = "netvm-l3-forward";

/// Route IPv4 and IPv6 packets by the static routes of a file
#[derive(Clone, Debug, Parser)]
#[command(name = NAME, version)]
pub struct Args {
    /// Common options.
    #[command(flatten)]
    pub common: CommonArgs,
    /// File of routes, one on each line: PREFIX NEXT-HOP-MAC PORT, and an optional VLAN; reloaded on SIGHUP
    #[arg(long, value_name = "FILE")]
    pub routes: PathBuf,
    /// The router's MAC address
    #[arg(long, value_name = "MAC", default_value_t = MacAddr([0x02, 0x6e, 0x65, 0x74, 0x76, 0x6d]), value_parser = own_mac)]
    pub mac: MacAddr,
    /// Answer ARP requests and IPv6 neighbour solicitations for any address with the router's MAC address
    #[arg(long)]
    pub proxy_arp: bool,
    /// Drop frames that are not addressed to the router's MAC address [default: route all frames]
    #[arg(long)]
    pub only_mine: bool,
    /// The router's own addresses, at most one IPv4 and one IPv6: senders of packets that expire, or are too long, get
    /// ICMP errors from them [default: such packets are dropped without an answer]
    #[arg(long, value_name = "ADDRESS,...", value_delimiter = ',')]
    pub address: Vec<IpAddr>,
    /// MTU of the links behind the ports: longer IPv4 packets are cut into fragments, unless they forbid it (DF); those
    /// and IPv6 packets are dropped [default: not checked]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(576..=9000))]
    pub mtu: Option<u16>,
    /// Size of each thread's flow cache
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub flows: u32,
    /// Action for packets with truncated or inconsistent headers
    #[arg(long, value_enum, default_value_t)]
    pub malformed: MalformedPolicy,
}

fn own_mac(text: &str) -> Result<MacAddr, String> {
    match text.parse::<MacAddr>() {
        Ok(mac) if mac.is_multicast() || mac == MacAddr::ZERO => {
            Err(format!("{mac}: must be a unicast, non-zero MAC address"))
        }
        Ok(mac) => Ok(mac),
        Err(error) => Err(error.to_string()),
    }
}

/// Runs the NF until it is stopped.
///
/// # Errors
/// [`Failure`] if the routes are wrong or it cannot attach.
pub fn run(args: &Args) -> Result<(), Failure> {
    let path = args.routes.clone();
    let routes = Live::new(move || Routes::read(&path))?;
    let options = args.common.options(NAME, &COUNTERS);
    run_nf(&options, Some(routes.request()), |context| Router::new(args.clone(), routes.view(), context))
}
