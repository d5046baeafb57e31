// SPDX-License-Identifier: Apache-2.0
//! Packet capture.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The protocol that `POST /v1/capture` upgrades the connection to.
pub const CAPTURE_PROTOCOL: &str = "netvm-capture";

/// Instructions of classic BPF: operation, two jumps and a constant of each.
pub type FilterProgram = Vec<(u16, u8, u8, u32)>;

/// Longest filter in libpcap's language, in bytes: libpcap's memory grows with the square of it, to some 30 MB here.
pub const MAX_FILTER: usize = 8192;

/// What to capture.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CaptureRequest {
    /// Places: `PORT`, `CHAIN`, `CHAIN:HOP`, `NF` or `ROUTER`, with `port:`, `chain:`, `nf:` or `router:` before a name
    /// that several have. None: all ports; with `dropped`: everything.
    pub at: Vec<String>,
    /// Packets that are dropped, instead of packets that pass.
    pub dropped: bool,
    /// Drop reasons; none: any.
    pub reasons: Vec<String>,
    /// Classic BPF: operation, two jumps and a constant for each instruction. None: every packet.
    #[schema(value_type = Vec<Vec<u32>>)]
    pub filter: FilterProgram,
    /// Bytes to copy of each packet; 0: all.
    pub snaplen: u32,
    /// Bytes of records that wait for the reader, for each worker; 0: 32 MiB, or less if less may be used. On the
    /// socket of a group, all captures of a user may use 256 MiB, and of all users 512 MiB; on the API's socket
    /// 4 GiB.
    pub buffer: u64,
}

/// What to capture into a file that the answer is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CaptureFile {
    /// Places, as in [`CaptureRequest`].
    pub at: Vec<String>,
    /// Packets that are dropped, instead of packets that pass.
    pub dropped: bool,
    /// Drop reasons; none: any.
    pub reasons: Vec<String>,
    /// A filter in libpcap's language, of at most 8,192 bytes; empty: every packet.
    pub filter: String,
    /// Bytes to copy of each packet; 0: all.
    pub snaplen: u32,
    /// The file ends after so many packets: 1 to [`CaptureFile::MAX_PACKETS`].
    pub packets: u64,
    /// The file ends after so many seconds: 1 to [`CaptureFile::MAX_SECONDS`].
    pub seconds: u64,
}

impl CaptureFile {
    /// Most packets of a file.
    pub const MAX_PACKETS: u64 = 1_000_000;
    /// Most seconds of a file.
    pub const MAX_SECONDS: u64 = 600;
}

impl Default for CaptureFile {
    fn default() -> Self {
        let (at, reasons, filter) = (Vec::new(), Vec::new(), String::new());
        Self { at, dropped: false, reasons, filter, snaplen: 0, packets: 10_000, seconds: 10 }
    }
}

/// The packets that an NF had taken and not passed on when it ended: at most a burst of 64, in the order
/// in which it took them; from several workers or NFs, one source after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HeldPackets {
    /// Its role.
    pub role: String,
    /// Its instance.
    pub instance: u32,
    /// When it ended, in seconds since 1970.
    pub time: f64,
    /// The packets.
    pub packets: Vec<HeldPacket>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeldPacket {
    /// The port that it came in by.
    pub port: Option<String>,
    /// Its length in bytes.
    pub length: u32,
    /// Its first 2048 bytes in hexadecimal.
    pub data: String,
}

/// A capture point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureInterface {
    /// Its name.
    pub name: String,
    /// What it is.
    pub description: String,
    /// The labels of a port.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// A capture that runs: netvmd sends it with the rings' memory after the upgrade, once the client has sent a byte. The
/// capture ends when the client closes the connection.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CaptureInfo {
    /// Its number.
    pub id: u32,
    /// Places, in the order of the numbers in records.
    pub interfaces: Vec<CaptureInterface>,
    /// For chains by number: the name, and the roles of the hops.
    pub chains: BTreeMap<u16, (String, Vec<String>)>,
    /// Names of ports by number.
    pub ports: BTreeMap<u16, String>,
    /// Names of roles by number.
    pub roles: BTreeMap<u16, String>,
    /// Names of drop reasons, in the order of their numbers.
    pub reasons: Vec<String>,
}
