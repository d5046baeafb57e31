// SPDX-License-Identifier: Apache-2.0
//! Users and groups that own sockets of ports.

use netvm_config::{Missing, MissingKind};
use netvm_model::{PortConfig, SocketIds, SocketRights};

use crate::account::{self, Account, AccountError};

/// The numbers of a socket's owner. A user without a group brings its own group, as for chown(1) with `user:`.
pub(super) fn ids(socket: &SocketRights) -> Result<SocketIds, AccountError> {
    let (user, group) = socket.names();
    let account = user.map(Account::find).transpose()?;
    let gid = match group {
        Some(group) => {
            Some(account::group(group)?.ok_or_else(|| AccountError::UnknownGroup(group.to_owned()))?)
        }
        None => account.map(|account| account.gid),
    };
    Ok(SocketIds { uid: account.map(|account| account.uid), gid })
}

/// A user or group that does not exist.
pub(super) fn missing(item: usize, port: &PortConfig) -> Option<Missing> {
    let message = ids(&port.socket).err()?.to_string();
    Some(Missing { table: "port", item, key: "socket_owner", message, kind: MissingKind::Missing })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_found_by_name_and_number() {
        let of =
            |owner: &str| ids(&SocketRights { owner: Some(owner.to_owned()), ..SocketRights::default() });
        let numbers = |uid, gid| Ok(SocketIds { uid, gid });
        assert_eq!(ids(&SocketRights::default()), numbers(None, None));
        assert_eq!(of("root"), numbers(Some(0), Some(0)));
        assert_eq!(of("4000000:root"), numbers(Some(4_000_000), Some(0)));
        assert_eq!(of(":77"), numbers(None, Some(77)));
        assert_eq!(of(":no-such-group"), Err(AccountError::UnknownGroup("no-such-group".to_owned())));
        assert!(of("no-such-user").is_err());
    }
}
