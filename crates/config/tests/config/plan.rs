// SPDX-License-Identifier: Apache-2.0
//! What plans say, word for word.

use netvm_config::plan;
use netvm_model::{Host, assign_ids};

use crate::{edited, host, planned};

const OLD: &str = r#"
[[group]]
name = "edge"

[[group]]
name = "guest"

[[port]]
name = "client"
kind = "source"

[[port]]
name = "server"
kind = "sink"

[[nf]]
role = "firewall"
group = "edge"
command = ["netvm-firewall", "--rules", "fw.rules"]

[[nf]]
role = "router"
group = "edge"
command = ["netvm-l3-forward"]
replicas = 2

[[nf]]
role = "probe"
group = "guest"

[[chain]]
name = "web"
hops = ["firewall", "router"]
output = "server"

[[rule]]
from = "client"
match = { protocol = "tcp", destination_ports = 80 }
chain = "web"

[[rule]]
from = "client"
drop = true
"#;

/// The plan after each `from` became its `to`.
fn changed(edits: &[(&str, &str)]) -> String {
    planned(OLD, &edits.iter().fold(OLD.to_owned(), |text, (from, to)| edited(&text, from, to)))
}

#[test]
fn an_empty_plan_says_so() {
    assert_eq!(changed(&[]), "nothing changes\n");
}

#[test]
fn chains_and_rules_change_live() {
    assert_eq!(
        changed(&[(
            "hops = [\"firewall\", \"router\"]\noutput = \"server\"",
            "hops = [\"firewall\"]\non_failure = \"bypass\""
        )]),
        "~ chain web: hops firewall,router → firewall; on_failure drop → bypass; output server → unset\n\
         no traffic is disturbed\n"
    );
    assert_eq!(
        changed(&[
            ("destination_ports = 80 }", "destination_ports = \"80-81\" }"),
            (
                "[[rule]]\nfrom = \"client\"\ndrop = true\n",
                "[[chain]]\nname = \"rest\"\nhops = [\"probe\"]\noutput = \"ingress\"\n[[rule]]\nfrom = \"client\"\nchain = \"rest\"\n"
            ),
        ]),
        "~ port client: packets land in the engine's own memory instead of group edge\n    \
         port client stays open (packets land in the engine's own memory instead of group edge)\n\
         + chain rest: probe → ingress\n\
         - rule: from client protocol=tcp destination_ports=80 → chain web\n\
         - rule: from client everything → drop\n\
         + rule: from client protocol=tcp destination_ports=80-81 → chain web\n\
         + rule: from client everything → chain rest\n\
         no traffic is disturbed\n"
    );
    let rule = "[[rule]]\nfrom = \"client\"\ndrop = true\n";
    let first = "[[rule]]\nfrom = \"client\"\nmatch";
    assert_eq!(
        changed(&[(rule, ""), (first, &format!("{rule}{first}"))]),
        "~ policy: the order of the rules\nno traffic is disturbed\n"
    );
}

#[test]
fn named_rules_change_and_others_are_replaced() {
    let named = "[[rule]]\nname = \"web\"\nfrom = \"client\"\nmatch";
    let first = "[[rule]]\nfrom = \"client\"\nmatch";
    assert_eq!(changed(&[(first, named)]).lines().count(), 3, "a name makes another rule of it");
    let old = host(&OLD.replace(first, named));
    let new = |from: &str, to: &str| host(&OLD.replace(first, named).replace(from, to));
    assert_eq!(
        plan(&old, &new("destination_ports = 80", "destination_ports = [80, 443]")).to_string(),
        "~ rule web: match protocol=tcp destination_ports=80 → protocol=tcp destination_ports=[80,443]\n\
         no traffic is disturbed\n"
    );
    let edited =
        new("chain = \"web\"", "set_vlan = 5\npolice = { packets = 10 }\nmirror = \"server\"\nreject = true");
    assert_eq!(
        plan(&old, &edited).to_string(),
        "~ port client: packets land in the engine's own memory instead of group edge\n    \
         port client stays open (packets land in the engine's own memory instead of group edge)\n\
         ~ rule web: set_vlan unset → 5; mirror unset → server; police unset → packets=10 packet_burst=64; \
         reject unset → true; chain web → unset\n\
         no traffic is disturbed\n"
    );
    // The order of equal rules does not matter.
    let twice = |order: [&str; 3]| host(&format!("{OLD}{}", order.concat()));
    let (count, drop) = ("[[rule]]\ncount = true\n", "[[rule]]\nto = \"server\"\ndrop = true\n");
    assert!(plan(&twice([count, drop, count]), &twice([count, drop, count])).is_empty());
    assert_eq!(
        plan(&twice([count, drop, count]), &twice([count, count, drop])).to_string(),
        "~ policy: the order of the rules\nno traffic is disturbed\n"
    );
    assert_eq!(
        plan(&twice([count, drop, count]), &twice([count, drop, ""])).to_string(),
        "- rule: everything → count\nno traffic is disturbed\n"
    );
}

