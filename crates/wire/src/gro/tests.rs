// SPDX-License-Identifier: Apache-2.0
//! Packets that are coalesced and split again.

use proptest::prelude::*;

use super::*;
use crate::segment::{SegmentHeaders, Segmenter};
use crate::{FrameBuilder, MacAddr, VlanId, checksum, parse};

/// The sum of a payload as [`Packet::is_right`] takes it.
fn sum(bytes: &[u8]) -> u16 {
    !internet_checksum(bytes)
}

/// What GRO makes of packets in a row: one packet, or several that are coalesced.
struct Run {
    coalesced: Option<Coalesced>,
    first: Vec<u8>,
    payload: Vec<u8>,
}

impl Run {
    fn count(&self) -> usize {
        self.coalesced.map_or(1, |coalesced| coalesced.count())
    }
}

fn coalesce(frames: &[Vec<u8>]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for frame in frames {
        let packet = Packet::read(&frame[..frame.len().min(MAX_HEADERS)], frame.len());
        let payload = |packet: &Packet| &frame[packet.header_bytes()..];
        let right = packet.filter(|packet| packet.may_coalesce && packet.is_right(sum(payload(packet))));
        if let Some(run) = runs.last_mut()
            && let Some((coalesced, next)) = run.coalesced.as_mut().zip(right.as_ref())
            && coalesced.accepts(next)
        {
            coalesced.add(next);
            run.payload.extend(payload(next));
            continue;
        }
        let coalesced = right.and_then(Coalesced::begin);
        let payload = coalesced.map_or_else(Vec::new, |begun| payload(begun.first()).to_vec());
        runs.push(Run { coalesced, first: frame.clone(), payload });
    }
    runs
}

/// Splits all runs again.
fn split(runs: &[Run]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for Run { coalesced, first, payload } in runs {
        let Some(run) = coalesced.filter(|coalesced| coalesced.count() > 1) else {
            frames.push(first.clone());
            continue;
        };
        let (headers, bytes) = run.headers();
        let size = run.size() as u16;
        let whole = [&headers[..bytes], payload].concat();
        // What a receiver without knowledge of GRO finds in it.
        let found = parse(&whole).unwrap();
        assert_eq!((found.payload_offset(), found.payload_end()), (bytes, whole.len()));
        let cut = Segmenter::new(
            SegmentHeaders { bytes: &headers[..bytes], lengths: run.lengths(), gso_type: run.gso_type() },
            payload.len(),
            size,
        )
        .unwrap();
        assert_eq!(cut.count(), run.count());
        for n in 0..cut.count() {
            let (start, length) = cut.span(n);
            let part = &payload[start..start + length];
            let (headers, bytes) = cut.headers(n, sum(part));
            frames.push([&headers[..bytes], part].concat());
        }
    }
    frames
}

/// How the next packet differs from one that continues the last.
#[derive(Clone, Copy, Debug)]
struct Next {
    length: usize,
    push: bool,
    /// The byte that differs, if it is in the headers, and how.
    flip: (usize, u8),
    repairs_checksums: bool,
    padding: usize,
}

