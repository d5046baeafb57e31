//! Packet capture on a running netvmd: what each place shows is, byte for byte, what was sent.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;
mod drops;
mod ends;
mod rights;
#[allow(dead_code, reason = "the tests of routers use the rest")]
#[path = "../routers/site.rs"]
mod router_site;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::hosts::{Host, are_possible, succeeds};
use common::{Daemon, Forward, PROGRAM, program};
use netlib::{NetworkFunction, Options, Packet, Verdict};
use netvm_api::{CaptureRequest, Client, ClientError};
use netvm_capture_client::{Limits, Output, Session, SessionError, Summary, Target, compile, run};
use netvm_vnet::{SocketOptions, packet_socket};
use pcap_file::pcapng::PcapNgReader;
use pcap_file::pcapng::blocks::Block;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;

const FRAMES: usize = 300;
/// The first byte of a payload that ends an NF.
const FATAL: u8 = 77;
/// Bytes of headers before the payload.
const HEADERS: usize = 42;

/// Drops packets whose payload begins with a multiple of 3.
struct DropsSome;

impl NetworkFunction for DropsSome {
    fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
        if packet.data()[HEADERS].is_multiple_of(3) { Verdict::Drop } else { Verdict::Next }
    }
}

/// Ends at packets whose payload begins with 77.
struct EndsAt;

impl NetworkFunction for EndsAt {
    fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
        if packet.data().get(HEADERS) == Some(&FATAL) {
            std::process::abort();
        }
        Verdict::Next
    }
}

/// Not a test: runs as an NF if the environment says so.
#[test]
fn be_the_program() {
    match std::env::var(PROGRAM).as_deref() {
        Ok("ends-at") => netlib::run(&Options::new("nf"), |_| EndsAt).unwrap(),
        Ok("drops-some") => netlib::run(&Options::new("nf"), |_| DropsSome).unwrap(),
        Ok(_) => netlib::run(&Options::new("nf"), |_| Forward).unwrap(),
        Err(_) => {}
    }
}

/// UDP over IPv4, to port 9 or 4000, with a payload that differs from frame to frame.
fn frames(count: usize) -> Vec<Vec<u8>> {
    let frame = |n: usize| {
        let length = 20 + n * 37 % 1400;
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
        frame.extend([0x45, 0]);
        frame.extend(((28 + length) as u16).to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2]);
        frame.extend(5000u16.to_be_bytes());
        frame.extend(if n.is_multiple_of(5) { 9u16 } else { 4000 }.to_be_bytes());
        frame.extend(((8 + length) as u16).to_be_bytes());
        frame.extend([0, 0]);
        frame.extend((0..length).map(|byte| (n + byte * 7) as u8));
        frame
    };
    (0..count).map(frame).collect()
}

fn is_blocked(frame: &[u8]) -> bool {
    frame[36..38] == 9u16.to_be_bytes()
}

fn is_refused(frame: &[u8]) -> bool {
    frame[HEADERS].is_multiple_of(3)
}

struct Site {
    left: Host,
    right: Host,
    daemon: Daemon,
}

impl Site {
    fn new(name: &str) -> Self {
        Self::with(name, "forward", "")
    }

    /// `first`: the program of the first hop; `more`: more of the configuration.
    fn with(name: &str, first: &str, more: &str) -> Self {
        let left = Host::new(&format!("{name}l"), &[], &[]);
        let right = Host::new(&format!("{name}r"), &[], &[]);
        let mut config =
            "[engine]\nidle = \"adaptive\"\nhuge_pages = false\n\n[[group]]\nname = \"g\"\nbuffers = 4096\n"
                .to_owned();
        for (port, host) in [("left", &left), ("right", &right)] {
            let interface = host.port();
            config +=
                &format!("[[port]]\nname = \"{port}\"\nkind = \"af_packet\"\ninterface = \"{interface}\"\n");
        }
        for (role, kind) in [("first", first), ("second", "drops-some")] {
            config += &format!("[[nf]]\nrole = \"{role}\"\ngroup = \"g\"\n{}", program(kind));
        }
        config += "[[chain]]\nname = \"through\"\nhops = [\"first\", \"second\"]\noutput = \"right\"\n\
                   [[rule]]\nname = \"blocked\"\nfrom = \"left\"\n\
                   match = { protocol = \"udp\", destination_ports = 9 }\ndrop = true\n\
                   [[rule]]\nname = \"all\"\nfrom = \"left\"\nchain = \"through\"\n";
        config += more;
        let daemon = Daemon::start(&config);
        daemon.until_running("first");
        daemon.until_running("second");
        Self { left, right, daemon }
    }