#[test]
fn the_keys_of_a_port_about_packets_change_live() {
    let device = "name = \"client\"\nkind = \"source\"";
    let policy = "acl_in = \"deny\"\nforward = { normal = true }\nvlan = { access = 7 }\nguard = { macs = \"02:00:00:00:00:01\" }";
    assert_eq!(
        changed(&[(device, &format!("{device}\n{policy}"))]),
        "~ port client: forward unset → normal=true; acl_in allow → deny; vlan unset → access=7; \
         guard unset → macs=02:00:00:00:00:01\n\
         no traffic is disturbed\n"
    );
    // The reason for reopening names only the keys of the device.
    assert_eq!(
        changed(&[(device, &format!("{device}\nqueues = 2\nmac_limit = 1"))]),
        "~ port client: queues 1 → 2; mac_limit 4096 → 1\n    port client is reopened (queues 1 → 2)\n"
    );
    assert_eq!(
        changed(&[(device, &format!("{device}\nworker = 0"))]),
        "~ port client: worker unset → 0\n    port client is reopened (worker unset → 0)\n"
    );
    assert_eq!(changed(&[(device, &format!("{device}\nworker = \"auto\""))]), "nothing changes\n");
    // `forward` leads into another group.
    let chain = "[[rule]]\nfrom = \"client\"\nmatch = { protocol = \"tcp\", destination_ports = 80 }\nchain = \"web\"\n";
    assert_eq!(
        changed(&[(chain, ""), (device, &format!("{device}\nforward = {{ chain = \"web\" }}"))]),
        "~ port client: forward unset → chain=web\n\
         - rule: from client protocol=tcp destination_ports=80 → chain web\n\
         no traffic is disturbed\n"
    );
    let other = "[[chain]]\nname = \"other\"\nhops = [\"probe\"]\n";
    assert_eq!(
        changed(&[(chain, other), (device, &format!("{device}\nforward = {{ chain = \"other\" }}"))]),
        "~ port client: forward unset → chain=other\n    \
         port client stays open (packets land in group guest instead of group edge)\n\
         + chain other: probe\n\
         - rule: from client protocol=tcp destination_ports=80 → chain web\n\
         no traffic is disturbed\n"
    );
}

#[test]
fn only_the_size_of_the_mac_table_needs_a_restart() {
    let change = |text: &str| plan(&host(OLD), &host(&format!("{text}\n{OLD}"))).to_string();
    assert_eq!(
        change("[switch]\nmac_age = 10\n[policy]\nmemory = 512"),
        "~ switch: mac_age 300 → 10\n~ policy: memory 256 → 512\nno traffic is disturbed\n"
    );
    assert_eq!(
        change("[switch]\nmacs = 1024"),
        "~ switch: macs 32768 → 1024\n    netvmd must be restarted (switch: macs 32768 → 1024)\n"
    );
}

#[test]
fn an_nf_restarts_only_for_what_a_process_cannot_change() {
    assert_eq!(
        changed(&[("\"fw.rules\"]", "\"new.rules\"]\nuser = \"fw\"")]),
        "~ nf firewall: command netvm-firewall --rules fw.rules → netvm-firewall --rules new.rules; user nobody → fw\n    \
         restarts NF firewall (command netvm-firewall --rules fw.rules → netvm-firewall --rules new.rules; user nobody → fw)\n"
    );
    assert_eq!(
        changed(&[("replicas = 2", "replicas = 3\nstandby = 1\nbalance = \"flow-hash\"")]),
        "~ nf router: replicas 2 → 3; standby 0 → 1; balance least-occupied → flow-hash\n    \
         starts 2 replicas of NF router\n"
    );
    assert_eq!(
        changed(&[("replicas = 2", "")]),
        "~ nf router: replicas 2 → 1\n    stops a replica of NF router\n"
    );
    assert_eq!(
        changed(&[("role = \"probe\"", "role = \"probe\"\nattach_users = [\"root\"]")]),
        "~ nf probe: attach_users none → root\nno traffic is disturbed\n"
    );
    assert_eq!(
        changed(&[(
            "role = \"probe\"\ngroup = \"guest\"",
            "role = \"probe\"\ngroup = \"guest\"\ncommand = [\"probe\"]"
        )]),
        "~ nf probe: attaches by itself → probe\n    stops NF probe\n    starts NF probe\n"
    );
}

