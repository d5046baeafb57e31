// SPDX-License-Identifier: Apache-2.0
//! `receive`: packets from a sender in a namespace into a program, by one of the methods that Linux and netvm offer.
//!
//! ```text
//!  core A                core B
//!  sender ── far veth ── near: libpcap, TPACKET_V3, AF_XDP or XDP, and netvm-bench-receive     platform host
//!                        near: netvm's AF_XDP port ── rule that drops                          host, netvm-port
//!                        near: netvm's AF_XDP port ── NF process                               host, netvm-nf
//!                        near: netvm's AF_XDP port ── vhost-user ── guest: the same            platform guest
//!                        near: netvm's AF_XDP port ── e1000 ── guest: the same                 platform guest-e1000
//!                        near: netvm's AF_XDP port ── ivshmem ── NF in a VM                    guest, netvm-nf
//! ```
//!
//! The whole receiving side, kernel included, shares one core (Schultz and Crowley, section IV). Every method has a
//! buffer of about 2 MB or 2,048 packets, so that none gains by a longer queue.

#[path = "../../../../bench-receive/src/options.rs"]
mod options;
mod receiver;

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use netvm_vm::CardKind;
use netvm_wire::MacAddr;

use super::trial::{self, Streams, TrialArgs};
use crate::error::BenchError;
use crate::machine::allowed_cores;
use crate::setup::guest::{self, Guest, NfImage, Processor, beside};
use crate::setup::network;
use crate::setup::sender::{Destination, Sender, Stream};
use options::MonitorKind;
use receiver::Receiver;

const PROGRAM: &str = "netvm-bench-receive";
const GUEST_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const DESTINATION: [u8; 4] = [10, 255, 0, 1];

/// Where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Platform {
    /// In a process of the host
    Host,
    /// In a virtual machine, with a card on a vhost-user port
    Guest,
    /// In a virtual machine, with an e1000 card
    #[value(name = "guest-e1000")]
    GuestE1000,
}

/// How packets are received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Into the program.
    Program(options::Method),
    /// Only into netvm's engine, which counts at its AF_XDP port.
    NetvmPort,
}

impl Method {
    /// Into the program as an NF of netvm.
    const NETVM_NF: Self = Self::Program(options::Method::NetvmNf);
}

impl ValueEnum for Method {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: LazyLock<Vec<Method>> = LazyLock::new(|| {
            let program = options::Method::value_variants().iter().copied().map(Method::Program);
            program.chain([Method::NetvmPort]).collect()
        });
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Program(method) => method.to_possible_value(),
            Self::NetvmPort => {
                let help = "Counted by netvm's engine at its AF_XDP port";
                Some(PossibleValue::new("netvm-port").help(help))
            }
        }
    }
}

/// The flows of the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Flows {
    /// All packets are of one flow
    Single,
    /// Each packet is of a flow of its own
    Multi,
}

/// Options of `receive`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct ReceiveArgs {
    /// Where the program runs
    #[arg(long, default_value = "host")]
    pub platform: Platform,
    /// How packets get into it
    #[arg(long)]
    pub method: Method,
    /// What it does with each packet
    #[arg(long, default_value = "null")]
    pub monitor: MonitorKind,
    /// The flows of the traffic
    #[arg(long, default_value = "single")]
    pub flows: Flows,
    /// Bytes of a frame, FCS included
    #[arg(long, value_parser = clap::value_parser!(u16).range(64..=1518), default_value = "64")]
    pub size: u16,
    /// QEMU's accelerator: emulation or KVM
    #[arg(long, value_parser = ["tcg", "kvm"], default_value = "tcg")]
    pub accel: String,
    /// The trials.
    #[command(flatten)]
    pub trials: TrialArgs,
}

/// Runs the trials.
///
/// # Errors
/// [`BenchError`] if the method cannot be set up.
pub fn measure(args: &ReceiveArgs) -> Result<(), BenchError> {
    let [sending, receiving] = two_cores(&args.trials)?;
    // Outside the namespace, because the script may have to download the guest's kernel.
    let guest = image(args, receiving)?;
    network::enter()?;
    let interface = network::interface(0);
    let stream = Stream {
        interface: interface.clone(),
        queues: 1,
        size: args.size,
        is_multi: args.flows == Flows::Multi,
        is_spread: false,
        is_timed: false,
        destinations: vec![Destination { mac: GUEST_MAC, vlan: None, address: DESTINATION }],
    };
    let sender = Sender::start(vec![stream], sending)?;
    network::bring_up(&interface, &[receiving])?;
    let mut receiver = Receiver::start(args, &interface, receiving, guest)?;
    network::pin_threads(&interface, &[receiving]);
    trial::run(&args.trials, Streams { size: args.size, count: 1, beside: None }, &sender, &mut receiver)
}

/// The sender's core, and the core of the whole receiving side.
///
/// # Errors
/// [`BenchError::Cores`] without two cores.
pub fn two_cores(args: &TrialArgs) -> Result<[u32; 2], BenchError> {
    let list = if args.cores.is_empty() { allowed_cores() } else { args.cores.clone() };
    match list.as_slice() {
        [sending, receiving, ..] if sending != receiving => Ok([*sending, *receiving]),
        _ => Err(BenchError::Cores { required: 2, available: list.len().min(1) }),
    }
}

fn program() -> Result<PathBuf, BenchError> {
    beside(PROGRAM, PROGRAM)
}

/// Options of the program.
fn arguments(args: &ReceiveArgs, interface: &str) -> Vec<String> {
    let word =
        |value: Option<PossibleValue>| value.map_or(String::new(), |value| value.get_name().to_owned());
    vec![
        format!("--method={}", word(args.method.to_possible_value())),
        format!("--monitor={}", word(args.monitor.to_possible_value())),
        format!("--interface={interface}"),
    ]
}

/// The image of the guest that runs the program; `None` if the program runs on the host.
fn image(args: &ReceiveArgs, core: u32) -> Result<Option<Guest>, BenchError> {
    let accel = guest::accel(&args.accel);
    let words = arguments(args, "eth0");
    match (args.platform, args.method) {
        (Platform::Host, _) => Ok(None),
        (Platform::Guest | Platform::GuestE1000, Method::NetvmPort) => {
            let problem = "the engine does not run in a guest: choose the platform host".to_owned();
            Err(BenchError::Guest { problem })
        }
        (Platform::GuestE1000, Method::NETVM_NF) => {
            let problem = "an NF in a VM has no network card: choose the platform guest".to_owned();
            Err(BenchError::Guest { problem })
        }
        (Platform::Guest, Method::NETVM_NF) => {
            let image = NfImage { program: program()?, arguments: words, files: Vec::new() };
            Guest::nf(&image, Processor { accel, core }).map(Some)
        }
        (platform, _) => {
            let command = format!("program {}", words.join(" "));
            Guest::with_interface(&program()?, &command, card(platform), Processor { accel, core }).map(Some)
        }
    }
}

/// The card of an ordinary guest.
const fn card(platform: Platform) -> CardKind {
    match platform {
        Platform::GuestE1000 => CardKind::VfioUser,
        Platform::Host | Platform::Guest => CardKind::VhostUser,
    }
}
