// SPDX-License-Identifier: Apache-2.0
//! What a host reports, as JSON in etcd.

use serde::{Deserialize, Serialize};

/// Seconds that the clocks of a host and of etcd may differ before it is said.
pub const CLOCK_TOLERANCE: i64 = 5;

/// A machine that has a host's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// What identifies it: /etc/machine-id.
    pub id: String,
    /// Its own name, for people.
    pub hostname: String,
    /// The start of its kernel: /proc/sys/kernel/random/boot_id. Of a copy it is another one.
    #[serde(default)]
    pub boot: String,
}

/// What a host does with the wanted configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostState {
    /// It runs it.
    Running,
    /// It changes to it, and tests its health.
    Applying,
    /// It keeps what it runs, because a wave has not come to it.
    Held,
    /// There is none.
    Unconfigured,
    /// It cannot use it, and keeps what it ran.
    Refused,
    /// It was not healthy with it, and went back.
    RolledBack,
    /// It takes a restart of netvmd.
    RestartNeeded,
}

impl HostState {
    /// In a word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Applying => "applying",
            Self::Held => "held",
            Self::Unconfigured => "unconfigured",
            Self::Refused => "refused",
            Self::RolledBack => "rolled back",
            Self::RestartNeeded => "restart needed",
        }
    }

    /// Whether the host has given up on the wanted configuration.
    #[must_use]
    pub const fn has_failed(self) -> bool {
        matches!(self, Self::Refused | Self::RolledBack | Self::RestartNeeded)
    }
}

/// Why a host does not run what is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostError {
    /// The error and its remedy.
    pub message: String,
    /// The file or fragment, by its key, if it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Its line, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Its column, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
}

/// What a host reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStatus {
    /// What it does.
    pub state: HostState,
    /// The revision of etcd with the newest part of the wanted configuration; 0: there is none.
    pub wanted: i64,
    /// The same of the configuration that it runs; 0: none from etcd.
    pub running: i64,
    /// Why these differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<HostError>,
    /// What is not as it should be, as `netvm status` lists it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// The version of netvmd.
    pub version: String,
    /// The machine.
    pub machine: Machine,
    /// Since when the state has been so, by etcd's clock (RFC 3339). For people: nothing is ordered by it.
    pub since: String,
    /// Seconds by which its clock is ahead of etcd's.
    #[serde(default)]
    pub clock_ahead_s: i64,
}

impl HostStatus {
    /// What to say of its clock, if it differs too much.
    #[must_use]
    pub fn clock_problem(&self) -> Option<String> {
        let ahead = self.clock_ahead_s;
        (ahead.abs() > CLOCK_TOLERANCE).then(|| {
            let way = if ahead > 0 { "ahead of" } else { "behind" };
            format!(
                "its clock is {} s {way} etcd's: set it (chronyd), or certificates may not be valid",
                ahead.unsigned_abs()
            )
        })
    }
}
