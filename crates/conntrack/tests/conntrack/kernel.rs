//! The kernel as the oracle: random packets of some connections go through a router of the kernel, whose nftables rules
//! write the state of each into its DSCP, and through the table. Both have to say the same.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use netvm_conntrack::{Config, Connections, Packet, Tracked, Zone};
use netvm_wire::{ConnState, FlowKey, FrameBuilder, IpProto, MacAddr, TcpFlags, checksum, parse};
use rustix::thread::LinkNameSpaceType;

/// The kernel's interfaces, by side: the clients' and the servers'.
const NAMES: [&str; 2] = ["clients", "servers"];
/// TCP connections of a test.
const CONVERSATIONS: u32 = 4000;
/// Hosts of each side.
const HOSTS: u32 = 2;
/// Without the packet for so long, the kernel has dropped it.
const LOSS_TIMEOUT: Duration = Duration::from_millis(200);

/// The states by DSCP.
const RULES: &str = "table ip t { chain f { type filter hook forward priority 0;
 ct state new ip dscp set 1 accept
 ct state established ip dscp set 2 accept
 ct state related ip dscp set 3 accept
 ct state invalid ip dscp set 4 accept
 }
}";

fn mac(side: usize, of_kernel: bool) -> MacAddr {
    MacAddr([2, 0, 0, 0, side as u8, u8::from(of_kernel)])
}

/// A namespace with the kernel's router, and what is at the ends of its two interfaces.
struct Router {
    namespace: String,
    wires: Vec<File>,
}

fn run(command: &str) {
    let mut words = command.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A TAP device of the namespace that this thread is in.
fn tap(name: &str) -> File {
    let file = File::options().read(true).write(true).open("/dev/net/tun").unwrap();
    // SAFETY: zero bytes are a valid ifreq; TUNSETIFF reads and writes one.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        assert_eq!(libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request), 0);
    }
    file
}

impl Router {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("ntct{}n{number}", std::process::id());
        run(&format!("ip netns add {namespace}"));
        let mut router = Self { namespace, wires: Vec::new() };
        let inside = File::open(format!("/run/netns/{}", router.namespace)).unwrap();
        let enter = || {
            rustix::thread::move_into_link_name_space(inside.as_fd(), Some(LinkNameSpaceType::Network))
                .unwrap();
            NAMES.map(tap)
        };
        router.wires = std::thread::scope(|scope| scope.spawn(enter).join().unwrap()).into();
        for (side, name) in NAMES.iter().enumerate() {
            router.ip(&format!("link set {name} address {} up", mac(side, true)));
            router.ip(&format!("address add 10.0.{side}.254/24 dev {name}"));
            for host in 1..=HOSTS {
                let neighbour = format!("10.0.{side}.{host} lladdr {} dev {name}", mac(side, false));
                router.ip(&format!("neighbour add {neighbour}"));
            }
        }
        router.exec("busybox sysctl -w net.ipv4.ip_forward=1");
        for setting in ["all.rp_filter", "clients.rp_filter", "servers.rp_filter", "all.send_redirects"] {
            router.exec(&format!("busybox sysctl -w net.ipv4.conf.{setting}=0"));
        }
        let rules = std::env::temp_dir().join(&router.namespace);
        std::fs::write(&rules, RULES).unwrap();
        router.exec(&format!("nft -f {}", rules.display()));
        std::fs::remove_file(rules).unwrap();
        router
    }

    fn ip(&self, words: &str) {
        run(&format!("ip -n {} {words}", self.namespace));
    }

    fn exec(&self, command: &str) {
        run(&format!("ip netns exec {} {command}", self.namespace));
    }

    /// The state that the kernel gives a frame from this side, which has this identification.
    fn state(&mut self, from: usize, frame: &[u8], identification: u16) -> Option<ConnState> {
        self.wires[from].write_all(frame).unwrap();
        let end = Instant::now() + LOSS_TIMEOUT;
        let mut bytes = [0; 2048];
        while Instant::now() < end {
            let wire = &mut self.wires[1 - from];
            let mut ready = [rustix::event::PollFd::new(wire, rustix::event::PollFlags::IN)];
            let wait = rustix::time::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            if rustix::event::poll(&mut ready, Some(&wait)).unwrap() == 0 {
                continue;
            }
            let length = wire.read(&mut bytes).unwrap();
            let ip = &bytes[14..length];
            if bytes[12..14] == [8, 0] && ip[4..6] == identification.to_be_bytes() {
                return ConnState::ALL.get(usize::from(ip[1] >> 2)).copied();
            }
        }
        None
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.namespace]).status();
    }
}