#[test]
fn items_come_and_go() {
    assert_eq!(
        changed(&[
            (
                "[[nf]]\nrole = \"probe\"\ngroup = \"guest\"\n",
                "[[nf]]\nrole = \"scan\"\ngroup = \"new\"\ncommand = [\"scan\", \"-v\"]\nreplicas = 2\n[[nf]]\nrole = \"self\"\ngroup = \"new\"\n"
            ),
            ("name = \"guest\"", "name = \"new\"\nbuffer_size = 4096"),
            ("name = \"server\"\nkind = \"sink\"", "name = \"out\"\nkind = \"tap\"\ninterface = \"tap7\""),
            ("output = \"server\"", "output = \"out\""),
        ]),
        "- group guest: 16384 buffers of 2048 bytes\n\
         + group new: 16384 buffers of 4096 bytes\n\
         - port server: sink\n    closes port server\n\
         + port out: tap tap7\n    opens port out\n\
         - nf probe: attaches by itself\n    stops NF probe\n\
         + nf scan: scan -v\n    starts 2 replicas of NF scan\n\
         + nf self: attaches by itself\n    waits for NF self to attach\n\
         ~ chain web: output server → out\n"
    );
}

#[test]
fn memory_needs_a_restart_and_ports_reopen() {
    assert_eq!(
        changed(&[("name = \"edge\"", "name = \"edge\"\nbuffers = 1000\nmay_send_to = [\"server\"]")]),
        "~ group edge: buffers 16384 → 1000; may_send_to unset → server\n    \
         netvmd must be restarted (memory of group edge: buffers 16384 → 1000)\n"
    );
    assert_eq!(
        changed(&[("name = \"edge\"", "name = \"edge\"\nmay_send_to = []")]),
        "~ group edge: may_send_to unset → none\nno traffic is disturbed\n"
    );
    assert_eq!(
        changed(&[("kind = \"source\"", "kind = \"source\"\nqueues = 2")]),
        "~ port client: queues 1 → 2\n    port client is reopened (queues 1 → 2)\n"
    );
    // The first chain of a port decides where its packets land.
    assert_eq!(
        changed(&[("hops = [\"firewall\", \"router\"]", "hops = [\"probe\"]")]),
        "~ port client: packets land in group guest instead of group edge\n    \
         port client stays open (packets land in group guest instead of group edge)\n\
         ~ chain web: hops firewall,router → probe\n\
         no traffic is disturbed\n"
    );
    // `group` says so, too. Devices that have the memory registered are opened again.
    for (kind, effect) in [("source", "stays open"), ("null", "is reopened")] {
        let old = OLD.replacen("kind = \"source\"", &format!("kind = \"{kind}\""), 1);
        let new = old.replacen("name = \"client\"", "name = \"client\"\ngroup = \"guest\"", 1);
        let shown = plan(&host(&old), &host(&new)).to_string();
        assert!(shown.contains(&format!("port client {effect} (packets land in group guest")), "{shown}");
    }
}

#[test]
fn workers_follow_their_cores_without_a_restart() {
    let on = |cores: &str| host(&format!("[engine]\n{cores}\n{OLD}"));
    let shown = |before: &str, after: &str| plan(&on(before), &on(after)).to_string();
    for (before, after, expected) in [
        ("cores = [0]", "cores = [0, 1, 2]", "    adds worker 1 on core 1\n    adds worker 2 on core 2\n"),
        ("cores = [0, 1]", "cores = [0]", "    removes worker 1 from core 1\n"),
        ("cores = [0, 1]", "cores = [0, 2]", "    moves worker 1 from core 1 to core 2\n"),
        (
            "cores = [0, 1]",
            "cores = [1]",
            "    removes worker 1 from core 1\n    moves worker 0 from core 0 to core 1\n",
        ),
        // Which core a worker without `cores` has, only netvmd knows.
        ("", "cores = [3, 1]", "    adds worker 1 on core 1\n"),
        ("cores = [0, 1]", "", "    removes worker 1 from core 1\n"),
        ("", "cores = [0]", ""),
    ] {
        let text = shown(before, after);
        let (first, rest) = text.split_once('\n').unwrap();
        assert!(first.starts_with("~ engine: cores "), "{text}");
        assert_eq!(rest, format!("{expected}no traffic is disturbed\n"), "{before} → {after}");
        assert!(!plan(&on(before), &on(after)).needs_restart());
    }
    let more = plan(&on("cores = [0]"), &on("cores = [0, 1]\nring_size = 2048"));
    assert!(more.needs_restart(), "{more}");
}

