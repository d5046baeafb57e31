// SPDX-License-Identifier: Apache-2.0
//! QEMU as the front-end of a guest that only has firmware: what it shares is taken if it is memory.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::hostile_rig::{HOSTILE, fault, is_up, rig, socket, view};
use netvm_model::VhostDma;

/// Its processor is translated.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Ends with the test.
struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Its firmware boots from the network, so that it sends. `None` where there is no QEMU.
fn boot(path: &Path, memory: &str) -> Option<Qemu> {
    let mut command = Command::new("qemu-system-x86_64");
    command.args([
        "-machine",
        "q35,accel=tcg,memory-backend=ram",
        "-m",
        "128",
        "-display",
        "none",
        "-nodefaults",
    ]);
    command.args(["-object", &format!("{memory},id=ram,size=128M,share=on"), "-boot", "n"]);
    command.args(["-chardev", &format!("socket,id=net,path={},reconnect=1", path.display())]);
    command.args(["-netdev", "vhost-user,id=net0,chardev=net", "-device", "virtio-net-pci,netdev=net0"]);
    match command.stdin(Stdio::null()).spawn() {
        Ok(child) => Some(Qemu(child)),
        Err(error) => {
            println!("SKIP: no qemu-system-x86_64: {error}");
            None
        }
    }
}

#[test]
fn memory_of_qemu_is_taken() {
    let path = socket("qemu-memfd");
    let mut rig = rig(&path, VhostDma::Off).unwrap();
    let Some(_qemu) = boot(&path, "memory-backend-memfd") else { return };
    let sends = |engine: &_| is_up(engine, HOSTILE) && view(engine, HOSTILE).rx_packets > 0;
    assert!(rig.until(TIMEOUT, sends), "{}", rig.describe());
}

#[test]
fn a_file_on_a_disk_is_not_and_why_is_said() {
    let path = socket("qemu-file");
    let mut rig = rig(&path, VhostDma::Off).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("qemu-memory-{}", std::process::id()));
    let is_memory = rustix::fs::fcntl_get_seals(std::fs::File::create_new(&file).unwrap()).is_ok();
    let qemu = boot(&path, &format!("memory-backend-file,mem-path={}", file.display()));
    let is_told = |engine: &_| fault(engine).is_some_and(|fault| fault.contains("memory-backend-memfd"));
    let fault_notices = qemu.is_none() || is_memory || rig.until(TIMEOUT, is_told);
    std::fs::remove_file(&file).unwrap();
    if is_memory {
        println!("SKIP: the sources are in memory");
    }
    assert!(fault_notices, "{}", rig.describe());
}
