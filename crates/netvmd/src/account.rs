// SPDX-License-Identifier: Apache-2.0
//! Unix users: lookup in the user database by name or number.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;

/// Longest entry of the user database in bytes.
const MAX_ENTRY_BYTES: usize = 64 * 1024;

/// A user cannot be looked up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountError {
    /// No user has this name.
    #[error("no user `{0}` on this machine: create it (useradd --system {0}), or name another")]
    Unknown(String),
    /// No group has this name.
    #[error("no group `{0}` on this machine: create it (groupadd --system {0}), or name another")]
    UnknownGroup(String),
    /// The user database cannot be read.
    #[error("cannot look up user `{name}`: error {errno} of the user database")]
    Database {
        /// The user.
        name: String,
        /// The error number.
        errno: i32,
    },
}

/// A user and its primary group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// User number.
    pub uid: u32,
    /// Group number.
    pub gid: u32,
}

impl Account {
    /// Finds a user by name or number. A number without an entry is valid: it is also used as the group number.
    ///
    /// # Errors
    /// [`AccountError`] names the user.
    pub fn find(name: &str) -> Result<Self, AccountError> {
        let unknown = || AccountError::Unknown(name.to_owned());
        if let Ok(uid) = name.parse::<u32>() {
            return Ok(look_up(name, Key::Number(uid))?.unwrap_or(Self { uid, gid: uid }));
        }
        let text = CString::new(name).map_err(|_| unknown())?;
        look_up(name, Key::Name(&text))?.ok_or_else(unknown)
    }
}

/// The number of a group, by its name or number; `None` if it does not exist.
///
/// # Errors
/// [`AccountError::Database`] names the group.
pub fn group(name: &str) -> Result<Option<u32>, AccountError> {
    if let Ok(gid) = name.parse::<u32>() {
        return Ok(Some(gid));
    }
    let Ok(text) = CString::new(name) else { return Ok(None) };
    let mut space: Vec<libc::c_char> = vec![0; 1024];
    loop {
        let mut entry = MaybeUninit::<libc::group>::uninit();
        let mut found: *mut libc::group = std::ptr::null_mut();
        let (at, bytes, len) = (entry.as_mut_ptr(), space.as_mut_ptr(), space.len());
        // SAFETY: the C string ends with NUL; the call may write `entry`, `found` and `len` bytes at `bytes`, and keeps
        // no pointer to them.
        let errno = unsafe { libc::getgrnam_r(text.as_ptr(), at, bytes, len, &raw mut found) };
        match errno {
            0 if found.is_null() => return Ok(None),
            // SAFETY: not null after success, so it points to `entry`, which the call has filled.
            0 => return Ok(Some(unsafe { (*found).gr_gid })),
            // Some databases report a missing group with these errors.
            libc::ENOENT | libc::ESRCH => return Ok(None),
            libc::EINTR => {}
            libc::ERANGE if space.len() < MAX_ENTRY_BYTES => space.resize(space.len() * 2, 0),
            errno => return Err(AccountError::Database { name: name.to_owned(), errno }),
        }
    }
}

#[derive(Clone, Copy)]
enum Key<'a> {
    Name(&'a CStr),
    Number(u32),
}

fn look_up(name: &str, key: Key<'_>) -> Result<Option<Account>, AccountError> {
    let mut space: Vec<libc::c_char> = vec![0; 1024];
    loop {
        let mut entry = MaybeUninit::<libc::passwd>::uninit();
        let mut found: *mut libc::passwd = std::ptr::null_mut();
        let (at, bytes, len) = (entry.as_mut_ptr(), space.as_mut_ptr(), space.len());
        // SAFETY: the C string ends with NUL; the call may write `entry`, `found` and `len` bytes at `bytes`, and keeps
        // no pointer to them.
        let errno = unsafe {
            match key {
                Key::Name(name) => libc::getpwnam_r(name.as_ptr(), at, bytes, len, &raw mut found),
                Key::Number(uid) => libc::getpwuid_r(uid, at, bytes, len, &raw mut found),
            }
        };
        match errno {
            0 if found.is_null() => return Ok(None),
            0 => {
                // SAFETY: not null after success, so it points to `entry`, which the call has filled.
                let entry = unsafe { &*found };
                return Ok(Some(Account { uid: entry.pw_uid, gid: entry.pw_gid }));
            }
            // Some databases report a missing user with these errors.
            libc::ENOENT | libc::ESRCH => return Ok(None),
            libc::EINTR => {}
            libc::ERANGE if space.len() < MAX_ENTRY_BYTES => space.resize(space.len() * 2, 0),
            errno => return Err(AccountError::Database { name: name.to_owned(), errno }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_number() {
        assert_eq!(Account::find("root").unwrap(), Account { uid: 0, gid: 0 });
        assert_eq!(Account::find("0").unwrap(), Account { uid: 0, gid: 0 });
        assert_eq!(Account::find("3999999999").unwrap(), Account { uid: 3_999_999_999, gid: 3_999_999_999 });
        let error = Account::find("no-such-user").unwrap_err();
        assert_eq!(error, AccountError::Unknown("no-such-user".to_owned()));
        assert!(Account::find("a\0b").is_err());
        assert_eq!(
            (group("root"), group("77"), group("no-such-group")),
            (Ok(Some(0)), Ok(Some(77)), Ok(None))
        );
    }
}
