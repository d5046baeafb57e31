// SPDX-License-Identifier: Apache-2.0
//! Idioms of real files: imported, or refused.

use netvm_policy::Action;
use netvm_policy_import::Effect;
use netvm_policy_import::iptables::parse;

use super::interfaces;

/// Idioms of real files, and what they are.
#[test]
fn idioms_are_imported_or_refused() {
    let effect = |policy: &str, rules: &[&str]| {
        let lines = rules.join("\n");
        let text = format!("*filter\n:FORWARD {policy} [0:0]\n:WEB - [0:0]\n{lines}\nCOMMIT\n");
        parse(&text, None, &interfaces()).unwrap().effect()
    };
    let state = "-m conntrack --ctstate RELATED,ESTABLISHED";
    let status = "-m conntrack --ctstatus ASSURED";
    let (web, set) = ("-A FORWARD -p tcp -j WEB", "-m set --match-set bad src");
    let (accept, deny) =
        ("-A WEB -p tcp -m tcp --dport 443 -j ACCEPT", "-A WEB -p tcp -m tcp --dport 22 -j DROP");
    // Return traffic.
    assert_eq!(effect("DROP", &[&format!("-A FORWARD {state} -j ACCEPT")]), Effect::Same);
    assert_eq!(effect("DROP", &[&format!("-A FORWARD {status} -j ACCEPT")]), Effect::Stricter);
    assert_eq!(effect("ACCEPT", &[&format!("-A FORWARD {status} -j ACCEPT")]), Effect::Same);
    assert_eq!(effect("DROP", &[&format!("-A FORWARD {status} -j DROP")]), Effect::Same);
    let drop = format!("-A FORWARD {status} -j DROP");
    assert_eq!(effect("DROP", &[&drop, "-A FORWARD -p tcp -j ACCEPT"]), Effect::Wider);
    // A lost return widens what passes if the chain accepts, and only drops more if it drops.
    let lost = format!("-A WEB {set} -j RETURN");
    assert_eq!(effect("DROP", &[web, &lost, accept]), Effect::Wider);
    assert_eq!(effect("ACCEPT", &[web, &lost, deny]), Effect::Stricter);
    assert_eq!(effect("DROP", &[web, accept, &lost]), Effect::Same);
    assert_eq!(
        effect("DROP", &[&format!("-A FORWARD {set} -j RETURN"), "-A FORWARD -p tcp -j ACCEPT"]),
        Effect::Wider
    );
    // Another program decides.
    assert_eq!(effect("ACCEPT", &["-A FORWARD -i eth0 -j NFQUEUE --queue-num 0"]), Effect::Wider);
    assert_eq!(effect("ACCEPT", &["-A FORWARD -j MARK --set-xmark 0x1/0xffffffff"]), Effect::Same);
    // Interfaces without a port.
    assert_eq!(effect("DROP", &["-A FORWARD -i wan -j ACCEPT"]), Effect::Wider);
    // Limits: the packets beyond are dropped, by the rest of the chain.
    let limit = "-m limit --limit 10/sec";
    assert_eq!(
        effect("ACCEPT", &[web, &format!("-A WEB {limit} -j RETURN"), "-A WEB -j DROP"]),
        Effect::Same
    );
    assert_eq!(effect("ACCEPT", &[web, &format!("-A WEB {limit} -j RETURN"), deny]), Effect::Stricter);
    assert_eq!(
        effect("ACCEPT", &[&format!("-A FORWARD {limit} -j RETURN"), "-A FORWARD -j DROP"]),
        Effect::Same
    );
    assert_eq!(
        effect("DROP", &[&format!("-A FORWARD {limit} -j REJECT"), "-A FORWARD -j DROP"]),
        Effect::Same
    );
    assert_eq!(effect("ACCEPT", &[&format!("-A FORWARD {limit} -j DROP")]), Effect::Wider);
    // Several rules, each with the whole limit, pass more.
    let two = "-A FORWARD -p tcp -m multiport --ports 1,2 -m limit --limit 10/sec -j ACCEPT";
    assert_eq!(effect("DROP", &[two]), Effect::Wider);
}

#[test]
fn the_return_idiom_of_a_limit_polices() {
    let text = "*filter\n:FORWARD ACCEPT [0:0]\n:SYN - [0:0]\n-A FORWARD -p tcp -m tcp --syn -j SYN\n\
                -A SYN -m limit --limit 10/sec --limit-burst 20 -j RETURN\n-A SYN -j DROP\nCOMMIT\n";
    let imported = parse(text, None, &interfaces()).unwrap();
    let actions: Vec<_> =
        imported.rules.iter().map(|rule| (rule.line, rule.actions.police, rule.actions.terminal)).collect();
    let police =
        netvm_policy::Police { packets: Some(netvm_policy::Rate { per_second: 10, burst: 20 }), bits: None };
    assert_eq!(actions, [(5, Some(police), None), (2, None, Some(Action::Allow))], "{:?}", imported.notes);
}

#[test]
fn other_tables_that_decide_are_named() {
    let text = |table: &str| format!("*{table}\nCOMMIT\n*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n");
    let effect = |rules: &str| {
        let imported = parse(&text(rules), None, &interfaces()).unwrap();
        (imported.effect(), imported.notes.first().map(ToString::to_string).unwrap_or_default())
    };
    let raw = "raw\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n";
    let (found, note) = effect(&format!("{raw}-A PREROUTING -s 192.0.2.1/32 -j DROP"));
    assert_eq!(found, Effect::Wider);
    assert!(
        note.starts_with("line 4: table raw: -A PREROUTING -s 192.0.2.1/32 -j DROP: netvm has no"),
        "{note}"
    );
    assert!(note.contains("iptables-save -t filter"), "{note}");
    assert_eq!(effect(&format!("{raw}-A OUTPUT -j DROP\n-A PREROUTING -j NOTRACK")).0, Effect::Same);
    assert_eq!(effect("mangle\n:FORWARD DROP [0:0]").0, Effect::Wider);
    let nat = "nat\n:PREROUTING ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n:DOCKER - [0:0]\n-A PREROUTING -j DOCKER\n";
    assert_eq!(effect(&format!("{nat}-A POSTROUTING -s 172.17.0.0/16 -j MASQUERADE")).0, Effect::Same);
    assert_eq!(effect(&format!("{nat}-A DOCKER -p tcp --dport 80 -j DNAT --to 172.17.0.2")).0, Effect::Same);
    assert_eq!(effect(&format!("{nat}-A DOCKER -p tcp --dport 80 -j DNAT --to :81")).0, Effect::Wider);
}
