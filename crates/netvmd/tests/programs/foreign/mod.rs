// SPDX-License-Identifier: Apache-2.0
//! Unmodified programs of others as hops.

mod proxy;
mod together;

use std::time::Duration;

use netvm_api::NfState;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::common::Daemon;
use crate::common::hosts::{succeeds, within};
use crate::common::peers::peer;
use crate::site::{BRIDGE, Site};

/// What a signature of the test blocks.
const BLOCKED: &[u8] = b"GET / HTTP/1.1\r\n\r\nEICAR-LIKE-TEST\r\n";
const ALLOWED: &[u8] = b"GET / HTTP/1.1\r\n\r\nnothing of interest\r\n";

/// Suricata inline between `left` and `right`, with one signature.
pub const SURICATA: &str = "%YAML 1.1
---
default-log-dir: FOLDER
classification-file: FOLDER/none
reference-config-file: FOLDER/none
default-rule-path: FOLDER
rule-files: [test.rules]
outputs:
  - fast: { enabled: yes, filename: fast.log }
af-packet:
  - { interface: left, cluster-id: 98, cluster-type: cluster_flow, copy-mode: ips, copy-iface: right, threads: 1 }
  - { interface: right, cluster-id: 97, cluster-type: cluster_flow, copy-mode: ips, copy-iface: left, threads: 1 }
";

/// Quotes words for a list of TOML.
fn list(words: &[String]) -> String {
    format!("{words:?}")
}

#[test]
fn suricata_blocks_a_signature_and_passes_the_rest() {
    let Some(mut command) = peer("suricata", "usr/bin/suricata") else { return };
    let Some(site) = Site::new("su") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display().to_string();
    std::fs::write(folder.path().join("none"), "").unwrap();
    let rule = "drop tcp any any -> any any (msg:\"test\"; content:\"EICAR-LIKE-TEST\"; sid:1; rev:1;)\n";
    std::fs::write(folder.path().join("test.rules"), rule).unwrap();
    std::fs::write(folder.path().join("s.yaml"), SURICATA.replace("FOLDER", &path)).unwrap();
    let config = format!("{path}/s.yaml");
    command.extend(["-c", &config, "--af-packet", "--runmode", "workers", "-l", &path].map(str::to_owned));
    let program = format!(
        "attach = \"veth\"\ncommand = {}\nwritable = [{path:?}]\nmemory = 2048\nwhile_starting = \"bypass\"\n",
        list(&command)
    );
    let daemon = site.start(&program, "on_failure = \"drop\"");
    // It loads its rules, and traffic does not wait for it.
    assert!(site.pings(), "{}", daemon.log());
    site.until(&daemon, NfState::Running);
    let limit = Duration::from_secs(5);
    assert!(site.echoes_text(ALLOWED.to_vec(), limit), "{}", daemon.log());
    assert!(site.echoes(200_000), "checksums are complete: {}", daemon.log());
    assert!(!site.echoes_text(BLOCKED.to_vec(), limit), "{}", daemon.log());
    let alerts = || std::fs::read_to_string(folder.path().join("fast.log")).unwrap_or_default();
    assert!(within(Duration::from_secs(5), || alerts().contains("test")), "{}", alerts());
    // A stopped Suricata is found by probes, and the chain closes: an IPS is not to be passed by.
    let group = Pid::from_raw(site.nf(&daemon).pid.unwrap() as i32).unwrap();
    kill_process_group(group, Signal::STOP).unwrap();
    site.until(&daemon, NfState::Hung);
    assert!(!site.pings_once(), "{}", daemon.log());
    kill_process_group(group, Signal::CONT).unwrap();
    site.until(&daemon, NfState::Running);
    assert!(site.echoes_text(ALLOWED.to_vec(), limit), "{}", daemon.log());
    assert_eq!(site.nf(&daemon).restarts, 0, "{}", daemon.log());
}

/// The devices of testpmd, by the way that it is attached.
const DEVICES: [(&str, &str); 2] = [
    ("vhost-user", "--vdev net_virtio_user0,path={left} --vdev net_virtio_user1,path={right}"),
    (
        "memif",
        "--vdev net_memif0,role=client,socket-abstract=no,socket={left} \
         --vdev net_memif1,role=client,socket-abstract=no,socket={right}",
    ),
];

/// testpmd on two sockets in a folder.
pub fn testpmd_keys(name: &str, attach: &str, sockets: &std::path::Path) -> String {
    let command = [
        "dpdk-testpmd -l 0,1 --no-huge -m 128 --no-pci --file-prefix",
        name,
        DEVICES.iter().find(|(word, _)| *word == attach).unwrap().1,
        "-- --forward-mode=io --auto-start --total-num-mbufs=4096",
    ];
    let words: Vec<String> = command.join(" ").split(' ').map(str::to_owned).collect();
    format!(
        "attach = {attach:?}\nsockets = {sockets:?}\nuser = \"root\"\nwritable = [\"/run\", \"/tmp\"]\n\
         memory = 2048\ncommand = {}\n",
        list(&words)
    )
}

