//! NFs in VMs that netvmd starts: real guests, with this test binary as the NF in them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::sync::Arc;

use common::guest::{Image, Reaper};
use common::{Daemon, ENGINE, Forward, PROGRAM, lane};
use netlib::Options;
use netvm_api::{ApplyReply, Done, NfState, VmState, path};
use rustix::process::Signal;

/// Not a test but an NF, when the environment says so: that of a guest is its kernel's command line.
#[test]
fn be_the_program() {
    if std::env::var(PROGRAM).as_deref() == Ok("forward") {
        netlib::run(&Options::new("forward"), |_| Forward).unwrap();
    }
}

/// A lane whose NF is a VM.
fn config(image: &Image, notify: &str) -> String {
    let folder = image.folder.0.display();
    let lane = lane("a", "").replace("rate = 5000", "rate = 500");
    format!(
        r#"{ENGINE}{lane}
        [[vm]]
        name = "box"
        role = "a-nf"
        notify = "{notify}"
        kernel = "{folder}/kernel"
        initrd = "{folder}/initrd"
        append = "quiet panic=-1 {PROGRAM}=forward"
        memory = 160
        accel = "tcg"
        "#
    )
}

fn until_flowing(daemon: &Daemon) {
    let before = daemon.left("a");
    daemon.until_slowly("packets leave the chain", |daemon| daemon.left("a") > before);
}

fn process_is_there(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn an_nf_in_a_vm_is_started_and_started_again() {
    let Some(image) = Image::of_this_program() else { return };
    let _reaper = Reaper(Arc::clone(&image.folder));
    let mut daemon = Daemon::start_in(Arc::clone(&image.folder), &config(&image, "poll"));
    until_flowing(&daemon);
    let (vm, nf) = (daemon.vm("box"), daemon.nf("a-nf"));
    assert_eq!((nf.state, nf.pid, vm.role.as_deref()), (NfState::Running, vm.pid, Some("a-nf")));
    assert!(nf.threads[0].received > 0, "{nf:?}");

    // Killed: its cells come back, and another takes its place.
    let pid = rustix::process::Pid::from_raw(vm.pid.unwrap() as i32).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    daemon.until_slowly("it is started again", |daemon| daemon.vm("box").restarts == 1);
    until_flowing(&daemon);
    assert_eq!(daemon.vm("box").last_exit.as_deref(), Some("killed by signal 9"));

    // Stopped in order, and started by hand.
    let _: Done = daemon.post(&path::VM_STOP.replace("{vm}", "box"), "{}");
    assert_eq!(daemon.vm("box").state, VmState::Stopped);
    daemon.until_slowly("every cell is free", |daemon| {
        let region = daemon.stats().groups.remove(0).regions.remove(0);
        region.in_nfs == 0 && region.free + region.in_engine == region.cells
    });
    let _: Done = daemon.post(&path::VM_START.replace("{vm}", "box"), "");
    until_flowing(&daemon);

    let (status, error) = daemon.request("GET", &path::VM_BY_HAND.replace("{vm}", "box"), "");
    assert!(status == 409 && error.contains("hands it its memory"), "{error}");

    // Another way of waking: the VM is another one.
    let _: ApplyReply = daemon.post(path::APPLY, &config(&image, "doorbell"));
    until_flowing(&daemon);

    // It ends with netvmd, whose memory it has.
    let pid = daemon.vm("box").pid.unwrap();
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
    assert!(!process_is_there(pid));
    daemon = Daemon::start_in(Arc::clone(&image.folder), &config(&image, "poll"));
    daemon.until_slowly("it runs", |daemon| daemon.vm("box").state == VmState::Running);
    let pid = daemon.vm("box").pid.unwrap();
    daemon.signal(Signal::KILL);
    daemon.wait();
    daemon.until_slowly("it has gone, too", |_| !process_is_there(pid));
}
