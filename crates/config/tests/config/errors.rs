// SPDX-License-Identifier: Apache-2.0
//! Every error: its kind, its line, its remedy.

mod fragments;
mod programs;
mod remote;
mod virtual_ports;

use netvm_config::{Finding, Kind, Loaded, parse};

use crate::{cases, findings, found, host, is, line_of};

/// A host without errors or warnings; the tests break one line each.
pub const GOOD: &str = r#"
[engine]
cores = [0]
idle = "adaptive"
huge_pages = true
ring_size = 512
nodes = [[0], [1]]

[[group]]
name = "edge"
buffers = 16384
buffer_size = 2048
headroom = 256

[[group]]
name = "other"

[[port]]
name = "client"
kind = "af_xdp"
interface = "nv-client"
group = "edge"
queues = 1

[[port]]
name = "server"
kind = "pcap"
output = "out.pcap"

[[port]]
name = "load"
kind = "source"
size = 1514
rate = 1_000_000

[[port]]
name = "nic"
kind = "pci"
address = "3b:00.0"

[[port]]
name = "guest"
kind = "vhost-user"
path = "guest.sock"
mode = "client"
forward = { normal = true }

[[nf]]
role = "firewall"
group = "edge"
command = ["netvm-firewall", "--rules", "fw.rules"]
replicas = 2
standby = 1
threads = 4
balance = "flow-hash"
user = "nobody"
cores = [1]
environment = { RUST_LOG = "info" }

[[nf]]
role = "monitor"
group = "edge"
attach_users = ["nobody"]

[[chain]]
name = "web"
hops = ["firewall", "monitor"]
on_failure = "standby"
output = "server"

[[rule]]
from = "client"
match = { protocol = "tcp", destination = "10.0.0.0/8", destination_ports = "80-443", vlan = 5 }
chain = "web"

[[rule]]
from = "client"
out = "server"

[[rule]]
from = "load"
chain = "web"

[[rule]]
from = "nic"
drop = true
"#;

pub fn good(text: &str) -> Loaded {
    parse("host.toml", text).unwrap_or_else(|error| panic!("{}", error.render(false)))
}

/// The one finding after `from` became `to`; it must be `below` lines below that place.
fn spoil(from: &str, to: &str, below: usize) -> Result<Finding, String> {
    assert_eq!(GOOD.matches(from).count(), 1, "{from}");
    let line = line_of(GOOD, from) + below;
    let found = findings(&GOOD.replace(from, to));
    let [finding] = &found[..] else {
        return Err(format!("{to}: {} findings: {found:#?}", found.len()));
    };
    let drawn = finding.render(false);
    if finding.position().0 != line || !drawn.contains(&format!("host.toml:{line}:")) {
        return Err(format!("{to}: not in line {line}:\n{drawn}"));
    }
    Ok(finding.clone())
}

#[test]
fn a_good_file_has_no_findings() {
    assert!(good(GOOD).warnings.is_empty(), "{:#?}", good(GOOD).warnings);
    // An empty file is a host that does nothing, with the default group.
    assert_eq!(good("").host.groups.len(), 1);
}

