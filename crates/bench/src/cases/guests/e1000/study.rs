// SPDX-License-Identifier: Apache-2.0
//! `card`: TCP, UDP and raw packets through one network card of a guest, in one direction (Rizzo, Lettieri and
//! Maffione, section 4; figures 4, 6 to 9 and 11).
//!
//! ```text
//!  to-host, from-host   guest ── card ── netvm ── TAP ── this namespace      card: netvm's e1000, e1000e or vhost-user
//!                       guest ── card ── TAP ── this namespace               card: QEMU's own
//!  guests               guest ── card ── netvm ── card ── guest
//!                       guest ── card ── TAP ── bridge ── TAP ── card ── guest
//! ```
//!
//! Both ends run `netvm-bench-packet`, whose commands are those of netperf's tests: UDP of 8 and 1460 bytes, TCP with
//! writes of 1460 bytes (`tcp`) and 16 KB (`tcpw`), and TCP request-response (`tcprr`); `pktgen` sends frames of 64
//! bytes by AF_PACKET, past the stack. All rates are the receiver's.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use clap::{Args, ValueEnum};
use netvm_model::{Action, Idle, PortKind};

use super::ANSWER_TIMEOUT;
use super::card::{Driver, GuestCard, Nic};
use super::guest::{Guest, Image, ImageParts};
use crate::error::BenchError;
use crate::machine::allowed_cores;
use crate::measure::harness::seconds;
use crate::measure::probe::ip;
use crate::setup::guest::{accel, beside};
use crate::setup::layout::Layout;
use crate::setup::network;
use crate::setup::rig::Rig;
use crate::studies::trial::print;

/// Addresses of the guest and of its peer.
const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
/// The port of each test is the one after that of the test before.
const FIRST_PORT: u16 = 5001;
/// Names of the host's end and of the bridge are made unique with these.
const HOST_END: u32 = 98;
const BRIDGE: u32 = 99;
/// Frame of `pktgen`, without FCS.
const FRAME: u16 = 60;
/// A sender sends for this much longer than its receiver receives.
const SEND_LONGER_BY: Duration = Duration::from_millis(500);

/// The way of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// The guest sends to the host
    ToHost,
    /// The host sends to the guest
    FromHost,
    /// The guest sends to another guest
    Guests,
}

/// A switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnOff {
    /// On
    On,
    /// Off
    Off,
}

/// Options of `card`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct CardArgs {
    /// The card and its driver, as in `netvm-bench e1000`: e1000, e1000-itr, e1000-csb, qemu-e1000, …
    #[arg(long, value_parser = nic)]
    pub nic: Nic,
    /// The way of the packets
    #[arg(long, value_enum, default_value = "to-host")]
    pub way: Way,
    /// TCP segmentation offload of both ends, where they have it
    #[arg(long, value_enum, default_value = "off")]
    pub tso: OnOff,
    /// Virtual processors of each guest
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub cpus: u16,
    /// QEMU's accelerator: emulation or KVM
    #[arg(long, value_parser = ["tcg", "kvm"], default_value = "tcg")]
    pub accel: String,
    /// Seconds of each test
    #[arg(long, value_parser = seconds, default_value = "1")]
    pub seconds: Duration,
    /// The engine's core [default: the first of this process's affinity]
    #[arg(long)]
    pub core: Option<u32>,
}

impl CardArgs {
    /// The number of guests.
    fn guests(&self) -> usize {
        if self.way == Way::Guests { 2 } else { 1 }
    }
}

fn nic(name: &str) -> Result<Nic, String> {
    Nic::all().into_iter().find(|nic| nic.name() == name).ok_or_else(|| {
        let known: Vec<_> = Nic::all().into_iter().map(Nic::name).collect();
        format!("there is no such card: {} are known", known.join(", "))
    })
}

/// Runs all tests once, and prints their results.
///
/// # Errors
/// [`BenchError`] if a guest does not start, or a test fails.
pub fn measure(args: &CardArgs) -> Result<(), BenchError> {
    let core = args.core.or(allowed_cores().first().copied()).unwrap_or(0);
    let parts = ImageParts {
        cpus: args.cpus,
        accel: accel(&args.accel),
        has_changed_driver: args.nic.driver.is_changed(),
        cards: vec![args.nic.card],
    };
    // Outside the namespace, because the script may have to download the guest's kernel.
    let image = Image::make(parts)?;
    network::enter()?;
    let mut pair = Pair::start(args, &image, core)?;
    let mut results = BTreeMap::new();
    pair.udp(8, &mut results)?;
    pair.udp(1460, &mut results)?;
    pair.tcp("tcp", 1460, &mut results)?;
    pair.tcp("tcpw", 16 << 10, &mut results)?;
    pair.request_response(&mut results)?;
    pair.raw(&mut results)?;
    print(&results)
}

