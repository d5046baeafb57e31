//! Tells the service manager how far netvmd is (sd_notify(3), the `NOTIFY_SOCKET` protocol).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// netvmd serves.
pub const READY: &str = "READY=1";
/// netvmd ends.
pub const STOPPING: &str = "STOPPING=1";

/// Sends a state, if there is a service manager that wants to know.
pub fn tell(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes().split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::warn!("cannot tell the service manager {state}: {error}");
    }
}
