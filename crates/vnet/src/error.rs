// SPDX-License-Identifier: Apache-2.0
//! Why an interface cannot be opened.

use std::io;

/// The step that fails until the namespace is there.
const NO_NAMESPACE: &str = "its network namespace is not there";

/// Why an interface cannot be opened, and the remedy.
#[derive(Debug, thiserror::Error)]
#[error("interface {interface}: {step}: {source}{}", remedy(source))]
pub struct OpenError {
    pub(crate) interface: String,
    pub(crate) step: &'static str,
    pub(crate) source: io::Error,
}

impl OpenError {
    pub(crate) fn of(interface: &str, step: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { interface: interface.to_owned(), step, source }
    }

    /// The namespace that the interface is for is not there: `what` says which, and the remedy.
    pub(crate) fn absent(interface: &str, what: String) -> Self {
        Self::of(interface, NO_NAMESPACE)(io::Error::new(io::ErrorKind::NotFound, what))
    }

    /// Whether the namespace that the interface is for is not there: it has not come yet, or has gone.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.step == NO_NAMESPACE
    }

    /// Whether there is no such interface.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.source.raw_os_error() == Some(libc::ENODEV)
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => " (run it as root, or with CAP_NET_ADMIN and CAP_NET_RAW)",
        Some(libc::ENODEV) => " (`ip link` lists the interfaces of this network namespace)",
        Some(libc::EBUSY) => " (another program uses it)",
        Some(libc::EINVAL) => {
            " (another interface of this name may exist that is not a TAP, or has other queues: remove it with `ip link \
             delete`, or give another `interface`)"
        }
        Some(libc::ENOENT) => " (the kernel has no /dev/net/tun)",
        Some(libc::EEXIST) => {
            " (an interface of this name is there already: remove it with `ip link delete`, or give another `interface`)"
        }
        _ => "",
    }
}
