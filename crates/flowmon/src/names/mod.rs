// SPDX-License-Identifier: Apache-2.0
//! Host names in packets: the question of DNS messages, the server name of TLS. In: the payload of a packet, which is
//! hostile. Out: a bounded name, or none. Nothing allocates.

mod dns;
mod store;
mod tls;

pub use dns::question;
pub use tls::server_name;

pub(crate) use store::Names;

use netvm_wire::{Headers, Transport};

use crate::entry::Name;

/// UDP port of DNS.
const DNS: u16 = 53;

/// Whether a packet may have a name, by as much of it as is at hand: its headers and six bytes.
#[inline]
#[must_use]
pub fn may_have_name(front: &[u8], headers: &Headers) -> bool {
    let key = headers.key();
    match headers.transport() {
        Transport::Udp => key.source_port == DNS || key.destination_port == DNS,
        Transport::Tcp => tls::is_client_hello(headers.payload(front)),
        _ => false,
    }
}

/// The name in a packet that may have one: DNS over UDP by its port, a TLS ClientHello on any port.
#[inline]
#[must_use]
pub fn name_in(frame: &[u8], headers: &Headers) -> Option<Name> {
    let key = headers.key();
    match headers.transport() {
        Transport::Udp if key.source_port == DNS || key.destination_port == DNS => {
            question(headers.payload(frame))
        }
        Transport::Tcp => {
            let payload = headers.payload(frame);
            if tls::is_client_hello(payload) { server_name(payload) } else { None }
        }
        _ => None,
    }
}