type Results = BTreeMap<String, f64>;

/// An end of the traffic.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Sender,
    Receiver,
}

/// The guest and its peer: another guest, or a program of the host.
struct Pair<'a> {
    // Dropped first: guests must end before their cards.
    programs: Vec<Guest>,
    rig: Rig,
    args: &'a CardArgs,
    /// MAC addresses of both.
    macs: [String; 2],
    port: u16,
}

impl<'a> Pair<'a> {
    fn start(args: &'a CardArgs, image: &Image, core: u32) -> Result<Self, BenchError> {
        let cards: Vec<_> =
            (0..args.guests()).map(|guest| GuestCard { guest, card: args.nic.card }).collect();
        let host_end = network::interface(HOST_END);
        let devices: Vec<String> = cards.iter().filter_map(|card| card.tap()).collect();
        for device in &devices {
            ip(&["tuntap", "add", device, "mode", "tap"])?;
            ip(&["link", "set", device, "up"])?;
        }
        if devices.len() > 1 {
            let bridge = network::interface(BRIDGE);
            ip(&["link", "add", &bridge, "type", "bridge"])?;
            ip(&["link", "set", &bridge, "up"])?;
            for device in &devices {
                ip(&["link", "set", device, "master", &bridge])?;
            }
        }
        let mut rig = Rig::start(&host(image.folder(), core, &cards, &host_end), &[])?;
        let mut programs = Vec::new();
        for card in &cards {
            programs.push(Guest::start(image, card.guest, &mut rig)?);
        }
        let mut macs = cards.iter().map(|card| card.mac().to_string()).collect::<Vec<_>>();
        if args.way != Way::Guests {
            programs.push(Guest::run(Command::new(beside("netvm-bench-packet", "netvm-bench")?), &mut rig)?);
            let end = devices.first().unwrap_or(&host_end);
            let path = format!("/sys/class/net/{end}/address");
            let mac = std::fs::read_to_string(&path).map_err(BenchError::system(path))?;
            macs.push(mac.trim().to_owned());
        }
        let macs: [String; 2] = macs.try_into().unwrap_or_default();
        let mut pair = Self { programs, rig, args, macs, port: FIRST_PORT };
        pair.configure()?;
        Ok(pair)
    }

    /// Loads the driver, and gives both ends their addresses.
    fn configure(&mut self) -> Result<(), BenchError> {
        let driver = self.args.nic.driver;
        if driver != Driver::Stock {
            for guest in 0..self.args.guests() {
                self.command(guest, &format!("driver {}", driver.module()))?;
                self.answer(guest, "driver ")?;
            }
        }
        let tso = if self.args.tso == OnOff::On { "on" } else { "off" };
        for (end, address) in ADDRESSES.iter().enumerate() {
            self.command(end, &format!("address {} {address} {tso}", self.macs[end]))?;
            // Not the word of the command, which the guest's console echoes.
            let answer = self.answer(end, "configured ")?;
            // The peer of a card without TSO may have it; the guest's card is what is measured.
            if end == 0 && self.args.tso == OnOff::On && !answer.ends_with("TSO on") {
                let problem = format!("{} has no TSO: measure it with --tso=off", self.args.nic.name());
                return Err(BenchError::Guest { problem });
            }
        }
        Ok(())
    }

    /// The number of an end's program.
    fn number(&self, end: End) -> usize {
        match (self.args.way, end) {
            (Way::ToHost | Way::Guests, End::Sender) | (Way::FromHost, End::Receiver) => 0,
            _ => 1,
        }
    }

    fn command(&mut self, program: usize, command: &str) -> Result<(), BenchError> {
        self.programs[program].command(command)
    }

    fn answer(&mut self, program: usize, start: &str) -> Result<String, BenchError> {
        self.programs[program].answer(&mut self.rig, start, ANSWER_TIMEOUT)
    }

    /// Lets the receiver listen on a new port; returns the address and the port for the sender.
    fn listen(&mut self, command: &str, time: Option<Duration>) -> Result<String, BenchError> {
        let receiver = self.number(End::Receiver);
        self.port += 1;
        let port = self.port;
        let millis = time.map_or_else(String::new, |time| format!(" {}", time.as_millis()));
        self.command(receiver, &format!("{command} {port}{millis}"))?;
        self.answer(receiver, "listening")?;
        Ok(format!("{} {port}", ADDRESSES[receiver]))
    }

