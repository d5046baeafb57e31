// SPDX-License-Identifier: Apache-2.0
//! Programs of each kind that are killed or stop under load while a standby waits.

use std::time::Duration;

use netvm_api::{NfInfo, NfState};
use rustix::process::{Pid, Signal, kill_process_group};

use super::load::{Fault, Load, SPARE, Watched, is_kernel};
use crate::common::Daemon;
use crate::common::hosts::run;
use crate::foreign::{KINDS, transparent, used};
use crate::site::Site;

/// A program with a standby, and how it fails.
struct Case<'a> {
    site: &'a Site,
    daemon: &'a Daemon,
    attach: &'a str,
    fault: Fault,
}

impl Case<'_> {
    /// The instances, by their number.
    fn instances(&self) -> Vec<NfInfo> {
        let all = self.daemon.get::<Vec<NfInfo>>(netvm_api::path::NFS).into_iter();
        all.filter(|nf| nf.role == self.site.role).collect()
    }

    /// Waits until one instance runs and the other one waits. Returns the number of the first.
    fn running(&self) -> usize {
        self.daemon.until("one runs, one waits", |_| {
            let states: Vec<NfState> = self.instances().iter().map(|nf| nf.state).collect();
            states.contains(&NfState::Running) && states.contains(&NfState::Standby)
        });
        self.instances().iter().position(|nf| nf.state == NfState::Running).unwrap()
    }

    fn begin(&self, instance: usize) {
        match self.fault {
            Fault::Killed => self.signal(instance, Signal::KILL),
            Fault::Stopped if is_kernel(self.attach) => self.bridge(instance, "nomaster"),
            Fault::Stopped => self.signal(instance, Signal::STOP),
        }
    }

    fn end(&self, instance: usize) {
        match self.fault {
            Fault::Killed => {}
            Fault::Stopped if is_kernel(self.attach) => self.bridge(instance, "master br0"),
            Fault::Stopped => self.signal(instance, Signal::CONT),
        }
    }

    fn signal(&self, instance: usize, signal: Signal) {
        let group = Pid::from_raw(self.instances()[instance].pid.unwrap() as i32).unwrap();
        kill_process_group(group, signal).unwrap();
    }

    fn bridge(&self, instance: usize, master: &str) {
        run(&format!("ip -n nf-{}.{instance} link set right {master}", self.site.role));
    }

    /// Has the running instance fail, and the other one take over. Returns the longest time without a packet.
    fn fail(&self) -> Duration {
        let instance = self.running();
        self.daemon.until_flowing("out");
        let folder = tempfile::tempdir().unwrap();
        let watched = Watched::start(self.daemon, folder.path());
        // Packets before and after the fault, between which the gap is.
        std::thread::sleep(Duration::from_millis(200));
        let returned = || self.instances()[1 - instance].counters["right_out"];
        let before = returned();
        self.begin(instance);
        self.daemon.until("the standby returns packets", |_| returned() > before);
        self.daemon.until_flowing("out");
        std::thread::sleep(Duration::from_millis(300));
        let gap = watched.longest_gap();
        self.end(instance);
        gap
    }
}

fn a_standby_takes_over_under_load(name: &str, fault: Fault) {
    for attach in KINDS {
        let Some(site) = Site::new(name) else { return };
        let Some(program) = transparent(&site, attach) else { continue };
        // Both instances of testpmd would have files of one name.
        let own_files = format!("\"--file-prefix\", {:?}", site.role);
        let program = format!("{}standby = 1\n", program.replace(&own_files, "\"--no-shconf\""));
        let daemon = site.start(&program, "on_failure = \"standby\"");
        let case = Case { site: &site, daemon: &daemon, attach, fault };
        case.running();
        assert!(site.pings(), "{attach}: {}", daemon.log());
        let before = used(&daemon);
        let load = Load::start(&site);
        // Another program may have the cores for longer than the limit, but not each time.
        let mut gaps = Vec::new();
        while gaps.len() < 4 && gaps.iter().all(|gap| *gap > fault.limit()) {
            gaps.push(case.fail());
        }
        case.running();
        // No packet has overtaken another one of its flow on its way by the other instance.
        load.stop();
        assert!(gaps.iter().any(|gap| *gap <= fault.limit()), "{attach}: {gaps:?}: {}", daemon.log());
        daemon.until("all buffers are back", |daemon| used(daemon) <= before + SPARE);
    }
}

#[test]
fn a_standby_takes_over_in_time_when_a_program_is_killed_under_load() {
    a_standby_takes_over_under_load("sk", Fault::Killed);
}

#[test]
fn a_standby_takes_over_in_time_when_a_program_stops_under_load() {
    a_standby_takes_over_under_load("so", Fault::Stopped);
}
