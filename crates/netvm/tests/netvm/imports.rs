// SPDX-License-Identifier: Apache-2.0
//! `netvm policy import`: what it prints, and when it refuses.

use crate::common::{file, folder, netvm};

#[test]
fn an_import_that_changes_what_passes_fails() {
    let folder = folder();
    let import = |options: &[&str], format: &str, text: &str| {
        let file = file(&folder, format, text);
        netvm(&[&["policy", "import", "--format", format, &file], options].concat())
    };
    let table = |rules: &str| {
        format!("*filter\n:FORWARD ACCEPT [0:0]\n{rules}-A FORWARD -s 10.0.0.1 -j DROP\nCOMMIT\n")
    };
    // Without a rule that accepts, less passes.
    let owner = |id: u32, target: &str| format!("-A FORWARD -m owner --uid-owner {id} -j {target}\n");
    let stricter = table(&owner(7, "ACCEPT"));
    let run = import(&[], "iptables", &stricter);
    assert_eq!(run.out, "", "no rules");
    let error = run.failed(1);
    assert!(
        error.contains("iptables: stricter: line 3: -m owner --uid-owner 7: netvm has no such match")
            && error.contains("With --stricter, netvm leaves it out"),
        "{error}"
    );
    let run = import(&["--stricter"], "iptables", &stricter);
    assert!(run.err.contains("stricter: line 3: -m owner"), "{}", run.err);
    assert!(run.good().contains("10.0.0.1"));
    let run = import(&["--stricter"], "iptables", &table(&(owner(7, "ACCEPT") + &owner(8, "DROP"))));
    assert_eq!(run.out, "", "no rules");
    let error = run.failed(1);
    assert!(
        error.contains("error: line 4: -m owner --uid-owner 8: netvm has no such match")
            && error.contains("without the line marked `error` above, the rules would pass packets"),
        "{error}"
    );
    // Interfaces without a port.
    let text = table("-A FORWARD -i lan -j ACCEPT\n");
    let error = import(&["--stricter"], "iptables", &text).failed(1);
    assert!(error.contains("error: line 3: -i lan: no --interface gives the port"), "{error}");
    assert!(!import(&["--ignore-other-interfaces"], "iptables", &text).good().contains("lan"));
    assert!(import(&["--interface", "lan"], "iptables", &text).good().contains("from = \"lan\""));

    // States of connections.
    let states = table("-A FORWARD -i lan -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n");
    let raw = "*raw\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -i lan -j CT --zone 5\nCOMMIT\n";
    let printed =
        import(&["--interface", "lan", "--interface", "eth1=wan"], "iptables", &(raw.to_owned() + &states));
    let printed = printed.good();
    assert!(
        printed.contains(
            "# The rules match the state of connections. They need `track = true` of port lan, wan.\n"
        ),
        "{printed}"
    );
    assert!(printed.contains("# Port lan needs `zone = 5`.\n"), "{printed}");
    assert!(printed.contains("state = [\"established\", \"related\"]"), "{printed}");

    let place = r#""family": "ip", "table": "t""#;
    let nft = format!(
        r#"{{"nftables": [{{"table": {{"family": "ip", "name": "t"}}}},
        {{"chain": {{{place}, "name": "f", "type": "filter", "hook": "forward", "prio": 0, "policy": "accept"}}}},
        {{"rule": {{{place}, "chain": "f", "handle": 9, "expr": [{{"quota": {{"val": 1}}}}, {{"drop": null}}]}}}}]}}"#
    );
    let error = import(&["--stricter"], "nft", &nft).failed(1);
    assert!(
        error.contains("error: line 3: rule 9 of chain ip t f: quota: netvm has no such match"),
        "{error}"
    );
}
