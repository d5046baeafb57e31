// SPDX-License-Identifier: Apache-2.0
//! NFs in VMs: real guests that run this test binary.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use crate::common::Daemon;
use crate::common::guest::{Image, Reaper};
use crate::common::user_program::UserProgram;
use crate::common::vm_nf::{config, no_buffer_is_out, until_flowing};
use netvm_api::{ApplyReply, Done, NfState, VmState, path};
use rustix::process::Signal;

fn process_is_there(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn an_nf_in_a_vm_starts_and_restarts() {
    let Some(image) = Image::of_this_program() else { return };
    let _reaper = Reaper(Arc::clone(&image.folder));
    let mut daemon = Daemon::start_in(Arc::clone(&image.folder), &config(&image, "poll"));
    until_flowing(&daemon);
    daemon.until_slowly("its NF counts packets", |daemon| daemon.nf("a-nf").threads[0].packets.received > 0);
    let (vm, nf) = (daemon.vm("box"), daemon.nf("a-nf"));
    assert_eq!((nf.state, nf.pid, vm.role.as_deref()), (NfState::Running, vm.pid, Some("a-nf")));

    // Killed: netvmd reclaims its buffers and restarts it.
    let pid = rustix::process::Pid::from_raw(vm.pid.unwrap() as i32).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    daemon.until_slowly("it has restarted", |daemon| daemon.vm("box").restarts == 1);
    until_flowing(&daemon);
    assert_eq!(daemon.vm("box").last_exit.as_deref(), Some("killed by signal 9"));

    let (status, error) = daemon.request("GET", &path::VM_MANUAL_START.replace("{vm}", "box"), "");
    assert!(status == 409 && error.contains("start = \\\"manual\\\""), "{error}");

    // Another kind of notification needs a new VM.
    let _: ApplyReply = daemon.post(path::APPLY, &config(&image, "doorbell"));
    until_flowing(&daemon);

    // Stopped in order, then started by the API.
    let _: Done = daemon.post(&path::VM_STOP.replace("{vm}", "box"), "{}");
    assert_eq!(daemon.vm("box").state, VmState::Stopped);
    no_buffer_is_out(&daemon);
    let _: Done = daemon.post(&path::VM_START.replace("{vm}", "box"), "");
    assert_eq!(daemon.vm("box").state, VmState::Running);

    // It ends with netvmd, which owns its memory.
    let pid = daemon.vm("box").pid.unwrap();
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
    assert!(!process_is_there(pid));
    daemon = Daemon::start_in(Arc::clone(&image.folder), &config(&image, "poll"));
    daemon.until_slowly("it runs", |daemon| daemon.vm("box").state == VmState::Running);
    let pid = daemon.vm("box").pid.unwrap();
    daemon.signal(Signal::KILL);
    daemon.wait();
    daemon.until_slowly("it has ended, too", |_| !process_is_there(pid));
}

#[test]
fn an_nf_in_an_externally_started_vm_starts_and_ends() {
    let Some(image) = Image::of_this_program() else { return };
    let text = config(&image, "doorbell") + "start = \"manual\"\n";
    let mut daemon = Daemon::start_in(Arc::clone(&image.folder), &text);
    daemon.until("it is awaited", |daemon| daemon.vm("box").state == VmState::Awaited);
    let socket = image.folder.run_dir().join("vm/box/control.sock");
    let metadata = std::fs::metadata(socket).unwrap();
    assert_eq!(metadata.mode() & 0o777, 0o600);
    if rustix::process::geteuid().is_root() {
        assert_eq!(metadata.uid(), 65534);
    }
    let (status, error) = daemon.post_failing(&path::VM_START.replace("{vm}", "box"), "");
    assert!(status == 409 && error.message.contains("netvm vm args box"), "{error}");

    let mut qemu = UserProgram::shell(&daemon, "box");
    until_flowing(&daemon);
    let (vm, nf) = (daemon.vm("box"), daemon.nf("a-nf"));
    assert_eq!((vm.state, vm.pid, vm.last_exit), (VmState::Running, Some(qemu.pid()), None));
    assert_eq!((nf.state, nf.pid), (NfState::Running, vm.pid));

    // A second one is refused and does not disturb the first.
    assert!(!UserProgram::shell(&daemon, "box").until_ended(&daemon).success());
    until_flowing(&daemon);
    assert_eq!(daemon.vm("box").pid, Some(qemu.pid()));

    // Killed: netvmd reclaims its buffers, and another can take its place. That one resets.
    qemu.child.kill().unwrap();
    daemon.until_slowly("it is awaited", |daemon| daemon.vm("box").state == VmState::Awaited);
    assert_eq!(daemon.vm("box").last_exit.as_deref(), Some("ended"));
    no_buffer_is_out(&daemon);
    qemu = UserProgram::shell(&daemon, "box");
    until_flowing(&daemon);
    qemu.type_in(b"\x01csystem_reset\n");
    assert!(qemu.until_ended(&daemon).success());
    daemon.until_slowly("it is awaited", |daemon| daemon.vm("box").state == VmState::Awaited);
    assert_eq!(daemon.vm("box").last_exit.as_deref(), Some("its NF ended, or the guest reset"));
    no_buffer_is_out(&daemon);

    // The next netvmd tells it to quit, because its memory was the previous one's. Stopped, it cannot quit before
    // netvmd is asked.
    qemu = UserProgram::shell(&daemon, "box");
    until_flowing(&daemon);
    let pid = rustix::process::Pid::from_raw(qemu.pid() as i32).unwrap();
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    daemon.signal(Signal::KILL);
    daemon.wait();
    daemon = Daemon::start_in(Arc::clone(&image.folder), &text);
    let trouble = daemon.vm("box").trouble.unwrap_or_default();
    assert!(
        trouble.contains(&format!("process {} has the memory of a previous netvmd", qemu.pid())),
        "{trouble}"
    );
    rustix::process::kill_process(pid, Signal::CONT).unwrap();
    qemu.until_ended(&daemon);
    qemu = UserProgram::shell(&daemon, "box");
    until_flowing(&daemon);
    assert_eq!(daemon.vm("box").trouble, None);

    // Stopped, then awaited again.
    let _: Done = daemon.post(&path::VM_STOP.replace("{vm}", "box"), "{}");
    assert_eq!(daemon.vm("box").state, VmState::Awaited);
    qemu.until_ended(&daemon);
    no_buffer_is_out(&daemon);
}