/// The same, with the folder.
fn testpmd(site: &Site, attach: &str) -> Option<(String, std::path::PathBuf)> {
    if !succeeds("which dpdk-testpmd") {
        println!("SKIP: no dpdk-testpmd here");
        return None;
    }
    let sockets = std::env::temp_dir().join(&site.role);
    Some((testpmd_keys(&site.role, attach, &sockets), sockets))
}

/// The ways to attach a program.
pub const KINDS: [&str; 5] = ["veth", "tap", "af_xdp", "vhost-user", "memif"];

/// A program that forwards what it gets unchanged: the kernel's bridge or testpmd. `None`, with the reason printed, if
/// it is not here.
pub fn transparent(site: &Site, attach: &str) -> Option<String> {
    match attach {
        "vhost-user" | "memif" => testpmd(site, attach).map(|(keys, _)| keys),
        _ => Some(Site::script(attach, BRIDGE)),
    }
}

fn testpmd_passes_packets(name: &str, attach: &str) {
    let Some(site) = Site::new(name) else { return };
    let Some((program, sockets)) = testpmd(&site, attach) else { return };
    let daemon = site.start(&program, "on_failure = \"drop\"");
    site.until(&daemon, NfState::Running);
    assert!(site.pings(), "{}", daemon.log());
    assert!(site.echoes(200_000), "{}", daemon.log());
    drop(daemon);
    let _ = std::fs::remove_dir_all(sockets);
}

#[test]
fn testpmd_passes_packets_by_vhost_user() {
    testpmd_passes_packets("tp", "vhost-user");
}

#[test]
fn testpmd_passes_packets_by_memif() {
    testpmd_passes_packets("tm", "memif");
}

/// Buffers that the group does not have: with the engine or NFs.
pub fn used(daemon: &Daemon) -> u32 {
    let group = &daemon.stats().groups[0];
    group.regions.iter().map(|region| region.buffers - region.free).sum()
}

fn stops_goes_on_and_is_killed_under_load(name: &str, attach: &str) {
    let Some(site) = Site::new(name) else { return };
    let Some((program, sockets)) = testpmd(&site, attach) else { return };
    // A source for the load, beside the hosts.
    let load = "[[port]]\nname = \"load\"\nkind = \"source\"\nsize = 200\nflows = 16\nrate = 20000\n\
                forward = { chain = \"out\" }\n";
    let quiet = site.config(&program, "on_failure = \"bypass\"");
    let loaded = format!("{quiet}{load}");
    let daemon = Daemon::start(&quiet);
    site.until(&daemon, NfState::Running);
    assert!(site.pings(), "{}", daemon.log());
    let before = used(&daemon);
    let _: netvm_api::ApplyReply = daemon.post(netvm_api::path::APPLY, &loaded);
    for round in 0..2 {
        site.until(&daemon, NfState::Running);
        daemon.until_flowing("out");
        let group = Pid::from_raw(site.nf(&daemon).pid.unwrap() as i32).unwrap();
        if round == 0 {
            // Its rings fill up; then the chain passes it by.
            kill_process_group(group, Signal::STOP).unwrap();
            site.until(&daemon, NfState::Hung);
            daemon.until_flowing("out");
            kill_process_group(group, Signal::CONT).unwrap();
        } else {
            kill_process_group(group, Signal::KILL).unwrap();
            daemon.until("it is started again", |daemon| site.nf(daemon).restarts == 1);
            daemon.until_flowing("out");
        }
    }
    site.until(&daemon, NfState::Running);
    daemon.until_flowing("out");
    assert!(site.pings(), "{}", daemon.log());
    let _: netvm_api::ApplyReply = daemon.post(netvm_api::path::APPLY, &quiet);
    let spare = 512;
    daemon.until("all buffers are back", |daemon| used(daemon) <= before + spare);
    drop(daemon);
    let _ = std::fs::remove_dir_all(sockets);
}

#[test]
fn testpmd_on_vhost_user_is_stopped_and_killed_under_load_and_no_buffer_is_lost() {
    stops_goes_on_and_is_killed_under_load("tl", "vhost-user");
}

#[test]
fn testpmd_on_memif_is_stopped_and_killed_under_load_and_no_buffer_is_lost() {
    stops_goes_on_and_is_killed_under_load("ml", "memif");
}
