//! `e1000`: packets from a guest to its host and back by six network cards of one guest, whose kernel and drivers are its
//! distribution's:
//!
//! ```text
//!  e1000 (82540EM) ── vfio-user ── netvm            e1000
//!  e1000e (82574L) ── vfio-user ── netvm            e1000e
//!  virtio-net ── vhost-user ── netvm                vhost-user
//!  e1000 (QEMU's own) ── TAP ── kernel              qemu-e1000
//!  e1000e (QEMU's own) ── TAP ── kernel             qemu-e1000e
//!  virtio-net ── TAP ── kernel                      qemu-virtio
//! ```
//!
//! Cases are `CARD-tx-64B` and `CARD-tx-1500B`, in million frames per second that arrive at the host, FCS included in
//! the length. A program in the guest sends by AF_PACKET, one frame for each notification of its driver. The engine
//! drops what it receives, and the kernel frames to an address that it does not have. `… requests` are messages of QEMU
//! to netvm per packet, each of which is an exit of the guest, and `… interrupts` interrupts per packet.
//!
//! `CARD-rx-RATE` are packets per second that the program in the guest received, of 64 bytes, when so many thousands per
//! second were offered to the card: by a source of the engine, or by AF_PACKET on the TAP. A card whose guest receives
//! less of more has receive livelock.

mod guest;

use std::path::Path;
use std::time::Duration;

use netvm_config::model::{Action, CardModel, Idle, PortKind, VhostDma, VhostMode};
use netvm_engine::PortView;
use netvm_wire::MacAddr;

use crate::cli::E1000Args;
use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::harness::{Comparison, Figure, Measured, Plan, Subject, alternate};
use crate::measure::report::{Row, Unit};
use crate::setup::layout::{Layout, paced};
use crate::setup::rig::Rig;
use crate::studies::network;
use guest::{Guest, Image};

const FCS: u16 = 4;
/// Bytes of frames that the guest receives, without FCS.
const SHORTEST: u16 = 60;
/// How much longer packets are sent than the guest counts them.
const MARGIN: Duration = Duration::from_millis(500);
/// Frames go to this address, which nobody has.
const NOBODY: MacAddr = MacAddr([2, 0, 0, 0, 0xfe, 0xfe]);
/// Limit for the guest to answer, beyond the time that it was asked to take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A card of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Card {
    E1000,
    E1000e,
    VhostUser,
    QemuE1000,
    QemuE1000e,
    QemuVirtio,
}

impl Card {
    const ALL: [Self; 6] =
        [Self::E1000, Self::E1000e, Self::VhostUser, Self::QemuE1000, Self::QemuE1000e, Self::QemuVirtio];

    const fn name(self) -> &'static str {
        match self {
            Self::E1000 => "e1000",
            Self::E1000e => "e1000e",
            Self::VhostUser => "vhost-user",
            Self::QemuE1000 => "qemu-e1000",
            Self::QemuE1000e => "qemu-e1000e",
            Self::QemuVirtio => "qemu-virtio",
        }
    }

    /// Its MAC address in the guest.
    pub(super) const fn mac(self) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0x20, self as u8])
    }

    /// Its TAP interface, if QEMU serves it.
    pub(super) fn tap(self) -> Option<String> {
        let is_qemus = matches!(self, Self::QemuE1000 | Self::QemuE1000e | Self::QemuVirtio);
        is_qemus.then(|| network::interface(self as u32))
    }
}

/// Runs the benchmark.
///
/// # Errors
/// [`BenchError`] if any case has no figure.
pub fn measure(args: &E1000Args) -> Result<Vec<Row>, BenchError> {
    let cores = args.bench.cores()?;
    // Outside the namespace, as its kernel may have to be downloaded.
    let image = Image::make()?;
    network::enter()?;
    let bench = Bench::start(&image, cores)?;
    let bench = std::cell::RefCell::new(bench);
    let (mut subjects, mut comparisons): (Vec<Subject<'_>>, Vec<_>) = (Vec::new(), Vec::new());
    for size in &args.sizes {
        let of = move |card: Card| format!("{}-tx-{size}B", card.name());
        for card in Card::ALL {
            let name = of(card);
            let bench = &bench;
            subjects.push(Subject::new(name.clone(), move |plan| {
                bench.borrow_mut().transmit(&name, (card, size - FCS), plan)
            }));
        }
        let others = [Card::QemuE1000, Card::VhostUser, Card::QemuVirtio];
        for other in others {
            comparisons.push(Comparison::new(of(Card::E1000), of(other)));
        }
        for other in others.into_iter().chain([Card::QemuE1000e]) {
            comparisons.push(Comparison::new(of(Card::E1000e), of(other)));
        }
    }
    let of = |card: Card, rate: u64| format!("{}-rx-{}k", card.name(), rate as f64 / 1e3);
    for card in Card::ALL {
        for rate in args.rates.iter().copied() {
            let (name, bench) = (of(card, rate), &bench);
            subjects.push(Subject::new(name.clone(), move |plan| {
                bench.borrow_mut().receive(&name, (card, rate), plan)
            }));
        }
        if let [.., before, last] = args.rates.as_slice() {
            comparisons.push(Comparison::new(of(card, *last), of(card, *before)));
        }
    }
    alternate(&args.bench.plan(), &mut subjects, &comparisons)
}

/// The engine and the guest.
struct Bench<'a> {
    // Dropped first: the guest goes before its cards.
    guest: Guest,
    rig: Rig,
    image: &'a Image,
    core: u32,
}

