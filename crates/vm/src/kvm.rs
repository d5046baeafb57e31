// SPDX-License-Identifier: Apache-2.0
//! Checks that guests run on KVM: opening `/dev/kvm` may succeed although no guest can run, as in VMs whose
//! hypervisor supports nested virtualization only in part.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};

/// Size of the guest's firmware in bytes, the minimum that QEMU accepts.
const FIRMWARE: usize = 64 << 10;
/// Bytes from the reset vector, where processors start, to the end of the firmware.
const RESET_VECTOR: usize = 16;
/// The I/O port at which the guest ends QEMU.
const EXIT_PORT: u8 = 0xf4;
/// The value that the guest writes to this port.
const EXIT_VALUE: u8 = 0x10;
/// QEMU's exit status after that (`hw/misc/debugexit.c`).
const EXIT_STATUS: i32 = (EXIT_VALUE as i32) << 1 | 1;
/// Limit for the guest; it takes some 60 ms.
const LIMIT: Duration = Duration::from_secs(10);

/// Why guests do not run on KVM.
#[derive(Debug, thiserror::Error)]
pub enum KvmError {
    /// QEMU cannot be started.
    #[error("cannot start QEMU: {0}")]
    Start(#[from] io::Error),
    /// QEMU, or the guest, failed.
    #[error(
        "/dev/kvm opens, but no guest runs on it ({0}): enable nested virtualization in the hypervisor of this machine"
    )]
    Fails(String),
    /// The processor has no virtualization. A KVM without it (`kvm_pvm`) runs only guests that are made for it, and a
    /// small guest like that of this check.
    #[error(
        "/dev/kvm opens, but the processor has neither `vmx` nor `svm` (/proc/cpuinfo), so common kernels do not run on \
         it: enable nested virtualization in the hypervisor of this machine"
    )]
    NoVirtualization,
}

/// Runs a guest of three instructions on KVM, with this QEMU and the processor of [`Machine`](crate::Machine). It takes
/// some 60 ms.
///
/// # Errors [`KvmError`] with QEMU's message.
pub fn check_kvm(qemu: &Path) -> Result<(), KvmError> {
    let firmware = firmware()?;
    // This process holds the file open until QEMU has read it.
    let path = format!("/proc/{}/fd/{}", std::process::id(), firmware.as_raw_fd());
    let mut child = Command::new(qemu)
        .args(["-nodefaults", "-no-user-config", "-display", "none"])
        .args(["-machine", "q35,accel=kvm", "-cpu", "max", "-m", "16"])
        .args(["-device", &format!("isa-debug-exit,iobase={EXIT_PORT},iosize=1"), "-bios", &path])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let start = Instant::now();
    while child.try_wait()?.is_none() {
        if start.elapsed() >= LIMIT {
            // QEMU may have ended meanwhile.
            let _ = child.kill();
            let _ = child.wait();
            return Err(KvmError::Fails(format!("it did nothing for {} s", LIMIT.as_secs())));
        }
        sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output()?;
    match output.status.code() {
        Some(EXIT_STATUS) if has_virtualization(&std::fs::read_to_string("/proc/cpuinfo")?) => Ok(()),
        Some(EXIT_STATUS) => Err(KvmError::NoVirtualization),
        _ => Err(KvmError::Fails(reason(&String::from_utf8_lossy(&output.stderr), output.status))),
    }
}

/// Whether the processors of `/proc/cpuinfo` have virtualization; yes, if they are not of x86, which has it as a flag.
fn has_virtualization(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    flags.is_none_or(|flags| flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm"))
}

/// A firmware that writes [`EXIT_VALUE`] to [`EXIT_PORT`].
fn firmware() -> io::Result<File> {
    const HLT: u8 = 0xf4;
    const MOV_AL: u8 = 0xb0;
    const OUT_AL: u8 = 0xe6;
    let mut image = vec![HLT; FIRMWARE];
    let code = [MOV_AL, EXIT_VALUE, OUT_AL, EXIT_PORT];
    image[FIRMWARE - RESET_VECTOR..][..code.len()].copy_from_slice(&code);
    let mut file = File::from(memfd_create("netvm-kvm-check", MemfdFlags::CLOEXEC)?);
    file.write_all(&image)?;
    Ok(file)
}

/// QEMU's first error line without the program's name; if there is none, its exit status.
fn reason(errors: &str, status: ExitStatus) -> String {
    let line = errors.lines().map(str::trim).find(|line| !line.is_empty());
    match (line, status.signal()) {
        (Some(line), _) => {
            let line = line.split_once(": ").map_or(line, |(_, rest)| rest);
            line.trim_start_matches("error: ").to_owned()
        }
        (None, Some(signal)) => format!("QEMU died of signal {signal}"),
        (None, None) => format!("QEMU ended with {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_runs_wherever_qemu_runs_guests() {
        // TCG runs the same guest on every machine; the check is about KVM.
        let firmware = firmware().unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), firmware.as_raw_fd());
        let status = Command::new("qemu-system-x86_64")
            .args(["-nodefaults", "-display", "none", "-machine", "q35,accel=tcg", "-cpu", "max", "-m", "16"])
            .args(["-device", &format!("isa-debug-exit,iobase={EXIT_PORT},iosize=1"), "-bios", &path])
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(EXIT_STATUS));
    }

    #[test]
    fn a_processor_without_virtualization_runs_no_common_kernel() {
        for (cpuinfo, has) in [
            ("processor\t: 0\nflags\t\t: fpu vme vmx de\n", true),
            ("flags\t\t: fpu svm\nvmx flags\t: vnmi\n", true),
            ("processor\t: 0\nflags\t\t: fpu hypervisor svmx\n", false),
            ("processor\t: 0\nFeatures\t: fp asimd\n", true),
        ] {
            assert_eq!(has_virtualization(cpuinfo), has, "{cpuinfo}");
        }
    }

    #[test]
    fn a_program_that_runs_no_guest_is_no_kvm() {
        let error = check_kvm(Path::new("/bin/true")).unwrap_err().to_string();
        assert!(error.contains("QEMU ended with exit status: 0"), "{error}");
        let error = check_kvm(Path::new("/no/such/qemu")).unwrap_err().to_string();
        assert!(error.contains("cannot start QEMU"), "{error}");
    }

    #[test]
    fn the_reason_is_what_qemu_says_first() {
        let text = "qemu-system-x86_64: error: failed to set MSR 0x10a to 0x69\nqemu-system-x86_64: kvm.c:3183: Assertion\n";
        assert_eq!(reason(text, ExitStatus::from_raw(6)), "failed to set MSR 0x10a to 0x69");
        assert_eq!(reason("", ExitStatus::from_raw(6)), "QEMU died of signal 6");
    }
}
