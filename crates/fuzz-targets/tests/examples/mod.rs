// SPDX-License-Identifier: Apache-2.0
//! Valid examples for each body, most of them written by the crates that read them.

mod packets;

use netvm_attach::{Answer, Hello, Ready};
use netvm_capture::{CaptureWriter, Format, Precision, Timestamp, WriterOptions};
use netvm_ring::Descriptor;
use netvm_wire::{FrameBuilder, MacAddr};
pub use packets::{
    connection_steps, datagrams_of_tunnels, frames, multicast_messages, packets_to_translate,
    requests_of_neighbours, whole_frames,
};
use serde::Serialize;

use crate::mutate::Random;

pub const RULES: &str = "# rules\n\
    allow tcp from 10.0.0.0/8 to any port 80-443 in client\n\
    deny udp from any port 53 to 192.0.2.1\n\
    allow icmp from fd00::/8 to any\n\
    deny any from any to any # the rest\n";

pub const ROUTES: &str = "10.0.1.0/24 02:00:00:00:00:01 server\n\
    0.0.0.0/0 02:00:00:00:00:02 client 7\n\
    2001:db8::/32 02:00:00:00:00:03 server\n";

const CONFIGURATION: &str = r#"
[engine]
cores = [1, 2]
idle = "poll"

[[group]]
name = "edge"
buffers = 4096

[[port]]
name = "client"
kind = "af_packet"
interface = "nv-client"
group = "edge"

[[port]]
name = "server"
kind = "pcap"
output = "out.pcap"

[[port]]
name = "load"
kind = "source"
size = 1514
rate = 1_000_000

[[nf]]
role = "firewall"
group = "edge"
command = ["netvm-firewall", "--rules", "fw.rules"]
replicas = 2
balance = "flow-hash"

[[chain]]
name = "web"
hops = ["firewall"]
output = "server"

[[rule]]
from = "client"
match = { protocol = "tcp", destination = "10.0.0.0/8", destination_ports = "80-443", vlan = 5 }
chain = "web"

[[rule]]
from = "client"
out = "server"

[[rule]]
from = "load"
drop = true
"#;

/// A valid start, followed by arbitrary steps.
pub fn ring_steps() -> Vec<Vec<u8>> {
    let mut random = Random::new();
    let mut examples = vec![backward_tail(), backward_head()];
    for n in 0..40u8 {
        let mut steps = vec![n | (n & 1) << 7];
        steps.extend((random.next() as u32).to_le_bytes());
        // Publish or push some, then pop or wait.
        steps.extend([4, n, 1, 2, 3, 4, 5, 6, 7, 8, 3, n / 2, 5, 3, 4]);
        steps.extend(random.bytes(usize::from(n) * 4));
        examples.push(steps);
    }
    examples
}

/// Publishes three, pops two, moves the tail back over the third, and pops everything; twice.
fn backward_tail() -> Vec<u8> {
    let publish_three = [4, 3, 9, 9, 9, 9, 9, 9, 9, 9];
    let take = |count| [3, count];
    let tail_at_head = [0, 0, 0];
    let steps = [&publish_three[..], &take(2), &tail_at_head, &take(60), &take(60), &take(60)];
    [&[2, 0, 0, 0, 0][..], &steps.concat()].concat()
}

/// Pushes six, moves the head forward by six and back by three, then pushes more than fits.
fn backward_head() -> Vec<u8> {
    let push = |count| [3, count, 1];
    let head_at_tail = [0, 0, 0];
    let head_three_before = [0, 0, 0xfd];
    let fill = push(70);
    let steps =
        [&push(6)[..], &head_at_tail, &fill, &head_at_tail, &push(4), &head_three_before, &fill, &fill];
    [&[0x80 | 2, 0, 0, 0, 0][..], &steps.concat()].concat()
}

pub fn control_headers() -> Vec<Vec<u8>> {
    let sound =
        |threads, workers, regions, capacity| vec![2, threads, workers, regions, capacity, 1, 0, 0, 0, 5, 0];
    let mut examples = vec![sound(0, 0, 0, 15), sound(1, 2, 1, 4), sound(15, 31, 3, 0)];
    // A memory just too small for its header, and noise.
    examples.push([&[1][..], &sound(3, 3, 0, 3)[1..], &[1, 0, 0, 0, 0, 0, 0, 0]].concat());
    examples.push([&[0][..], b"netvmCTL", &[1, 0, 0, 0]].concat());
    examples
}

