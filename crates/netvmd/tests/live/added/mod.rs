// SPDX-License-Identifier: Apache-2.0
//! Ports that are added and removed one by one, beside the configuration file.

mod guests;
mod labels;
mod names;

use std::path::Path;
use std::sync::Arc;

use netvm_api::{
    AddPort, AddedPort, ApplyReply, ConfigReply, Done, LivePortInfo, PlanReply, PolicyInfo, PortInfo,
    RemovePort, path,
};
use rustix::process::Signal;

use crate::common::hosts::{self, Host};
use crate::common::{Daemon, ENGINE};

/// The ports of the file.
const FILE: &str = "\n[[port]]\nname = \"s\"\nkind = \"source\"\nrate = 1000\nforward = { out = \"t\" }\n\
                    \n[[port]]\nname = \"t\"\nkind = \"sink\"\n";

fn request(id: &str, toml: &str) -> String {
    let request = AddPort { owner: "test".to_owned(), id: id.to_owned(), toml: toml.to_owned(), lease: None };
    serde_json::to_string(&request).unwrap()
}

fn add(daemon: &Daemon, id: &str, toml: &str) -> AddedPort {
    daemon.post(path::LIVE_PORTS, &request(id, toml))
}

/// The text of an error, with those in the port.
fn refused(daemon: &Daemon, id: &str, toml: &str) -> String {
    let (status, error) = daemon.post_failing(path::LIVE_PORTS, request(id, toml));
    assert_eq!(status, 422, "{error:?}");
    let findings =
        error.diagnostics.iter().map(|one| format!("\n{}:{}: {}", one.file, one.line, one.message));
    error.message.clone() + &findings.collect::<String>()
}

fn remove(daemon: &Daemon, id: &str) -> (u16, String) {
    let which = RemovePort { owner: "test".to_owned(), id: id.to_owned() };
    daemon.request("DELETE", &format!("{}?{}", path::LIVE_PORTS, which.query()), "")
}

fn live(daemon: &Daemon) -> Vec<LivePortInfo> {
    daemon.get(path::LIVE_PORTS)
}

fn ports(daemon: &Daemon) -> Vec<String> {
    daemon.get::<Vec<PortInfo>>(path::PORTS).into_iter().map(|port| port.name).collect()
}

fn port(daemon: &Daemon, name: &str) -> PortInfo {
    daemon.get::<Vec<PortInfo>>(path::PORTS).into_iter().find(|port| port.name == name).unwrap()
}

fn rules(daemon: &Daemon) -> Vec<String> {
    let policy: PolicyInfo = daemon.get(path::POLICY);
    policy.rules.iter().map(|rule| format!("{}: {} {}", rule.name, rule.text, rule.active)).collect()
}

/// Kills it and starts it again, with another file if `text` is one.
fn killed(mut daemon: Daemon, text: &str) -> Daemon {
    let folder = Arc::clone(&daemon.folder);
    daemon.signal(Signal::KILL);
    daemon.wait();
    Daemon::start_in(folder, text)
}

const SINK: &str = "name = \"x\"\nkind = \"sink\"\nlabels = { app = \"web\", tier = \"front\" }";

