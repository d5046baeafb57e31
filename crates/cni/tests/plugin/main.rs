// SPDX-License-Identifier: Apache-2.0
//! The plug-in as runtimes call it, with netvmd, Debian's host-local and network namespaces.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod docker;
mod many;
mod net;
mod runtimes;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use net::{Call, Namespace, Net, PLUGIN, run, within};
use serde_json::{Value, json};

/// Rounds of kills, unless `NETVM_CNI_ROUNDS` says it.
const ROUNDS: u32 = 12;
/// Attachments, unless `NETVM_CNI_ATTACHMENTS` says it.
const ATTACHMENTS: usize = 8;

fn rounds() -> u32 {
    std::env::var("NETVM_CNI_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().unwrap())
}

fn attachments() -> usize {
    std::env::var("NETVM_CNI_ATTACHMENTS").map_or(ATTACHMENTS, |count| count.parse().unwrap())
}

/// Numbers below a given one, which differ from run to run.
fn random() -> impl FnMut(u64) -> u64 {
    let mut seed = u64::from(std::process::id());
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    }
}

#[test]
fn every_command_does_its_work_once_however_often_it_is_called() {
    let Some(mut net) = Net::start() else { return };
    let (a, b) = (Namespace::new("a"), Namespace::new("b"));
    let mut add = net.call("ADD", "aa11", &a.path());
    add.config["runtimeConfig"] = json!({ "mac": "02:00:00:00:00:77", "ips": ["10.77.0.9/24"] });
    let result = add.good();
    assert_eq!(result["cniVersion"], "1.1.0");
    assert_eq!(result["ips"], json!([{ "address": "10.77.0.9/24", "gateway": "10.77.0.1", "interface": 0 }]));
    assert_eq!(
        result["interfaces"],
        json!([{ "name": "eth0", "mac": "02:00:00:00:00:77", "sandbox": a.path() }])
    );
    assert_eq!(add.good(), result, "the same again");
    // In an older version, behind another plug-in.
    let mut other = net.call("ADD", "bb22", &b.path());
    other.config["cniVersion"] = "0.4.0".into();
    other.config["prevResult"] =
        json!({ "cniVersion": "0.4.0", "interfaces": [{ "name": "host0" }], "ips": [], "dns": {} });
    let second = other.good();
    assert_eq!((&second["ips"][0]["version"], &second["ips"][0]["interface"]), (&json!("4"), &json!(1)));
    assert_eq!(net.left(), [2, 2, 2]);
    assert!(
        within(Duration::from_secs(10), || b.succeeds("busybox ping -c 1 -W 1 10.77.0.9")),
        "{}",
        net.log()
    );
    let mut check = Call { command: "CHECK", ..add.clone() };
    assert_eq!(check.bad().0, 7, "without prevResult");
    check.config["prevResult"] = result.clone();
    assert_eq!([check.good(), check.good()], [Value::Null, Value::Null]);
    // netvmd is killed: the containers' network comes back.
    net.restart();
    let pings = || b.succeeds("busybox ping -c 1 -W 1 10.77.0.9");
    assert!(within(Duration::from_secs(10), pings), "{}", net.log());
    check.good();
    check.config["prevResult"]["ips"][0]["address"] = "10.77.0.10/24".into();
    assert_eq!(check.bad().0, 100);
    // GC keeps what the runtime knows.
    net.keep_only(&["aa11"]);
    assert_eq!(net.left(), [1, 1, 1]);
    assert!(!b.succeeds("ip link show dev eth0"));
    // As `ctr` calls it: without a namespace.
    let delete = net.call("DEL", "aa11", "");
    assert_eq!([delete.good(), delete.good()], [Value::Null, Value::Null]);
    assert_eq!(net.left(), [0, 0, 0]);
    check.config["prevResult"] = result;
    assert_eq!(check.bad().0, 100);
    let version = net.call("VERSION", "", "").good();
    assert_eq!(version["supportedVersions"][0], "1.1.0");
}