/// Edit, its replacement, lines from the edit to the error, code of the error, part of the remedy.
const CASES: &str = r#"
# Keys
ring_size = 512 | ringsize = 512 | 0 | unknown_key | did you mean `ring_size`?
huge_pages = true | colour = 1 | 0 | unknown_key | keys of [engine] are `cores`, `idle`
buffer_size = 2048 | buffer-size = 2048 | 0 | unknown_key | did you mean `buffer_size`?
on_failure = "standby" | onfailure = "drop" | 0 | unknown_key | did you mean `on_failure`?
vlan = 5 | vlam = 5 | 0 | unknown_key | did you mean `vlan`?
[engine] | [engin] | 0 | unknown_key | did you mean `engine`?
hops = ["firewall", "monitor"] | hop = ["firewall"] | 0 | unknown_key | did you mean `hops`?
[[port]]⏎name = "server"⏎kind = "pcap"⏎output = "out.pcap" | [[port]]⏎name = "server"⏎kind = "pcap"⏎paced = true | 0 | missing_key | `input`
attach_users = ["nobody"] | attach_users = []⏎standby = 1 | 1 | conflict | remove it
drop = true | drop = true⏎out = "server" | 0 | conflict | keep one of
drop = true | drop = false | 0 | bad_value | `drop = true`
# Keys of earlier versions
buffers = 16384 | cells = 16384 | 0 | unknown_key | it is called `buffers` now
buffer_size = 2048 | cell_size = 2048 | 0 | unknown_key | it is called `buffer_size` now
# Types and values
huge_pages = true | huge_pages = "yes" | 0 | wrong_type | `true` or `false`
buffers = 16384 | buffers = 1.5 | 0 | wrong_type | a whole number
cores = [0] | cores = 0 | 0 | wrong_type | a list of whole numbers
nodes = [[0], [1]] | nodes = [0, 1] | 0 | wrong_type | such as [[0], [1]]
role = "monitor" | role = 7 | 0 | wrong_type | a string in quotes
environment = { RUST_LOG = "info" } | environment = { RUST_LOG = 1 } | 0 | wrong_type | string in quotes
environment = { RUST_LOG = "info" } | environment = [] | 0 | wrong_type | a table of strings
[engine] | [[engine]] | 0 | wrong_type | a table: [engine]
idle = "adaptive" | idle = "lazy" | 0 | bad_value | possible values are `adaptive`, `poll`
balance = "flow-hash" | balance = "flow_hash" | 0 | bad_value | did you mean `flow-hash`?
kind = "af_xdp" | kind = "xdp" | 0 | bad_value | did you mean `af_xdp`?
mode = "client" | mode = "host" | 0 | bad_value | possible values are `server`, `client`
kind = "pci"⏎address = "3b:00.0" | kind = "container"⏎namespace = "w"⏎on_daemon_loss = "continue" | 2 | bad_value | set `fast_path = true`
path = "guest.sock" | path = "" | 0 | bad_value | from 1 to 107 bytes
mode = "client" | dma = "a b" | 0 | bad_value | `off`, `auto`, or a DMA device
ring_size = 512 | ring_size = 500 | 0 | bad_value | must be a power of two, such as 256 or 512
ring_size = 512 | ring_size = 8 | 0 | bad_value | from 16 to 65536
buffer_size = 2048 | buffer_size = 2000 | 0 | bad_value | must be a multiple of 64, such as 1984 or 2048
buffer_size = 2048 | buffer_size = 65536 | 0 | bad_value | from 256 to 65472
buffers = 16384 | buffers = 0 | 0 | bad_value | from 1 to 8388608
buffers = 16384 | buffers = -1 | 0 | bad_value | from 1 to 8388608
queues = 1 | queues = 33 | 0 | bad_value | from 1 to 32
queues = 1 | worker = 32 | 0 | bad_value | from 0 to 31
queues = 1 | worker = 1 | 0 | bad_value | counted from 0: add a core
queues = 1 | worker = "0" | 0 | bad_value | `auto`
queues = 1 | worker = true | 0 | wrong_type | the number of a worker, or `"auto"`
queues = 1 | node = 1 | 0 | bad_value | add a core of that node
queues = 1 | node = 2 | 0 | bad_value | name another node
queues = 1 | worker = 0⏎node = 0 | 1 | conflict | remove `worker` or `node`
output = "out.pcap" | output = "out.pcap"⏎queues = 2 | 1 | bad_value | leave `queues` out
size = 1514 | size = 59 | 0 | bad_value | from 60 to
rate = 1_000_000 | burst = 64 | 0 | bad_value | give the source a `rate`
rate = 1_000_000 | rate = 1⏎burst = 0 | 1 | bad_value | from 1 to 65535
rate = 1_000_000 | rate = 0 | 0 | bad_value | from 1 to
rate = 1_000_000 | mtu = 1499 | 0 | bad_value | an MTU of 1500
address = "3b:00.0" | address = "eth0" | 0 | bad_value | 0000:3b:00.0
user = "nobody" | user = "no body" | 0 | bad_value | a user of this machine
attach_users = ["nobody"] | attach_users = [""] | 0 | bad_value | a user of this machine
replicas = 2 | replicas = 0 | 0 | bad_value | from 1 to 8
hops = ["firewall", "monitor"] | hops = [] | 0 | bad_value | list the roles
command = ["netvm-firewall", "--rules", "fw.rules"] | command = [] | 0 | bad_value | the program
RUST_LOG = "info" | NETVM_ROLE = "x" | 0 | bad_value | set by netvmd
RUST_LOG = "info" | "A=B" = "x" | 0 | bad_value | no `=`
RUST_LOG = "info" | A = "\u0000" | 0 | bad_value | remove it
cores = [0] | cores = [2] | 0 | bad_value | leave `nodes` out
vlan = 5 | vlan = 4095 | 0 | bad_value | from 1 to 4094
protocol = "tcp" | protocol = "tpc" | 0 | bad_value | tcp
"10.0.0.0/8" | "10.0.0.1/8" | 0 | bad_value | 10.0.0.0/8
"80-443" | "443-80" | 0 | bad_value | 80-443
# Names
name = "other" | name = "" | 0 | bad_name | 1 to 32
name = "other" | name = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" | 0 | bad_name | 1 to 32
name = "other" | name = "ö" | 0 | bad_name | A-Z a-z 0-9 _ - .
name = "other" | name = ".." | 0 | bad_name | begin with no dot
name = "nic" | name = "ingress" | 0 | bad_name | another name
interface = "nv-client" | interface = "a-very-long-name" | 0 | bad_name | 15 characters
interface = "nv-client" | interface = "a b" | 0 | bad_name | 15 characters
output = "server" | output = { router = "blue" } | 0 | unknown_name | add a [[router]]
output = "server" | output = {} | 0 | missing_key | write `"PORT"`, `{ normal = true }`
output = "server" | output = { router = "blue", normal = true } | 0 | conflict | keep one of them
output = "server" | output = { normal = true, chain = 1 } | 0 | unknown_key | keys of output are
output = "server" | output = 1 | 0 | wrong_type | a string in quotes
output = "server" | output = "sever" | 0 | unknown_name | did you mean `server`?
hops = ["firewall", "monitor"] | hops = ["firewal"] | 0 | unknown_name | did you mean `firewall`?
drop = true | chain = "mail" | 0 | unknown_name | the chains are `web`
group = "edge"⏎queues | group = "egde"⏎queues | 0 | unknown_name | did you mean `edge`?
name = "other" | name = "other"⏎may_send_to = ["sevrer"] | 1 | unknown_name | did you mean `server`?
name = "other" | name = "edge" | 0 | duplicate | a name of its own
nodes = [[0], [1]] | nodes = [[0], [0]] | 0 | duplicate | a core is on one node
cores = [1] | cores = [1, 1] | 0 | duplicate | every core once
kind = "pci"⏎address = "3b:00.0" | kind = "tap"⏎interface = "nv-client" | 1 | duplicate | only one port
kind = "pci"⏎address = "3b:00.0" | kind = "container"⏎namespace = "a/b" | 1 | bad_value | the absolute path of a namespace's file
kind = "pci"⏎address = "3b:00.0" | kind = "container"⏎namespace = "web"⏎gateways = ["10.0.0.1", "10.0.0.2"] | 2 | bad_value | at most one IPv4
kind = "pci"⏎address = "3b:00.0" | kind = "container"⏎namespace = "web"⏎gateways = ["0.0.0.0"] | 2 | bad_value | a unicast address
kind = "pci"⏎address = "3b:00.0" | kind = "container"⏎namespace = "web"⏎addresses = ["10.0.0.1"] | 2 | bad_value | the length of its prefix
kind = "pci"⏎address = "3b:00.0" | kind = "container"⏎namespace = "web"⏎addresses = ["10.0.0.5/24"]⏎gateways = ["10.0.1.1"] | 3 | bad_value | an address in the gateway's network
kind = "pci"⏎address = "3b:00.0" | kind = "host"⏎interface = "lan0"⏎addresses = ["fd00::5/64"]⏎gateways = ["fe80::1", "10.0.1.1"] | 3 | bad_value | or correct the gateway
kind = "pci"⏎address = "3b:00.0" | kind = "memif"⏎path = "/m"⏎ring_size = 1000 | 2 | bad_value | give 512 or 1024
kind = "pci"⏎address = "3b:00.0" | kind = "memif"⏎path = "/m"⏎ring_size = 32768 | 2 | bad_value | from 2 to 16384
kind = "pci"⏎address = "3b:00.0" | kind = "memif"⏎path = "/m"⏎secret = "a b" | 2 | bad_value | without blanks
kind = "pci"⏎address = "3b:00.0" | kind = "memif"⏎path = "/m"⏎role = "master" | 2 | bad_value | `server`
kind = "pci"⏎address = "3b:00.0" | kind = "memif"⏎path = "/m"⏎role = "client"⏎socket_mode = "0660" | 3 | conflict | remove it
kind = "pci"⏎address = "3b:00.0" | kind = "host"⏎interface = "nv-client" | 1 | duplicate | only one port
# The whole
nodes = [[0], [1]] | nodes = [[0], [1], [2], [3], [4]] | 0 | too_many | 4 nodes
threads = 4 | threads = 5 | 0 | too_many | at most 8 threads
queues = 1 | mtu = 1779 | 0 | buffer_size | `buffer_size = 2112` of group edge or `mtu = 1778` of port client
address = "3b:00.0" | address = "3b:00.0"⏎mtu = 1779 | 1 | buffer_size | set `group` of port nic to one with `buffer_size = 2112` or more, or `mtu = 1778`
name = "other" | name = "other"⏎headroom = 1025 | 1 | buffer_size | at most 1024
standby = 1 | standby = 0 | 15 | no_standby | add `standby = 1` to firewall
"#;

