// SPDX-License-Identifier: Apache-2.0
//! `netvm capture`.

use std::path::PathBuf;

use clap::Args;
use netvm_capture_client::Files;

use crate::complete::{Names, names};

/// Where packets can be captured.
const PLACES: &[Names] = &[Names::Ports, Names::Hops, Names::Roles, Names::Routers];

/// `netvm capture`.
#[derive(Debug, Args)]
pub struct CaptureArgs {
    /// Capture here: a port, a chain's hop by number or role, an NF or a router; repeat it for several
    /// [default: all ports]
    #[arg(long, value_name = "PORT|CHAIN:HOP|NF|ROUTER", add = names(PLACES))]
    pub at: Vec<String>,
    /// Capture dropped packets instead of passing ones
    #[arg(long)]
    pub dropped: bool,
    /// Only drops for this reason; repeat it for several
    #[arg(long, value_name = "REASON", requires = "dropped", add = names(&[Names::DropReasons]))]
    pub reason: Vec<String>,
    /// Write pcapng to FILE, `-` for standard output
    #[arg(long, short, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// Make a network interface of this name that shows the packets, for programs such as tcpdump, Zeek or Suricata
    #[arg(long, value_name = "INTERFACE", conflicts_with_all = ["write", "ring"])]
    pub device: Option<String>,
    /// End after N packets
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// End after N seconds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: Option<u64>,
    /// Copy at most N bytes of each packet; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub snaplen: u32,
    /// Write to FILES files of SIZE bytes (or K, M, G) in turn; the oldest is overwritten
    #[arg(long, value_name = "FILES,SIZE", value_parser = files, requires = "write")]
    pub ring: Option<Files>,
    /// Buffer for packets to write, in MiB for each worker [default: 32, or less if less may be used]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub buffer: Option<u64>,
    /// Filter in libpcap's language
    #[arg(value_name = "FILTER")]
    pub filter: Vec<String>,
}

/// `10,100M`: the number of files, and bytes of each.
fn files(text: &str) -> Result<Files, String> {
    let parse = || {
        let (count, size) = text.split_once(',')?;
        let (number, unit) = match size.strip_suffix(['K', 'M', 'G', 'k', 'm', 'g']) {
            Some(number) => (number, size.chars().last()?.to_ascii_uppercase()),
            None => (size, ' '),
        };
        let shift = match unit {
            'K' => 10,
            'M' => 20,
            'G' => 30,
            _ => 0,
        };
        let bytes = number.parse::<u64>().ok()?.checked_mul(1 << shift)?;
        Some(Files { count: count.parse().ok()?, bytes })
    };
    let files = parse().filter(|files| files.count >= 2 && files.bytes >= 1 << 16);
    files.ok_or_else(|| "give at least 2 files and 64K, such as 10,100M".to_owned())
}