#[test]
fn what_fails_has_its_code_and_leaves_nothing() {
    let Some(mut net) = Net::start() else { return };
    let namespace = Namespace::new("c");
    let add = net.call("ADD", "cc33", &namespace.path());
    let with = |change: &dyn Fn(&mut Call)| {
        let mut call = add.clone();
        change(&mut call);
        call.bad()
    };
    let hanging = net.path("plugins");
    std::fs::create_dir(&hanging).unwrap();
    for (code, words, change) in [
        (
            1,
            "netvm-cni speaks",
            &(|call: &mut Call| call.config["cniVersion"] = "9.0".into()) as &dyn Fn(&mut Call),
        ),
        (4, "does not exist", &|call| call.namespace = "/run/netns/none".to_owned()),
        (4, "CNI_NETNS", &|call| call.namespace = String::new()),
        (4, "CNI_CONTAINERID", &|call| call.container = "../x".to_owned()),
        (4, "the commands are", &|call| call.command = "RUN"),
        (7, "no IPAM plug-in none in CNI_PATH", &|call| call.config["ipam"]["type"] = "none".into()),
        (7, "unknown key `forwards`", &|call| call.config["port"] = json!({ "forwards": 1 })),
        (7, "comes from the runtime", &|call| call.config["port"] = json!({ "name": "x" })),
        (2, "only default routes", &|call| call.config["ipam"]["routes"] = json!([{ "dst": "10.8.0.0/16" }])),
        (7, "publish", &|call| {
            let mapping = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]);
            call.config["runtimeConfig"] = json!({ "portMappings": mapping });
        }),
    ] {
        let (is, message) = with(change);
        assert!(is == code && message.contains(words), "{is} {message}");
        assert_eq!(net.left(), [0, 0, 0], "{message}");
    }
    // An IPAM plug-in that hangs.
    let script = hanging.join("hangs");
    std::fs::write(&script, "#!/bin/sh\nif [ \"$CNI_COMMAND\" = ADD ]; then exec sleep 60; fi\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut slow = add.clone();
    slow.config["ipam"] = json!({ "type": "hangs" });
    slow.config["ipamTimeout"] = 1.into();
    let mut command = Command::new(PLUGIN);
    command.env("CNI_COMMAND", "ADD").env("CNI_CONTAINERID", "cc33").env("CNI_IFNAME", "eth0");
    command
        .env("CNI_NETNS", namespace.path())
        .env("CNI_PATH", &hanging)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(slow.config.to_string().as_bytes()).unwrap();
    let answer: Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    // It was not waited for: the code says so.
    assert_eq!(answer["code"], 11, "{answer}");
    assert_eq!(net.left(), [0, 0, 0]);
    // Two containers with one address.
    let taken = add.good()["ips"][0]["address"].clone();
    let other = Namespace::new("d");
    let mut same = net.call("ADD", "dd44", &other.path());
    same.config["runtimeConfig"] = json!({ "ips": [taken] });
    assert!(same.bad().1.contains("host-local"), "{:?}", same.bad());
    assert_eq!(net.left(), [1, 1, 1]);
    net.stop();
    assert_eq!(net.call("STATUS", "", "").bad().0, 50);
    // DEL does not need netvmd, which removes the port when it starts.
    assert_eq!(net.call("DEL", "cc33", "").good(), Value::Null);
    net.start_again();
    let other = net.call("ADD", "dd44", &other.path()).good();
    assert_eq!(net.left(), [1, 1, 1], "{other}");
    let live = net.ports();
    assert!(live.len() == 1 && live[0].contains("dd44"), "{live:?}");
}

#[test]
fn what_goes_wrong_disturbs_no_others() {
    let Some(net) = Net::start() else { return };
    let (a, b) = (Namespace::new("wa"), Namespace::new("wb"));
    net.call("ADD", "first", &a.path()).good();
    // Two containers with one address, as two IPAM plug-ins gave it.
    let mut same = net.call("ADD", "second", &b.path());
    same.config["name"] = "others".into();
    same.config["ipam"]["dataDir"] = net.path("other-ipam").to_str().unwrap().into();
    let (code, message) = same.bad();
    assert!(code == 7 && message.contains("have the same address 10.77.0.2"), "{code} {message}");
    assert_eq!(net.left(), [1, 1, 1]);
    // A namespace that goes between two calls; and its runtime never sends DEL.
    let gone = Namespace::new("wg");
    let add = net.call("ADD", "third", &gone.path());
    let result = add.good();
    drop(gone);
    let mut check = Call { command: "CHECK", ..add.clone() };
    check.config["prevResult"] = result;
    let says_so =
        || check.outcome().is_err_and(|error| error["msg"].as_str().unwrap().contains("start the container"));
    assert!(within(Duration::from_secs(20), says_so), "{:?} {}", check.outcome(), net.log());
    let (code, message) = add.bad();
    assert!(code == 4 && message.contains("does not exist"), "{code} {message}");
    let mut last = net.call("ADD", "last", &b.path());
    // A label that no rule names, and rules whose labels no port has, are no mistakes.
    last.config["labels"] = json!({ "app": "nobody" });
    last.good();
    assert!(
        within(Duration::from_secs(10), || b.succeeds("busybox ping -c 1 -W 1 10.77.0.2")),
        "{}",
        net.log()
    );
    assert_eq!(net.left(), [3, 3, 3]);
    net.keep_only(&["first"]);
    assert_eq!(net.left(), [1, 1, 1]);
}