#[test]
fn ports_come_and_go_beside_the_file_and_outlive_applies_and_kills() {
    let file = format!("{}{FILE}", *ENGINE);
    let mut daemon = Daemon::start(&file);
    let added = add(&daemon, "1", SINK);
    assert_eq!((added.message.as_str(), added.port.problem), ("port x of test added", None));
    assert_eq!(ports(&daemon), ["s", "t", "x"]);
    let number = port(&daemon, "x").id;
    assert_eq!(port(&daemon, "x").owner.as_deref(), Some("test"));
    assert_eq!(port(&daemon, "x").labels["tier"], "front");
    assert_eq!(port(&daemon, "s").owner, None);
    // The same again, written in another way.
    let again = add(&daemon, "1", &format!("[[port]] # again\n{SINK}"));
    assert_eq!(again.message, "port x of test is there already");
    // The file is not concerned.
    let plan: PlanReply = daemon.post(path::PLAN, &file);
    assert!(plan.plan.is_empty() && plan.live == ["live port x of test"], "{plan:?}");
    let config: ConfigReply = daemon.get(path::CONFIG);
    assert!(!config.toml.contains("name = \"x\"") && config.toml.contains("name = \"t\""), "{}", config.toml);
    let other = format!("{file}\n[[port]]\nname = \"u\"\nkind = \"sink\"\n");
    let applied: ApplyReply = daemon.post(path::APPLY, &other);
    assert_eq!(applied.plan.to_string(), "+ port u: sink\n    opens port u\n");
    assert_eq!(ports(&daemon), ["s", "t", "u", "x"]);
    let before = port(&daemon, "t").tx_packets;
    for round in 0..2 {
        daemon = killed(daemon, &other);
        assert_eq!(ports(&daemon), ["s", "t", "u", "x"], "{round}");
        assert!(live(&daemon)[0].problem.is_none() && live(&daemon)[0].id == "1");
    }
    daemon.until("packets pass", |daemon| port(daemon, "t").tx_packets > before);
    assert_eq!(port(&daemon, "x").id, 3);
    assert_eq!(number, 2);
    // Another port of the same owner and id takes its place.
    add(&daemon, "1", "name = \"y\"\nkind = \"sink\"");
    assert_eq!(ports(&daemon), ["s", "t", "u", "y"]);
    let (status, body) = remove(&daemon, "1");
    assert_eq!(
        (status, serde_json::from_str::<Done>(&body).unwrap().message.as_str()),
        (200, "port y of test removed")
    );
    let (status, body) = remove(&daemon, "1");
    assert!(status == 404 && body.contains("netvm port live"), "{status} {body}");
    assert!(live(&daemon).is_empty() && ports(&daemon) == ["s", "t", "u"]);
    daemon = killed(daemon, &other);
    assert!(live(&daemon).is_empty() && ports(&daemon) == ["s", "t", "u"]);
}

#[test]
fn several_ports_are_added_in_one_transaction() {
    let daemon = Daemon::start(&format!("{}{FILE}", *ENGINE));
    let request = |id: &str, toml: &str| AddPort {
        owner: "test".to_owned(),
        id: id.to_owned(),
        toml: toml.to_owned(),
        lease: None,
    };
    let [a, b] = ["a", "b"].map(|name| request(name, &format!("name = \"{name}\"\nkind = \"sink\"")));
    let body = |ports: &[&AddPort]| serde_json::to_string(ports).unwrap();
    // One is wrong: none is added.
    let wrong = request("c", "name = \"c\"\nkind = \"sinc\"");
    let (status, error) = daemon.post_failing(path::LIVE_PORT_BATCH, body(&[&a, &wrong]));
    assert!(status == 422 && error.diagnostics[0].message.contains("sinc"), "{error:?}");
    // Neither are two of one name.
    let twin = request("d", "name = \"a\"\nkind = \"sink\"");
    let (status, error) = daemon.post_failing(path::LIVE_PORT_BATCH, body(&[&a, &twin]));
    assert!(status == 422 && error.diagnostics[0].message.contains("two ports"), "{error:?}");
    assert!(live(&daemon).is_empty() && ports(&daemon) == ["s", "t"]);
    let added: Vec<AddedPort> = daemon.post(path::LIVE_PORT_BATCH, &body(&[&b, &a, &b]));
    let said: Vec<&str> = added.iter().map(|port| port.message.as_str()).collect();
    let again = "port b of test is there already";
    assert_eq!(said, ["port b of test added", "port a of test added", again]);
    assert_eq!(ports(&daemon), ["s", "t", "b", "a"]);
    let daemon = killed(daemon, &format!("{}{FILE}", *ENGINE));
    assert_eq!(ports(&daemon), ["s", "t", "b", "a"]);
    let added: Vec<AddedPort> = daemon.post(path::LIVE_PORT_BATCH, &body(&[&a, &b]));
    assert!(added.iter().all(|port| port.message.ends_with("is there already")), "{added:?}");
    assert_eq!(daemon.post::<Vec<AddedPort>>(path::LIVE_PORT_BATCH, "[]"), []);
}

