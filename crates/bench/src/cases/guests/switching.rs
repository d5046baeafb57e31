// SPDX-License-Identifier: Apache-2.0
//! `switching`: packets from one guest to another, through netvm or through other switches, with and without rules (Ram
//! and others, sNICh, section 5; figures 6 to 9).
//!
//! ```text
//!  core B              core A                                          core B
//!  guest ── vhost-user ── netvm, Open vSwitch with DPDK, or testpmd ── vhost-user ── guest
//!  guest ── TAP ────────── the kernel's bridge, on core B, too ─────── TAP ───────── guest
//! ```
//!
//! The guests are those of the benchmark `vhost`. Rates are packets per second of the switching thread's CPU time,
//! which polls; the bridge has no thread, and its rate is that of the clock.

use serde::Serialize;

use super::vhost;
use crate::cases::forwarding::filter_set::FilterSet;
use crate::cli::{SwitchKind, SwitchingArgs};
use crate::error::BenchError;
use crate::peers::guests::{Cards, Guests, Load, Rings, floor};
use crate::peers::ovs::{self, NORMAL, PortKinds, Setup};
use crate::peers::{bridge, testpmd};
use crate::setup::rig::Rig;
use crate::setup::sandbox;
use crate::setup::traffic::Traffic;
use crate::studies::trial::print;

/// Without FCS.
const FCS: u16 = 4;

#[derive(Serialize)]
struct Switched {
    /// Packets per second.
    received: f64,
    /// The same in megabits of frames with FCS.
    mbps: f64,
    /// Nanoseconds of the switching thread for each packet.
    cost_ns: f64,
}

/// Measures once, and prints the result.
///
/// # Errors
/// [`BenchError`] if the switch or the guests do not run.
pub fn measure(args: &SwitchingArgs) -> Result<(), BenchError> {
    let (cores, plan) = (args.bench.cores()?, args.bench.plan());
    testpmd::find()?;
    let set = match args.rules {
        0 => None,
        count => Some(FilterSet::load(None, count.into())?),
    };
    let load = Load {
        bytes: args.size - FCS,
        traffic: Traffic::of(args.flows),
        rings: Rings::Packed,
        is_timed: false,
    };
    if args.switch == SwitchKind::Ovs {
        ovs::find()?;
    }
    let sandbox = sandbox::enter()?;
    let folder = vhost::folder(&sandbox, "switching")?;
    let mpps = match args.switch {
        SwitchKind::Netvm => {
            let mut host = vhost::host(Cards::VirtioUser, &folder, cores.engine);
            host.rules = set.as_ref().map(FilterSet::rules).unwrap_or_default();
            let mut rig = Rig::start(&host, &[])?;
            let guests = Guests::start(&folder, load, cores.nf)?;
            let window = rig.watch(&plan)?;
            drop(guests);
            window.check_forwarded("switching")?;
            window.per_core(window.sent())
        }
        SwitchKind::Ovs => {
            let mut flows = vec![NORMAL.to_owned()];
            flows.extend_from_slice(set.as_ref().map_or(&[], FilterSet::flows));
            let setup =
                Setup { flows: &flows, signature_cache: false, tracks: false, ends: PortKinds::Guests(load) };
            ovs::measure(&sandbox, setup, cores, &plan)?.mpps
        }
        SwitchKind::Testpmd => floor(&folder, load, cores, &plan)?,
        SwitchKind::Bridge => {
            let rules = set.map_or_else(String::new, |set| set.nft(bridge::CHAIN));
            bridge::measure(Guests::on_taps(&folder, load, cores.nf)?, &rules, &plan)?
        }
    };
    let received = mpps * 1e6;
    print(&Switched { received, mbps: received * f64::from(args.size) * 8.0 / 1e6, cost_ns: 1e3 / mpps })
}