/// Random numbers from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % u64::from(limit)) as u32
    }
}

/// A segment of a conversation.
#[derive(Clone, Copy, Debug)]
struct Segment {
    from: usize,
    flags: TcpFlags,
    sequence: u32,
    acknowledgment: u32,
    data: u16,
}

const SYN: TcpFlags = TcpFlags::SYN;
const ACK: TcpFlags = TcpFlags::ACK;
const FIN: TcpFlags = TcpFlags::FIN;
const RST: TcpFlags = TcpFlags::RST;

/// The segments of one connection as hosts send them, and what each end sends next.
struct Conversation {
    segments: Vec<Segment>,
    next: [u32; 2],
}

impl Conversation {
    fn say(&mut self, from: usize, flags: TcpFlags, data: u16) {
        let (sequence, acknowledgment) = (self.next[from], self.next[1 - from]);
        let acknowledgment = if flags.contains(ACK) { acknowledgment } else { 0 };
        self.segments.push(Segment { from, flags, sequence, acknowledgment, data });
        let control = u32::from(flags.contains(SYN)) + u32::from(flags.contains(FIN));
        self.next[from] = sequence.wrapping_add(u32::from(data) + control);
    }

    /// A connection that opens, carries data in both directions with retransmissions, and closes in one of the ways.
    fn random(random: &mut Random) -> Self {
        let next = [random.below(u32::MAX), random.below(u32::MAX)];
        let mut it = Self { segments: Vec::new(), next };
        it.say(0, SYN, 0);
        if random.below(8) == 0 {
            it.say_again(random);
        }
        it.say(1, SYN | ACK, 0);
        it.say(0, ACK, 0);
        for _ in 0..random.below(10) {
            it.say(random.below(2) as usize, ACK, [0, 1, 100, 1400][random.below(4) as usize]);
            if random.below(4) == 0 {
                it.say_again(random);
            }
        }
        let first = random.below(2) as usize;
        match random.below(4) {
            0 => it.say(first, RST, 0),
            1 => it.say(first, RST | ACK, 0),
            _ => {
                it.say(first, FIN | ACK, 0);
                if random.below(2) == 0 {
                    it.say(1 - first, ACK, random.below(200) as u16);
                }
                it.say(1 - first, FIN | ACK, 0);
                it.say(first, ACK, 0);
                if random.below(2) == 0 {
                    it.say_again(random);
                }
            }
        }
        it
    }

    /// Sends one of the last segments again.
    fn say_again(&mut self, random: &mut Random) {
        let back = 1 + random.below(self.segments.len().min(3) as u32) as usize;
        let again = self.segments[self.segments.len() - back];
        // Not one of the handshake after data.
        if !again.flags.contains(SYN) || self.segments.len() < 3 {
            self.segments.push(again);
        }
    }
}

/// A segment that no host would send there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Odd {
    FarAhead,
    FarBehind,
    OtherSyn,
    AcknowledgesTooMuch,
    SynFin,
    WithoutFlags,
    ResetFarAhead,
}

/// On what this crate and the kernel do not agree, and why.
const DIFFERENCES: [(Odd, ConnState, ConnState, &str); 5] = [
    (
        Odd::FarBehind,
        ConnState::Invalid,
        ConnState::Established,
        "what is older than a window is invalid here, as in Linux before 6.2; now Linux lets it pass without effect",
    ),
    (
        Odd::ResetFarAhead,
        ConnState::Invalid,
        ConnState::Established,
        "a reset outside of the window is invalid here in every state, not only in some",
    ),
    (
        Odd::AcknowledgesTooMuch,
        ConnState::Invalid,
        ConnState::Established,
        "after a reset, the window still holds",
    ),
    (
        Odd::OtherSyn,
        ConnState::Invalid,
        ConnState::Established,
        "after two SYNs with different numbers, an answer must acknowledge the last one",
    ),
    (
        Odd::OtherSyn,
        ConnState::Established,
        ConnState::Invalid,
        "after two SYNs with different numbers, the first may still be acknowledged once the last was",
    ),
];

