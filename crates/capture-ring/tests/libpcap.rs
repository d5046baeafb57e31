// SPDX-License-Identifier: Apache-2.0
//! The interpreter against libpcap's own: for expressions that libpcap compiles, and for programs at random.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use netvm_capture_ring::{Direction, Filter, Instruction, Outcome};
use pcap::{Capture, Linktype};
use proptest::prelude::*;

/// libpcap's `struct bpf_insn`.
#[repr(C)]
struct BpfInsn {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

#[link(name = "pcap")]
unsafe extern "C" {
    fn bpf_filter(program: *const BpfInsn, packet: *const u8, length: u32, captured: u32) -> u32;
    fn bpf_validate(program: *const BpfInsn, length: i32) -> i32;
}

fn raw(program: &[Instruction]) -> Vec<BpfInsn> {
    program.iter().map(|i| BpfInsn { code: i.code, jt: i.jt, jf: i.jf, k: i.k }).collect()
}

/// Whether libpcap accepts a packet.
fn reference(program: &[Instruction], packet: &[u8], length: u32) -> bool {
    let raw = raw(program);
    // SAFETY: the program was verified, so it ends and stays in its scratch memory; the packet is a slice.
    unsafe { bpf_filter(raw.as_ptr(), packet.as_ptr(), length, packet.len() as u32) != 0 }
}

/// Whether netvm does, given more and more of the packet, as a worker gives it.
fn accepts(filter: &Filter, packet: &[u8]) -> bool {
    let length = packet.len() as u32;
    for front in [packet.len().min(20), packet.len().min(64)] {
        match filter.run(&packet[..front], length) {
            Outcome::Beyond => {}
            outcome => return outcome == Outcome::Accept,
        }
    }
    match filter.run(packet, length) {
        Outcome::Beyond => panic!("nothing is beyond a whole packet"),
        outcome => outcome == Outcome::Accept,
    }
}

const EXPRESSIONS: &[&str] = &[
    "ip",
    "ip6",
    "arp",
    "tcp",
    "udp port 53",
    "tcp dst port 80 or tcp dst port 443",
    "host 10.0.0.1",
    "src net 10.0.0.0/8 and not dst net 10.0.0.0/24",
    "ip6 host fd00::1",
    "ether host 02:00:00:00:00:01",
    "ether broadcast or ether multicast",
    "vlan 5 and tcp",
    "vlan and vlan 7",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
    "ip[8] < 10",
    "tcp[((tcp[12] & 0xf0) >> 2):4] = 0x47455420",
    "greater 200",
    "less 60",
    "portrange 1000-2000",
    "icmp6 and ip6[40] = 128",
    "ip[2:2] - ((ip[0] & 0xf) << 2) > 100",
    "mpls 3",
    "pppoes and ip",
    "ip proto 17 and ip[6:2] & 0x1fff = 0",
    "len % 3 = 1 or len * 2 > 400",
    "ether[12:2] ^ 0x0800 = 0",
    "udp and udp[4:2] / 2 > 20",
];

fn compile(expression: &str) -> Vec<Instruction> {
    let dead = Capture::dead(Linktype::ETHERNET).unwrap();
    let program = dead.compile(expression, true).unwrap_or_else(|error| panic!("{expression}: {error}"));
    // `BpfInstruction` has no accessors but its text: `code jt jf k`.
    let lines = program.get_instructions().iter().map(ToString::to_string);
    lines
        .map(|line| {
            let numbers: Vec<u64> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
            let [code, jt, jf, k] = numbers[..] else { panic!("{line}") };
            Instruction { code: code as u16, jt: jt as u8, jf: jf as u8, k: k as u32 }
        })
        .collect()
}

/// Bytes that often are a packet of one of the kinds that the expressions ask for.
fn packets() -> impl Strategy<Value = Vec<u8>> {
    let link = prop_oneof![
        Just(vec![0x08, 0x00]),
        Just(vec![0x86, 0xdd]),
        Just(vec![0x08, 0x06]),
        Just(vec![0x81, 0x00, 0, 5, 0x08, 0x00]),
        Just(vec![0x81, 0x00, 0, 5, 0x81, 0x00, 0, 7, 0x86, 0xdd]),
        Just(vec![0x88, 0x47, 0, 0, 0x31, 64]),
        Just(vec![0x88, 0x64, 0x11, 0, 0, 1, 0, 40, 0, 0x21]),
    ];
    let macs = prop_oneof![
        Just(vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1]),
        proptest::collection::vec(any::<u8>(), 12)
    ];
    let ip = (0u8..8, prop_oneof![Just(6u8), Just(17), Just(58), Just(1)], 5u8..8).prop_map(
        |(ttl, proto, ihl)| {
            let mut header =
                vec![0x40 | ihl, 0, 0, 80, 0, 0, 0, 0, ttl * 4, proto, 0, 0, 10, 0, 0, 1, 10, 0, 0, ttl];
            header.resize(usize::from(ihl) * 4, 0);
            header
        },
    );
    let ip6 = prop_oneof![Just(6u8), Just(17), Just(58)].prop_map(|next| {
        let mut header = vec![0x60, 0, 0, 0, 0, 40, next, 9];
        for _ in 0..2 {
            header.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        }
        header
    });
    let port = || prop_oneof![Just(53u16), Just(80), Just(1500), any::<u16>()];
    let l4 = (port(), port(), proptest::collection::vec(any::<u8>(), 0..260))
        .prop_map(|(from, to, rest)| [&from.to_be_bytes()[..], &to.to_be_bytes(), &rest].concat());
    let built = (macs, link, prop_oneof![ip.boxed(), ip6.boxed()], l4)
        .prop_map(|(macs, link, network, transport)| [macs, link, network, transport].concat());
    prop_oneof![4 => built, 1 => proptest::collection::vec(any::<u8>(), 0..120)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn what_libpcap_compiles_matches_the_same_packets(packet in packets()) {
        thread_local! {
            static FILTERS: Vec<(Vec<Instruction>, Filter)> = EXPRESSIONS
                .iter()
                .map(|expression| compile(expression))
                .map(|program| (program.clone(), Filter::new(&program).unwrap()))
                .collect();
        }
        FILTERS.with(|filters| {
            for ((program, filter), expression) in filters.iter().zip(EXPRESSIONS) {
                let expected = reference(program, &packet, packet.len() as u32);
                prop_assert_eq!(accepts(filter, &packet), expected, "{}", expression);
            }
            Ok(())
        })?;
    }
}

#[test]
fn inbound_and_outbound_are_the_direction_at_the_capture_point() {
    let packet = [[0u8; 12].as_slice(), &[8, 0, 0x45], &[0; 80]].concat();
    let directions =
        [Direction::None, Direction::In, Direction::Out, Direction::ToKernel, Direction::FromKernel];
    for (expression, expected) in [
        ("inbound", [true, true, false, false, true]),
        ("outbound", [false, false, true, true, false]),
        ("outbound and ip", [false, false, true, true, false]),
        ("outbound and ip6", [false; 5]),
    ] {
        let filter = Filter::new(&compile(expression)).unwrap();
        let matches = directions
            .map(|direction| filter.run_passing(&packet, packet.len() as u32, direction) == Outcome::Accept);
        assert_eq!(matches, expected, "{expression}");
    }
}

const CODES: &[u16] = &[
    0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0x00, 0x60, 0x80, 0x01, 0x61, 0x81, 0xb1, 0x02, 0x03, 0x04, 0x0c,
    0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3c, 0x44, 0x4c, 0x54, 0x5c, 0x64, 0x6c, 0x74, 0x7c, 0x84, 0x94, 0x9c,
    0xa4, 0xac, 0x05, 0x15, 0x1d, 0x25, 0x2d, 0x35, 0x3d, 0x45, 0x4d, 0x06, 0x16, 0x07, 0x87, 0x08, 0xff,
];

fn programs() -> impl Strategy<Value = Vec<Instruction>> {
    let k = prop_oneof![0u32..20, 0u32..200, any::<u32>()];
    let instruction = (proptest::sample::select(CODES), 0u8..4, 0u8..4, k)
        .prop_map(|(code, jt, jf, k)| Instruction { code, jt, jf, k });
    proptest::collection::vec(instruction, 1..12).prop_map(|random| {
        // libpcap's scratch memory begins with whatever was on the stack.
        let mut program: Vec<_> = (0..16).map(|k| Instruction { code: 0x02, jt: 0, jf: 0, k }).collect();
        program.extend(random);
        program.push(Instruction { code: 0x16, jt: 0, jf: 0, k: 0 });
        program
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]
    /// What netvm's verifier passes, libpcap's passes, and both run it alike.
    #[test]
    fn programs_at_random_run_alike(
        program in programs(),
        packet in proptest::collection::vec(any::<u8>(), 0..90),
    ) {
        let Ok(filter) = Filter::new(&program) else { return Ok(()) };
        let raw = raw(&program);
        // SAFETY: the program is a list of so many instructions.
        prop_assert_ne!(unsafe { bpf_validate(raw.as_ptr(), raw.len() as i32) }, 0);
        prop_assert_eq!(accepts(&filter, &packet), reference(&program, &packet, packet.len() as u32));
    }
}
