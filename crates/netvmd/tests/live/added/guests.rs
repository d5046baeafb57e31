// SPDX-License-Identifier: Apache-2.0
//! docs/reference/guest-ports.md: what programs that start guests may rely on.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use netvm_api::{AddPort, PolicyInfo, path};

use super::{killed, live, port, ports};
use crate::common::page::blocks;
use crate::common::{Daemon, ENGINE};

const PAGE: &str = include_str!("../../../../../docs/reference/guest-ports.md");
const NAME: &str = "vhu2f1a7c0e-8d";
/// Users of the test in place of libvirt's: nobody and a group that any system has.
const OWNER: u32 = 65534;

/// The page's call, with its socket in this folder.
fn call(folder: &Path) -> AddPort {
    let mut call: AddPort = serde_json::from_str(&blocks(PAGE, "json")[0]).unwrap();
    let replace = |text: &str, from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    };
    call.toml = replace(&call.toml, "/run/netvm", &folder.display().to_string());
    let owner = if rustix::process::geteuid().is_root() { format!("{OWNER}:0") } else { String::new() };
    if owner.is_empty() {
        call.toml = replace(&call.toml, "socket_owner = \"libvirt-qemu:kvm\"\n", "");
    } else {
        call.toml = replace(&call.toml, "libvirt-qemu:kvm", &owner);
    }
    call
}

fn plug(daemon: &Daemon, call: &AddPort) -> netvm_api::AddedPort {
    daemon.post(path::LIVE_PORTS, &serde_json::to_string(call).unwrap())
}

fn unplug(daemon: &Daemon, call: &AddPort) -> u16 {
    let query = format!("{}?owner={}&id={}", path::LIVE_PORTS, call.owner, call.id);
    daemon.request("DELETE", &query, "").0
}

/// Whether the socket is there with its mode and owner, and accepts a connection.
fn is_served(socket: &Path) -> bool {
    let Ok(found) = std::fs::metadata(socket) else { return false };
    let is_owned = !rustix::process::geteuid().is_root() || found.uid() == OWNER;
    found.file_type().is_socket()
        && found.mode() & 0o777 == 0o660
        && is_owned
        && std::os::unix::net::UnixStream::connect(socket).is_ok()
}

#[test]
fn the_contract_of_ports_for_guests_holds() {
    let mut daemon = Daemon::start(&ENGINE);
    let folder = daemon.folder.0.join("guests");
    let call = call(&folder);
    let socket = folder.join(format!("{NAME}.sock"));
    // The answer comes when QEMU may connect; its directory is made.
    assert_eq!(plug(&daemon, &call).port.problem, None);
    assert!(is_served(&socket));
    assert_eq!(std::fs::metadata(&folder).unwrap().mode() & 0o777, 0o755);
    assert_eq!(plug(&daemon, &call).message, format!("port {NAME} of os-vif is there already"));
    let plugged = port(&daemon, NAME);
    assert_eq!((plugged.owner.as_deref(), &*plugged.labels["project"]), (Some("os-vif"), "blue"));
    // It outlives netvmd, with its socket.
    for _ in 0..2 {
        daemon = killed(daemon, &ENGINE);
        daemon.until("the socket is there again", |_| is_served(&socket));
        assert_eq!(live(&daemon)[0].id, call.id);
    }
    // Another port of the same owner and id, with a rule.
    let mut other = call.clone();
    other.toml = format!(
        "[[port]]\n{}\n[[rule]]\nname = \"r\"\nto = \"{NAME}\"\ndrop = true",
        call.toml.replace("0660", "0600").replace(&format!("{NAME}.sock"), "other.sock")
    );
    plug(&daemon, &other);
    assert!(!socket.exists() && folder.join("other.sock").exists());
    assert_eq!(daemon.get::<PolicyInfo>(path::POLICY).rules.len(), 1);
    // A wrong one changes nothing.
    let wrong = AddPort { toml: call.toml.replace("0660", "9"), ..call.clone() };
    let (status, error) = daemon.post_failing(path::LIVE_PORTS, serde_json::to_string(&wrong).unwrap());
    assert!(status == 422 && error.diagnostics[0].message.contains("socket_mode"), "{error:?}");
    assert!(folder.join("other.sock").exists());
    assert_eq!([unplug(&daemon, &call), unplug(&daemon, &call)], [200, 404]);
    assert!(!folder.join("other.sock").exists() && ports(&daemon).is_empty());
    assert!(daemon.get::<PolicyInfo>(path::POLICY).rules.is_empty());
}

#[test]
fn ports_for_guests_wait_for_a_directory_or_a_guest_by_contract() {
    let daemon = Daemon::start(&ENGINE);
    let folder = daemon.folder.0.join("guests");
    let call = call(&folder);
    // What is in the way is no directory.
    std::fs::write(&folder, "").unwrap();
    let added = plug(&daemon, &call);
    assert!(added.port.problem.is_some_and(|why| why.contains("directory")), "{}", added.message);
    std::fs::remove_file(&folder).unwrap();
    daemon.until("it is open", |daemon| live(daemon)[0].problem.is_none());
    assert!(folder.join(format!("{NAME}.sock")).exists());
    assert_eq!(unplug(&daemon, &call), 200);
    // A guest that is to make the socket, and its directory.
    std::fs::remove_dir_all(&folder).unwrap();
    let keys = call.toml.lines().filter(|line| !line.starts_with("socket_"));
    let toml = keys.chain(["mode = \"client\""]).collect::<Vec<_>>().join("\n");
    let client = AddPort { toml, ..call };
    plug(&daemon, &client);
    let waits = |daemon: &Daemon| {
        let status: netvm_api::Status = daemon.get(path::STATUS);
        status.problems.iter().any(|text| text.contains("no guest has created") && text.contains(NAME))
    };
    daemon.until("it says what it waits for", waits);
    std::fs::create_dir(&folder).unwrap();
    let guest = std::os::unix::net::UnixListener::bind(folder.join(format!("{NAME}.sock"))).unwrap();
    let (connection, _) = guest.accept().unwrap();
    daemon.until("it waits no longer", |daemon| !waits(daemon));
    drop(connection);
}