fn odd(random: &mut Random, of: &Conversation, at: usize) -> (Segment, Odd) {
    let before = of.segments[at];
    let (ahead, behind) = (before.sequence.wrapping_add(1 << 24), before.sequence.wrapping_sub(1 << 24));
    let is_syn = before.flags.contains(SYN);
    match random.below(6) {
        0 | 1 if is_syn => (Segment { sequence: ahead, ..before }, Odd::OtherSyn),
        0 if before.flags.contains(RST) => (Segment { sequence: ahead, ..before }, Odd::ResetFarAhead),
        0 => (Segment { sequence: ahead, ..before }, Odd::FarAhead),
        1 => (Segment { sequence: behind, ..before }, Odd::FarBehind),
        2 => {
            let acknowledgment = before.acknowledgment.wrapping_add(1 << 24);
            (Segment { acknowledgment, flags: ACK, ..before }, Odd::AcknowledgesTooMuch)
        }
        3 => (Segment { flags: SYN | FIN, ..before }, Odd::SynFin),
        4 => (Segment { flags: TcpFlags::empty(), ..before }, Odd::WithoutFlags),
        _ => (Segment { flags: RST, sequence: ahead, ..before }, Odd::ResetFarAhead),
    }
}

fn frame_of(segment: &Segment, port: u16, identification: u16) -> Vec<u8> {
    let Segment { from, flags, sequence, acknowledgment, data } = *segment;
    let ports = if from == 0 { [port, 80] } else { [80, port] };
    let payload = vec![7; usize::from(data)];
    let frame =
        between(from).tcp(ports[0], ports[1], flags).numbers(sequence, acknowledgment).payload(&payload);
    let mut frame = frame.to_vec().unwrap();
    seal(&mut frame, identification);
    frame
}

/// A frame from the first host of a side to that of the other.
fn between(from: usize) -> FrameBuilder<'static> {
    let address = |side: usize| [10, 0, side as u8, 1].into();
    FrameBuilder::new(mac(from, false), mac(from, true)).ip(address(from), address(1 - from))
}

/// An ICMP error to the sender of a frame.
fn error_about(frame: &[u8], from: usize, identification: u16) -> Vec<u8> {
    let mut message = vec![3, 1, 0, 0, 0, 0, 0, 0];
    message.extend(&frame[14..frame.len().min(14 + 20 + 20)]);
    let sum = checksum::internet_checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut error = between(from).protocol(IpProto::ICMP).payload(&message).to_vec().unwrap();
    seal(&mut error, identification);
    error
}