impl<'a> Bench<'a> {
    fn start(image: &'a Image, cores: Cores) -> Result<Self, BenchError> {
        for tap in Card::ALL.into_iter().filter_map(Card::tap) {
            crate::measure::probe::ip(&["tuntap", "add", &tap, "mode", "tap"])?;
            crate::measure::probe::ip(&["link", "set", &tap, "up"])?;
        }
        let mut rig = Rig::start(&host(image.folder(), cores.engine, None), &[])?;
        let guest = Guest::start(image, &mut rig)?;
        Ok(Self { guest, rig, image, core: cores.engine })
    }

    /// Frames that have arrived from a card.
    fn arrived(&mut self, card: Card) -> u64 {
        match card.tap() {
            Some(tap) => network::counter(&tap, "rx_packets"),
            None => self.view(card).map_or(0, |view| view.rx_packets),
        }
    }

    fn view(&mut self, card: Card) -> Option<PortView> {
        // The ports are in the same order.
        self.rig.engine().ports().into_iter().nth(card as usize)
    }

    /// The guest sends frames of a length without FCS.
    fn transmit(&mut self, name: &str, (card, bytes): (Card, u16), plan: &Plan) -> Measured {
        // It sends somewhat longer than is measured.
        let time = plan.warm_up + plan.window + Duration::from_millis(300);
        let before = self.arrived(card);
        self.guest.order(&format!("send {} {NOBODY} {bytes} {}", card.mac(), time.as_millis()))?;
        let start = std::time::Instant::now();
        while self.arrived(card) == before {
            if start.elapsed() > PATIENCE {
                return Err(BenchError::Nothing { what: name.to_owned(), seconds: PATIENCE.as_secs_f64() });
            }
            self.rig.run(Duration::from_millis(5))?;
        }
        self.rig.run(plan.warm_up)?;
        let (start, first, counts) = (std::time::Instant::now(), self.arrived(card), self.view(card));
        self.rig.run(plan.window)?;
        let (seconds, packets) = (start.elapsed().as_secs_f64(), self.arrived(card) - first);
        let after = self.view(card);
        self.guest.answer(&mut self.rig, "sent ", PATIENCE)?;
        let mut figures = vec![Figure::new(name, Unit::Mpps, packets as f64 / seconds / 1e6)];
        let is_ours = card.tap().is_none();
        let counts = [counts, after].map(|view| view.and_then(|view| view.card).filter(|_| is_ours));
        if let [Some(before), Some(after)] = counts {
            let per_packet = |count: u64| count as f64 / packets.max(1) as f64;
            let mut push = |what: &str, count| {
                figures.push(Figure::new(format!("{name} {what}"), Unit::PerPacket, per_packet(count)));
            };
            push("requests", after.requests - before.requests);
            push("interrupts", after.interrupts - before.interrupts);
        }
        Ok(figures)
    }

    /// So many packets per second are offered to a card.
    fn receive(&mut self, name: &str, (card, rate): (Card, u64), plan: &Plan) -> Measured {
        let time = plan.warm_up + plan.window;
        self.guest.order(&format!("receive {} {}", card.mac(), time.as_millis()))?;
        self.guest.answer(&mut self.rig, "receiving", PATIENCE)?;
        let sending = time + MARGIN;
        let sender = match card.tap() {
            Some(tap) => Some(guest::sender(&tap, (card, SHORTEST, rate), sending)?),
            None => {
                let host = host(self.image.folder(), self.core, Some((card, rate)));
                self.rig.engine().apply(&host)?;
                None
            }
        };
        self.rig.run(sending)?;
        match sender {
            Some(sender) => drop(sender),
            None => self.rig.engine().apply(&host(self.image.folder(), self.core, None))?,
        }
        let answer = self.guest.answer(&mut self.rig, "received ", PATIENCE)?;
        let mut words = answer.split(" in ").map_while(|word| word.parse::<f64>().ok());
        let (Some(packets), Some(micros)) = (words.next(), words.next()) else {
            return Err(BenchError::Guest { problem: format!("it said: received {answer}") });
        };
        if packets == 0.0 && card.tap().is_none() {
            return Err(BenchError::Nothing { what: name.to_owned(), seconds: time.as_secs_f64() });
        }
        Ok(vec![Figure::new(name, Unit::Mpps, packets / micros.max(1.0))])
    }
}

/// The sockets of netvm's ports in a folder.
pub(super) fn socket(folder: &Path, card: Card) -> std::path::PathBuf {
    folder.join(format!("{}.sock", card.name()))
}

/// `load`: the card to which so many packets per second are sent.
fn host(folder: &Path, core: u32, load: Option<(Card, u64)>) -> netvm_config::model::Host {
    let mut layout = Layout::new(core, Idle::Adaptive);
    let e1000 =
        |card: Card, model| PortKind::E1000 { path: socket(folder, card), mac: Some(card.mac()), model };
    let first = layout.port("e1000", e1000(Card::E1000, CardModel::E1000), 1500);
    let second = layout.port("e1000e", e1000(Card::E1000e, CardModel::E1000e), 1500);
    let path = socket(folder, Card::VhostUser);
    let kind = PortKind::VhostUser { path, mode: VhostMode::Server, dma: VhostDma::Off };
    let vhost = layout.port("vhost-user", kind, 1500);
    for port in [first, second, vhost] {
        layout.rule(port, Action::Drop);
    }
    if let Some((card, rate)) = load {
        let source = layout.port("load", paced(SHORTEST, rate), 1500);
        let ports = [first, second, vhost];
        layout.rule(source, ports.get(card as usize).map_or(Action::Drop, |port| Action::Port(*port)));
    }
    layout.build()
}
