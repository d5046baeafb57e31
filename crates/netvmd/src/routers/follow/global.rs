// SPDX-License-Identifier: Apache-2.0
//! The settings of all interfaces of a namespace, `net.ipv4.conf.all` and `net.ipv6.conf.all`: only some have events.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::routers::rib::{Global, SettingsV4};

/// In `/proc/sys/net`, in the order in which [`GlobalFiles::read`] uses them.
const NAMES: [&str; 6] = [
    "ipv4/conf/all/rp_filter",
    "ipv4/conf/all/accept_local",
    "ipv4/conf/all/log_martians",
    "ipv4/conf/all/route_localnet",
    "ipv4/conf/all/ignore_routes_with_linkdown",
    "ipv6/conf/all/forwarding",
];

/// The files of a namespace. An open file stays that of the namespace in which it was opened.
#[derive(Debug)]
pub struct GlobalFiles([Option<File>; NAMES.len()]);

impl GlobalFiles {
    /// Opens the files in the calling thread's namespace, as far as this kernel has them.
    pub fn open() -> Self {
        Self(NAMES.map(|name| File::open(format!("/proc/sys/net/{name}")).ok()))
    }

    /// Reads all of them: a system call each.
    pub fn read(&self) -> Global {
        let [rp_filter, accept_local, log_martians, route_localnet, ignore_linkdown, forwarding] =
            self.0.each_ref().map(|file| file.as_ref().map_or(0, number));
        Global {
            v4: SettingsV4 {
                forwards: true,
                rp_filter,
                accepts_local: accept_local != 0,
                logs_martians: log_martians != 0,
                routes_localnet: route_localnet != 0,
                ignores_linkdown: ignore_linkdown != 0,
            },
            forwards_v6: forwarding != 0,
        }
    }
}

fn number(file: &File) -> u8 {
    let mut text = [0; 16];
    let length = file.read_at(&mut text, 0).unwrap_or_default();
    let text = text.get(..length).and_then(|text| std::str::from_utf8(text).ok());
    text.and_then(|text| text.trim().parse().ok()).unwrap_or_default()
}
