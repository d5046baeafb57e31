// SPDX-License-Identifier: Apache-2.0
//! Events: what netvmd notices without being asked.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How bad an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventSeverity {
    /// As intended.
    Info,
    /// Something works less well.
    Warning,
    /// Something does not work.
    Error,
}

impl EventSeverity {
    /// As in JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

macro_rules! kinds {
    ($($(#[$note:meta])* $kind:ident $severity:ident $word:literal,)*) => {
        /// What happened.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum EventKind {
            $($(#[$note])* $kind,)*
            /// A kind of a later version.
            #[serde(other)]
            Other,
        }

        impl EventKind {
            /// Its severity.
            #[must_use]
            pub const fn severity(self) -> EventSeverity {
                match self {
                    $(Self::$kind => EventSeverity::$severity,)*
                    Self::Other => EventSeverity::Info,
                }
            }

            /// As in JSON.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$kind => $word,)*
                    Self::Other => "other",
                }
            }
        }
    };
}

kinds! {
    /// netvmd serves requests.
    Started Info "started",
    /// A configuration came into force.
    Applied Info "applied",
    /// A configuration was refused, or undone after a failure.
    NotApplied Warning "not_applied",
    /// An unconfirmed configuration was undone.
    WentBack Warning "went_back",
    /// A client has added a port beside the configuration file.
    PortAdded Info "port_added",
    /// A client has removed a port that was beside the configuration file.
    PortRemoved Info "port_removed",
    /// A rule applies now, or no longer, as its `time` or `load` says.
    RuleSwitched Info "rule_switched",
    /// A replica of a role was started or is to end, as its load says.
    NfScaled Info "nf_scaled",
    /// An NF attached.
    NfUp Info "nf_up",
    /// An NF ended, and was not asked to.
    NfDown Warning "nf_down",
    /// An NF makes no progress although packets wait for it.
    NfHung Error "nf_hung",
    /// An NF makes no progress because it gets no core.
    NfStarved Warning "nf_starved",
    /// A hung or starved NF makes progress again.
    NfRecovered Info "nf_recovered",
    /// An NF lost its memory, as an NF of its trust group damaged it.
    NfEvicted Warning "nf_evicted",
    /// A standby replica became active.
    StandbyTookOver Info "standby_took_over",
    /// The buffers of an NF that ended are back.
    Reclaimed Info "reclaimed",
    /// An audit found buffers that an NF had misreported.
    Audited Warning "audited",
    /// A trust group has new memory, as an NF damaged the old one.
    GroupReset Error "group_reset",
    /// A port's link is up.
    LinkUp Info "link_up",
    /// A port's link is down.
    LinkDown Warning "link_down",
    /// Other members of a bond carry its packets, or none does.
    BondChanged Warning "bond_changed",
    /// Hosts of a port have reported more multicast groups than they may join.
    MulticastLimit Warning "multicast_limit",
    /// A port failed.
    PortFault Error "port_fault",
    /// A port waits, as the namespace of its container is not there.
    PortWaits Info "port_waits",
    /// A queue of a port moved to another worker.
    QueueMoved Info "queue_moved",
    /// A worker was added.
    WorkerAdded Info "worker_added",
    /// A worker has given its work to others, and has left its core.
    WorkerRemoved Info "worker_removed",
    /// A worker runs on another core.
    WorkerMoved Info "worker_moved",
    /// A MAC address moved from one port to another.
    MacMoved Info "mac_moved",
    /// MAC addresses move to and fro between ports: a loop of links, or hosts with one address.
    MacFlapping Warning "mac_flapping",
    /// A port's flooded packets exceed its storm control.
    Storm Warning "storm",
    /// A port was opened again.
    PortReopened Info "port_reopened",
    /// The kernel refuses to signal eventfds asynchronously.
    WakesMayWait Warning "wakes_may_wait",
    /// A target of NAT rules does not answer: new connections go to others.
    TargetDown Warning "target_down",
    /// A target of NAT rules answers again.
    TargetUp Info "target_up",
    /// New connections were refused: a table is full, a quota is used up, or NAT cannot translate them.
    ConnectionsRefused Warning "connections_refused",
    /// Connections without an answer gave way to new ones, as a table is full.
    ConnectionsEvicted Warning "connections_evicted",
    /// Clients do not acknowledge the SYN cookies that a port answers with.
    SynFlood Warning "syn_flood",
    /// Lines of the log of connections could not be written, or events of NAT not sent.
    ConnectionLogLost Error "connection_log_lost",
    /// The certificates of the remote API were read again.
    CertificatesLoaded Info "certificates_loaded",
    /// New certificates of the remote API cannot be used; the earlier ones stay.
    CertificatesRefused Warning "certificates_refused",
    /// Entries of the audit log could not be written.
    AuditLost Error "audit_lost",
    /// No file descriptor was free for a connection.
    OutOfFiles Error "out_of_files",
    /// This client was too slow: events before this one are missing for it.
    Lost Warning "lost",
}

/// One event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Its number, from 1 in the order of events since netvmd started; 0 for an event that only this client gets.
    pub number: u64,
    /// When, in seconds since 1970.
    pub at: f64,
    /// How bad it is.
    pub severity: EventSeverity,
    /// What happened.
    pub kind: EventKind,
    /// The name of what it happened to; empty for netvmd as a whole.
    pub subject: String,
    /// The same in one sentence.
    pub message: String,
}

/// Which events a request asks for: its query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventQuery {
    /// Only those with a higher number.
    #[serde(default)]
    pub after: u64,
    /// Go on with those to come, one JSON object a line, until the client closes the connection.
    #[serde(default)]
    pub follow: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_json() {
        for kind in [EventKind::NfUp, EventKind::StandbyTookOver, EventKind::Lost] {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.word());
        }
        let later: EventKind = serde_json::from_str("\"never_heard_of\"").unwrap();
        assert_eq!(later, EventKind::Other);
        assert_eq!(serde_json::to_value(EventSeverity::Warning).unwrap(), EventSeverity::Warning.word());
    }
}
