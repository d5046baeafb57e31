//! TAP devices in other network namespaces: the interfaces of containers.
//!
//! The device is made here and moved, so that its queues do not keep the namespace alive: when the container ends, the
//! namespace ends with it, and the queues fail.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netvm_netlink::{Requests, change_link, index_of, inside, set_addresses, set_default_route, set_up};

use crate::tap::{self, TapOptions};
use crate::{OpenError, Opened};

/// An interface in another network namespace.
#[derive(Clone, Debug)]
pub struct ContainerOptions {
    /// Its name there, and how it is made.
    pub tap: TapOptions,
    /// The namespace's file, such as `/run/netns/web` or `/proc/1234/ns/net`.
    pub namespace: PathBuf,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Its addresses, with the lengths of their prefixes.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Default gateways, at most one of each address family.
    pub gateways: Vec<IpAddr>,
}

/// A network namespace, and the file that named it.
#[derive(Clone, Debug)]
pub struct Namespace {
    file: PathBuf,
    /// Device and inode number.
    id: (u64, u64),
}

impl Namespace {
    fn of(path: &Path, file: &File) -> io::Result<Self> {
        Ok(Self { file: path.to_owned(), id: id(&file.metadata()?) })
    }

    /// Whether the file names another namespace now. The old one, with its interface, may still be there: sockets that
    /// wait for their last acknowledgement keep it for minutes after the container has ended.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        std::fs::metadata(&self.file).is_ok_and(|metadata| id(&metadata) != self.id)
    }
}

/// Whether a file names the network namespace of this process. An interface of a container, with its default route, would
/// take the machine off its network there.
#[must_use]
pub fn is_own(file: &Path) -> bool {
    let ids = [file, Path::new("/proc/thread-self/ns/net")]
        .map(|file| std::fs::metadata(file).map(|m| id(&m)).ok());
    ids[0].is_some() && ids[0] == ids[1]
}

fn id(metadata: &std::fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Makes the interface, which ends with its last queue.
///
/// # Errors
/// [`OpenError`] names the step that failed.
pub fn open(options: &ContainerOptions) -> Result<(Opened, Namespace), OpenError> {
    let name = &options.tap.interface;
    let fail = |step| OpenError::of(name, step);
    let namespace = File::open(&options.namespace).map_err(|source| {
        OpenError::of(name, "cannot open its network namespace")(io::Error::new(
            source.kind(),
            format!("{}: {source}", options.namespace.display()),
        ))
    })?;
    if is_own(&options.namespace) {
        let why = "it is netvm's own: give the container's, or use kind = \"tap\"";
        return Err(fail("cannot use its network namespace")(io::Error::other(why)));
    }
    let identity =
        Namespace::of(&options.namespace, &namespace).map_err(fail("cannot open its network namespace"))?;
    // A name that the kernel chooses, as here may be another interface of that name.
    let (opened, here) = tap::make(&TapOptions { interface: "nvtap%d".to_owned(), ..options.tap.clone() })?;
    let mut requests = Requests::open().map_err(fail("cannot configure it"))?;
    let index = index_of(&mut requests, &here).map_err(fail("cannot configure it"))?;
    let index =
        index.ok_or_else(|| fail("cannot configure it")(io::Error::from_raw_os_error(libc::ENODEV)))?;
    let mut message = LinkMessage::default();
    message.attributes = vec![
        LinkAttribute::Address(options.mac.to_vec()),
        LinkAttribute::IfName(name.clone()),
        LinkAttribute::NetNsFd(namespace.as_raw_fd()),
    ];
    message.attributes.extend(options.tap.mtu.map(|mtu| LinkAttribute::Mtu(mtu.into())));
    change_link(&mut requests, index, message).map_err(fail("cannot move it into its network namespace"))?;
    let configured = inside(namespace.as_fd(), || configure(options)).and_then(|result| result);
    configured.map_err(fail("cannot set its addresses and routes"))?;
    Ok((opened, identity))
}

/// Brings the interface up in its namespace.
fn configure(options: &ContainerOptions) -> io::Result<()> {
    let mut requests = Requests::open()?;
    let index = index_of(&mut requests, &options.tap.interface)?;
    let index = index.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
    set_up(&mut requests, index, true)?;
    set_addresses(&mut requests, index, &options.addresses)?;
    options.gateways.iter().try_for_each(|gateway| set_default_route(&mut requests, index, *gateway))
}
