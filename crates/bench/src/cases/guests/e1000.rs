// SPDX-License-Identifier: Apache-2.0
//! `e1000`: guests send and receive packets by six kinds of network cards. They run their distribution's kernel.
//!
//! ```text
//!  e1000 (82540EM) ── vfio-user ── netvm            e1000, with several drivers
//!  e1000e (82574L) ── vfio-user ── netvm            e1000e: doorbells stay mapped
//!  virtio-net ── vhost-user ── netvm                vhost-user
//!  e1000 (QEMU's own) ── TAP ── kernel              qemu-e1000, with several drivers
//!  e1000e (QEMU's own) ── TAP ── kernel             qemu-e1000e
//!  virtio-net ── TAP ── kernel                      qemu-virtio
//! ```
//!
//! NIC stands for a card with one of its drivers (`card.rs`). Cases are in million packets per second:
//! - `NIC-tx-64B`: a guest sends to its host, by AF_PACKET, one frame for each notification of its driver. The engine
//!   drops every frame; the kernel drops them because it does not have their destination address.
//! - `NIC-gg-64B`: a guest sends to another guest, through netvm or the kernel's bridge.
//! - `NIC-rx-2x`: a guest is offered twice its capacity in packets of 64 bytes, from a source of the engine or by
//!   AF_PACKET on the TAP. If a guest receives less at a higher load, its NIC suffers from receive livelock.
//! - `NIC-rr`: a frame to a guest and back, in microseconds; the next one follows at once.
//!
//! Figures per packet: `… requests` counts messages from QEMU to netvm, each of which is a VM exit; `… doorbells`
//! counts those that write TDT or RDT, which a client with KVM maps instead; `… interrupts` counts interrupts.

mod card;
mod guest;
mod receive;
mod round_trip;
mod send;
mod study;

use std::cell::RefCell;
use std::path::Path;
use std::time::Duration;

use netvm_model::{Action, Idle, PortKind};
use netvm_vm::Accel;

pub use study::{CardArgs, measure as measure_card};

use crate::cli::E1000Args;
use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::harness::{Comparison, Figure, Subject, alternate};
use crate::measure::probe::ip;
use crate::measure::report::{Row, Unit};
use crate::setup::layout::{Layout, paced};
use crate::setup::network;
use crate::setup::rig::Rig;
use card::{Card, Driver, GuestCard, Nic};
use guest::{Guest, Image, ImageParts};
use receive::{Capacity, Offered, Received};

const FCS: u16 = 4;
/// Length of the frames that the guest receives, without FCS.
const MIN_FRAME: u16 = 60;
/// Time limit for the guest's answer, in addition to the duration of the command.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs the benchmark.
///
/// # Errors
/// [`BenchError`] if any case has no figure.
pub fn measure(args: &E1000Args) -> Result<Vec<Row>, BenchError> {
    let cores = args.bench.cores()?;
    let is_wanted = |case: &str| args.only.is_empty() || args.only.iter().any(|part| case.contains(part));
    let mut nics = Nic::all();
    nics.retain(|nic| !(args.stock_driver && nic.driver.is_changed()));
    let goes_to_guest = |nic: &Nic| args.sizes.iter().any(|size| is_wanted(&to_guest(*nic, *size)));
    let guests = 1 + usize::from(nics.iter().any(goes_to_guest));
    // Outside the namespace, because the script may have to download the guest's kernel.
    let image = Image::make(ImageParts {
        cpus: args.cpus,
        accel: Accel::Tcg,
        has_changed_driver: !args.stock_driver,
        cards: Card::ALL.to_vec(),
    })?;
    network::enter()?;
    let bench = RefCell::new(Bench::start(&image, cores, guests)?);
    let bench = &bench;
    let mut subjects: Vec<Subject<'_>> = Vec::new();
    for nic in &nics {
        let nic = *nic;
        for size in args.sizes.iter().copied() {
            let name = to_host(nic, size);
            if is_wanted(&name) {
                subjects.push(Subject::new(name.clone(), move |plan| {
                    bench.borrow_mut().send_to_host(&name, nic, size - FCS, plan)
                }));
            }
            let name = to_guest(nic, size);
            if is_wanted(&name) {
                subjects.push(Subject::new(name.clone(), move |plan| {
                    bench.borrow_mut().send_to_guest(&name, nic, size - FCS, plan)
                }));
            }
        }
        let name = round_trip(nic);
        if is_wanted(&name) && matches!(nic.driver, Driver::Stock | Driver::Csb) {
            subjects.push(Subject::new(name.clone(), move |plan| {
                bench.borrow_mut().round_trips(&name, nic, plan)
            }));
        }
        let name = receiving(nic);
        if is_wanted(&name) && matches!(nic.driver, Driver::Stock | Driver::Csb) {
            let mut capacity = Capacity::default();
            subjects.push(Subject::new(name.clone(), move |plan| {
                let offered = Offered { nic, loads: &args.loads, capacity: &mut capacity };
                bench.borrow_mut().loads(&name, offered, plan)
            }));
        }
    }
    let mut rows = alternate(&args.bench.plan(), &mut subjects, &comparisons(args, &nics))?;
    nics.iter().for_each(|nic| receive::compare_loads(&receiving(*nic), &args.loads, &mut rows));
    Ok(rows)
}

