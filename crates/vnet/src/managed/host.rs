// SPDX-License-Identifier: Apache-2.0
//! A TAP device in this process's own network namespace, with addresses: the host's own interface on the switch.

use std::io;

use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netvm_netlink::{Requests, change_link, index_of, set_up};

use super::addressing::{Addressing, ManagedInterface};
use crate::tap::{self, TapOptions};
use crate::{OpenError, Opened};

/// Makes the interface, which ends with its last queue. If its addresses and routes cannot be
/// set, it is open all the same, and [`ManagedInterface::problem`] says so.
///
/// # Errors
/// [`OpenError`] names the step that failed.
pub fn open(
    options: &TapOptions,
    mac: [u8; 6],
    addressing: &Addressing,
) -> Result<(Opened, ManagedInterface), OpenError> {
    let name = &options.interface;
    let (opened, _) = tap::make(options)?;
    let come_up = || -> io::Result<()> {
        let mut requests = Requests::open()?;
        let index = index_of(&mut requests, name)?;
        let index = index.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
        let mut message = LinkMessage::default();
        message.attributes = vec![LinkAttribute::Address(mac.to_vec())];
        message.attributes.extend(options.mtu.map(|mtu| LinkAttribute::Mtu(mtu.into())));
        change_link(&mut requests, index, message)?;
        set_up(&mut requests, index, true)
    };
    come_up().map_err(OpenError::of(name, "cannot bring it up"))?;
    Ok((opened, ManagedInterface::new(name.clone(), None, addressing.clone())))
}
