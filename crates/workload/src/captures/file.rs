// SPDX-License-Identifier: Apache-2.0
//! Writes pcap and pcapng in both byte orders, so that readers are tested against files that our own writer never
//! makes.
//!
//! Formats: draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng.

/// A packet with its time in nanoseconds since 1970 and its length before the capture cut it.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) at: u64,
    pub(super) original: u32,
    pub(super) data: Vec<u8>,
}

/// Numbers in one byte order.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    Little,
    Big,
}

impl Order {
    const fn word(self, number: u32) -> [u8; 4] {
        match self {
            Self::Little => number.to_le_bytes(),
            Self::Big => number.to_be_bytes(),
        }
    }

    const fn half(self, number: u16) -> [u8; 2] {
        match self {
            Self::Little => number.to_le_bytes(),
            Self::Big => number.to_be_bytes(),
        }
    }
}

/// A pcap file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pcap {
    pub(super) order: Order,
    pub(super) is_nano: bool,
    pub(super) link: u32,
    pub(super) snaplen: u32,
}

impl Pcap {
    /// Microseconds, little endian, Ethernet.
    pub(super) const ETHERNET: Self =
        Self { order: Order::Little, is_nano: false, link: 1, snaplen: 262_144 };

    pub(super) fn file(self, packets: &[Packet]) -> Vec<u8> {
        let word = |number: u32| self.order.word(number);
        let magic = if self.is_nano { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
        let version = [self.order.half(2), self.order.half(4)].concat();
        let mut file =
            [&word(magic)[..], &version, &word(0), &word(0), &word(self.snaplen), &word(self.link)].concat();
        for packet in packets {
            let fraction = packet.at % 1_000_000_000 / if self.is_nano { 1 } else { 1000 };
            let cut = packet.data.len().min(self.snaplen as usize);
            let header = [(packet.at / 1_000_000_000) as u32, fraction as u32, cut as u32, packet.original];
            header.iter().for_each(|number| file.extend(word(*number)));
            file.extend(&packet.data[..cut]);
        }
        file
    }
}

/// A pcapng file in the making.
#[derive(Clone, Debug)]
pub(super) struct Pcapng {
    order: Order,
    file: Vec<u8>,
}

impl Pcapng {
    /// A file with a section header.
    pub(super) fn new(order: Order) -> Self {
        let mut file = Self { order, file: Vec::new() };
        file.section(order);
        file
    }

    /// Begins a section.
    pub(super) fn section(&mut self, order: Order) {
        self.order = order;
        let body = [&order.word(0x1a2b_3c4d)[..], &order.half(1), &order.half(0), &[0xff; 8]].concat();
        // Section header option 4: the application.
        self.block(0x0a0d_0d0a, &body, &[(4, b"netvm-workload".to_vec())]);
    }

    /// Describes an interface; `resolution` is the option if_tsresol.
    pub(super) fn interface(&mut self, link: u16, snaplen: u32, resolution: Option<u8>) {
        let body = [&self.order.half(link)[..], &[0, 0], &self.order.word(snaplen)].concat();
        let mut options = vec![(2, b"eth0".to_vec())];
        options.extend(resolution.map(|resolution| (9, vec![resolution])));
        self.block(1, &body, &options);
    }

    /// A packet; `ticks` in the interface's resolution.
    pub(super) fn packet(&mut self, interface: u32, ticks: u64, packet: &Packet) {
        let numbers =
            [interface, (ticks >> 32) as u32, ticks as u32, packet.data.len() as u32, packet.original];
        let body = [numbers.map(|number| self.order.word(number)).concat(), padded(&packet.data)].concat();
        // Flags of an enhanced packet: inbound; and a comment.
        let flags = self.order.word(1).to_vec();
        self.block(6, &body, &[(2, flags), (1, b"made by a generator".to_vec())]);
    }

    /// A packet without time and options.
    pub(super) fn simple(&mut self, packet: &Packet) {
        let body = [&self.order.word(packet.original)[..], &padded(&packet.data)].concat();
        self.block(3, &body, &[]);
    }

    /// A block that readers may skip: names of addresses (4), statistics (5), or of another program.
    pub(super) fn other(&mut self, kind: u32, body: &[u8]) {
        self.block(kind, &padded(body), &[]);
    }

    fn block(&mut self, kind: u32, body: &[u8], options: &[(u16, Vec<u8>)]) {
        let mut all = body.to_vec();
        for (code, value) in options {
            all.extend(self.order.half(*code));
            all.extend(self.order.half(value.len() as u16));
            all.extend(padded(value));
        }
        if !options.is_empty() {
            all.extend([0; 4]);
        }
        let length = self.order.word(all.len() as u32 + 12);
        self.file.extend([&self.order.word(kind)[..], &length, &all, &length].concat());
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.file
    }
}

/// Zeros up to a multiple of four.
fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}
