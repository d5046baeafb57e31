// SPDX-License-Identifier: Apache-2.0
//! A flow monitor: packets and bytes by flow in a bounded table, totals by protocol, and a report of the largest flows.
#![forbid(unsafe_code)]

mod export;
mod flows;
mod monitor;
mod report;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use netvm_flowmon::export::Exporter;
use netvm_flowmon::{AnyMeter, Record, TableKind};
use netvm_nf_common::{CommonArgs, Failure, MalformedPolicy, run as run_nf};

pub use export::ExportArgs;
pub use flows::{Flow, Flows, Snapshot, Totals};
pub use monitor::{COUNTERS, Monitor};
pub use report::{Reporter, Sink};

use rtrb::{Producer, RingBuffer};

/// Records that wait for the exporter, of each thread.
const RECORDS: usize = 8192;

/// The program's name.
pub const NAME: &str = "netvm-monitor";

/// Count packets and bytes by flow and by protocol; packets pass unchanged
#[derive(Clone, Debug, Parser)]
#[command(name = NAME, version)]
pub struct Args {
    /// Common options.
    #[command(flatten)]
    pub common: CommonArgs,
    /// Write a report to this file, as JSON, every interval and at the end; - is standard output
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Interval between reports in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub interval: u64,
    /// Number of the largest flows in a report
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub top: u16,
    /// Rank flows by this amount
    #[arg(long, value_enum, default_value_t = Rank::Bytes)]
    pub by: Rank,
    /// Table of flows: none, the d-left hash table of Schultz and Crowley, or two choices with tags, the fastest with
    /// many flows
    #[arg(long, value_enum, default_value_t = Table::Tagged)]
    pub table: Table,
    /// Size of each thread's flow table; when it is full, a flow that was silent for long is evicted
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub flows: u32,
    /// Action for packets with truncated or inconsistent headers
    #[arg(long, value_enum, default_value_t = MalformedPolicy::Pass)]
    pub malformed: MalformedPolicy,
    /// Options of the export of flows.
    #[command(flatten)]
    pub export: ExportArgs,
}

/// The kind of flow table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Table {
    /// Counts lengths only
    Null,
    /// Four subtables, the emptiest bucket
    DLeft,
    /// Two buckets, found by tags
    Tagged,
}

/// The amount by which flows are ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Rank {
    /// By bytes
    Bytes,
    /// By packets
    Packets,
}

/// Runs the NF until it is stopped.
///
/// # Errors
/// [`Failure`] if it cannot attach or cannot write its last report.
pub fn run(args: &Args) -> Result<(), Failure> {
    let options = args.common.options(NAME, &COUNTERS);
    let reopen = Arc::default();
    let exporter = args.export.start(&reopen)?;
    let interval = Duration::from_secs(args.interval);
    let writer = args.report.as_ref().map(|path| {
        let reporter = Reporter::new(path.clone(), usize::from(args.top), args.by);
        reporter.with_export(exporter.as_ref().map(Exporter::view)).start(options.threads)
    });
    let writer = writer.transpose()?;
    // Threads that make monitors get senders of their own.
    let rings = exporter.as_ref().map(|exporter| Mutex::new(exporter.rings()));
    let ran = run_nf(&options, Some(reopen), |context| {
        let sink = writer.as_ref().map(|writer| Sink::new(writer.sender(), context.thread(), interval));
        let records = rings.as_ref().map(|rings| {
            let (producer, consumer) = RingBuffer::new(RECORDS);
            // If the exporter has ended, records are counted as lost.
            let _ = rings.lock().unwrap_or_else(PoisonError::into_inner).send(consumer);
            producer
        });
        Monitor::new(args.clone(), sink, records)
    });
    drop(rings);
    let totals = exporter.map(Exporter::finish);
    let written = writer.map_or(Ok(()), report::Writer::finish);
    if let Some(totals) = totals {
        eprintln!(
            "{NAME}: {} records in {} messages exported, {} lost",
            totals.exported, totals.messages, totals.lost
        );
    }
    ran.and(written)
}

impl Args {
    fn meter(&self, records: Option<Producer<Record>>) -> AnyMeter {
        let kind = match self.table {
            Table::Null => TableKind::Null,
            Table::DLeft => TableKind::DLeft,
            Table::Tagged => TableKind::Tagged,
        };
        AnyMeter::new(kind, self.flows as usize, self.export.settings(records.is_some()), records)
    }
}