fn next() -> impl Strategy<Value = Next> {
    let length = prop_oneof![6 => Just(200usize), 1 => 0usize..400];
    let flip = prop_oneof![4 => Just((0, 0)), 1 => (0usize..90, 1u8..=255)];
    let padding = prop_oneof![9 => Just(0usize), 1 => 1usize..8];
    (length, prop::bool::weighted(0.1), flip, any::<bool>(), padding).prop_map(
        |(length, push, flip, repairs_checksums, padding)| Next {
            length,
            push,
            flip,
            repairs_checksums,
            padding,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Splitting yields the packets that came, byte by byte, whatever came.
    #[test]
    fn splitting_yields_what_came(
        (v6, udp, tagged, options) in any::<(bool, bool, bool, bool)>(),
        (start, id) in any::<(u32, u16)>(),
        nexts in prop::collection::vec(next(), 1..40),
    ) {
        let (a, b) = if v6 { ("2001:db8::1", "2001:db8::2") } else { ("10.0.0.1", "10.0.0.2") };
        let (mut sequence, mut frames) = (start, Vec::new());
        for (n, next) in nexts.iter().enumerate() {
            let builder = FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
            let builder = if tagged { builder.vlan(VlanId::new(5).unwrap()) } else { builder };
            let builder = builder.ip(a.parse().unwrap(), b.parse().unwrap());
            // Timestamps (RFC 7323): payload until the header's length includes them.
            let stamps: &[u8] = if options && !udp { &[1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9] } else { &[] };
            let bytes: Vec<u8> = (0..next.length).map(|at| (at * 7 + n * 13) as u8).collect();
            let payload = [stamps, &bytes].concat();
            let flags = if next.push { TcpFlags::ACK | TcpFlags::PSH } else { TcpFlags::ACK };
            let builder = if udp { builder.udp(7, 8) } else { builder.tcp(7, 8, flags).numbers(sequence, 9) };
            let builder = builder.payload(&payload);
            let id = id.wrapping_add(n as u16);
            let mut frame = if v6 { builder } else { builder.fragment(id, 0, false) }.to_vec().unwrap();
            let headers = parse(&frame).unwrap();
            let (l4, end) = (headers.l4_offset().unwrap(), headers.payload_end());
            frame.truncate(end);
            if !udp {
                frame[l4 + 12] += (stamps.len() as u8 / 4) << 4;
            }
            let headers = parse(&frame).unwrap();
            checksum::fill(&mut frame, &headers).unwrap();
            if let Some(byte) = frame.get_mut(next.flip.0) {
                *byte ^= next.flip.1;
            }
            if let Ok(headers) = parse(&frame)
                && next.repairs_checksums
            {
                let _ = checksum::fill(&mut frame, &headers);
            }
            frame.resize(frame.len() + next.padding, 0);
            sequence = sequence.wrapping_add(next.length as u32);
            frames.push(frame);
        }
        let runs = coalesce(&frames);
        prop_assert_eq!(split(&runs), frames);
    }

    #[test]
    fn any_bytes_are_read_within_bounds(bytes in prop::collection::vec(any::<u8>(), 0..150), kind in 0usize..4) {
        let mut bytes = bytes;
        if let Some(place) = bytes.get_mut(12..14) {
            place.copy_from_slice(&[[8, 0], [0x86, 0xdd], [0x81, 0], [0x88, 0xa8]][kind]);
        }
        if let Some(packet) = Packet::read(&bytes, bytes.len()) {
            prop_assert!(packet.header_bytes() <= bytes.len());
        }
    }
}

fn segments(count: usize, size: usize, last: TcpFlags) -> Vec<Vec<u8>> {
    let frame = |n: usize| {
        let frame = FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let frame = frame.ip("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let flags = if n + 1 == count { last } else { TcpFlags::ACK };
        let payload = vec![n as u8; size];
        let frame = frame.tcp(7, 8, flags).numbers((n * size) as u32, 9).payload(&payload);
        let mut frame = frame.fragment(n as u16, 0, false).to_vec().unwrap();
        let headers = parse(&frame).unwrap();
        checksum::fill(&mut frame, &headers).unwrap();
        frame
    };
    (0..count).map(frame).collect()
}

fn counts(frames: &[Vec<u8>]) -> Vec<usize> {
    coalesce(frames).iter().map(Run::count).collect()
}

#[test]
fn a_run_of_segments_becomes_one_until_it_is_pushed_full_or_another() {
    assert_eq!(counts(&segments(40, 1448, TcpFlags::ACK)), [40]);
    assert_eq!(counts(&segments(60, 1448, TcpFlags::ACK)), [45, 15], "64 KiB");
    assert_eq!(
        counts(&segments(10, 47, TcpFlags::ACK)),
        [1; 10],
        "the segmenter splits into no shorter ones"
    );
    let pushed = segments(5, 100, TcpFlags::ACK | TcpFlags::PSH);
    assert_eq!(counts(&pushed), [5]);
    assert_eq!(counts(&[&pushed[4..], &pushed[..4]].concat()), [1, 4]);
    for flag in [TcpFlags::FIN, TcpFlags::SYN, TcpFlags::RST, TcpFlags::URG, TcpFlags::ECE, TcpFlags::CWR] {
        assert_eq!(counts(&segments(5, 100, TcpFlags::ACK | flag)), [4, 1], "{flag:?}");
    }
    // A gap, congestion met on the way, another time to live, a wrong checksum.
    let good = segments(6, 100, TcpFlags::ACK);
    assert_eq!(counts(&[&good[..2], &good[3..]].concat()), [2, 3]);
    for (at, value, expected) in [(15, 3, [3, 1, 2]), (22, 63, [3, 1, 2])] {
        let mut frames = good.clone();
        frames[3][at] = value;
        let headers = parse(&frames[3]).unwrap();
        checksum::fill(&mut frames[3], &headers).unwrap();
        assert_eq!(counts(&frames), expected, "byte {at}");
    }
    let mut frames = good;
    frames[3][90] ^= 1;
    assert_eq!(counts(&frames), [3, 1, 2]);
}