#[test]
fn neighbours_learn_at_once_that_another_container_has_an_address() {
    let Some(net) = Net::start() else { return };
    let (a, b, other) = (Namespace::new("na"), Namespace::new("nb"), Namespace::new("no"));
    let addresses = ["10.77.0.9/24", "fd00::9/64"];
    let ranges = json!([[{ "subnet": "10.77.0.0/24" }], [{ "subnet": "fd00::/64" }]]);
    let with = |id: &str, namespace: &Namespace, mac: &str, addresses: &[&str]| {
        let mut call = net.call("ADD", id, &namespace.path());
        call.config["ipam"]["ranges"] = ranges.clone();
        call.config["runtimeConfig"] = json!({ "mac": mac, "ips": addresses });
        call.good();
    };
    with("before", &a, "02:00:00:00:00:01", &addresses);
    with("other", &other, "02:00:00:00:00:02", &[]);
    for ping in ["ping -c 1 -W 1 10.77.0.9", "ping -6 -c 1 -W 1 fd00::9"] {
        let ping = format!("busybox {ping}");
        assert!(within(Duration::from_secs(30), || other.succeeds(&ping)), "{}", net.log());
    }
    net.call("DEL", "before", "").good();
    with("now", &b, "02:00:00:00:00:03", &addresses);
    for address in ["10.77.0.9", "fd00::9"] {
        // Nobody asks: what it knows would stay.
        let command = format!("ip netns exec {} ip neigh show {address}", other.0);
        let known = || String::from_utf8(run(&command).stdout).unwrap();
        let is_new = || known().contains("02:00:00:00:00:03");
        assert!(within(Duration::from_secs(30), is_new), "{address}: {}", known());
    }
}

/// An IPAM plug-in of the last version is asked for STATUS and GC, too; host-local of Debian 12 is not.
#[test]
fn status_and_gc_are_delegated() {
    let Some(net) = Net::start() else { return };
    let namespace = Namespace::new("gc");
    let folder = net.path("plugins");
    std::fs::create_dir(&folder).unwrap();
    let script = "#!/bin/sh\necho $CNI_COMMAND >> ${0%/*}/asked\ncase $CNI_COMMAND in\n\
                  VERSION) echo '{\"supportedVersions\": [\"1.0.0\", \"1.1.0\"]}';;\nGC) cat >> ${0%/*}/asked;;\n\
                  STATUS) [ ! -e ${0%/*}/full ] || { echo '{\"code\": 51, \"msg\": \"no addresses\"}'; exit 1; };;\n\
                  *) exec /usr/lib/cni/host-local;;\nesac\n";
    let path = folder.join("latest");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let call = |command: &'static str, id: &str| {
        let mut call = net.call(command, id, &namespace.path());
        call.config["ipam"]["type"] = "latest".into();
        call.folders = format!("{}:{}", folder.display(), call.folders);
        call
    };
    call("ADD", "stale").good();
    call("STATUS", "").good();
    std::fs::write(folder.join("full"), "").unwrap();
    assert_eq!(call("STATUS", "").bad().0, 51);
    let mut collect = call("GC", "");
    collect.config["cni.dev/valid-attachments"] = json!([{ "containerID": "other", "ifname": "eth0" }]);
    collect.good();
    assert_eq!(net.left(), [0, 0, 0]);
    let asked = std::fs::read_to_string(folder.join("asked")).unwrap();
    let says = asked.split("GC\n").nth(1).unwrap();
    assert!(
        says.contains("valid-attachments") && says.contains("\"other\"") && asked.contains("STATUS"),
        "{asked}"
    );
}

/// A reboot takes all namespaces, and no runtime has said DEL.
#[test]
fn after_a_reboot_either_may_start_first() {
    let Some(mut net) = Net::start() else { return };
    for (order, is_netvmd_first) in [("n", true), ("r", false)] {
        let before = Namespace::new(&format!("{order}a"));
        net.call("ADD", "before", &before.path()).good();
        net.stop();
        drop(before);
        let now = Namespace::new(&format!("{order}b"));
        let add = net.call("ADD", "now", &now.path());
        if is_netvmd_first {
            net.start_again();
            let log = net.log();
            assert!(log.contains(" waits: interface eth0") && log.contains("start the container"), "{log}");
            net.keep_only(&[]);
        } else {
            assert_eq!(add.bad().0, 50);
            // The kubelet finds that the pod has ended.
            net.call("DEL", "before", "").good();
            net.start_again();
        }
        add.good();
        assert_eq!(net.left(), [1, 1, 1], "{}", net.log());
        assert!(now.succeeds("ip link show dev eth0"));
        net.keep_only(&[]);
        assert_eq!(net.left(), [0, 0, 0]);
    }
}