#[test]
fn what_is_wrong_with_a_port_names_the_place_and_changes_nothing() {
    let file = format!("{}{FILE}", *ENGINE);
    let daemon = Daemon::start(&file);
    add(&daemon, "1", SINK);
    for (toml, words) in [
        ("name = \"s\"\nkind = \"sink\"", "two ports are called `s` (first here: the running configuration:"),
        ("name = \"x\"\nkind = \"sink\"", "two ports are called `x` (first here: live port x of test:2)"),
        ("name = \"z\"\nkind = \"sinc\"", "live port z of test:3: `kind` cannot be `sinc`"),
        ("name = \"z\"\nkind = \"sink\"\nforwards = 1", "unknown key `forwards`"),
        ("kind = \"sink\"", "the port has no `name`"),
        ("name = \"z", "not TOML"),
        ("[engine]\ncores = [0]\n[[port]]\nname = \"z\"", "`engine` cannot be added with a port"),
        ("[[port]]\nname = \"z\"\n[[port]]\nname = \"w\"", "2 ports instead of one"),
        (
            "[[port]]\nname = \"z\"\nkind = \"sink\"\n[[rule]]\nfrom = \"q\"\ndrop = true",
            "there is no port `q`",
        ),
        ("name = \"z\"\nkind = \"sink\"\nlabels = { \"a b\" = \"c\" }", "has the label `a b`"),
        ("name = \"z\"\nkind = \"source\"\nforward = { out = \"q\" }", "there is no port `q`"),
    ] {
        let error = refused(&daemon, "2", toml);
        assert!(error.contains(words), "{toml}\n{error}");
    }
    for (owner, id) in [("", "1"), ("a b", "1"), ("test", "a\nb")] {
        let request =
            AddPort { owner: owner.to_owned(), id: id.to_owned(), toml: SINK.to_owned(), lease: None };
        let (status, error) = daemon.post_failing(path::LIVE_PORTS, serde_json::to_string(&request).unwrap());
        assert!(status == 422 && error.message.contains("visible ASCII characters"), "{error:?}");
    }
    assert_eq!((ports(&daemon).len(), live(&daemon).len()), (3, 1));
    // A file that takes the name is refused, and so is one that needs the live port.
    let taken = format!("{file}\n[[port]]\nname = \"x\"\nkind = \"sink\"\n");
    let (status, error) = daemon.post_failing(path::APPLY, &taken);
    let message = &error.diagnostics[0].message;
    assert!(status == 422 && message.starts_with("two ports are called `x` (first here: "), "{error:?}");
    assert_eq!(error.diagnostics[0].file, "live port x of test");
    let needs = format!("{file}\n[[rule]]\nfrom = \"x\"\ndrop = true\n");
    let (_, error) = daemon.post_failing(path::APPLY, &needs);
    assert!(error.diagnostics[0].message.contains("there is no port `x`"), "{error:?}");
    // At the start the file wins, and says so.
    let daemon = killed(daemon, &taken);
    let known = live(&daemon);
    assert!(
        known[0].problem.as_ref().is_some_and(|why| why.contains("two ports are called `x`")),
        "{known:?}"
    );
    assert_eq!((ports(&daemon).len(), port(&daemon, "x").owner), (3, None));
    assert_eq!(remove(&daemon, "1").0, 200);
    assert_eq!(ports(&daemon), ["s", "t", "x"]);
}

#[test]
fn a_change_that_is_undone_leaves_live_ports_as_they_are() {
    let file = format!("{}{FILE}", *ENGINE);
    let daemon = Daemon::start(&file);
    add(&daemon, "", SINK);
    let other = format!("{file}\n[[port]]\nname = \"u\"\nkind = \"sink\"\n");
    let _: ApplyReply = daemon.post(&format!("{}?confirm=600", path::APPLY), &other);
    add(&daemon, "", "name = \"y\"\nkind = \"sink\"");
    assert_eq!(live(&daemon).iter().map(|port| port.id.as_str()).collect::<Vec<_>>(), ["x", "y"]);
    let _: Done = daemon.post(path::REVERT, "");
    assert_eq!(ports(&daemon), ["s", "t", "x", "y"]);
    assert!(live(&daemon).iter().all(|port| port.problem.is_none()));
}

