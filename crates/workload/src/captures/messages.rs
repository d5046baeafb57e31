// SPDX-License-Identifier: Apache-2.0
//! Messages with names in them: DNS (RFC 1035) and the ClientHello of TLS 1.2 (RFC 5246, RFC 6066).

/// The name of a DNS message, as labels.
fn labels(name: &str) -> Vec<u8> {
    let label = |label: &str| [&[label.len() as u8][..], label.as_bytes()].concat();
    let mut bytes: Vec<u8> = name.split('.').flat_map(label).collect();
    bytes.push(0);
    bytes
}

/// A question for the address of a name.
pub(super) fn dns_query(id: u16, name: &str) -> Vec<u8> {
    let header = [id, 0x0100, 1, 0, 0, 0];
    [&header.map(u16::to_be_bytes).concat()[..], &labels(name), &[0, 1, 0, 1]].concat()
}

/// The answer, with `count` addresses.
pub(super) fn dns_answer(id: u16, name: &str, count: u16) -> Vec<u8> {
    let header = [id, 0x8180, 1, count, 0, 0];
    let mut bytes = [&header.map(u16::to_be_bytes).concat()[..], &labels(name), &[0, 1, 0, 1]].concat();
    for n in 0..count {
        let [high, low] = n.to_be_bytes();
        // The name again by a pointer, type A, class IN, an hour, four bytes.
        bytes.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0x0e, 0x10, 0, 4, 192, 0, high, low]);
    }
    bytes
}

/// A field of TLS with a length of two bytes before it.
fn sized(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}

/// A record of TLS.
pub(super) fn tls_record(kind: u8, bytes: &[u8]) -> Vec<u8> {
    [&[kind, 3, 3][..], &sized(bytes)].concat()
}

/// The first message of a TLS client, which names the server.
pub(super) fn tls_hello(name: &str) -> Vec<u8> {
    let server_name = [&[0, 0][..], &sized(&sized(&[&[0][..], &sized(name.as_bytes())].concat()))].concat();
    // Supported groups: X25519 and P-256.
    let groups = [&[0, 10][..], &sized(&sized(&[0, 29, 0, 23]))].concat();
    let suites = sized(&[0x13, 0x01, 0x13, 0x02, 0xc0, 0x2f, 0xc0, 0x30]);
    let body =
        [&[3, 3][..], &[7; 32], &[0], &suites, &[1, 0], &sized(&[server_name, groups].concat())].concat();
    let [_, length @ ..] = (body.len() as u32).to_be_bytes();
    tls_record(22, &[&[1][..], &length, &body].concat())
}