    fn client(&self) -> Client {
        Client::new(Some(&self.daemon.api_socket()))
    }

    fn start(&self, request: &CaptureRequest) -> Result<Session, SessionError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(Session::start(&self.client(), request))
    }

    /// Sends frames from the left host, not faster than a slow machine takes them.
    fn send(&self, frames: Vec<Vec<u8>>) {
        let send = move || {
            let options = SocketOptions { interface: "eth0".to_owned(), queues: 1 };
            let socket = packet_socket::open(&options).unwrap().queues.remove(0);
            for (n, frame) in frames.iter().enumerate() {
                // Before the frame, what offload work it has: none.
                while rustix::io::write(&socket, &[&[0; 10][..], frame].concat()).is_err() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                if n % 16 == 15 {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        };
        self.left.inside(send).join().unwrap();
    }
}

/// A capture that runs until it has so many packets.
fn gather(session: Session, packets: usize, file: &Path) -> std::thread::JoinHandle<Summary> {
    let target = Target::File(file.to_owned(), None);
    std::thread::spawn(move || {
        let mut output = Output::open(target).unwrap();
        run(session, &mut output, Limits { packets: Some(packets as u64), stop: None }).unwrap()
    })
}

/// One packet of a file.
#[derive(Debug)]
struct Captured {
    interface: String,
    comment: String,
    data: Vec<u8>,
}

fn read(file: &Path) -> Vec<Captured> {
    let bytes = std::fs::read(file).unwrap();
    let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
    let (mut names, mut all) = (Vec::new(), Vec::new());
    while let Some(block) = reader.next_block() {
        match block.unwrap().0 {
            Block::InterfaceDescription(interface) => {
                let text = format!("{:?}", interface.options[0]);
                names.push(text.split('"').nth(1).unwrap().to_owned());
            }
            Block::EnhancedPacket(packet) => {
                let comment = packet.options.iter().find_map(|option| match option {
                    EnhancedPacketOption::Common(comment) => Some(format!("{comment:?}")),
                    _ => None,
                });
                all.push(Captured {
                    interface: names[packet.interface_id as usize].clone(),
                    comment: comment.unwrap_or_default(),
                    data: packet.data.to_vec(),
                });
            }
            _ => {}
        }
    }
    all
}

fn request(at: &[&str], filter: &str) -> CaptureRequest {
    CaptureRequest {
        at: at.iter().map(|&place| place.to_owned()).collect(),
        filter: compile(filter).unwrap(),
        ..CaptureRequest::default()
    }
}

const MARKED: &str = "udp and src port 5000 and host 10.9.0.2";

#[test]
fn every_place_shows_what_was_sent() {
    if !are_possible() {
        return;
    }
    let site = Site::new("cp");
    let sent = frames(FRAMES);
    let entered: Vec<_> = sent.iter().filter(|frame| !is_blocked(frame)).cloned().collect();
    let left: Vec<_> = entered.iter().filter(|frame| !is_refused(frame)).cloned().collect();
    let twice = |frames: &[Vec<u8>]| frames.iter().flat_map(|frame| [frame.clone(), frame.clone()]).collect();
    let both = [entered.clone(), left.clone()].concat();
    let expected: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("left", sent.clone()),
        ("through:1", twice(&entered)),
        ("through:second", twice(&entered)),
        ("nf:first", twice(&entered)),
        ("right", left.clone()),
    ];
    let folder = site.daemon.folder.0.clone();
    let file = |place: &str| folder.join(format!("{}.pcapng", place.replace(':', "-")));
    let mut readers: Vec<_> = expected
        .iter()
        .map(|(place, frames)| {
            gather(site.start(&request(&[place], MARKED)).unwrap(), frames.len(), &file(place))
        })
        .collect();
    let dropped = CaptureRequest { dropped: true, ..request(&[], MARKED) };
    let lost = sent.len() - left.len();
    readers.push(gather(site.start(&dropped).unwrap(), lost, &file("dropped")));
    let by_rule = CaptureRequest { reasons: vec!["rule".to_owned()], ..dropped };
    readers.push(gather(site.start(&by_rule).unwrap(), sent.len() - entered.len(), &file("by-rule")));
    site.send(sent.clone());
    for reader in readers {
        assert_eq!(reader.join().unwrap().lost, 0);
    }

    for (place, frames) in &expected {
        let captured = read(&file(place));
        // What goes in and what comes out is shown burst by burst.
        let sorted = |mut frames: Vec<Vec<u8>>| {
            frames.sort();
            frames
        };
        let data = captured.iter().map(|packet| packet.data.clone()).collect();
        assert!(sorted(data) == sorted(frames.clone()), "{place}: other bytes than those that were sent");
        if !place.contains(':') {
            assert!(captured.iter().map(|packet| &packet.data).eq(frames), "{place}: another order");
        }
    }
    let hop = read(&file("through:second"));
    assert!(hop.iter().all(|packet| packet.interface == "through:2"), "{:?}", hop[0]);
    let verdicts = |word: &str| hop.iter().filter(|packet| packet.comment.contains(word)).count();
    assert_eq!(
        (verdicts("verdict next"), verdicts("verdict drop")),
        (left.len(), entered.len() - left.len())
    );

    let mut by_comment: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    for packet in read(&file("dropped")) {
        let reason = packet.comment.split("dropped: ").nth(1).expect("a reason").to_owned();
        let reason = reason.split([',', '"']).next().unwrap().to_owned();
        by_comment.entry(format!("{} {reason}", packet.interface)).or_default().push(packet.data);
    }
    let blocked: Vec<_> = sent.iter().filter(|frame| is_blocked(frame)).cloned().collect();
    let refused: Vec<_> = entered.iter().filter(|frame| is_refused(frame)).cloned().collect();
    assert!(
        by_comment["left rule"] == blocked && by_comment["second verdict"] == refused,
        "{:?}",
        by_comment.keys()
    );
    assert_eq!(read(&file("by-rule")).len(), blocked.len());
    assert_eq!(both.len(), entered.len() + left.len());
    tools_agree(&file("left"), &file("dropped"), sent.len());
    site.daemon.until("captures end", |daemon| daemon.log().matches("ends").count() >= 7);
}