#[test]
fn rules_by_label_follow_ports_and_rules_come_and_go_with_their_port() {
    let rule = "\n[[rule]]\nname = \"no-web\"\nfrom = { label = \"app=web\" }\ndrop = true\n";
    let file = format!("{}{FILE}{rule}", *ENGINE);
    let daemon = Daemon::start(&file);
    let dropped = |daemon: &Daemon| daemon.get::<PolicyInfo>(path::POLICY).rules[0].packets;
    assert_eq!(rules(&daemon), ["no-web: from label app=web any → drop false"]);
    daemon.until("packets pass", |daemon| port(daemon, "t").tx_packets > 0);
    assert_eq!(dropped(&daemon), 0);
    let source = |name: &str, app: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\nkind = \"source\"\nrate = 1000\nforward = {{ out = \"t\" }}\n\
             labels = {{ app = \"{app}\" }}\n[[rule]]\nfrom = \"{name}\"\nmatch = {{ protocol = \"sctp\" }}\ndrop = true\n"
        )
    };
    add(&daemon, "1", &source("db", "db"));
    daemon.until("packets of another label pass", |daemon| port(daemon, "db").rx_packets > 100);
    assert_eq!(dropped(&daemon), 0);
    add(&daemon, "2", &source("web", "web"));
    daemon.until("packets are dropped", |daemon| dropped(daemon) > 100);
    assert_eq!(
        rules(&daemon),
        [
            "no-web: from label app=web any → drop true",
            "live.1.1: from db sctp → drop true",
            "live.2.1: from web sctp → drop true"
        ]
    );
    // A rule that a client adds for the port goes with it; one for several ports stays.
    let toml = "name = \"both\"\nfrom = [\"web\", \"s\"]\nmatch = { protocol = \"udp\" }\ncount = true";
    for toml in [toml, "name = \"one\"\nfrom = \"web\"\nmatch = { protocol = \"tcp\" }\ndrop = true"] {
        let request = serde_json::json!({ "toml": toml, "position": "last" });
        let _: Done = daemon.post(path::RULES, &request.to_string());
    }
    assert_eq!(remove(&daemon, "2").0, 200);
    assert_eq!(
        rules(&daemon),
        [
            "no-web: from label app=web any → drop false",
            "both: from s udp → continue true",
            "live.1.1: from db sctp → drop true"
        ]
    );
    let stopped = dropped(&daemon);
    assert!(stopped > 100, "the rule keeps its counter");
    // A label that the port gets later.
    add(&daemon, "1", &source("db", "web"));
    daemon.until("packets are dropped", |daemon| dropped(daemon) > stopped);
}

/// The rule is as before when the port comes, but it is not for this one.
#[test]
fn a_port_without_what_a_rule_selects_is_free_of_it_at_once() {
    let rule = "\n[[rule]]\nname = \"others\"\nfrom = { label = \"!app\" }\nto = \"t\"\ndrop = true\n";
    let daemon = Daemon::start(&format!("{}{FILE}{rule}", *ENGINE));
    daemon
        .until("packets are dropped", |daemon| daemon.get::<PolicyInfo>(path::POLICY).rules[0].packets > 100);
    assert_eq!(port(&daemon, "t").tx_packets, 0);
    add(
        &daemon,
        "1",
        "name = \"web\"\nkind = \"source\"\nrate = 1000\nforward = { out = \"t\" }\nlabels = { app = \"web\" }",
    );
    daemon.until("packets pass", |daemon| port(daemon, "t").tx_packets > 100);
}

#[test]
fn a_port_is_added_before_its_namespace_exists_and_opens_when_it_does() {
    if !hosts::are_possible() {
        return;
    }
    let host = Host::absent("early");
    let daemon = Daemon::start(&ENGINE);
    let toml = format!(
        "name = \"c\"\nkind = \"container\"\nnamespace = \"{}\"\naddresses = [\"10.99.0.2/24\"]",
        host.namespace()
    );
    let added = add(&daemon, "1", &toml);
    let problem = added.port.problem.unwrap();
    assert!(problem.contains(host.namespace()) && added.message.contains("it waits: "), "{}", added.message);
    assert!(added.port.mac.is_some());
    host.appear();
    daemon.until("it is open", |daemon| live(daemon)[0].problem.is_none());
    assert!(host.ip_output("address show dev eth0").contains("10.99.0.2/24"));
    assert_eq!(remove(&daemon, "1").0, 200);
    assert!(host.output_of_ip("link show dev eth0").is_none(), "the interface is gone");
}