fn to_host(nic: Nic, size: u16) -> String {
    format!("{}-tx-{size}B", nic.name())
}

fn to_guest(nic: Nic, size: u16) -> String {
    format!("{}-gg-{size}B", nic.name())
}

fn round_trip(nic: Nic) -> String {
    format!("{}-rr", nic.name())
}

fn receiving(nic: Nic) -> String {
    format!("{}-rx", nic.name())
}

/// Compares netvm's cards with QEMU's e1000 and with vhost-user.
fn comparisons(args: &E1000Args, nics: &[Nic]) -> Vec<Comparison> {
    let stock = |card| Nic { card, driver: Driver::Stock };
    let mut found = Vec::new();
    for (card, other) in [(Card::E1000, Card::QemuE1000), (Card::E1000e, Card::QemuE1000e)] {
        let median = |card| format!("{} p50", round_trip(stock(card)));
        found.push(Comparison::new(median(card), median(other)));
    }
    for size in args.sizes.iter().copied() {
        for case in [to_host, to_guest] {
            for nic in nics
                .iter()
                .copied()
                .filter(|nic| matches!(nic.card, Card::E1000 | Card::E1000Mapped | Card::E1000e))
            {
                for other in [Card::QemuE1000, Card::VhostUser].map(stock) {
                    found.push(Comparison::new(case(nic, size), case(other, size)));
                }
            }
        }
    }
    found
}

/// The traffic of the ports.
#[derive(Clone, Copy, Debug)]
enum Traffic {
    /// The ports drop what guests send.
    None,
    /// This many packets per second go to a card of the first guest.
    Load(Card, u64),
    /// The first guest's card sends to the second one's.
    Between(Card),
    /// A TAP interface is connected to a card of the first guest.
    RoundTrips(Card),
}

/// Counters of a card.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Packets that its guest has sent, and received.
    sent: u64,
    received: u64,
    /// Of netvm's e1000 cards.
    card: Option<netvm_engine::CardCounts>,
}

impl Counts {
    /// Requests, doorbells and interrupts per packet since `before`.
    fn costs(&self, before: &Self, name: &str, packets: u64) -> Vec<Figure> {
        let (Some(before), Some(after)) = (before.card, self.card) else { return Vec::new() };
        let figure = |what: &str, count: u64| {
            Figure::new(format!("{name} {what}"), Unit::PerPacket, count as f64 / packets.max(1) as f64)
        };
        vec![
            figure("requests", after.requests - before.requests),
            figure("doorbells", after.doorbells - before.doorbells),
            figure("interrupts", after.interrupts - before.interrupts),
        ]
    }
}

/// The engine and the guests.
struct Bench<'a> {
    // Dropped first: guests must end before their cards.
    guests: Vec<Guest>,
    rig: Rig,
    image: &'a Image,
    core: u32,
    driver: Driver,
    /// The kernel's bridge between the guests.
    bridge: String,
}

impl<'a> Bench<'a> {
    fn start(image: &'a Image, cores: Cores, guests: usize) -> Result<Self, BenchError> {
        let guest_cards = (0..guests).flat_map(|guest| Card::ALL.map(|card| GuestCard { guest, card }));
        for tap in guest_cards.filter_map(GuestCard::tap) {
            ip(&["tuntap", "add", &tap, "mode", "tap"])?;
            ip(&["link", "set", &tap, "up"])?;
        }
        let bridge = network::interface(99);
        ip(&["link", "add", &bridge, "type", "bridge"])?;
        ip(&["link", "set", &bridge, "up"])?;
        let rig = Rig::start(&host(image.folder(), cores.engine, guests, Traffic::None), &[])?;
        let (core, driver) = (cores.engine, Driver::Stock);
        let mut bench = Self { guests: Vec::new(), rig, image, core, driver, bridge };
        for guest in 0..guests {
            let started = Guest::start(image, guest, &mut bench.rig)?;
            bench.guests.push(started);
        }
        Ok(bench)
    }

