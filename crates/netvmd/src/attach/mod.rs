// SPDX-License-Identifier: Apache-2.0
//! Lets NFs attach: the handshake of one NF (`session`, over a `connection`), and the attach socket for NFs that netvmd
//! does not start (`server`).

mod connection;
mod quotas;
mod server;
mod session;

pub use server::{AttachServer, External, Externals, ListenError};
pub use session::{NfSocket, Policy, Session};
