// SPDX-License-Identifier: Apache-2.0
//! Messages, and their bytes: fields in the order of the machine, packed, after a type of two bytes.

/// Bytes of a message.
pub const MESSAGE_BYTES: usize = 128;
/// Version 2.0: major and minor.
pub(crate) const VERSION: u16 = 2 << 8;
/// Bytes of a name.
const NAME: usize = 32;
/// Bytes of a secret.
const SECRET: usize = 24;
/// Bytes of a disconnect's text.
const TEXT: usize = 96;
/// The ring leads to the server (`MEMIF_MSG_ADD_RING_FLAG_S2M`).
const TO_SERVER: u16 = 1;

/// What a server offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) name: String,
    pub(crate) min_version: u16,
    pub(crate) max_version: u16,
    pub(crate) max_region: u16,
    /// Highest indexes of rings to the client, and to the server.
    pub(crate) max_to_client: u16,
    pub(crate) max_to_server: u16,
    pub(crate) max_log2_ring_size: u8,
}

/// To what a client wants to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Init {
    pub(crate) version: u16,
    pub(crate) id: u32,
    /// 0: Ethernet.
    pub(crate) mode: u8,
    pub(crate) secret: [u8; SECRET],
    pub(crate) name: String,
}

/// A ring in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddRing {
    pub(crate) to_server: bool,
    pub(crate) index: u16,
    pub(crate) region: u16,
    pub(crate) offset: u32,
    pub(crate) log2_size: u8,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(private_interfaces, reason = "other crates only pass them on")]
pub enum Message {
    /// The last message was accepted.
    Ack,
    /// Server: what it offers.
    Hello(Hello),
    /// Client: which interface it wants.
    Init(Init),
    /// Client: memory, with its file.
    AddRegion {
        /// Its number.
        index: u16,
        /// Bytes of it.
        bytes: u64,
    },
    /// Client: a ring, with the eventfd by which its sender interrupts its receiver.
    AddRing(AddRing),
    /// Client: all rings are there.
    Connect {
        /// Name of its interface.
        interface: String,
    },
    /// Server: packets may pass.
    Connected {
        /// Name of its interface.
        interface: String,
    },
    /// The connection ends.
    Disconnect {
        /// Why.
        text: String,
    },
}

impl Message {
    /// From bytes that a peer has sent; `None` if the type is unknown.
    #[must_use]
    pub fn parse(bytes: &[u8; MESSAGE_BYTES]) -> Option<Self> {
        let mut from = Reader(bytes);
        Some(match from.u16() {
            1 => Self::Ack,
            2 => Self::Hello(Hello {
                name: from.text(NAME),
                min_version: from.u16(),
                max_version: from.u16(),
                max_region: from.u16(),
                max_to_client: from.u16(),
                max_to_server: from.u16(),
                max_log2_ring_size: from.u8(),
            }),
            3 => Self::Init(Init {
                version: from.u16(),
                id: from.u32(),
                mode: from.u8(),
                secret: from.array(),
                name: from.text(NAME),
            }),
            4 => Self::AddRegion { index: from.u16(), bytes: u64::from_ne_bytes(from.array()) },
            5 => Self::AddRing(AddRing {
                to_server: from.u16() & TO_SERVER != 0,
                index: from.u16(),
                region: from.u16(),
                offset: from.u32(),
                log2_size: from.u8(),
            }),
            6 => Self::Connect { interface: from.text(NAME) },
            7 => Self::Connected { interface: from.text(NAME) },
            8 => {
                // A number, of which peers make no use.
                from.u32();
                Self::Disconnect { text: from.text(TEXT) }
            }
            _ => return None,
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; MESSAGE_BYTES] {
        let mut to = Writer { bytes: [0; MESSAGE_BYTES], at: 0 };
        match self {
            Self::Ack => to.put(&1u16.to_ne_bytes()),
            Self::Hello(hello) => {
                to.put(&2u16.to_ne_bytes());
                to.text(&hello.name, NAME);
                let Hello { min_version, max_version, max_region, max_to_client, max_to_server, .. } = hello;
                for number in [min_version, max_version, max_region, max_to_client, max_to_server] {
                    to.put(&number.to_ne_bytes());
                }
                to.put(&[hello.max_log2_ring_size]);
            }
            Self::Init(init) => {
                to.put(&3u16.to_ne_bytes());
                to.put(&init.version.to_ne_bytes());
                to.put(&init.id.to_ne_bytes());
                to.put(&[init.mode]);
                to.put(&init.secret);
                to.text(&init.name, NAME);
            }
            Self::AddRegion { index, bytes } => {
                to.put(&4u16.to_ne_bytes());
                to.put(&index.to_ne_bytes());
                to.put(&bytes.to_ne_bytes());
            }
            Self::AddRing(ring) => {
                let flags = if ring.to_server { TO_SERVER } else { 0 };
                for number in [5, flags, ring.index, ring.region] {
                    to.put(&number.to_ne_bytes());
                }
                to.put(&ring.offset.to_ne_bytes());
                to.put(&[ring.log2_size]);
            }
            Self::Connect { interface } => {
                to.put(&6u16.to_ne_bytes());
                to.text(interface, NAME);
            }
            Self::Connected { interface } => {
                to.put(&7u16.to_ne_bytes());
                to.text(interface, NAME);
            }
            Self::Disconnect { text } => {
                to.put(&8u16.to_ne_bytes());
                to.put(&0u32.to_ne_bytes());
                to.text(text, TEXT);
            }
        }
        to.bytes
    }
}

/// A secret, as a message has it: filled up with zeros.
pub(crate) fn secret_bytes(secret: &str) -> [u8; SECRET] {
    let mut bytes = [0; SECRET];
    for (place, byte) in bytes.iter_mut().zip(secret.bytes()) {
        *place = byte;
    }
    bytes
}

/// Fields of a message. Messages are longer than all their fields.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk() {
            Some((array, rest)) => {
                self.0 = rest;
                *array
            }
            None => [0; N],
        }
    }

    fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.array())
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.array())
    }

    /// A text that ends at a zero, as visible ASCII for terminals and logs.
    fn text(&mut self, bytes: usize) -> String {
        let (text, rest) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = rest;
        let visible = |byte: &u8| match byte {
            b' ' => ' ',
            byte if byte.is_ascii_graphic() => char::from(*byte),
            _ => '?',
        };
        text.iter().take_while(|byte| **byte != 0).map(visible).collect()
    }
}

