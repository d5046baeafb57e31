// SPDX-License-Identifier: Apache-2.0
//! Checks of the kernel's features, this user's capabilities and the installed netvmd.

use std::io;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use netvm_kernel_flows::Hook;
use netvm_model::MAX_WORKERS;
use netvm_vnet::Offloads;
use netvm_vnet::tap::TapCapabilities;
use rustix::net::{AddressFamily, SocketType, socket};

use super::Check;
use super::root::Root;
use crate::daemon;

/// Capabilities that netvmd uses: number (`linux/capability.h`), name, purpose.
const CAPABILITIES: &[(u32, &str, &str)] = &[
    (12, "CAP_NET_ADMIN", "AF_XDP and TAP ports"),
    (13, "CAP_NET_RAW", "AF_XDP and AF_PACKET ports"),
    (39, "CAP_BPF", "AF_XDP ports"),
    (14, "CAP_IPC_LOCK", "AF_XDP ports with large regions, NICs"),
    (7, "CAP_SETUID", "NFs as other users"),
    (6, "CAP_SETGID", "NFs as other users"),
    (5, "CAP_KILL", "killing NFs of other users"),
    (0, "CAP_CHOWN", "giving QEMU the sockets of its ports"),
    (23, "CAP_SYS_NICE", "pinning NFs of other users"),
    (21, "CAP_SYS_ADMIN", "virtual routers"),
];
/// The first Linux that detaches an XDP program when its owner dies (`BPF_LINK_CREATE` for XDP).
const XDP_LINK: (u32, u32) = (5, 9);
/// Limit for `netvmd --version`.
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn check(root: &Root) -> Vec<Check> {
    vec![
        engine(),
        capabilities(root),
        offloads(),
        fast_path(),
        af_xdp(),
        xdp_link(root),
        routers(root),
        asynchronous(root),
    ]
}

