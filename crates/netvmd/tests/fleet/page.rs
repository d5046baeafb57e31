// SPDX-License-Identifier: Apache-2.0
//! docs/how-to/fleet.md, with its commands.

use std::sync::Arc;

use netvm_fleet::HostState;

use crate::common::Folder;
use crate::common::page::blocks;
use crate::site::{Etcd, Host, has_netvm, shell};

const PAGE: &str = include_str!("../../../../docs/how-to/fleet.md");

#[test]
fn the_page_works_as_it_says() {
    if !has_netvm() {
        return;
    }
    let Some(etcd) = Etcd::start() else { return };
    let folder = Arc::new(Folder::new());
    // Interfaces of other tests have other names.
    let own =
        |text: &str| text.replace("interface = \"edge-", &format!("interface = \"e{}-", std::process::id()));
    let run =
        |commands: &str| shell(&etcd, &folder.0, &commands.replace("http://127.0.0.1:2379", &etcd.url()));
    let good = |commands: &str| {
        let (is_good, output) = run(commands);
        assert!(is_good, "{commands}: {output}");
        output
    };
    let (sh, toml, text) = (blocks(PAGE, "sh"), blocks(PAGE, "toml"), blocks(PAGE, "text"));
    let [make, alike, write, status, change, bad, back, role, release] = &sh[..] else { panic!("{sh:#?}") };
    let [base, edge] = &toml[..] else { panic!("{toml:#?}") };
    let [written, table, waves, stopped] = &text[..] else { panic!("{text:#?}") };
    good(make);
    std::fs::write(folder.0.join("fleet/fragments/base.toml"), base).unwrap();
    std::fs::write(folder.0.join("fleet/hosts/edge-1.toml"), own(edge)).unwrap();
    // The interface's name differs by its number, as the page's does.
    good(
        &alike.replace(
            "s/edge-1/edge-$n/",
            &format!("s/e{}-1/e{}-$n/", std::process::id(), std::process::id()),
        ),
    );
    let output = good(write);
    assert!(output.ends_with(written.as_str()) && output.contains("+ rule no-telnet"), "{output}");
    let names = ["edge-1", "edge-2", "edge-3"];
    let mut hosts: Vec<Host> = names.iter().map(|name| Host::start(name, &etcd.url())).collect();
    for name in names {
        etcd.until(name, "it runs", |status| status.state == HostState::Running);
    }
    // The same columns and states.
    let words = |text: &str| {
        let lines = text.lines().map(|line| line.split_whitespace().take(2).map(str::to_owned).collect());
        lines.collect::<Vec<Vec<String>>>()
    };
    assert_eq!(words(&good(status)), words(table));
    let without_revisions = |text: &str| {
        let lines = text.lines().map(|line| line.split(" revision ").next().unwrap().to_owned());
        let mut lines: Vec<String> = lines.skip_while(|line| !line.starts_with("wave 1")).collect();
        lines.iter_mut().for_each(|line| *line = line.trim().to_owned());
        // Hosts of a wave are healthy in any order.
        lines.sort();
        lines
    };
    assert_eq!(without_revisions(&good(change)), without_revisions(waves));
    let (is_good, output) = run(bad);
    assert!(!is_good && output.ends_with(stopped.as_str()), "{output}");
    good(back);
    for name in names {
        let is_back = |status: &netvm_fleet::HostStatus| {
            status.state == HostState::Running && status.wanted == status.running
        };
        etcd.until(name, "it is back", is_back);
    }
    good(role);
    let third = hosts.pop().unwrap();
    drop(third);
    etcd.until_gone("edge-3");
    assert_eq!(good(release), "the next machine that starts netvmd as edge-3 gets the name\n");
}
