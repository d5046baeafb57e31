// SPDX-License-Identifier: Apache-2.0
//! Programs of each kind that take less than they are sent: their rings or queues are full.

use std::time::Duration;

use netvm_api::NfState;
use rustix::process::Signal;

use super::load::{Load, SPARE, each_is_counted, is_kernel};
use super::signal;
use crate::common::Daemon;
use crate::common::hosts::run;
use crate::foreign::{KINDS, transparent, used};
use crate::site::Site;

/// More packets than a slow program takes, beside those of the hosts.
const BURSTS: &str = "[[port]]\nname = \"load\"\nkind = \"source\"\nsize = 200\nflows = 16\nrate = 20000\n\
                      forward = { chain = \"out\" }\n";

/// Has the program be slower than its load for less time than a hang takes to be noticed.
fn slow_down(site: &Site, daemon: &Daemon, attach: &str) {
    let short = Duration::from_millis(100);
    if is_kernel(attach) {
        let device = format!("-n nf-{}.0 qdisc", site.role);
        // 1,600 packets a second.
        run(&format!("tc {device} add dev right root tbf rate 3mbit burst 4k limit 8k"));
        std::thread::sleep(4 * short);
        run(&format!("tc {device} delete dev right root"));
    } else {
        signal(daemon, site, Signal::STOP);
        std::thread::sleep(short);
        signal(daemon, site, Signal::CONT);
    }
}

/// Packets that the program was to get and that its port did not take, or that it got and did not return.
fn not_returned(daemon: &Daemon, site: &Site) -> u64 {
    let drops = daemon.stats().drops.ports;
    let port = drops.get(&format!("{}.0.left", site.role));
    let counters = site.nf(daemon).counters;
    port.map_or(0, |reasons| reasons.values().sum::<u64>())
        + counters["left_in"].saturating_sub(counters["right_out"])
}

#[test]
fn a_program_slower_than_its_load_loses_what_it_cannot_take_and_no_more() {
    for attach in KINDS {
        let Some(site) = Site::new("lf") else { return };
        let Some(program) = transparent(&site, attach) else { continue };
        let quiet = site.config(&program, "on_failure = \"bypass\"");
        let daemon = Daemon::start(&quiet);
        site.until(&daemon, NfState::Running);
        assert!(site.pings(), "{attach}: {}", daemon.log());
        let before = used(&daemon);
        let _: netvm_api::ApplyReply = daemon.post(netvm_api::path::APPLY, &format!("{quiet}{BURSTS}"));
        let load = Load::start(&site);
        daemon.until_flowing("out");
        let lost_before = not_returned(&daemon, &site);
        // A queue of a program may be long enough for once.
        for _ in 0..20 {
            slow_down(&site, &daemon, attach);
            daemon.until_flowing("out");
            if not_returned(&daemon, &site) > lost_before + 100 {
                break;
            }
        }
        let lost = not_returned(&daemon, &site) - lost_before;
        assert!(lost > 100, "{attach}: {lost}: {:#?}", daemon.stats().drops);
        let _: netvm_api::ApplyReply = daemon.post(netvm_api::path::APPLY, &quiet);
        // None of a flow has overtaken another one.
        let lost = load.stop();
        each_is_counted(&daemon, &site, attach, lost);
        daemon.until("all buffers are back", |daemon| used(daemon) <= before + SPARE);
        let nf = site.nf(&daemon);
        assert_eq!((nf.state, nf.restarts), (NfState::Running, 0), "{attach}: {}", daemon.log());
        assert!(site.pings(), "{attach}: {}", daemon.log());
    }
}
