// SPDX-License-Identifier: Apache-2.0
//! Offloads of an interface: what its driver, or the hardware, does to packets that are sent by it. They can change at
//! any time (`ethtool -K`).
//!
//! A packet socket that bypasses the queueing discipline sends a packet as it is, or not at all: the kernel drops a
//! segment that the interface cannot cut itself (`__dev_direct_xmit` of Linux's `net/core/dev.c`). So packets for an
//! interface without such an offload have to be finished before they are sent.

use std::io;
use std::os::fd::AsFd;
use std::sync::OnceLock;

use netlink_packet_route::link::LinkAttribute;
use netvm_netlink::{Requests, by_name};

use crate::ifreq::{Request, control_socket};

/// `ETHTOOL_GSSET_INFO`, `ETHTOOL_GSTRINGS`, `ETHTOOL_GFEATURES` and `ETH_SS_FEATURES` (`linux/ethtool.h`).
const GET_COUNT: u32 = 0x37;
const GET_NAMES: u32 = 0x1b;
const GET_FEATURES: u32 = 0x3a;
const FEATURES: u32 = 4;
const NAME_BYTES: usize = 32;
const SIOCETHTOOL: libc::Ioctl = 0x8946;
/// Words of a block of features: available, requested, active, never changed; each for 32 features.
const BLOCK: usize = 4;
const ACTIVE: usize = 2;
/// Most features that are looked at; Linux has some 64.
const MAX_FEATURES: usize = 128;

/// Longest segments, and most packets of one, that the kernel hands to a driver without a limit of its own.
const DEFAULT_GSO_MAX_SIZE: u32 = 65_536;
const DEFAULT_GSO_MAX_SEGS: u32 = 65_535;

/// What an interface does to packets that it sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Finishes checksums of TCP and UDP, over IPv4 and IPv6.
    pub checksum: bool,
    /// Cuts TCP segments over IPv4, also with ECN.
    pub tso4: bool,
    /// Cuts TCP segments over IPv6.
    pub tso6: bool,
    /// Cuts UDP datagrams (`UDP_SEGMENT`).
    pub uso: bool,
}

impl Features {
    /// Those of an interface; none if the kernel does not say.
    #[must_use]
    pub fn of(interface: &str) -> Self {
        read(interface).unwrap_or_default()
    }
}

/// Numbers of the features that matter. The kernel's numbers are not fixed, but the same for all interfaces.
#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    /// Any of these finishes checksums: of everything; or of both IPv4 and IPv6.
    any: Option<usize>,
    ipv4: Option<usize>,
    ipv6: Option<usize>,
    tso4: Option<usize>,
    ecn: Option<usize>,
    tso6: Option<usize>,
    uso: Option<usize>,
}

fn read(interface: &str) -> io::Result<Features> {
    static NUMBERS: OnceLock<Numbers> = OnceLock::new();
    let numbers = match NUMBERS.get() {
        Some(numbers) => *numbers,
        None => *NUMBERS.get_or_init(|| numbers(interface).unwrap_or_default()),
    };
    let mut words = [0u32; 2 + BLOCK * MAX_FEATURES / 32];
    (words[0], words[1]) = (GET_FEATURES, (MAX_FEATURES / 32) as u32);
    ask(interface, &mut words)?;
    let is_on = |number: Option<usize>| {
        let word = |number: usize| words.get(2 + number / 32 * BLOCK + ACTIVE).copied();
        number.is_some_and(|number| word(number).is_some_and(|word| word >> (number % 32) & 1 == 1))
    };
    let checksum = is_on(numbers.any) || is_on(numbers.ipv4) && is_on(numbers.ipv6);
    let cuts = checksum && is_unlimited(interface);
    Ok(Features {
        checksum,
        tso4: cuts && is_on(numbers.tso4) && is_on(numbers.ecn),
        tso6: cuts && is_on(numbers.tso6),
        uso: cuts && is_on(numbers.uso),
    })
}

/// Whether the driver takes every segment. The kernel would cut longer ones itself, and so drop them here.
fn is_unlimited(interface: &str) -> bool {
    let link = Requests::open().and_then(|mut requests| by_name(&mut requests, interface));
    let Ok(Some(link)) = link else { return false };
    link.attributes.iter().all(|attribute| match attribute {
        LinkAttribute::GsoMaxSize(bytes) => *bytes >= DEFAULT_GSO_MAX_SIZE,
        LinkAttribute::GsoMaxSegs(packets) => *packets >= DEFAULT_GSO_MAX_SEGS,
        _ => true,
    })
}

fn numbers(interface: &str) -> io::Result<Numbers> {
    // The mask of the set is 64 bits long.
    let mut count = [GET_COUNT, 0, 1 << FEATURES, 0, 0];
    ask(interface, &mut count)?;
    let count = (count[4] as usize).min(MAX_FEATURES);
    let mut words = [0u32; 3 + MAX_FEATURES * NAME_BYTES / 4];
    (words[0], words[1], words[2]) = (GET_NAMES, FEATURES, count as u32);
    ask(interface, &mut words)?;
    let bytes: Vec<u8> = words[3..].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let find = |name: &str| {
        let is_it = |bytes: &[u8]| bytes.split(|byte| *byte == 0).next() == Some(name.as_bytes());
        bytes.chunks_exact(NAME_BYTES).take(count).position(is_it)
    };
    Ok(Numbers {
        any: find("tx-checksum-ip-generic"),
        ipv4: find("tx-checksum-ipv4"),
        ipv6: find("tx-checksum-ipv6"),
        tso4: find("tx-tcp-segmentation"),
        ecn: find("tx-tcp-ecn-segmentation"),
        tso6: find("tx-tcp6-segmentation"),
        uso: find("tx-udp-segmentation"),
    })
}

/// A request of ethtool's, whose structure of words the kernel reads and writes.
fn ask(interface: &str, words: &mut [u32]) -> io::Result<()> {
    let request = Request::new(interface)?.with_data(words.as_mut_ptr().cast());
    request.send(control_socket()?.as_fd(), SIOCETHTOOL).map(drop)
}
