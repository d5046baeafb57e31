// SPDX-License-Identifier: Apache-2.0
//! Captures: ordinary traffic, tunnels, tags, fragments, garbage, in pcap and pcapng of every link type that tools
//! write.
//!
//! In: a seed. Out: whole files. Some have a link type without Ethernet frames, or end in the middle of a record:
//! their names begin with `refused-` and `cut-off`. Everything else is readable to the end; frames in it can be
//! malformed.

mod damaged;
mod file;
mod frames;
mod messages;
mod ordinary;
mod tunnels;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use self::file::{Order, Packet, Pcap, Pcapng};
use self::frames::timed;
pub use self::ordinary::{DNS_NAME, TLS_NAME};
use crate::random::Random;

/// The seed of [`all`].
pub const SEED: u64 = 1;
/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;

/// A file.
#[derive(Clone, Debug)]
pub struct Capture {
    /// Its name, which says what it has.
    pub name: &'static str,
    /// Its contents.
    pub bytes: Vec<u8>,
}

impl Capture {
    /// Whether readers of Ethernet frames refuse it for its link type.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.name.starts_with("refused-")
    }
}

/// All files, by name.
#[must_use]
pub fn all() -> Vec<Capture> {
    let mut random = Random::new(SEED);
    let random = &mut random;
    let ethernet = |name, frames: Vec<Vec<u8>>| (name, timed(frames));
    let files = [
        ethernet("dns.pcap", ordinary::dns()),
        ethernet("dns-fragmented.pcap", ordinary::fragmented_dns()),
        ethernet("flows.pcap", ordinary::many_flows(random)),
        ethernet("fragments.pcap", damaged::fragments(random)),
        ethernet("http-ipv6.pcap", ordinary::http_over_v6(random)),
        ethernet("jumbo.pcap", ordinary::jumbo(random)),
        ethernet("link-protocols.pcap", ordinary::link_protocols()),
        ethernet("malformed.pcap", damaged::malformed()),
        ethernet("quic.pcap", ordinary::quic(random)),
        ethernet("tagged.pcap", tunnels::tagged()),
        ethernet("tls.pcap", ordinary::tls(random)),
        ethernet("tunnels.pcap", tunnels::tunnels()),
        ethernet("video.pcap", ordinary::video(random)),
    ];
    let sources: Vec<Vec<u8>> =
        files.iter().flat_map(|(_, packets)| packets.iter().map(|it| it.data.clone())).collect();
    let fuzzed = timed(damaged::fuzzed(&sources, random));
    let mixed: Vec<Packet> = files.iter().flat_map(|(_, packets)| packets.iter().take(12).cloned()).collect();
    let mut captures: Vec<Capture> =
        files.iter().map(|(name, packets)| Capture { name, bytes: Pcap::ETHERNET.file(packets) }).collect();
    let big = Pcap { order: Order::Big, ..Pcap::ETHERNET };
    captures.push(Capture { name: "fuzzed.pcap", bytes: big.file(&fuzzed) });
    captures.extend(formats(&mixed));
    captures.extend(links());
    captures.sort_by_key(|capture| capture.name);
    captures
}

/// One mix of packets in every form of file.
fn formats(mixed: &[Packet]) -> Vec<Capture> {
    let nano = Pcap { is_nano: true, ..Pcap::ETHERNET };
    let cut_off = Pcap::ETHERNET.file(&mixed[..20]);
    vec![
        Capture { name: "big-endian.pcap", bytes: Pcap { order: Order::Big, ..Pcap::ETHERNET }.file(mixed) },
        Capture { name: "big-endian-nano.pcap", bytes: Pcap { order: Order::Big, ..nano }.file(mixed) },
        Capture { name: "nano.pcap", bytes: nano.file(mixed) },
        // Frames are cut to 96 bytes.
        Capture { name: "snaplen.pcap", bytes: Pcap { snaplen: 96, ..Pcap::ETHERNET }.file(mixed) },
        Capture { name: "cut-off.pcap", bytes: cut_off[..cut_off.len() - 9].to_vec() },
        Capture { name: "plain.pcapng", bytes: pcapng(Order::Little, mixed) },
        Capture { name: "big-endian.pcapng", bytes: pcapng(Order::Big, mixed) },
        Capture { name: "sections.pcapng", bytes: sections(mixed) },
    ]
}

/// One interface with microseconds, as most tools write it.
fn pcapng(order: Order, packets: &[Packet]) -> Vec<u8> {
    let mut file = Pcapng::new(order);
    file.interface(1, 262_144, None);
    packets.iter().for_each(|packet| file.packet(0, packet.at / 1000, packet));
    file.finish()
}