/// Gives a frame its identification.
fn seal(frame: &mut [u8], identification: u16) {
    frame[18..20].copy_from_slice(&identification.to_be_bytes());
    frame[24..26].fill(0);
    let sum = checksum::internet_checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

fn state_of(table: &mut Connections, frame: &[u8], from: usize, now: u32) -> ConnState {
    let key: FlowKey = *parse(frame).unwrap().key();
    let packet = Packet { key: &key, zone: Zone(0), front: frame, length: frame.len() };
    let mut tracked = [Tracked::default()];
    table.track(&[packet], now, &mut tracked);
    if tracked[0].state == ConnState::New && tracked[0].connection.is_none() {
        table.confirm(&packet, from as u16, now).unwrap();
    }
    tracked[0].state
}

/// Both oracles, and what they did not agree on.
struct Comparison {
    router: Router,
    table: Connections,
    begin: Instant,
    identification: u16,
    different: BTreeMap<String, Vec<String>>,
}

impl Comparison {
    /// `None`: this machine has no router.
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !std::path::Path::new("/dev/net/tun").exists() {
            println!("SKIP: a router of the kernel needs root and TAP devices");
            return None;
        }
        let table = Connections::new(&Config::default()).unwrap();
        let (router, different) = (Router::new(), BTreeMap::new());
        Some(Self { router, table, begin: Instant::now(), identification: 0, different })
    }

    /// The states that this crate and the kernel give a frame, which `make` makes with an identification.
    fn states(&mut self, from: usize, make: impl FnOnce(u16) -> Vec<u8>) -> (ConnState, Option<ConnState>) {
        self.identification = self.identification % 60_000 + 1;
        let frame = make(self.identification);
        let now = (self.begin.elapsed().as_millis() / 100) as u32;
        let ours = state_of(&mut self.table, &frame, from, now);
        (ours, self.router.state(from, &frame, self.identification))
    }

    /// Plays a conversation, with an odd segment after number `odd.0`. Stops where the states differ.
    fn play(&mut self, port: u16, of: &Conversation, odd: Option<(usize, Segment, Odd)>) {
        let (mut said, mut after) = (Vec::new(), None);
        for (n, segment) in of.segments.iter().enumerate() {
            let inserted = odd.filter(|(at, ..)| *at == n);
            let inserted = inserted.iter().map(|(_, segment, odd)| (segment, Some(*odd)));
            for (segment, odd) in std::iter::once((segment, None)).chain(inserted) {
                after = odd.or(after);
                let (ours, kernel) = self.states(segment.from, |it| frame_of(segment, port, it));
                said.push(format!("{segment:?} {odd:?}: {ours:?}, kernel {kernel:?}"));
                if kernel == Some(ours) {
                    continue;
                }
                let is_known = DIFFERENCES.iter().any(|(odd, own, of_kernel, _)| {
                    (Some(*odd), *own, Some(*of_kernel)) == (after, ours, kernel)
                });
                if !is_known {
                    let case = format!("{ours:?}, kernel {kernel:?}, {after:?}");
                    self.different.entry(case).or_default().push(said.join("\n  "));
                }
                return;
            }
        }
    }

    /// Prints the differences, and returns how many there are.
    fn count(&self) -> usize {
        for (case, all) in &self.different {
            println!("{case}: {} times, first\n  {}", all.len(), all[0]);
        }
        self.different.values().map(Vec::len).sum()
    }
}

#[test]
fn the_kernel_says_the_same_of_tcp_connections() {
    let Some(mut both) = Comparison::new() else { return };
    let mut random = Random(1);
    for n in 0..CONVERSATIONS {
        let of = Conversation::random(&mut random);
        let odd = (n % 2 == 1).then(|| {
            let at = random.below(of.segments.len() as u32) as usize;
            let (segment, odd) = odd(&mut random, &of, at);
            (at, segment, odd)
        });
        both.play((1024 + n) as u16, &of, odd);
    }
    assert_eq!(both.count(), 0, "of {CONVERSATIONS}");
}

#[test]
fn the_kernel_says_the_same_of_datagrams_queries_and_errors() {
    let Some(mut both) = Comparison::new() else { return };
    let mut random = Random(2);
    let mut last = [udp_frame(0, 1024, 1), udp_frame(1, 1024, 1)];
    for _ in 0..4 * CONVERSATIONS {
        let (from, port) =
            (random.below(2) as usize, 1024 + random.below(30_000) as u16 % (1 + random.below(300) as u16));
        let kind = random.below(4);
        let about = last[1 - from].clone();
        let mut frame = Vec::new();
        let (ours, kernel) = both.states(from, |identification| {
            frame = match kind {
                0 | 1 => udp_frame(from, port, identification),
                2 => {
                    let mut frame = between(from).echo(random.below(2) == 1, port, 1).to_vec().unwrap();
                    seal(&mut frame, identification);
                    frame
                }
                _ => error_about(&about, from, identification),
            };
            frame.clone()
        });
        if kernel != Some(ours) {
            let case = format!("{ours:?}, kernel {kernel:?} (kind {kind})");
            both.different.entry(case).or_default().push(format!("{frame:02x?}"));
        }
        if kind < 3 {
            last[from] = frame;
        }
    }
    assert_eq!(both.count(), 0);
}

fn udp_frame(from: usize, port: u16, identification: u16) -> Vec<u8> {
    let ports = if from == 0 { [port, 53] } else { [53, port] };
    let mut frame = between(from).udp(ports[0], ports[1]).payload(b"datagram").to_vec().unwrap();
    seal(&mut frame, identification);
    frame
}