/// A network of sockets: the result says where they are.
#[test]
fn guests_and_programs_get_sockets() {
    let Some(net) = Net::start() else { return };
    let namespace = Namespace::new("so");
    for (kind, id) in [("vhost-user", "guest"), ("memif", "program")] {
        let mut add = net.call("ADD", id, &namespace.path());
        add.config["kind"] = kind.into();
        add.config["socketFolder"] = net.path("sockets").to_str().unwrap().into();
        let result = add.good();
        let interface = &result["interfaces"][0];
        let path = interface["socketPath"].as_str().unwrap();
        assert!(
            Path::new(path).exists() && path.starts_with(net.path("sockets").to_str().unwrap()),
            "{result}"
        );
        assert_eq!((&interface["name"], interface.get("mac")), (&json!("eth0"), None));
        assert_eq!(add.good(), result);
        let mut check = Call { command: "CHECK", ..add.clone() };
        check.config["prevResult"] = result.clone();
        check.good();
        Call { command: "DEL", ..add }.good();
        assert!(!Path::new(path).exists(), "{path}");
    }
    assert_eq!(net.left(), [0, 0, 0]);
}

#[test]
fn kills_at_any_point_leave_nothing_that_gc_does_not_find() {
    let Some(mut net) = Net::start() else { return };
    let namespace = Namespace::new("k");
    let mut random = random();
    for round in 0..rounds() {
        let add = net.call("ADD", &format!("kill{round}"), &namespace.path());
        let is_del = random(3) == 0;
        if is_del {
            add.good();
        }
        let call = if is_del { Call { command: "DEL", ..add.clone() } } else { add.clone() };
        let mut child = call.start();
        std::thread::sleep(Duration::from_micros(random(40_000)));
        if random(4) == 0 {
            net.restart();
        } else {
            let _ = child.kill();
        }
        let _ = child.wait();
        if random(2) == 0 {
            // The runtime tries again.
            call.good();
        }
        if random(2) == 0 {
            net.call("DEL", &format!("kill{round}"), "").good();
        } else {
            net.keep_only(&[]);
        }
        assert_eq!(net.left(), [0, 0, 0], "round {round}: {}", net.log());
        assert!(!namespace.succeeds("ip link show dev eth0"), "round {round}");
    }
}

/// The network of the how-to is one that the plug-in takes.
#[test]
fn the_network_of_the_page_works() {
    let page = include_str!("../../../../docs/how-to/cni.md");
    let block = page.split("```json").nth(1).unwrap().split("```").next().unwrap();
    let list: Value = serde_json::from_str(block).unwrap();
    let Some(net) = Net::start() else { return };
    let namespace = Namespace::new("p");
    let mut add = net.call("ADD", "ee55", &namespace.path());
    let plugin = list["plugins"][0].as_object().unwrap().clone();
    let mut config = plugin.clone();
    // As runtimes do.
    config.insert("cniVersion".to_owned(), list["cniVersion"].clone());
    config.insert("name".to_owned(), list["name"].clone());
    for key in ["socket", "dataDir"] {
        config.insert(key.to_owned(), add.config[key].clone());
    }
    config["ipam"]["dataDir"] = add.config["ipam"]["dataDir"].clone();
    add.config = Value::Object(config);
    add.good();
    let live: Value =
        serde_json::from_slice(&std::fs::read(net.path("run/state/live.json")).unwrap()).unwrap();
    let toml = live["ports"][0]["toml"].as_str().unwrap();
    let labels = r#"labels = { app = "shop", namespace = "shop", network = "pods", pod = "web" }"#;
    assert!(toml.contains(labels) && toml.contains("mtu = 1400"), "{toml}");
    let rule = page.split("```toml").nth(1).unwrap().split("```").next().unwrap();
    let running = std::fs::read_to_string(net.path("host.toml")).unwrap();
    std::fs::write(net.path("host.toml"), running + rule).unwrap();
    let netvmd = Path::new(PLUGIN).with_file_name("netvmd");
    let checked = Command::new(netvmd).arg("check").arg(net.path("host.toml")).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}
