// SPDX-License-Identifier: Apache-2.0
//! What an exporter is started with, and its times.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::clock::Clock;
use super::collector::Target;
use crate::export::interfaces::Interfaces;
use crate::export::rules::RuleNames;

/// Pause when there is nothing to do.
pub(in crate::export) const IDLE_INTERVAL: Duration = Duration::from_millis(5);
/// A message goes at the latest so long after its first record.
pub(in crate::export) const MAX_MESSAGE_DELAY: Duration = Duration::from_secs(1);

/// Where records go.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the program in what is printed.
    pub program: &'static str,
    /// IPFIX collector.
    pub collector: Option<Target>,
    /// Observation domain.
    pub domain: u32,
    /// Most bytes of a UDP message (RFC 7011 section 10.3.3).
    pub message_size: usize,
    /// Most UDP messages in a second: RFC 7011 section 10.3.2 asks exporters not to flood.
    pub messages_per_second: u32,
    /// Interval of templates over UDP (RFC 5153 section 6.2.1).
    pub template_refresh: Duration,
    /// One packet of so many is counted.
    pub sampling: u32,
    /// Names of the rules in records.
    pub rules: RuleNames,
    /// Names of the ports in records.
    pub interfaces: Interfaces,
    /// File for JSON lines.
    pub eve: Option<PathBuf>,
    /// Set to open the eve file again, as after log rotation; cleared when it was.
    pub reopen: Arc<AtomicBool>,
    /// Time of records.
    pub clock: Clock,
}