struct Writer {
    bytes: [u8; MESSAGE_BYTES],
    at: usize,
}

impl Writer {
    fn put(&mut self, bytes: &[u8]) {
        for (place, byte) in self.bytes.iter_mut().skip(self.at).zip(bytes) {
            *place = *byte;
        }
        self.at += bytes.len();
    }

    /// A text with a zero at its end.
    fn text(&mut self, text: &str, bytes: usize) {
        let end = self.at + bytes;
        let kept = &text.as_bytes()[..text.len().min(bytes - 1)];
        self.put(kept);
        self.at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_as_libmemif_packs_them() {
        let hello = Hello {
            name: "VPP".to_owned(),
            min_version: VERSION,
            max_version: VERSION,
            max_region: 255,
            max_to_client: 3,
            max_to_server: 4,
            max_log2_ring_size: 14,
        };
        let bytes = Message::Hello(hello.clone()).bytes();
        assert_eq!(
            (&bytes[..5], &bytes[34..45]),
            (&b"\x02\0VPP"[..], &b"\0\x02\0\x02\xff\0\x03\0\x04\0\x0e"[..])
        );
        let init = Init { version: VERSION, id: 7, mode: 0, secret: secret_bytes("s"), name: "x".to_owned() };
        let bytes = Message::Init(init.clone()).bytes();
        assert_eq!((&bytes[..10], bytes[33]), (&b"\x03\0\0\x02\x07\0\0\0\0s"[..], b'x'));
        let ring = AddRing { to_server: true, index: 1, region: 2, offset: 0x0102_0304, log2_size: 10 };
        assert_eq!(Message::AddRing(ring).bytes()[..13], *b"\x05\0\x01\0\x01\0\x02\0\x04\x03\x02\x01\x0a");
        let text = "y".repeat(200);
        let messages = [
            Message::Ack,
            Message::Hello(hello),
            Message::Init(init),
            Message::AddRegion { index: 1, bytes: 1 << 40 },
            Message::AddRing(ring),
            Message::Connect { interface: "memif0/0".to_owned() },
            Message::Connected { interface: "net_memif0".to_owned() },
            Message::Disconnect { text: text[..95].to_owned() },
        ];
        for message in &messages {
            assert_eq!(Message::parse(&message.bytes()).as_ref(), Some(message));
        }
        // A text that is too long is cut, and what would change a terminal is replaced.
        assert_eq!(Message::Disconnect { text }.bytes(), messages[7].bytes());
        let bytes = Message::Connect { interface: "a\x1b[31mb".to_owned() }.bytes();
        assert_eq!(Message::parse(&bytes), Some(Message::Connect { interface: "a?[31mb".to_owned() }));
        assert_eq!(Message::parse(&[9; MESSAGE_BYTES]), None);
        assert_eq!(Message::parse(&[0; MESSAGE_BYTES]), None);
    }
}