/// Sections of both byte orders, interfaces of three resolutions, packets without a time, blocks to skip.
fn sections(packets: &[Packet]) -> Vec<u8> {
    let mut file = Pcapng::new(Order::Big);
    let (first, rest) = packets.split_at(packets.len() / 2);
    file.interface(1, 0, Some(9));
    file.interface(1, 0, Some(6));
    // 2^-20 seconds.
    file.interface(1, 0, Some(0x80 | 20));
    file.other(4, &[0, 0, 0, 0]);
    for (n, packet) in first.iter().enumerate() {
        match n % 4 {
            0 => file.packet(0, packet.at, packet),
            1 => file.packet(1, packet.at / 1000, packet),
            2 => file.packet(2, (u128::from(packet.at) * (1 << 20) / 1_000_000_000) as u64, packet),
            _ => file.simple(packet),
        }
    }
    file.section(Order::Little);
    file.interface(1, 0, Some(9));
    file.other(0x0bad_0001, b"of another program");
    rest.iter().for_each(|packet| file.packet(0, packet.at, packet));
    file.other(5, &[0; 12]);
    file.finish()
}

/// The same packets under every link type that has IP packets, and under some that readers of Ethernet frames refuse.
fn links() -> Vec<Capture> {
    let [v4, v6] = [ordinary::inner(false), ordinary::inner(true)];
    let packets = |header: fn(&[u8]) -> Vec<u8>, which: &[&Vec<u8>]| {
        let frame = |n: usize| which[n % which.len()];
        timed((0..30).map(|n| [header(frame(n)), frame(n)[ETHERNET..].to_vec()].concat()))
    };
    let none = |_: &[u8]| Vec::new();
    // Linux cooked, both versions: sent to us, Ethernet, six bytes of address, EtherType.
    let cooked = |frame: &[u8]| [&[0, 0, 0, 1, 0, 6][..], &frame[6..12], &[0, 0], &frame[12..14]].concat();
    let cooked2 =
        |frame: &[u8]| [&frame[12..14], &[0, 0, 0, 0, 0, 2, 0, 1, 0, 6][..], &frame[6..12], &[0, 0]].concat();
    let file = |name, link, packets: Vec<Packet>| Capture {
        name,
        bytes: Pcap { link, ..Pcap::ETHERNET }.file(&packets),
    };
    let mut cooked2_ng = Pcapng::new(Order::Little);
    cooked2_ng.interface(276, 0, Some(9));
    packets(cooked2, &[&v4, &v6]).iter().for_each(|packet| cooked2_ng.packet(0, packet.at, packet));
    vec![
        file("raw-ip.pcap", 101, packets(none, &[&v4, &v6])),
        file("raw-ip-bsd.pcap", 12, packets(none, &[&v4, &v6])),
        file("raw-ip-openbsd.pcap", 14, packets(none, &[&v6, &v4])),
        file("raw-ipv4.pcap", 228, packets(none, &[&v4])),
        file("raw-ipv6.pcap", 229, packets(none, &[&v6])),
        file("cooked.pcap", 113, packets(cooked, &[&v4, &v6])),
        file("cooked2.pcap", 276, packets(cooked2, &[&v6, &v4])),
        Capture { name: "cooked2.pcapng", bytes: cooked2_ng.finish() },
        // BSD loopback, Cisco HDLC, 802.11, USB, CAN.
        file("refused-loopback.pcap", 0, packets(|_| vec![2, 0, 0, 0], &[&v4])),
        file("refused-hdlc.pcap", 104, packets(|_| vec![0x0f, 0, 8, 0], &[&v4])),
        file("refused-wlan.pcap", 105, packets(|_| vec![8; 24], &[&v4])),
        file("refused-usb.pcap", 220, packets(|_| vec![0; 64], &[&v4])),
        file("refused-can.pcap", 227, packets(|_| vec![0; 8], &[&v4])),
    ]
}

/// Writes all files into a folder; returns their paths, and those of the captures of `NETVM_DATA`.
///
/// # Errors
/// Of the file system.
pub fn write(folder: &Path) -> io::Result<Vec<PathBuf>> {
    fs::create_dir_all(folder)?;
    let mut paths = Vec::new();
    for Capture { name, bytes } in all() {
        let path = folder.join(name);
        fs::write(&path, bytes)?;
        paths.push(path);
    }
    paths.extend(crate::data::captures()?);
    Ok(paths)
}

/// Frames of the Ethernet files, at most `each` of a file, without those that the files cut.
#[must_use]
pub fn some_frames(each: usize) -> Vec<Vec<u8>> {
    let mut random = Random::new(SEED);
    let random = &mut random;
    let files = [
        ordinary::dns(),
        ordinary::fragmented_dns(),
        ordinary::many_flows(random),
        damaged::fragments(random),
        ordinary::http_over_v6(random),
        ordinary::link_protocols(),
        damaged::malformed(),
        tunnels::tagged(),
        tunnels::tunnels(),
        ordinary::tls(random),
    ];
    files.into_iter().flat_map(|frames| frames.into_iter().take(each)).collect()
}

#[cfg(test)]
mod tests;