#[test]
fn the_engine_needs_a_restart_for_all_but_cores() {
    let (old, new) = (host(OLD), host(&format!("[engine]\ncores = [1]\nidle = \"poll\"\n{OLD}")));
    let plan = plan(&old, &new);
    assert!(plan.needs_restart());
    assert_eq!(
        plan.to_string(),
        "~ engine: cores none → 1; idle adaptive → poll\n    netvmd must be restarted (engine: cores none → 1; idle adaptive → poll)\n"
    );
}

#[test]
fn a_queue_keeps_its_number_while_a_port_has_it() {
    let port = |name: &str, queues: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\nkind = \"sink\"\nqos = {{ bits = 1_000_000, queues = [{queues}] }}\n"
        )
    };
    let rule = "[[rule]]\nqueue = \"voice\"\n";
    let (voice, rest) = ("{ name = \"voice\" }", "{ name = \"rest\" }");
    let old = host(&format!("{}{rule}", port("a", &format!("{rest}, {voice}"))));
    let mut new = host(&format!("{}{rule}", port("b", voice) + &port("a", &format!("{voice}, {rest}"))));
    let number = |host: &Host| host.rules[0].actions.queue;
    assert_ne!(number(&old), number(&new));
    assign_ids(&mut new, Some(&old));
    assert_eq!(number(&old), number(&new));
    assert_eq!(new.rules[0].named(&new).to_string(), "any → queue voice, continue");
    assert!(netvm_config::to_toml(&new).contains("queue = \"voice\""));
    let none = host("");
    assert!(plan(&none, &old).to_string().contains("everything → queue voice"), "{}", plan(&none, &old));
}

#[test]
fn a_port_whose_rules_lead_to_two_groups_lands_in_neither() {
    let guest = "\n[[chain]]\nname = \"probed\"\nhops = [\"probe\"]\noutput = \"server\"\n\
                 [[rule]]\nfrom = \"client\"\nmatch = { protocol = \"udp\" }\nchain = \"probed\"\n";
    let moved = "port client stays open (packets land in the engine's own memory instead of group edge)";
    let plan_of = |before: &str, after: &str| plan(&host(before), &host(after)).to_string();
    let two = format!("{OLD}{guest}");
    assert!(plan_of(OLD, &two).contains(moved), "{}", plan_of(OLD, &two));
    let back = plan_of(&two, OLD);
    assert!(back.contains("(packets land in group edge instead of the engine's own memory)"), "{back}");
    // Also behind a patch link, by whatever way leads there.
    let patch = "\n[[port]]\nname = \"near\"\nkind = \"patch\"\npeer = \"far\"\n\
                 [[port]]\nname = \"far\"\nkind = \"patch\"\npeer = \"near\"\nforward = { chain = \"probed\" }\n";
    let chain = &guest[..guest.find("[[rule]]").unwrap()];
    for actions in ["out = \"near\"", "drop = true\nmirror = \"near\""] {
        let rule = format!("[[rule]]\nfrom = \"client\"\nmatch = {{ protocol = \"udp\" }}\n{actions}\n");
        let after = format!("{OLD}{chain}{patch}{rule}");
        assert!(plan_of(OLD, &after).contains(moved), "{actions}: {}", plan_of(OLD, &after));
    }
    let apart = format!("{OLD}{chain}{patch}");
    assert!(!plan_of(OLD, &apart).contains("port client stays open"), "{}", plan_of(OLD, &apart));
}

#[test]
fn a_plan_shows_no_secret() {
    let memif = |secret: &str| {
        format!(
            "[[port]]\nname = \"m\"\nkind = \"memif\"\npath = \"/m\"\n{secret}\nforward = {{ normal = true }}\n"
        )
    };
    let text = planned(&memif("secret = \"first-word\""), &memif("secret = \"other-word\""));
    assert!(text.contains("secret *** → ***") && !text.contains("-word"), "{text}");
    assert!(planned(&memif(""), &memif("secret = \"other-word\"")).contains("secret unset → ***"));
}