#[test]
fn a_port_of_each_kind_waits_for_what_it_needs_and_says_so() {
    if !hosts::are_possible() {
        return;
    }
    let daemon = Daemon::start(&ENGINE);
    let (xdp, packet) = (Host::absent("wx"), Host::absent("wp"));
    let interfaces = [xdp.port(), packet.port()];
    let inside = |name: &str| daemon.folder.0.join(name).display().to_string();
    std::fs::write(inside("guests"), "").unwrap();
    for (name, kind, keys, waits_for) in [
        ("x", "af_xdp", format!("interface = \"{}\"", interfaces[0]), interfaces[0].as_str()),
        ("p", "af_packet", format!("interface = \"{}\"", interfaces[1]), interfaces[1].as_str()),
        ("n", "pci", "address = \"ffff:1f:1f.6\"".to_owned(), "no such device now: `lspci -D`"),
        ("v", "vhost-user", format!("path = \"{}\"", inside("guests/v.sock")), "guests"),
        ("e", "e1000", format!("path = \"{}\"", inside("guests/e.sock")), "guests"),
        ("m", "memif", format!("path = \"{}\"", inside("guests/m.sock")), "guests"),
        ("i", "pcap", format!("input = \"{}\"", inside("guests/in.pcap")), "in.pcap"),
    ] {
        let toml = format!("name = \"{name}\"\nkind = \"{kind}\"\n{keys}");
        let added = add(&daemon, name, &toml);
        let why = added.port.problem.unwrap_or_default();
        assert!(why.contains(waits_for) && added.message.contains("it waits: "), "{name}: {}", added.message);
    }
    [&xdp, &packet].iter().for_each(|host| host.plug_in_new());
    std::fs::remove_file(inside("guests")).unwrap();
    std::fs::create_dir(inside("guests")).unwrap();
    let empty = [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0];
    std::fs::write(inside("guests/new"), empty).unwrap();
    std::fs::rename(inside("guests/new"), inside("guests/in.pcap")).unwrap();
    daemon.until("all but the NIC are open", |daemon| {
        live(daemon).iter().all(|port| port.problem.is_some() == (port.port == "n"))
    });
    for name in ["x", "p", "n", "v", "e", "m", "i"] {
        assert_eq!(remove(&daemon, name).0, 200);
    }
}

#[test]
fn a_port_whose_lease_is_gone_goes_when_netvmd_starts() {
    let daemon = Daemon::start(&ENGINE);
    let lease = daemon.folder.0.join("lease");
    std::fs::write(&lease, "").unwrap();
    for (name, lease) in [("kept", None), ("leased", Some(lease.clone()))] {
        let (owner, id) = ("test".to_owned(), name.to_owned());
        let toml = format!("name = \"{name}\"\nkind = \"sink\"");
        let request = AddPort { owner, id, toml, lease };
        let _: AddedPort = daemon.post(path::LIVE_PORTS, &serde_json::to_string(&request).unwrap());
    }
    let daemon = killed(daemon, &ENGINE);
    assert_eq!(ports(&daemon), ["kept", "leased"]);
    std::fs::remove_file(&lease).unwrap();
    let daemon = killed(daemon, &ENGINE);
    assert_eq!(ports(&daemon), ["kept"]);
    assert_eq!(remove(&daemon, "leased").0, 404);
}

#[test]
fn netvm_adds_lists_and_deletes_ports() {
    let netvm = Path::new(env!("CARGO_BIN_EXE_netvmd")).with_file_name("netvm");
    if !netvm.is_file() {
        println!("SKIP: no program netvm beside netvmd");
        return;
    }
    let daemon = Daemon::start(&format!("{}{FILE}", *ENGINE));
    let run = |words: &[&str]| {
        let mut command = std::process::Command::new(&netvm);
        let output = command.arg("--socket").arg(daemon.api_socket()).args(words).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    };
    let words = ["port", "add", "name = \"web\"", "kind = \"sink\"", "labels = { app = \"web\" }"];
    assert_eq!(run(&words), (true, "port web of netvm added\n".to_owned()));
    let (_, list) = run(&["port", "live"]);
    let row: Vec<&str> = list.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row, ["web", "netvm", "web", "app=web", "open"], "{list}");
    let (_, all) = run(&["port"]);
    assert!(all.contains("OWNER") && all.contains("app=web"), "{all}");
    let (_, plan) = run(&["plan", daemon.folder.config().to_str().unwrap()]);
    assert!(
        plan.contains("stays, as its owner has added it beside the file: live port web of netvm"),
        "{plan}"
    );
    assert_eq!(run(&["port", "del", "web"]), (true, "port web of netvm removed\n".to_owned()));
    let (is_ok, error) = run(&["port", "del", "web"]);
    assert!(!is_ok && error.contains("no port `web` of `netvm`"), "{error}");
}
