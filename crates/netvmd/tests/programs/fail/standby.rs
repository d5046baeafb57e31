//! Programs of each kind that are killed or stop under load while a standby waits.

use std::time::Duration;

use netvm_api::{NfInfo, NfState};
use rustix::process::{Pid, Signal, kill_process_group};

use super::load::{Fault, Load, SPARE, Watched, is_kernel};
use crate::common::Daemon;
use crate::common::hosts::run;
use crate::foreign::{KINDS, transparent, used};
use crate::site::Site;

/// The instances of the program, by their number.
fn instances(daemon: &Daemon, site: &Site) -> Vec<NfInfo> {
    let all = daemon.get::<Vec<NfInfo>>(netvm_api::path::NFS).into_iter();
    all.filter(|nf| nf.role == site.role).collect()
}

/// Waits until one instance runs and the other one waits. Returns the number of the first.
fn running(daemon: &Daemon, site: &Site) -> usize {
    daemon.until("one runs, one waits", |daemon| {
        let states: Vec<NfState> = instances(daemon, site).iter().map(|nf| nf.state).collect();
        states.contains(&NfState::Running) && states.contains(&NfState::Standby)
    });
    instances(daemon, site).iter().position(|nf| nf.state == NfState::Running).unwrap()
}

fn begin(site: &Site, daemon: &Daemon, attach: &str, (instance, fault): (usize, Fault)) {
    let group = Pid::from_raw(instances(daemon, site)[instance].pid.unwrap() as i32).unwrap();
    match fault {
        Fault::Killed => kill_process_group(group, Signal::KILL).unwrap(),
        Fault::Stopped if is_kernel(attach) => {
            run(&format!("ip -n nf-{}.{instance} link set right nomaster", site.role));
        }
        Fault::Stopped => kill_process_group(group, Signal::STOP).unwrap(),
    }
}

fn end(site: &Site, daemon: &Daemon, attach: &str, (instance, fault): (usize, Fault)) {
    match fault {
        Fault::Killed => {}
        Fault::Stopped if is_kernel(attach) => {
            run(&format!("ip -n nf-{}.{instance} link set right master br0", site.role));
        }
        Fault::Stopped => {
            // It may have been started again meanwhile.
            if let Some(pid) = instances(daemon, site)[instance].pid {
                let _ = kill_process_group(Pid::from_raw(pid as i32).unwrap(), Signal::CONT);
            }
        }
    }
}

/// Has the running instance fail, and the other one take over. Returns the longest time without a packet.
fn fail(site: &Site, daemon: &Daemon, attach: &str, fault: Fault) -> Duration {
    let instance = running(daemon, site);
    daemon.until_flowing("out");
    let folder = tempfile::tempdir().unwrap();
    let watched = Watched::start(daemon, folder.path());
    std::thread::sleep(Duration::from_millis(200));
    let passed = instances(daemon, site)[1 - instance].counters["right_out"];
    begin(site, daemon, attach, (instance, fault));
    daemon.until("the standby returns packets", |daemon| {
        instances(daemon, site)[1 - instance].counters["right_out"] > passed
    });
    daemon.until_flowing("out");
    std::thread::sleep(Duration::from_millis(300));
    let gap = watched.longest_gap();
    end(site, daemon, attach, (instance, fault));
    gap
}

fn a_standby_takes_over_under_load(name: &str, fault: Fault) {
    for attach in KINDS {
        let Some(site) = Site::new(name) else { return };
        let Some(program) = transparent(&site, attach) else { continue };
        // Both instances of testpmd would have files of one name.
        let own_files = format!("\"--file-prefix\", {:?}", site.role);
        let program = format!("{}standby = 1\n", program.replace(&own_files, "\"--no-shconf\""));
        let daemon = site.start(&program, "on_failure = \"standby\"");
        running(&daemon, &site);
        assert!(site.pings(), "{attach}: {}", daemon.log());
        let before = used(&daemon);
        let load = Load::start(&site);
        // Another program may have the cores for longer than the limit, but not each time.
        let mut gaps = Vec::new();
        while gaps.len() < 4 && gaps.iter().all(|gap| *gap > fault.limit()) {
            gaps.push(fail(&site, &daemon, attach, fault));
        }
        running(&daemon, &site);
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