    /// Loads a NIC's driver in all guests, unless it is loaded.
    fn use_driver(&mut self, nic: Nic) -> Result<(), BenchError> {
        if nic.has_drivers() && nic.driver != self.driver {
            for guest in 0..self.guests.len() {
                self.command(guest, &format!("driver {}", nic.driver.module()))?;
                self.answer(guest, "driver ")?;
            }
            self.driver = nic.driver;
        }
        Ok(())
    }

    fn command(&mut self, guest: usize, command: &str) -> Result<(), BenchError> {
        self.guests.get_mut(guest).map_or(Ok(()), |guest| guest.command(command))
    }

    fn answer(&mut self, guest: usize, start: &str) -> Result<String, BenchError> {
        let guest = self.guests.get_mut(guest);
        guest.map_or(Ok(String::new()), |guest| guest.answer(&mut self.rig, start, ANSWER_TIMEOUT))
    }

    /// Waits for a guest's report of what it has received.
    fn received(&mut self, guest: usize) -> Result<Received, BenchError> {
        let answer = self.answer(guest, "received ")?;
        Received::parse(&answer)
            .ok_or_else(|| BenchError::Guest { problem: format!("malformed answer: received {answer}") })
    }

    fn counts(&mut self, guest_card: GuestCard) -> Counts {
        if let Some(tap) = guest_card.tap() {
            let count = |name: &str| network::counter(&tap, name);
            return Counts { sent: count("rx_packets"), received: count("tx_packets"), card: None };
        }
        // The ports are in the same order.
        let number = guest_card.guest * Card::NETVM.len() + guest_card.card as usize;
        let view = self.rig.engine().ports().into_iter().nth(number);
        view.map_or_else(Counts::default, |view| Counts {
            sent: view.rx_packets,
            received: view.tx_packets,
            card: view.card,
        })
    }

    /// Sets where the guests' packets go, and what they receive.
    fn direct(&mut self, traffic: Traffic) -> Result<(), BenchError> {
        for guest in 0..self.guests.len() {
            for card in Card::ALL {
                let Some(tap) = (GuestCard { guest, card }).tap() else { continue };
                match traffic {
                    Traffic::Between(between) if between == card => {
                        ip(&["link", "set", &tap, "master", &self.bridge])?;
                    }
                    _ => ip(&["link", "set", &tap, "nomaster"])?,
                }
            }
        }
        let host = host(self.image.folder(), self.core, self.guests.len(), traffic);
        Ok(self.rig.engine().apply(&host)?)
    }
}

/// The configuration: netvm's cards for this number of guests, with their sockets in `folder`, and a worker on `core`.
fn host(folder: &Path, core: u32, guests: usize, traffic: Traffic) -> netvm_model::Host {
    let mut layout = Layout::new(core, Idle::Adaptive);
    let guest_cards: Vec<GuestCard> =
        (0..guests).flat_map(|guest| Card::NETVM.map(|card| GuestCard { guest, card })).collect();
    let mut ports = Vec::new();
    for guest_card in &guest_cards {
        let kind = guest_card.port(folder);
        ports.push(layout.port(&format!("{}-{}", guest_card.card.name(), guest_card.guest), kind, 1500));
    }
    let port_of = |guest, card| {
        let number = guest_cards.iter().position(|guest_card| *guest_card == GuestCard { guest, card });
        number.and_then(|number| ports.get(number)).map_or(Action::Drop, |port| Action::Port(*port))
    };
    let probe = matches!(traffic, Traffic::RoundTrips(_))
        .then(|| layout.port("probe", PortKind::Tap { interface: round_trip::tap() }, 1500));
    for (guest_card, port) in guest_cards.iter().zip(&ports) {
        let action = match (traffic, probe) {
            (Traffic::Between(card), _) if card == guest_card.card => port_of(1, card),
            (Traffic::RoundTrips(card), Some(probe)) if card == guest_card.card => Action::Port(probe),
            _ => Action::Drop,
        };
        layout.rule(*port, if guest_card.guest == 0 { action } else { Action::Drop });
    }
    if let (Traffic::RoundTrips(card), Some(probe)) = (traffic, probe) {
        layout.rule(probe, port_of(0, card));
    }
    if let Traffic::Load(card, rate) = traffic {
        let source = layout.port("load", paced(MIN_FRAME, rate), 1500);
        layout.rule(source, port_of(0, card));
    }
    layout.build()
}