/// tcpdump and tshark read the files.
fn tools_agree(all: &Path, dropped: &Path, frames: usize) {
    if succeeds("tcpdump --version") {
        // tcpdump changes its user, who may not read the test's folder.
        let output =
            Command::new("tcpdump").args(["-nr", "-"]).stdin(std::fs::File::open(all).unwrap()).output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        assert_eq!(text.lines().filter(|line| line.contains("10.9.0.1.5000 > 10.9.0.2.")).count(), frames);
    } else {
        println!("SKIP: no tcpdump");
    }
    if succeeds("tshark --version") {
        let fields = "-T fields -e frame.interface_name -e frame.packet_flags_direction -e frame.comment";
        let output = Command::new("tshark").arg("-r").arg(dropped).args(fields.split(' ')).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            text.lines().any(|line| line.starts_with("left\t") && line.contains("dropped: rule")),
            "{text}"
        );
        assert!(
            text.lines().any(|line| line.starts_with("second\t") && line.contains("dropped: verdict")),
            "{text}"
        );
    } else {
        println!("SKIP: no tshark");
    }
}

#[test]
fn a_slow_reader_loses_its_own_packets_and_they_are_counted() {
    if !are_possible() {
        return;
    }
    let site = Site::new("cs");
    let session = site.start(&CaptureRequest { buffer: 1 << 17, ..request(&["left"], MARKED) }).unwrap();
    let sent = frames(2000);
    let passing = sent.iter().filter(|frame| !is_blocked(frame) && !is_refused(frame)).count() as u64;
    let before = site.daemon.left("through");
    site.send(sent);
    site.daemon.until("the traffic passes", |daemon| daemon.left("through") - before >= passing);
    let file = site.daemon.folder.0.join("slow.pcapng");
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (flag, path) = (std::sync::Arc::clone(&stop), file.clone());
    let reader = std::thread::spawn(move || {
        let mut output = Output::open(Target::File(path, None)).unwrap();
        run(session, &mut output, Limits { packets: None, stop: Some(&flag) }).unwrap()
    });
    std::thread::sleep(Duration::from_millis(500));
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let summary = reader.join().unwrap();
    assert_eq!(summary.packets + summary.lost, 2000, "{summary:?}");
    assert!(summary.lost > 1000 && summary.packets > 50, "{summary:?}");
    let bytes = std::fs::read(&file).unwrap();
    let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
    let mut counted = String::new();
    while let Some(block) = reader.next_block() {
        if let Block::InterfaceStatistics(statistics) = block.unwrap().0 {
            counted = format!("{:?}", statistics.options);
        }
    }
    assert!(counted.contains(&format!("IfDrop({})", summary.lost)), "{counted}");
    drop(site.right);
}