    /// Sends, and returns what arrived each second.
    fn transfer(&mut self, send: &str) -> Result<f64, BenchError> {
        let (sender, receiver) = (self.number(End::Sender), self.number(End::Receiver));
        let millis = (self.args.seconds + SEND_LONGER_BY).as_millis();
        self.command(sender, &format!("{send} {millis}"))?;
        let received = self.answer(receiver, "received ")?;
        self.answer(sender, "sent ")?;
        let rate = per_second(&received)?;
        if rate > 0.0 {
            return Ok(rate);
        }
        Err(BenchError::Nothing { what: send.to_owned(), seconds: self.args.seconds.as_secs_f64() })
    }

    fn udp(&mut self, bytes: u16, results: &mut Results) -> Result<(), BenchError> {
        let to = self.listen("udp-receive", Some(self.args.seconds))?;
        let rate = self.transfer(&format!("udp-send {to} {bytes}"))?;
        results.insert(format!("udp{bytes}"), rate);
        results.insert(format!("udp{bytes}_mbps"), rate * f64::from(bytes) * 8.0 / 1e6);
        Ok(())
    }

    fn tcp(&mut self, name: &str, bytes: usize, results: &mut Results) -> Result<(), BenchError> {
        let to = self.listen("tcp-receive", Some(self.args.seconds))?;
        let rate = self.transfer(&format!("tcp-send {to} {bytes}"))?;
        results.insert(name.to_owned(), rate * 8.0 / 1e6);
        Ok(())
    }

    fn request_response(&mut self, results: &mut Results) -> Result<(), BenchError> {
        let to = self.listen("tcp-respond", None)?;
        let (sender, receiver) = (self.number(End::Sender), self.number(End::Receiver));
        self.command(sender, &format!("tcp-request {to} {}", self.args.seconds.as_millis()))?;
        let requested = self.answer(sender, "requested ")?;
        self.answer(receiver, "responded ")?;
        results.insert("tcprr".to_owned(), per_second(&requested)?);
        Ok(())
    }

    /// `pktgen`: frames past the stack.
    fn raw(&mut self, results: &mut Results) -> Result<(), BenchError> {
        let (sender, receiver) = (self.number(End::Sender), self.number(End::Receiver));
        self.command(
            receiver,
            &format!("receive {} {}", self.macs[receiver], self.args.seconds.as_millis()),
        )?;
        self.answer(receiver, "receiving")?;
        let rate = self.transfer(&format!("send {} {} {FRAME}", self.macs[sender], self.macs[receiver]))?;
        results.insert("pktgen".to_owned(), rate);
        Ok(())
    }
}

/// Reads `COUNT in MICROS…`.
fn per_second(answer: &str) -> Result<f64, BenchError> {
    let numbers = answer.split_once(" in ").map(|(count, rest)| {
        let micros = rest.split(',').next().unwrap_or_default();
        (count.trim().parse::<f64>(), micros.trim().parse::<f64>())
    });
    match numbers {
        Some((Ok(count), Ok(micros))) => Ok(count * 1e6 / micros.max(1.0)),
        _ => Err(BenchError::Guest { problem: format!("malformed answer: {answer}") }),
    }
}

/// The configuration: netvm's cards with their sockets in `folder`, the first one and the second one, or the host's
/// end, connected.
fn host(folder: &Path, core: u32, cards: &[GuestCard], host_end: &str) -> netvm_model::Host {
    let mut layout = Layout::new(core, Idle::Adaptive);
    let mut ports = Vec::new();
    for card in cards.iter().filter(|card| card.card.is_netvm()) {
        let kind = card.port(folder);
        ports.push(layout.port(&format!("guest{}", card.guest), kind, 1500));
    }
    if ports.len() == 1 {
        ports.push(layout.port("host", PortKind::Tap { interface: host_end.to_owned() }, 1500));
    }
    if let [one, other] = ports[..] {
        layout.rule(one, Action::Port(other));
        layout.rule(other, Action::Port(one));
    }
    layout.build()
}

#[cfg(test)]
mod tests {
    use super::super::card::Card;
    use super::*;

    #[test]
    fn answers_of_all_receivers_are_rates() {
        assert_eq!(per_second("3000 in 1500000").unwrap(), 2000.0);
        assert_eq!(per_second("50 in 100000, dropped 3").unwrap(), 500.0);
        assert!(per_second("failed").is_err());
    }

    #[test]
    fn cards_are_found_by_name() {
        assert_eq!(nic("e1000-csb").unwrap(), Nic { card: Card::E1000, driver: Driver::Csb });
        assert!(nic("qemu-e1000-csb").unwrap_err().contains("qemu-e1000-sc-itr"));
    }
}
