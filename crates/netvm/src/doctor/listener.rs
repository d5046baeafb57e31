// SPDX-License-Identifier: Apache-2.0
//! Who listens at an address: /proc/net/tcp and the descriptors of processes (proc_net(5), proc_pid_fd(5)).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::root::Root;

/// The state of a socket that listens (`TCP_LISTEN`).
const LISTENS: &str = "0A";
/// The columns of the local address, the state and the inode.
const ADDRESS: usize = 1;
const STATE: usize = 3;
const INODE: usize = 9;

/// A socket that listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listener {
    /// The number and the name of its process; `None`: this user cannot see it.
    pub(super) process: Option<(u32, String)>,
}

/// The socket that keeps another one from listening at `wanted`, if there is one.
pub(super) fn listener(root: &Root, wanted: SocketAddr) -> Option<Listener> {
    let tables = ["proc/net/tcp", "proc/net/tcp6"].map(|path| root.read(path).unwrap_or_default());
    let sockets = tables.iter().flat_map(|table| table.lines()).filter_map(socket);
    let mut taken = sockets.filter(|(address, _)| excludes(*address, wanted));
    let (_, inode) = taken.next()?;
    Some(Listener { process: owner(root, inode) })
}

/// The address and the inode of a line, if its socket listens.
fn socket(line: &str) -> Option<(SocketAddr, &str)> {
    let columns: Vec<&str> = line.split_whitespace().collect();
    if *columns.get(STATE)? != LISTENS {
        return None;
    }
    let (address, port) = columns.get(ADDRESS)?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    Some((SocketAddr::new(address_of(address)?, port), columns.get(INODE)?))
}

/// An address as words of 32 bits in the byte order of this machine.
fn address_of(text: &str) -> Option<IpAddr> {
    let word = |n: usize| u32::from_str_radix(text.get(8 * n..8 * n + 8)?, 16).ok().map(u32::to_ne_bytes);
    if text.len() == 8 {
        return Some(Ipv4Addr::from(word(0)?).into());
    }
    let mut bytes = [0; 16];
    for (n, part) in bytes.chunks_exact_mut(4).enumerate() {
        part.copy_from_slice(&word(n)?);
    }
    Some(Ipv6Addr::from(bytes).to_canonical())
}

/// Whether a socket at `one` keeps another from `other`.
fn excludes(one: SocketAddr, other: SocketAddr) -> bool {
    let is_any = |address: SocketAddr| address.ip().is_unspecified();
    let same_family = one.is_ipv4() == other.is_ipv4();
    // A socket of IPv6 at all addresses is one of IPv4, too.
    let overlaps = same_family && (is_any(one) || is_any(other)) || one.is_ipv6() && is_any(one);
    one.port() == other.port() && (one.ip() == other.ip() || overlaps)
}

/// The process that has a socket.
fn owner(root: &Root, inode: &str) -> Option<(u32, String)> {
    let wanted = format!("socket:[{inode}]");
    let pids = root.list("proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
    for pid in pids {
        let folder = format!("proc/{pid}/fd");
        let has_it = |fd: &String| root.link(&format!("{folder}/{fd}")).as_deref() == Some(&*wanted);
        if root.list(&folder).iter().any(has_it) {
            return Some((pid, root.read(&format!("proc/{pid}/comm")).unwrap_or_default()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn this_process_is_found() {
        let root = Root::new("/");
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // There may be no IPv6.
            let Ok(socket) = TcpListener::bind(address) else { continue };
            let at = socket.local_addr().unwrap();
            let (pid, _) = listener(&root, at).unwrap().process.unwrap();
            assert_eq!(pid, std::process::id());
            let any: SocketAddr = if at.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
            assert!(listener(&root, SocketAddr::new(any.ip(), at.port())).is_some());
            drop(socket);
            assert_eq!(listener(&root, at), None);
        }
    }

    #[test]
    fn addresses_overlap_as_the_kernel_has_it() {
        let of = |one: &str, other: &str| excludes(one.parse().unwrap(), other.parse().unwrap());
        for (one, other) in [
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("0.0.0.0:1", "127.0.0.1:1"),
            ("127.0.0.1:1", "0.0.0.0:1"),
            ("[::]:1", "127.0.0.1:1"),
            ("[::]:1", "[::1]:1"),
        ] {
            assert!(of(one, other), "{one} {other}");
        }
        for (one, other) in
            [("127.0.0.1:1", "127.0.0.1:2"), ("127.0.0.1:1", "127.0.0.2:1"), ("[::1]:1", "0.0.0.0:1")]
        {
            assert!(!of(one, other), "{one} {other}");
        }
    }
}
