// SPDX-License-Identifier: Apache-2.0
//! Options of the export of flows, and the start of its thread.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use netlib::clock;
use netvm_flowmon::Settings;
use netvm_flowmon::export::{Clock, Exporter, Options, Target};
use netvm_nf_common::Failure;

use crate::NAME;

/// Most bytes of a UDP message: an Ethernet frame of 1500 bytes, less IPv6 and UDP headers, and room for a tunnel.
const MESSAGE_SIZE: usize = 1400;
/// Most UDP messages in a second, some 150,000 records.
const MESSAGES_PER_SECOND: u32 = 5000;
/// Names of flows that each thread keeps.
const NAMES: u32 = 4096;

/// Options of the export of flows.
#[derive(Clone, Debug, Args)]
pub struct ExportArgs {
    /// Send records of flows to an IPFIX collector: ipfix:udp:HOST:PORT or ipfix:tcp:HOST:PORT
    #[arg(long, value_name = "COLLECTOR")]
    pub export: Option<Target>,
    /// Append records of flows to this file, a JSON line each, as Suricata names them; - is standard output. SIGHUP
    /// opens it again
    #[arg(long, value_name = "FILE")]
    pub eve: Option<PathBuf>,
    /// A flow ends after so long without a packet
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub idle_timeout: u64,
    /// A flow that goes on has a record so often
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub active_timeout: u64,
    /// Count one packet of N in flows
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub sampling: u32,
    /// IPFIX observation domain
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub domain: u32,
    /// Interval of templates over UDP
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub template_refresh: u64,
}

impl ExportArgs {
    pub(crate) fn settings(&self, exports: bool) -> Settings {
        let cycles = |seconds: u64| clock::cycles_per_second().saturating_mul(seconds);
        Settings {
            idle: cycles(self.idle_timeout),
            active: cycles(self.active_timeout),
            sampling: self.sampling,
            names: if exports { NAMES } else { 0 },
        }
    }

    /// Starts the exporter, if records go anywhere; `reopen` makes it open the eve file again.
    pub(crate) fn start(&self, reopen: &Arc<AtomicBool>) -> Result<Option<Exporter>, Failure> {
        if self.export.is_none() && self.eve.is_none() {
            return Ok(None);
        }
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let clock = Clock {
            cycles: clock::cycles(),
            unix_micros: unix.as_micros() as u64,
            per_second: clock::cycles_per_second(),
        };
        let options = Options {
            program: NAME,
            collector: self.export.clone(),
            domain: self.domain,
            message_size: MESSAGE_SIZE,
            messages_per_second: MESSAGES_PER_SECOND,
            template_refresh: Duration::from_secs(self.template_refresh),
            sampling: self.sampling,
            rules: netvm_flowmon::export::RuleNames::default(),
            interfaces: netvm_flowmon::export::Interfaces::default(),
            eve: self.eve.clone(),
            reopen: Arc::clone(reopen),
            clock,
        };
        Exporter::start(&options).map(Some).map_err(|error| Failure::Other(Box::new(error)))
    }
}
