// SPDX-License-Identifier: Apache-2.0
//! Ports that share memory with a program of DPDK, VPP or others (memif).

use std::path::PathBuf;

use super::info::{KindInfo, Resource};
use super::keys::{Key, KeyValue};
use crate::words::words;

/// Which side a [`PortKind::Memif`](crate::PortKind::Memif) is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemifRole {
    /// netvm creates the socket, the program the memory.
    #[default]
    Server,
    /// netvm connects to the program's socket, and creates the memory.
    Client,
}

words!(MemifRole: "server" => Server, "client" => Client);

/// The keys of a [`PortKind::Memif`](crate::PortKind::Memif).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemifConfig {
    /// The socket.
    pub path: PathBuf,
    /// Which side netvm is.
    pub role: MemifRole,
    /// The number of the interface on the socket.
    pub id: u32,
    /// What both sides know, at most 24 bytes.
    pub secret: Option<String>,
    /// Descriptors of a ring, a power of two: the most that a client may have, or what netvm as a client wants.
    pub ring_size: u32,
    /// Bytes of a buffer that netvm makes as a client.
    pub buffer_size: u32,
}

impl Default for MemifConfig {
    /// The defaults of DPDK and VPP.
    fn default() -> Self {
        let (path, role) = (PathBuf::new(), MemifRole::default());
        Self { path, role, id: 0, secret: None, ring_size: 1024, buffer_size: 2048 }
    }
}

impl MemifConfig {
    pub(super) fn info(&self) -> KindInfo<'_> {
        let socket = match self.role {
            MemifRole::Server => Resource::OwnSocket(&self.path),
            MemifRole::Client => Resource::PeerInterface(&self.path, self.id),
        };
        KindInfo { resources: [Some(socket), None], ..KindInfo::new("memif") }
    }

    pub(super) fn keys(&mut self) -> Vec<Key<'_>> {
        vec![
            Key::socket(&mut self.path),
            Key::new("role", KeyValue::Word(&mut self.role)),
            Key::new("id", KeyValue::Number(&mut self.id, 0..=u32::MAX.into())),
            Key::new("secret", KeyValue::Secret(&mut self.secret)),
            Key::new("ring_size", KeyValue::RingSize(&mut self.ring_size)),
            Key::new("buffer_size", KeyValue::Number(&mut self.buffer_size, 256..=32_768)),
        ]
    }
}