pub fn tables() -> Vec<Vec<u8>> {
    let mut random = Random::new();
    let example = |n: u8| {
        let mut bytes = vec![3 + n % 5, 2, n * (n % 2)];
        bytes.extend(random.bytes(40));
        for _ in 0..n {
            // Bytes for destinations, names, roles or rings, depending on the offset.
            bytes.extend((random.next() as u32).to_le_bytes());
            bytes.push(12);
            bytes.extend([1, 3, n % 2, n % 12, 1, 2, 3, 255, 5, 6, 7, 8]);
        }
        bytes
    };
    (0..20).map(example).collect()
}

pub fn attach_messages() -> Vec<Vec<u8>> {
    fn message(kind: u8, fds: u8, message: &impl Serialize) -> Vec<u8> {
        [vec![kind, fds], serde_json::to_vec(message).unwrap()].concat()
    }
    let counters = vec!["allowed".to_owned(), "denied \"\\\u{1f980}".to_owned()];
    let hello = Hello {
        layout: 1,
        role: "firewall".into(),
        name: "fw".into(),
        threads: 2,
        counters,
        offloads: false,
    };
    let long = Hello { counters: vec!["x".repeat(1000); 15], ..hello.clone() };
    let welcome = Answer::Welcome { regions: 1, workers: 2, nf_threads: 3 };
    let refused = Answer::Refused { reason: "no role `x`".into() };
    vec![
        message(0, 0, &hello),
        message(0, 3, &hello),
        message(0, 129, &hello),
        message(0, 253, &long),
        message(1, 8, &welcome),
        message(1, 0, &refused),
        message(2, 0, &Ready { pid: 7 }),
        message(3, 8, &welcome),
        message(3, 7, &welcome),
        message(3, 0, &Answer::Welcome { regions: u16::MAX, workers: u16::MAX, nf_threads: u16::MAX }),
        message(3, 0, &refused),
        [vec![0, 0], vec![b'['; 20_000]].concat(),
        vec![3, 2],
    ]
}

pub fn descriptor_bursts() -> Vec<Vec<u8>> {
    let mut random = Random::new();
    let noise = Descriptor::new(Descriptor::MAX_BUFFER, u16::MAX, u16::MAX).to_words().map(u64::to_le_bytes);
    let example = |n: u8| {
        let mut bytes = Vec::new();
        for step in 0..4 {
            let count = (n * 5 + step) % 49;
            bytes.extend([n + step, count]);
            for k in 0..count {
                match (n + k) % 8 {
                    0 => bytes.extend([&[0][..], &noise.concat()].concat()),
                    1 => bytes.extend([&[1][..], &random.bytes(10)].concat()),
                    _ => bytes.extend([2, k, k, n, step, k]),
                }
            }
            bytes.push(n);
            // Sizes and verdicts.
            bytes.extend(random.bytes(usize::from(count) * 4));
        }
        bytes
    };
    (0..30).map(example).collect()
}

pub fn capture_files() -> Vec<Vec<u8>> {
    let directory = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    for format in [Format::Pcap, Format::Pcapng] {
        for precision in [Precision::Micro, Precision::Nano] {
            let path = directory.path().join("capture");
            let mut writer = CaptureWriter::create(&path, WriterOptions { format, precision }).unwrap();
            for (n, frame) in (1..).zip(whole_frames()) {
                writer.write(Timestamp::new(n, n), frame.len() as u32, &frame).unwrap();
            }
            writer.finish().unwrap();
            files.push(std::fs::read(&path).unwrap());
        }
    }
    files
}

pub fn captures() -> Vec<Vec<u8>> {
    let files = capture_files().into_iter();
    files.zip([0, 6, 0, 11]).map(|(file, piece)| [vec![piece], file].concat()).collect()
}

