// SPDX-License-Identifier: Apache-2.0
//! Ports that share memory with programs of FD.io's libraries: gomemif and libmemif. Both are in one Go module.

use std::path::PathBuf;

use super::*;
use crate::common::hosts::{Host, are_possible, succeeds};

/// Limit for the download of the module.
const DOWNLOAD: Duration = Duration::from_secs(120);

/// A folder with a program that uses gomemif, and the path of the module, which has libmemif, too; `None`, with the
/// reason printed, if it cannot be had.
fn module(folder: &Path) -> Option<PathBuf> {
    for (name, text) in [
        ("go.mod", include_str!("echo/go.mod")),
        ("go.sum", include_str!("echo/go.sum")),
        ("main.go", include_str!("echo/main.go")),
    ] {
        std::fs::write(folder.join(name), text).unwrap();
    }
    if !succeeds("go version") {
        println!("SKIP: no Go");
        return None;
    }
    let mut download = Command::new("go");
    download.args(["mod", "download", "-x"]).current_dir(folder).env("GOFLAGS", "-mod=mod");
    download.stdout(Stdio::null()).stderr(Stdio::null());
    let mut download = download.spawn().unwrap();
    let has_ended = within(DOWNLOAD, || download.try_wait().unwrap().is_some());
    if !has_ended || !download.wait().unwrap().success() {
        let _ = download.kill();
        println!("SKIP: the module github.com/FDio/vpp cannot be downloaded");
        return None;
    }
    let list = ["list", "-m", "-f", "{{.Dir}}", "github.com/FDio/vpp"];
    let listed = Command::new("go").args(list).current_dir(folder).output().unwrap();
    Some(PathBuf::from(String::from_utf8(listed.stdout).unwrap().trim()))
}

#[test]
fn a_go_program_returns_packets_in_both_roles() {
    let Some(_turn) = exclusive() else { return };
    let folder = tempfile::tempdir().unwrap();
    if module(folder.path()).is_none() {
        return;
    }
    let echo = folder.path().join("echo");
    let build = Command::new("go").args(["build", "-o"]).arg(&echo).current_dir(folder.path()).status();
    assert!(build.unwrap().success());
    // gomemif takes the number of the last ring that its server offers for how many there are.
    for (netvm, program, queues) in [("server", "slave", 2), ("client", "master", 1)] {
        let folder = Arc::new(Folder::new());
        let socket = folder.0.join("app.sock");
        let text = config(&folder, &format!("role = {netvm:?}\nqueues = {queues}"), "rate = 5000");
        let daemon = Daemon::start_in(Arc::clone(&folder), &text);
        for _ in 0..2 {
            if program == "master" {
                // A killed server leaves its socket.
                let _ = std::fs::remove_file(&socket);
            }
            let mut command = Command::new(&echo);
            command.arg(program).arg(&socket);
            let _echo = Testpmd::start_program(command);
            until_flowing(&daemon);
            drop(_echo);
            daemon.until("the link is down", |daemon| !port(daemon, "app").link);
        }
    }
}

/// libmemif's example, which answers pings at VPP's default socket.
fn icmp_responder(module: &Path, folder: &Path) -> Option<PathBuf> {
    let library = module.join("extras/libmemif");
    let (sources, examples) = (library.join("src"), library.join("examples"));
    let program = folder.join("icmp_responder");
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-w", "-D_GNU_SOURCE", "-DHAVE_MEMFD_CREATE", "-pthread", "-o"]).arg(&program);
    compile.arg("-I").arg(&sources).arg("-I").arg(examples.join("icmp_responder"));
    compile.args(["main.c", "socket.c"].map(|name| sources.join(name)));
    compile
        .args(["icmp_responder/icmp_proto.c", "icmp_responder-epoll/main.c"].map(|name| examples.join(name)));
    let output = compile.output().ok()?;
    if !output.status.success() {
        println!("SKIP: libmemif does not compile: {}", String::from_utf8_lossy(&output.stderr));
        return None;
    }
    Some(program)
}

#[test]
fn a_program_of_libmemif_answers_pings_and_both_sides_sleep_between_them() {
    if !are_possible() {
        return;
    }
    let Some(_turn) = exclusive() else { return };
    let build = tempfile::tempdir().unwrap();
    let Some(module) = module(build.path()) else { return };
    let Some(program) = icmp_responder(&module, build.path()) else { return };
    for (netvm, role) in [("server", 0), ("client", 1)] {
        let host = Host::bare(&format!("lm{role}"));
        let folder = Arc::new(Folder::new());
        let text = engine(ADAPTIVE)
            + &format!(
                "\n[[port]]\nname = \"host\"\nkind = \"container\"\nnamespace = {:?}\n\
                 addresses = [\"192.168.1.1/24\"]\nforward = {{ out = \"app\" }}\n\
                 \n[[port]]\nname = \"app\"\nkind = \"memif\"\nrole = {netvm:?}\npath = {:?}\n\
                 forward = {{ out = \"host\" }}\n",
                host.namespace(),
                folder.0.join("memif.sock")
            );
        let daemon = Daemon::start_in(Arc::clone(&folder), &text);
        // The example knows only VPP's path.
        let script =
            "mount -t tmpfs none /run && mkdir /run/vpp && mount --bind \"$1\" /run/vpp && exec \"$2\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec", script, "sh"]).arg(&folder.0).arg(&program);
        let mut responder = Testpmd::start_program(command);
        responder.types(&format!("conn 0 {role}"));
        responder.types("ip-set 0 192.168.1.2");
        daemon.until("connected", |daemon| port(daemon, "app").link);
        assert!(host.pings("192.168.1.2"), "netvm as {netvm}: {}", daemon.log());
        for _ in 0..5 {
            let ping = host.output("busybox ping -c 1 -W 2 192.168.1.2");
            assert!(ping.status.success(), "netvm as {netvm}: {}", daemon.log());
        }
    }
}