/// The effective capabilities of this process, as a bit mask.
fn effective(root: &Root) -> u64 {
    let status = root.read("proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or_default();
    u64::from_str_radix(line.trim(), 16).unwrap_or(0)
}

/// Whether this process has one of [`CAPABILITIES`].
pub(super) fn has_capability(root: &Root, name: &str) -> bool {
    let mask = effective(root);
    CAPABILITIES.iter().any(|(bit, known, _)| *known == name && mask >> bit & 1 == 1)
}

fn capabilities(root: &Root) -> Check {
    let mask = effective(root);
    let missing: Vec<_> = CAPABILITIES.iter().filter(|(bit, _, _)| mask >> bit & 1 == 0).collect();
    if missing.is_empty() {
        return Check::ok(
            "capabilities",
            "all that netvmd uses",
            "every kind of port works, and NFs can run as other users",
        );
    }
    let names: Vec<&str> = missing.iter().map(|(_, name, _)| *name).collect();
    let mut uses: Vec<&str> = missing.iter().map(|(_, _, purpose)| *purpose).collect();
    uses.dedup();
    Check::warn(
        "capabilities",
        format!("without {}", names.join(", ")),
        format!("a netvmd of this user cannot provide: {}", uses.join("; ")),
    )
    .command("sudo netvm doctor  # and start netvmd as root or by its systemd unit")
}

/// TAP devices, which ports of kind `tap` and `container` create, and their offloads.
fn offloads() -> Check {
    const NAME: &str = "TAP offloads";
    match netvm_vnet::tap::probe() {
        Ok(TapCapabilities { offloads, has_io_uring, allows_io_uring }) => {
            let bursts = match (has_io_uring, allows_io_uring) {
                (true, _) => "a burst of packets takes one system call (io_uring)",
                (false, true) => {
                    "each packet takes a system call, as io_uring of this kernel cannot read TAP devices"
                }
                (false, false) => {
                    "each packet takes a system call, as the kernel refuses io_uring (`sysctl kernel.io_uring_disabled`, seccomp)"
                }
            };
            let (what, segments) = match offloads {
                Offloads { tcp: true, udp: true } => (
                    "checksums, TCP and UDP segments",
                    "segments of up to 64 KB pass between containers as one packet",
                ),
                _ => (
                    "checksums, TCP segments",
                    "TCP segments of up to 64 KB pass between containers as one packet, UDP segments need Linux 6.2",
                ),
            };
            Check::ok(NAME, what, format!("{segments}; {bursts}"))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Check::note(
            NAME,
            "no /dev/net/tun",
            "ports of kind `tap` and `container` fail; use kind = \"af_packet\" on a veth pair",
        )
        .command("modprobe tun"),
        Err(error) => Check::note(NAME, format!("cannot be checked: {error}"), "root can check them")
            .command("sudo netvm doctor"),
    }
}

/// The kernel's flow table, for containers with `fast_path`.
fn fast_path() -> Check {
    const NAME: &str = "fast path";
    match netvm_kernel_flows::probe() {
        Ok(hook) => {
            let what = match hook {
                Hook::Tcx => "tc programs by tcx, bpf_redirect_peer",
                Hook::Clsact => "tc programs by clsact instead of tcx, bpf_redirect_peer",
            };
            Check::ok(NAME, what, "ports of kind `container` and `host` can have `fast_path`")
        }
        Err(error) => Check::note(
            NAME,
            format!("not here: {error}"),
            "ports with `fast_path` work as without: netvm forwards every packet",
        ),
    }
}

fn af_xdp() -> Check {
    match socket(AddressFamily::XDP, SocketType::RAW, None) {
        Ok(_) => Check::ok(
            "AF_XDP",
            "sockets can be created",
            "kernel interfaces work as ports that receive straight into packet memory",
        ),
        Err(error) => Check::note(
            "AF_XDP",
            format!("no socket: {error}"),
            "use kind = \"af_packet\" for kernel interfaces; the kernel then copies each packet",
        ),
    }
}

/// Major and minor of a kernel release such as `6.1.0-18-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn xdp_link(root: &Root) -> Check {
    let release = root.read("proc/sys/kernel/osrelease").unwrap_or_default();
    let (major, minor) = XDP_LINK;
    if version(&release).is_some_and(|version| version >= XDP_LINK) {
        Check::ok(
            "BPF links",
            format!("Linux {release}"),
            "the kernel removes XDP programs when netvmd ends, even by a crash",
        )
    } else {
        Check::note(
            "BPF links",
            format!("Linux {release}"),
            format!("AF_XDP ports need Linux {major}.{minor}: use kind = \"af_packet\""),
        )
    }
}

/// Virtual routers are network namespaces with veth interfaces.
fn routers(root: &Root) -> Check {
    let release = root.read("proc/sys/kernel/osrelease").unwrap_or_default();
    let has = |path: &str, text: &str| root.read(path).is_some_and(|file| file.contains(text));
    let has_veth = has("proc/kallsyms", " veth_newlink")
        || has(&format!("lib/modules/{release}/modules.dep"), "/veth.ko")
        || has(&format!("lib/modules/{release}/modules.builtin"), "/veth.ko");
    let missing = match (root.path("proc/self/ns/net").exists(), has_veth) {
        (true, true) => {
            return Check::ok("virtual routers", "network namespaces and veth", "[[router]] works");
        }
        (false, _) => "this kernel has no network namespaces",
        (true, false) => "no veth driver",
    };
    Check::note("virtual routers", missing, "applying a configuration with [[router]] fails")
        .command("modinfo veth  # CONFIG_NET_NS and CONFIG_VETH in the kernel; Debian: linux-image-amd64")
}

/// Guest queues that the check allows for. netvmd signals NFs and guests by asynchronous I/O (`io_setup`), with one
/// request
/// for each worker, one for the manager, and one for each guest queue.
const GUESTS: u64 = 1024;

fn asynchronous(root: &Root) -> Check {
    const NAME: &str = "asynchronous I/O";
    let danger = "netvmd signals NFs and guests by write(2), which lets a hostile one stall workers";
    let number = |file: &str| root.number(&format!("proc/sys/fs/{file}"));
    let (Some(used), Some(most)) = (number("aio-nr"), number("aio-max-nr")) else {
        return Check::note(NAME, "not in this kernel (CONFIG_AIO)", danger);
    };
    let found = format!("{used} of {most} requests in use");
    let wanted = used + MAX_WORKERS as u64 + 1 + GUESTS;
    if wanted > most {
        Check::note(NAME, found, danger).command(format!("sudo sysctl fs.aio-max-nr={}", 2 * wanted))
    } else {
        Check::ok(NAME, found, "no NF or guest can stall the workers that signal it")
    }
}

/// The installed netvmd and its DPDK version.
fn engine() -> Check {
    let Ok(program) = daemon::find() else {
        return Check::note(
            "netvmd",
            "not in the folder of this program and not in PATH",
            "install it to run anything",
        )
        .command("cargo build --release -p netvmd");
    };
    let path = program.display().to_string();
    match output_of(Command::new(program).arg("--version")) {
        Some(text) => Check::ok("netvmd", format!("{} ({path})", text.trim()), "the engine and its DPDK"),
        None => Check::warn(
            "netvmd",
            format!("{path} --version fails"),
            "it does not start; a library may be missing",
        )
        .command(format!("ldd {path} | grep 'not found'")),
    }
}

/// Standard output of a program that succeeds in time; else `None`.
pub(super) fn output_of(command: &mut Command) -> Option<String> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => {
                let text = child.wait_with_output().ok()?.stdout;
                return status.success().then(|| String::from_utf8_lossy(&text).into_owned());
            }
            Ok(None) if start.elapsed() < VERSION_TIMEOUT => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                // The child may have ended just now.
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;
    use crate::doctor::root::tests::Tree;

    #[test]
    fn capabilities_are_read_from_the_mask() {
        let of = |mask: &str| {
            Tree::new(&[("proc/self/status", &format!("Name:\tx\nCapEff:\t{mask}\nCapBnd:\t0\n"))])
        };
        assert_eq!(capabilities(&of("000001ffffffffff").root()).level, Level::Ok);
        let nobody = capabilities(&of("0000000000000000").root());
        assert!(nobody.level == Level::Warn && nobody.found.contains("CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF"));
        let most = of("000001fffffff7ff");
        assert!(has_capability(&most.root(), "CAP_NET_ADMIN"));
        assert_eq!(capabilities(&of("000001ffffffefff").root()).found, "without CAP_NET_ADMIN");
        assert!(!has_capability(&of("000001ffffffefff").root(), "CAP_NET_ADMIN"));
    }

    #[test]
    fn kernel_releases_are_compared() {
        for (release, level) in [
            ("5.8.18", Level::Note),
            ("5.9.0-rc1", Level::Ok),
            ("5.10.0-28-amd64", Level::Ok),
            ("6.18.0", Level::Ok),
            ("", Level::Note),
        ] {
            assert_eq!(
                xdp_link(&Tree::new(&[("proc/sys/kernel/osrelease", release)]).root()).level,
                level,
                "{release}"
            );
        }
    }

    #[test]
    fn routers_need_namespaces_and_veth() {
        let release = ("proc/sys/kernel/osrelease", "6.1.0");
        let namespaces = ("proc/self/ns/net", "");
        for (files, level) in [
            (vec![release, namespaces, ("proc/kallsyms", "0 t veth_newlink\t[veth]")], Level::Ok),
            (
                vec![release, namespaces, ("lib/modules/6.1.0/modules.dep", "kernel/drivers/net/veth.ko:")],
                Level::Ok,
            ),
            (vec![release, ("proc/kallsyms", "0 t veth_newlink")], Level::Note),
            (vec![release, namespaces, ("lib/modules/5.10.0/modules.dep", "x/veth.ko:")], Level::Note),
        ] {
            assert_eq!(routers(&Tree::new(&files).root()).level, level, "{files:?}");
        }
    }

    #[test]
    fn too_few_aio_requests_are_reported() {
        let of = |used, most| Tree::new(&[("proc/sys/fs/aio-nr", used), ("proc/sys/fs/aio-max-nr", most)]);
        assert_eq!(asynchronous(&of("0", "65536").root()).level, Level::Ok);
        let scarce = asynchronous(&of("65520", "65536").root());
        assert_eq!(scarce.level, Level::Note);
        assert_eq!(scarce.command.as_deref(), Some("sudo sysctl fs.aio-max-nr=133154"));
        assert_eq!(asynchronous(&Tree::new(&[]).root()).level, Level::Note);
    }

    #[test]
    fn failing_programs_have_no_output() {
        assert_eq!(output_of(Command::new("echo").arg("1.2")).as_deref(), Some("1.2\n"));
        assert_eq!(output_of(&mut Command::new("false")), None);
        assert_eq!(output_of(&mut Command::new("/no/such/program")), None);
    }
}
