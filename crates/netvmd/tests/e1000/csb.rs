// SPDX-License-Identifier: Apache-2.0
//! A guest with the changed e1000 driver (tools/guest/e1000): a communication status block and send combining save
//! writes to registers, which the driver counts as kicks.

use std::path::Path;

use super::common::guest::{Image, Shell};
use super::common::hosts::{Host, are_possible};
use super::common::{ADAPTIVE, Daemon, engine};
use super::machine::{Boot, Guest};
use super::{files_go_both_ways, next_netvmd};

/// Pings of a flood.
const PINGS: u64 = 200;

/// Replaces the driver with the changed one.
fn load(shell: &mut Shell, parameters: &str) {
    shell.must(&format!("rmmod e1000; insmod /modules/e1000-csb.ko {parameters}"));
    shell.address(2);
    shell.until("ping -c 1 -W 2 10.9.0.1");
}

/// Writes of the driver to TDT and RDT so far.
fn kicks(shell: &mut Shell) -> [u64; 2] {
    let output = shell.must("ethtool -S eth0");
    ["tx_kicks: ", "rx_kicks: "].map(|name| {
        let line = output.lines().find_map(|line| line.trim().strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name}in {output}")).trim().parse().unwrap()
    })
}

/// Pings, each at the answer to the last one; returns the kicks meanwhile.
fn flood(shell: &mut Shell) -> [u64; 2] {
    let before = kicks(shell);
    shell.must(&format!("ping -q -A -c {PINGS} 10.9.0.1"));
    let after = kicks(shell);
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
fn a_changed_driver_announces_packets_in_memory() {
    if !are_possible() {
        return;
    }
    let Some(qemu) = netvm_vm::find_vfio_user_client(Path::new(netvm_vm::QEMU)) else {
        println!("SKIP: no QEMU with a vfio-user client (10.1 or later): ./dev setup --guests unpacks one");
        return;
    };
    let Some(image) = Image::with_e1000(vec!["--e1000-csb".to_owned()]) else { return };
    let host = Host::bare("c");
    let card = image.folder.0.join("card.sock");
    let engine = engine(ADAPTIVE);
    let text = format!(
        r#"
        {engine}

        [[port]]
        name = "guest"
        kind = "e1000"
        path = "{}"
        forward = {{ normal = true }}

        [[port]]
        name = "host"
        kind = "container"
        namespace = "{}"
        addresses = ["10.9.0.1/24", "fd00:9::1/64"]
        forward = {{ normal = true }}
        "#,
        card.display(),
        host.namespace()
    );
    let mut daemon = Daemon::start(&text);
    let mut guest = Guest::start(&qemu, &image.folder.0, &[card], Boot::Kernel);
    let mut shell = guest.shell(&daemon);
    // The kernel's own driver works with the card as before.
    shell.must("[ $(cat /sys/class/net/eth0/device/subsystem_device) = 0x1101 ]");
    shell.until("ping -c 1 -W 2 10.9.0.1");

    // Without a block, the changed driver works like the other.
    load(&mut shell, "csb=0");
    let [sent, _] = flood(&mut shell);
    assert!(sent >= PINGS, "{sent} kicks for {PINGS} packets");

    load(&mut shell, "csb=0 send_combining=1");
    flood(&mut shell);
    assert!(host.pings("10.9.0.2") && host.pings("fd00:9::2"));
    files_go_both_ways(&host, &mut shell, &image.folder);

    load(&mut shell, "");
    let before = kicks(&mut shell);
    assert_eq!(flood(&mut shell), [0, 0], "the card needs no kicks");
    assert!(host.pings("10.9.0.2") && host.pings("fd00:9::2"));
    files_go_both_ways(&host, &mut shell, &image.folder);
    assert_eq!(kicks(&mut shell), before);
    // Down and up: the block is given up, and taken again.
    shell.must("ip link set eth0 down; ip link set eth0 up");
    shell.until("ping -c 1 -W 2 10.9.0.1");
    assert_eq!(flood(&mut shell), [0, 0]);
    // The next netvmd goes on with the block of the one that was killed.
    let before = kicks(&mut shell);
    daemon = next_netvmd(daemon, &text, &host, &mut shell);
    assert_eq!(kicks(&mut shell), before);

    // A reset of the machine ends the use of the block, and so does a driver without support for it.
    shell.must("ping -q -A 10.9.0.1 >/dev/null & (sleep 1; reboot -f) & true");
    drop(shell);
    // Until it resets: its card's link stays up, and the console says nothing without a reader.
    std::thread::sleep(std::time::Duration::from_secs(3));
    let mut shell = guest.shell(&daemon);
    shell.until("ping -c 1 -W 2 10.9.0.1");
    load(&mut shell, "");
    shell.must("rmmod e1000; insmod /modules/e1000.ko");
    shell.address(2);
    shell.until("ping -c 1 -W 2 10.9.0.1");
    shell.must("ping -c 3 -s 1400 10.9.0.1");
}
