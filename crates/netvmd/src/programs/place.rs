// SPDX-License-Identifier: Apache-2.0
//! Where a program with two ports runs: a network namespace of its own, whose interfaces `left` and `right` lead to
//! netvm. In: the configuration of an instance. Out: the namespace, until it is removed.
//!
//! The interfaces have one queue, no IPv6 and no addresses, so the kernel sends nothing by them. A record in the run
//! directory says which namespaces are netvm's: what a killed netvmd has left is made again, and that of somebody else
//! is never touched.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use netlink_packet_route::link::{LinkFlags, LinkMessage};
use netvm_model::{PairConfig, PairEnd, PairSide};
use netvm_netlink::{
    Requests, Veth, by_name, change_link, discard_received, index_of, make_veth, remove_link, set_up,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::routers::finish_packets;
use crate::routers::namespace::{Namespace, NamespaceError};

/// Folder in the run directory with a file for each namespace.
const FOLDER: &str = "programs";

/// A namespace cannot be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaceError {
    /// It is not netvm's.
    #[error(
        "network namespace {name} is somebody else's: remove it (ip netns delete {name}), or give the NF another role"
    )]
    Foreign {
        /// Its name.
        name: String,
    },
    /// Its namespace.
    #[error("{0}")]
    Namespace(String),
    /// Another step.
    #[error("network namespace {name}: {what}: {source}")]
    System {
        /// Its name.
        name: String,
        /// The step.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// The namespace of an instance, with its interfaces.
#[derive(Debug)]
pub(super) struct Place {
    namespace: Namespace,
    record: PathBuf,
}

/// What a place is made for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) role: &'a str,
    pub(super) instance: u16,
    pub(super) pair: &'a PairConfig,
    pub(super) run_dir: &'a Path,
}

impl Wanted<'_> {
    fn end(&self, side: PairSide) -> PairEnd<'_> {
        PairEnd { role: self.role, instance: self.instance, side }
    }
}

impl Place {
    /// Makes the namespace, and its interfaces unless the ports do.
    ///
    /// # Errors
    /// [`PlaceError`]; nothing is left.
    pub(super) fn make(wanted: Wanted<'_>) -> Result<Self, PlaceError> {
        let name = wanted.end(PairSide::Left).namespace();
        let fail = |what| {
            let name = name.clone();
            move |source| PlaceError::System { name, what, source }
        };
        let folder = wanted.run_dir.join(FOLDER);
        fs::create_dir_all(&folder).map_err(fail("cannot make its record"))?;
        let record = folder.join(&name);
        let mut namespace = take(&name)?;
        if namespace.1 {
            let own = fs::read_to_string(&record).ok().and_then(|text| text.trim().parse::<u64>().ok());
            if own.is_none() || own != inode(&namespace.0) {
                return Err(PlaceError::Foreign { name });
            }
            end_processes(&namespace.0);
            namespace.0.remove().map_err(|error| PlaceError::Namespace(error.to_string()))?;
            namespace = take(&name)?;
        }
        let place = Self { namespace: namespace.0, record };
        let made = fs::write(&place.record, inode(&place.namespace).unwrap_or_default().to_string())
            .map_err(fail("cannot make its record"))
            .and_then(|()| place.prepare().map_err(fail("cannot prepare it")))
            .and_then(|()| {
                let has_veths = wanted.pair.attach.info().has_veths;
                if has_veths {
                    place.make_veths(wanted).map_err(fail("cannot make its interfaces"))
                } else {
                    Ok(())
                }
            });
        match made {
            Ok(()) => Ok(place),
            Err(error) => {
                place.remove();
                Err(error)
            }
        }
    }

    /// Brings up loopback, and makes new interfaces have no IPv6.
    fn prepare(&self) -> io::Result<()> {
        let prepare = || -> io::Result<()> {
            let mut requests = Requests::open()?;
            if let Some(loopback) = index_of(&mut requests, "lo")? {
                set_up(&mut requests, loopback, true)?;
            }
            match fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1") {
                // A kernel without IPv6.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other,
            }
        };
        self.namespace.inside(prepare).flatten()
    }

    fn make_veths(&self, wanted: Wanted<'_>) -> io::Result<()> {
        let mut outside = Requests::open()?;
        let (mtu, info) = (u32::from(wanted.pair.mtu), wanted.pair.attach.info());
        for side in wanted.pair.sides().iter().copied() {
            let outer = wanted.end(side).outer_name();
            let inner = side.word();
            if let Some(index) = index_of(&mut outside, &outer)? {
                // The name is netvm's: a namespace that is about to end still has the other end.
                remove_link(&mut outside, index)?;
            }
            let mac = wanted.pair.rewrite_macs.then(|| wanted.end(side).mac().0);
            make_veth(&mut outside, Veth { outer: &outer, inner, mac, mtu }, self.namespace.as_fd())?;
            // A kernel without IPv6 has no such file.
            let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{outer}/disable_ipv6"), "1");
            let index = index_of(&mut outside, &outer)?.ok_or(io::ErrorKind::NotFound)?;
            if let Err(error) = discard_received(&mut outside, index) {
                tracing::debug!("interface {outer}: its packets reach the host's kernel, too: {error}");
            }
            if !wanted.pair.offloads {
                finish_packets(&outer)?;
            }
            let finishes = !info.may_offload;
            let bring_up = move || -> io::Result<()> {
                let mut requests = Requests::open()?;
                let link = by_name(&mut requests, inner)?.ok_or(io::ErrorKind::NotFound)?;
                if finishes {
                    finish_packets(inner)?;
                }
                change_link(&mut requests, link.header.index, up())
            };
            self.namespace.inside(bring_up).flatten()?;
            change_link(&mut outside, index, up())?;
        }
        Ok(())
    }

    /// The namespace, for a process to enter.
    pub(super) fn descriptor(&self) -> RawFd {
        self.namespace.as_fd().as_raw_fd()
    }

    /// Ends the processes in the namespace, and removes it with its interfaces.
    pub(super) fn remove(self) {
        end_processes(&self.namespace);
        let name = self.namespace.name().to_owned();
        if let Err(error) = self.namespace.remove() {
            tracing::warn!("cannot remove network namespace {name}: {error}");
        }
        // It is only of use with the namespace.
        let _ = fs::remove_file(&self.record);
    }
}

/// Takes a namespace, or makes it; true if it was there.
fn take(name: &str) -> Result<(Namespace, bool), PlaceError> {
    Namespace::take(name).map_err(|error| match error {
        NamespaceError::Taken { name } => PlaceError::Foreign { name },
        other => PlaceError::Namespace(other.to_string()),
    })
}

fn up() -> LinkMessage {
    let mut message = LinkMessage::default();
    (message.header.flags, message.header.change_mask) = (LinkFlags::Up, LinkFlags::Up);
    message
}

/// The inode number of a namespace.
fn inode(namespace: &Namespace) -> Option<u64> {
    fs::metadata(format!("/proc/self/fd/{}", namespace.as_fd().as_raw_fd())).ok().map(|file| file.ino())
}

/// Kills what still runs in a namespace of netvm's, such as children of a program that has ended.
fn end_processes(namespace: &Namespace) {
    let Some(own) = inode(namespace) else { return };
    let Ok(processes) = fs::read_dir("/proc") else { return };
    for process in processes.flatten() {
        let pid = process.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        let is_inside = fs::metadata(process.path().join("ns/net")).is_ok_and(|file| file.ino() == own);
        if let Some(pid) = pid.filter(|_| is_inside) {
            // It may have ended just now.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}