#[test]
fn what_cannot_be_captured_is_refused_with_a_remedy() {
    if !are_possible() {
        return;
    }
    let site = Site::new("ce");
    let refused = |request: CaptureRequest, status: u16, words: &str| match site.start(&request) {
        Err(SessionError::Client(ClientError::Refused { status: found, error })) => {
            assert_eq!(found, status, "{}", error.message);
            assert!(error.message.contains(words), "{}", error.message);
        }
        other => panic!("{other:?}"),
    };
    refused(request(&["lft"], ""), 404, "no port, chain, NF or router `lft`; the nearest are left");
    refused(
        request(&["through:7"], ""),
        404,
        "chain through has no hop `7`: its hops are 1 (first), 2 (second)",
    );
    let reasons = |reason: &str| CaptureRequest { reasons: vec![reason.to_owned()], ..request(&[], "") };
    refused(reasons("tx-ful"), 404, "tx-full");
    let jump = CaptureRequest { filter: vec![(5, 0, 0, 9), (6, 0, 0, 0)], ..request(&[], "") };
    refused(jump, 422, "instruction 0 of the filter jumps out of it");
    let open: Vec<Session> = (0..16).map(|_| site.start(&request(&[], "")).unwrap()).collect();
    refused(request(&[], ""), 409, "16 captures run already");
    drop(open);
    site.daemon.until("a capture starts again", |_| site.start(&request(&[], "")).is_ok());
    // Without the upgrade, such as from curl.
    let (status, body) = site.daemon.request("POST", netvm_api::path::CAPTURE, "{}");
    assert_eq!((status, body.contains("Upgrade: netvm-capture")), (426, true), "{body}");
}

/// netvm-extcap, if it is built: `cargo test --workspace` builds it.
fn extcap() -> Option<PathBuf> {
    let program = Path::new(env!("CARGO_BIN_EXE_netvmd")).with_file_name("netvm-extcap");
    if !program.exists() || !succeeds("tshark --version") {
        println!("SKIP: no netvm-extcap beside netvmd, or no tshark");
        return None;
    }
    Some(program)
}

#[test]
fn tshark_captures_by_extcap() {
    let Some(program) = extcap().filter(|_| are_possible()) else { return };
    let site = Site::new("cx");
    let folder = site.daemon.folder.0.join("extcap");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(program, folder.join("netvm-extcap")).unwrap();
    // In a mount namespace of its own, where our folder stands in for the one of the system.
    let folders = Command::new("tshark").args(["-G", "folders"]).output().unwrap();
    let folders = String::from_utf8(folders.stdout).unwrap();
    let is_global = |line: &&str| line.starts_with("Extcap path:") || line.starts_with("Global Extcap path:");
    let place = folders.lines().find(is_global).unwrap().split_once(':').unwrap().1.trim();
    std::fs::create_dir_all(place).unwrap();
    let script = format!("mount --bind {} {place} && exec tshark \"$@\"", folder.display());
    let tshark = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script, "tshark"]).args(words);
        command.env("NETVM_API", site.daemon.api_socket());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let list = tshark(&["-D"]).output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    for name in
        ["netvm-port-left (netvm port left)", "netvm-chain-through-2", "netvm-dropped", "netvm-nf-first"]
    {
        assert!(list.contains(name), "{name}: {list}");
    }
    let child =
        tshark(&["-i", "netvm-port-left", "-f", MARKED, "-c", "40", "-T", "fields", "-e", "frame.len"]);
    let child = { child }.spawn().unwrap();
    site.daemon.until("tshark captures", |daemon| daemon.log().contains("starts at port left"));
    site.send(frames(40));
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lengths: Vec<usize> = text.lines().map(|line| line.trim().parse().unwrap()).collect();
    let expected: Vec<usize> = frames(40).iter().map(Vec::len).collect();
    assert_eq!(lengths, expected, "{}", String::from_utf8_lossy(&output.stderr));
}
