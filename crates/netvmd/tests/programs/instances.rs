// SPDX-License-Identifier: Apache-2.0
//! Several instances of a program: balanced, and as standbys.

use netvm_api::NfState;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::common::Daemon;
use crate::common::hosts::run;
use crate::site::{BRIDGE, Site};

/// The instances of the program: number, state, packets in on the left and out on the left.
fn instances(daemon: &Daemon, site: &Site) -> Vec<(NfState, u64, u64)> {
    let all = daemon.get::<Vec<netvm_api::NfInfo>>(netvm_api::path::NFS).into_iter();
    let own = all.filter(|nf| nf.role == site.role);
    own.map(|nf| (nf.state, nf.counters["left_in"], nf.counters["left_out"])).collect()
}

#[test]
fn both_directions_of_a_flow_use_one_instance() {
    let Some(site) = Site::new("r") else { return };
    let program = format!("{}replicas = 2\n", Site::script("veth", BRIDGE));
    let daemon = site.start(&program, "on_failure = \"drop\"");
    daemon.until("both run", |daemon| instances(daemon, &site).iter().all(|one| one.0 == NfState::Running));
    assert!(site.pings(), "{}", daemon.log());
    // ARP and ping have no ports, and so one hash: they use the first.
    let settled: Vec<_> = instances(&daemon, &site);
    let mut used = [false; 2];
    for _ in 0..12 {
        let before = instances(&daemon, &site);
        assert!(site.echoes(30_000), "{}", daemon.log());
        let after = instances(&daemon, &site);
        let grown = |n: usize| (after[n].1 - before[n].1 > 8, after[n].2 - before[n].2 > 8);
        for (n, used) in used.iter_mut().enumerate() {
            assert!(matches!(grown(n), (true, true) | (false, false)), "{before:?} {after:?}");
            *used |= grown(n) == (true, true);
        }
    }
    assert_eq!(used, [true; 2], "{settled:?}: {}", daemon.log());
}

#[test]
fn a_standby_takes_over() {
    let Some(site) = Site::new("s") else { return };
    let program = format!("{}standby = 1\n", Site::script("tap", BRIDGE));
    let daemon = site.start(&program, "on_failure = \"standby\"");
    daemon.until("one runs, one waits", |daemon| {
        let mut states: Vec<_> = instances(daemon, &site).iter().map(|one| one.0).collect();
        states.sort_by_key(|state| *state as u8);
        states == [NfState::Running, NfState::Standby]
    });
    assert!(site.pings(), "{}", daemon.log());
    let first = instances(&daemon, &site).iter().position(|one| one.0 == NfState::Running).unwrap();
    // The bridge would forward without its process: so it does not any more.
    run(&format!("ip -n nf-{}.{first} link delete br0", site.role));
    let nfs = daemon.get::<Vec<netvm_api::NfInfo>>(netvm_api::path::NFS);
    let pid = nfs.iter().filter(|nf| nf.role == site.role).nth(first).unwrap().pid.unwrap();
    kill_process_group(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    daemon.until("the other one takes over", |daemon| {
        instances(daemon, &site)[1 - first].0 == NfState::Running
    });
    assert!(site.pings(), "{}", daemon.log());
    daemon.until("the first one waits", |daemon| instances(daemon, &site)[first].0 == NfState::Standby);
    assert!(daemon.log().contains("the standby took over"), "{}", daemon.log());
}
