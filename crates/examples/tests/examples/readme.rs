// SPDX-License-Identifier: Apache-2.0
//! The commands of the README and of the tutorials, in their order; those that build are for `./dev check-release`.

use std::process::Command;

use crate::{have, programs, root, text};

#[test]
fn commands_of_the_readme_and_the_tutorials_work_in_their_order() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: not root, so no network namespaces");
        return;
    }
    let nfs = [
        "netvm-firewall",
        "netvm-payload-scan",
        "netvm-load-balancer",
        "netvm-monitor",
        "netvm-simple-forward",
    ];
    if !have(&[&["netvm", "netvmd", "busybox", "unshare", "python3"][..], &nfs].concat()) {
        return;
    }
    let mut command = Command::new("python3");
    command.arg("-B").arg(root().join("tools/test/readme.py")).arg(root()).arg("--programs").arg(programs());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    println!("{}", text(&output));
}