#[test]
fn every_error_names_its_line_and_a_remedy() {
    let failures: Vec<String> = cases(CASES)
        .iter()
        .filter_map(|[from, to, below, code, remedy]| {
            let finding = match spoil(from, to, below.parse().unwrap()) {
                Ok(finding) => finding,
                Err(failure) => return Some(failure),
            };
            (!is(&finding, code, remedy) || finding.is_warning()).then(|| finding.render(false))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn ports_may_share_the_socket_of_a_memif_server_with_other_numbers() {
    let port = |name: &str, id: u32| {
        format!(
            "[[port]]\nname = \"{name}\"\nkind = \"memif\"\nrole = \"client\"\npath = \"/m\"\nid = {id}\nforward = {{ normal = true }}\n"
        )
    };
    assert!(findings(&(port("a", 0) + &port("b", 1))).is_empty());
    let found = findings(&(port("a", 1) + &port("b", 1)));
    let [finding] = &found[..] else { panic!("{found:#?}") };
    assert!(is(finding, "duplicate", "only one port can use it"), "{finding}");
}

/// A port with a queue for each name.
fn with_queues(port: &str, names: &[&str]) -> String {
    let queues: Vec<String> = names.iter().map(|name| format!("{{ name = \"{name}\" }}")).collect();
    let qos = format!("qos = {{ bits = 1_000_000, queues = [{}] }}", queues.join(", "));
    format!("[[port]]\nname = \"{port}\"\nkind = \"sink\"\n{qos}\n")
}

#[test]
fn a_queue_that_no_port_has_is_an_error_with_the_rule_and_the_known_queues() {
    let ports = with_queues("a", &["voice", "rest"]) + &with_queues("b", &["rest", "bulk"]);
    let rule = |queue: &str| format!("{ports}[[rule]]\nname = \"calls\"\nqueue = \"{queue}\"\n");
    let queues = |text: &str| host(text).queues().map(|queue| queue.id.0).collect::<Vec<_>>();
    assert_eq!(queues(&rule("bulk")), [0, 1, 1, 2], "queues of one name have one number");
    assert_eq!(host(&rule("bulk")).rules[0].actions.queue.map(|queue| queue.0), Some(2));
    let one = |text: &str| {
        let found = findings(text);
        let [finding] = &found[..] else { panic!("{found:#?}") };
        (finding.kind(), finding.to_string(), finding.remedy().unwrap_or_default().to_owned())
    };
    let (kind, message, remedy) = one(&rule("voise"));
    assert_eq!(
        (kind, message.as_str()),
        (Kind::UnknownName, "rule calls names a queue that no port has: `voise`")
    );
    assert_eq!(
        remedy,
        "did you mean `voice`? the queues of all ports are `bulk`, `rest`, `voice`: name one, or add the queue to the \
         `qos` of a [[port]]"
    );
    let (kind, message, _) = one(&with_queues("a", &["voice", "rest", "voice"]));
    assert_eq!((kind, message.as_str()), (Kind::Duplicate, "port a has two queues with the name `voice`"));
    let (_, message, remedy) = one("[[rule]]\nqueue = \"voice\"\n");
    assert_eq!(message, "this [[rule]] names a queue that no port has: `voice`");
    assert!(remedy.starts_with("the queues of all ports are none: "), "{remedy}");
    // A queue whose name cannot be read may be the one.
    assert_eq!(one(&rule("bulk").replacen("\"bulk\"", "\"b lk\"", 1)).0, Kind::BadName);
}

#[test]
fn a_queue_that_no_egress_port_has_is_a_warning() {
    let ports = with_queues("a", &["voice", "rest"]) + &with_queues("b", &["rest", "bulk"]);
    let rule = |to: &str, queue: &str| format!("{ports}[[rule]]\nto = [{to}]\nqueue = \"{queue}\"\n");
    for fine in [rule("\"a\"", "voice"), rule("\"b\", \"a\"", "voice"), rule("\"b\"", "rest")] {
        assert_eq!(found(&fine), []);
    }
    let text = rule("\"b\"", "voice");
    let [finding] = &findings(&text)[..] else { panic!() };
    assert_eq!((finding.kind(), finding.position().0), (Kind::Unused, line_of(&text, "queue = \"voice\"")));
    assert!(finding.is_warning());
    assert!(is(finding, "unused", "add the queue to the `qos` of port b"), "{}", finding.render(false));
}

#[test]
fn queues_have_at_most_255_names() {
    let port = |n: usize, queues: usize| {
        let names: Vec<String> = (0..queues).map(|queue| format!("q{n}.{queue}")).collect();
        with_queues(&format!("p{n}"), &names.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let full: String = (0..15).map(|n| port(n, 16)).chain([port(15, 15)]).collect();
    assert_eq!(host(&full).queues().last().map(|queue| queue.id.0), Some(254));
    assert_eq!(found(&(full.clone() + &with_queues("again", &["q0.0"]))), []);
    let [(kind, _)] = found(&(full + &with_queues("more", &["one"])))[..] else { panic!() };
    assert_eq!(kind, Kind::TooMany);
}

#[test]
fn what_a_hostile_file_says_reaches_no_terminal() {
    let hostile = ["\u{1b}[2J", "\u{1b}]0;x\u{7}", "\u{9b}2J", "\u{202e}", "\u{200b}", "\u{e0041}"];
    for bad in hostile {
        for text in [
            format!("# {bad}\n[[port]]\nname = \"p\"\nkind = \"sinc\"\n"),
            format!("[[port]]\nname = \"p{bad}\"\nkind = \"sink\"\n"),
            format!("[[port]]\nname = \"p\"\nkind = \"af_xdp\"\ninterface = \"e{bad}\"\n"),
            format!("[[port]]\nname = \"p\"\nkind = \"sink\"\n\"{bad}\" = 1\n"),
            format!("[[rule]]\nfrom = \"{bad}\"\ndrop = true\n"),
            bad.to_owned(),
        ] {
            let error = parse(&format!("{bad}.toml"), &text).unwrap_err();
            for shown in [error.render(false), error.to_string()] {
                assert!(shown.chars().all(|c| netvm_text::is_visible(c) || c == '\n'), "{text:?}: {shown:?}");
            }
            for finding in error.findings() {
                let whole = format!("{}{finding}{:?}", finding.file(), finding.remedy());
                assert!(whole.chars().all(netvm_text::is_visible), "{whole:?}");
            }
        }
    }
    let text = "[[port]]\nname = \"p\u{202e}\"\nkind = \"sink\"\n";
    let [finding] = &findings(text)[..] else { panic!() };
    assert_eq!((finding.kind(), finding.position()), (Kind::BadName, (2, 8)));
    assert!(finding.render(false).contains(r"a name cannot contain '\u{202e}'"), "{}", finding.render(false));
    let text = "[[port]]\nname = \"p\"\nkind = \"af_xdp\"\ninterface = \"e\u{200b}\"\n";
    let [finding] = &findings(text)[..] else { panic!() };
    assert!(finding.remedy().unwrap().contains("ip link set"), "{:?}", finding.remedy());
}