/// A DNS query, a TLS ClientHello, and the query in a frame.
pub fn names() -> Vec<Vec<u8>> {
    let query = b"\0\x01\x01\0\0\x01\0\0\0\0\0\0\x03www\x07example\x03org\0\0\x01\0\x01".to_vec();
    let hello = [
        &b"\x16\x03\x01\0\x47\x01\0\0\x43\x03\x03"[..],
        &[7; 32],
        b"\0\0\x02\x13\x01\x01\0\0\x18\0\0\0\x14\0\x12\0\0\x0fwww.example.org",
    ];
    let frame =
        FrameBuilder::new(MacAddr([2; 6]), MacAddr([4; 6])).ip([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let frame = frame.udp(1024, 53).payload(&query).to_vec().unwrap();
    vec![query, hello.concat(), frame]
}

pub fn configurations() -> Vec<Vec<u8>> {
    let written =
        netvm_config::parse("example", CONFIGURATION).map(|loaded| netvm_config::to_toml(&loaded.host));
    vec![CONFIGURATION.into(), written.unwrap_or_default().into()]
}

/// A configuration with fragments, after form feeds.
pub fn fragments() -> Vec<Vec<u8>> {
    let base = "[engine]\nidle = \"poll\"\n[[port]]\nname = \"shared\"\nkind = \"sink\"\n";
    let own = "[engine]\nidle = \"poll\"\n[[port]]\nname = \"in\"\nkind = \"source\"\n[[rule]]\nfrom = \"in\"\nout = \"shared\"\n";
    let other = "[engine]\nidle = \"adaptive\"\n";
    vec![[own, base].join("\u{c}").into(), [own, base, other].join("\u{c}").into(), CONFIGURATION.into()]
}

pub fn rules() -> Vec<Vec<u8>> {
    let addresses: [&[u8]; 2] = [&[0, 10, 0, 0, 1, 80, 0, 0, 10, 0, 1, 9, 0, 80, 6], &[1; 40]];
    let mut examples = Vec::new();
    for address in addresses {
        for text in [RULES, ROUTES, "any tcp 0x0800 arp 1-65535 ::/0 ff:ff:ff:ff:ff:ff 10.0.0.1 sctp 255"] {
            examples.push([address, text.as_bytes()].concat());
        }
    }
    examples
}

/// Nested networks are added, changed and removed, with a version published now and then.
pub fn route_steps() -> Vec<Vec<u8>> {
    const SET: u8 = 0x11;
    const SET_V6: u8 = SET | 8;
    const REMOVE: u8 = 1;
    const PUBLISH: u8 = 0;
    const PUBLISH_TO_SLOW: u8 = 8;
    let v4 = |step: u8, length: u8, address: [u8; 4], to: u8| {
        let [a, b, c, d] = address;
        vec![step, length, d, c, b, a, to]
    };
    let nested = [8u8, 16, 20, 24, 25, 31, 32].map(|length| v4(SET, length, [10, 1, 2, 3], length % 4));
    let mut removed: Vec<u8> = nested.concat();
    removed.extend([PUBLISH_TO_SLOW]);
    // A removal has no next hop.
    removed.extend(&v4(REMOVE, 24, [10, 1, 2, 3], 0)[..6]);
    removed.extend([PUBLISH, PUBLISH]);
    let mut v6 = v4(SET, 0, [0; 4], 3);
    for (length, low) in [(0u8, 0u8), (32, 0), (48, 0), (64, 0), (127, 1), (128, 1), (128, 2)] {
        v6.extend([SET_V6, length, 0xb8, 0x0d, 0x01, 0x20, 0, 0, low, length % 3 + 1, PUBLISH]);
    }
    vec![nested.concat(), removed, v6]
}

/// Cards whose client sets them up, and whose guest sends and receives.
pub fn card_steps() -> Vec<Vec<u8>> {
    const HANDSHAKE: u8 = 1;
    const MEMORY: u8 = 5;
    let descriptor = |buffer: u32, command: u32| {
        let words = [0x10_0000 + buffer, 0, 100 | command << 24 | 1 << 20, 3 << 8];
        words.map(u32::to_le_bytes).concat()
    };
    let write =
        |at: u16, bytes: &[u8]| [&[MEMORY][..], &at.to_le_bytes(), &[bytes.len() as u8], bytes].concat();
    [0x09, 0x29, 0x2d, 0xaf]
        .map(|command| {
            let mut steps = vec![HANDSHAKE];
            for n in 0..15u16 {
                steps.extend(write(0x1000 + 16 * n, &descriptor(0x2000, command)));
                steps.extend(write(16 * n, &[&(0x10_4000u64).to_le_bytes()[..], &[0; 8]].concat()));
            }
            steps.extend([6, 8, 100, 0, 3, 1, 0x18, 15, 0, 6, 8, 0xdc, 5]);
            // Places and wishes of a communication status block: the guest sends four more.
            steps.extend([7, 0x00, 0x30, 3, 1, 1, 1, 14, 1, 6, 8, 100, 0]);
            steps
        })
        .to_vec()
}

/// Steps of a memif's peer, as client and as server: connects, sends and receives.
pub fn memif_steps() -> Vec<Vec<u8>> {
    // Packets in both descriptors of the ring to the server; the other ring has two buffers.
    let descriptor = |at: u16, goes_on: u8, length: u8| {
        let place = [0x00, 0x10, 0, 0, 0, 0, 0, 0];
        [&[2][..], &at.to_le_bytes(), &[16, goes_on, 0, 0, 0, length, 0, 0, 0], &place].concat()
    };
    let rings: Vec<u8> = [(128, 1, 60), (144, 0, 60), (288, 0, 200), (304, 0, 200)]
        .map(|(at, on, length)| descriptor(at, on, length))
        .concat();
    let server =
        [&[0, 1, 1, 1][..], &rings, &[3, 0, 2, 4, 3, 1, 2, 5, 200, 0, 5, 60, 0, 3, 1, 4, 5, 60, 0]].concat();
    let client =
        [&[1, 1, 1, 1][..], &[3, 3, 1, 4, 5, 60, 0, 3, 2, 1, 5, 0, 1, 3, 3, 2, 4, 5, 60, 0]].concat();
    let by_messages =
        [&[0, 1, 0, 3, 7, 0, 2, 1, 0, 0, 0, 0, 0][..], &[0, 4, 10, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 2]]
            .concat();
    vec![server, client, by_messages]
}

/// Steps of a vhost-user front-end: split and packed rings, started, logged, moved to new memory, stopped.
pub fn vhost_user_steps() -> Vec<Vec<u8>> {
    [1u64 << 32 | 1 << 22, 1 << 34 | 1 << 32, 1 << 29]
        .map(|features| {
            let logging = features | 1 << 26;
            let mut steps = [&[1, 0][..], &features.to_le_bytes(), &[1, 2, 0]].concat();
            // A region, memory for inflight I/O of two rings, a region more, and one less.
            let inflight = [&[1, 6][..], &256u16.to_le_bytes(), &[2]].concat();
            steps.extend([&[1, 3, 0, 0][..], &inflight, &[1, 3, 0, 1, 1, 3, 1, 1]].concat());
            let number =
                |what: u8, ring: u8, number: u16| [&[2, what, ring][..], &number.to_le_bytes()].concat();
            for ring in 0..2u8 {
                let at =
                    [0, 0x100, 0x200].map(|place: u16| u16::to_le_bytes(place + 0x800 * u16::from(ring)));
                steps.extend(number(0, ring, 2 * 8));
                steps.extend([&[1, 7][..], &at.concat(), &[ring, 0, 0]].concat());
                steps.extend([number(1, ring, 0), number(2, ring, 0)].concat());
            }
            // A log of 40,000 bytes from 4096 on, and the feature; the last ring's writes are logged.
            let log = [10_000u16, 1024].map(u16::to_le_bytes).concat();
            steps.extend([&[1, 5][..], &log, &[1, 0], &logging.to_le_bytes()].concat());
            let at = [0x800u16, 0x900, 0xa00].map(u16::to_le_bytes).concat();
            steps.extend([&[1, 7][..], &at, &[0x81], &[0, 0x20]].concat());
            steps.extend([&[1, 1][..], &number(3, 0, 0)].concat());
            steps
        })
        .to_vec()
}

/// Programs of classic BPF, each before a packet: `tcp port 80`, and loads by index, scratch memory and arithmetic.
pub fn filters() -> Vec<Vec<u8>> {
    type Instruction = (u16, u8, u8, u32);
    let tcp_port_80: &[Instruction] = &[
        (0x28, 0, 0, 12),
        (0x15, 0, 8, 0x800),
        (0x30, 0, 0, 23),
        (0x15, 0, 6, 6),
        (0x28, 0, 0, 20),
        (0x45, 4, 0, 0x1fff),
        (0xb1, 0, 0, 14),
        (0x48, 0, 0, 14),
        (0x15, 0, 1, 80),
        (0x06, 0, 0, 0xffff),
        (0x06, 0, 0, 0),
    ];
    let arithmetic: &[Instruction] = &[
        (0x80, 0, 0, 0),
        (0x94, 0, 0, 7),
        (0x02, 0, 0, 3),
        (0x61, 0, 0, 3),
        (0x50, 0, 0, 1),
        (0x3c, 0, 0, 0),
        (0x05, 0, 0, 1),
        (0x84, 0, 0, 0),
        (0x16, 0, 0, 0),
    ];
    let bytes = |(program, packet): (&[Instruction], Vec<u8>)| {
        let mut bytes = vec![program.len() as u8];
        for (code, jt, jf, k) in program {
            bytes.extend(code.to_le_bytes());
            bytes.extend([*jt, *jf]);
            bytes.extend(k.to_le_bytes());
        }
        [bytes, packet].concat()
    };
    let frames = whole_frames();
    let pairs = frames.into_iter().flat_map(|frame| [(tcp_port_80, frame.clone()), (arithmetic, frame)]);
    pairs.map(bytes).collect()
}
