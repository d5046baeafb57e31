// SPDX-License-Identifier: Apache-2.0
//! A chain whose NF runs in a VM, as this test binary.

use super::guest::Image;
use super::{Daemon, ENGINE, PROGRAM, forwarding_chain};

/// The configuration of chain `a` and VM `box`, with further keys.
pub fn config(image: &Image, notify: &str) -> String {
    config_with(image, notify, "forward")
}

/// The same, with another NF in the VM.
pub fn config_with(image: &Image, notify: &str, nf: &str) -> String {
    let folder = image.folder.0.display();
    let forwarding_chain = forwarding_chain("a", "").replace("rate = 5000", "rate = 500");
    format!(
        r#"{ENGINE}{forwarding_chain}
        [[vm]]
        name = "box"
        role = "a-nf"
        notify = "{notify}"
        kernel = "{folder}/kernel"
        initrd = "{folder}/initrd"
        append = "quiet panic=-1 {PROGRAM}={nf}"
        memory = 160
        accel = "tcg"
        "#
    )
}

pub fn no_buffer_is_out(daemon: &Daemon) {
    daemon.until_slowly("every buffer is free", |daemon| {
        let region = daemon.stats().groups.remove(0).regions.remove(0);
        region.in_nfs == 0 && region.free + region.in_engine == region.buffers
    });
}

pub fn until_flowing(daemon: &Daemon) {
    let before = daemon.left("a");
    daemon.until_slowly("packets leave the chain", |daemon| daemon.left("a") > before);
}
