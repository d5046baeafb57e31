// SPDX-License-Identifier: Apache-2.0
//! Return codes and their messages.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use netlib::{Error, IvshmemError};
use netvm_attach::AttachError;

/// The status that functions return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum netlib_status {
    /// Success.
    NETLIB_OK = 0,
    /// Not a failure: the NF must end, because the engine asks for it or is gone, or because of netlib_stop().
    NETLIB_END = -1,
    /// A required pointer is NULL.
    NETLIB_ERR_NULL = -2,
    /// An argument is out of range, or the call is not allowed here.
    NETLIB_ERR_ARGUMENT = -3,
    /// netvmd does not answer; a later retry may succeed.
    NETLIB_ERR_CONNECT = -4,
    /// netvmd refused this NF.
    NETLIB_ERR_REFUSED = -5,
    /// netvmd and this library are incompatible: probably different versions.
    NETLIB_ERR_PROTOCOL = -6,
    /// The kernel refused memory, a thread or a descriptor.
    NETLIB_ERR_SYSTEM = -7,
    /// The packet has too little room, or too few bytes.
    NETLIB_ERR_SPACE = -8,
    /// The packet does not belong to the endpoint's current burst.
    NETLIB_ERR_STALE = -9,
    /// No port, role or chain has that name.
    NETLIB_ERR_NAME = -10,
    /// The library panicked, which is a defect; see its message on standard error.
    NETLIB_ERR_PANIC = -11,
}

use netlib_status::*;

const ALL: [(netlib_status, &CStr); 12] = [
    (NETLIB_OK, c"success"),
    (NETLIB_END, c"the NF must end"),
    (NETLIB_ERR_NULL, c"a required pointer is NULL"),
    (NETLIB_ERR_ARGUMENT, c"an argument is out of range, or the call is not allowed here"),
    (NETLIB_ERR_CONNECT, c"netvmd does not answer"),
    (NETLIB_ERR_REFUSED, c"netvmd refused this NF"),
    (NETLIB_ERR_PROTOCOL, c"netvmd and libnetlib are incompatible"),
    (NETLIB_ERR_SYSTEM, c"the kernel refused"),
    (NETLIB_ERR_SPACE, c"the packet has too little room, or too few bytes"),
    (NETLIB_ERR_STALE, c"the packet does not belong to the endpoint's current burst"),
    (NETLIB_ERR_NAME, c"no port, role or chain has that name"),
    (NETLIB_ERR_PANIC, c"libnetlib panicked"),
];

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0} is NULL")]
    Null(&'static str),
    #[error("{0}")]
    Argument(&'static str),
    #[error("{0} is not UTF-8")]
    Utf8(&'static str),
    #[error("no such {0}")]
    Name(&'static str),
    #[error(transparent)]
    Netlib(#[from] Error),
    /// A status without details. For the packet path: no allocation.
    #[error("")]
    Plain(netlib_status),
}

impl Failure {
    fn status(&self) -> netlib_status {
        match self {
            Self::Null(_) => NETLIB_ERR_NULL,
            Self::Argument(_) | Self::Utf8(_) => NETLIB_ERR_ARGUMENT,
            Self::Name(_) => NETLIB_ERR_NAME,
            Self::Plain(status) => *status,
            Self::Netlib(error) => match error {
                Error::Attach(AttachError::Connect { .. } | AttachError::Closed) => NETLIB_ERR_CONNECT,
                Error::Attach(AttachError::Refused(_)) => NETLIB_ERR_REFUSED,
                Error::Attach(AttachError::Socket(_)) | Error::Map(_) | Error::Thread { .. } => {
                    NETLIB_ERR_SYSTEM
                }
                Error::Attach(AttachError::Protocol(_) | AttachError::Variable(_))
                | Error::Control(_)
                | Error::Table(_)
                | Error::Ivshmem(IvshmemError::Layout { .. }) => NETLIB_ERR_PROTOCOL,
                Error::Ivshmem(_) => NETLIB_ERR_SYSTEM,
                Error::Panicked { .. } => NETLIB_ERR_PANIC,
            },
        }
    }
}

enum Message {
    Static(&'static CStr),
    Own(CString),
}

thread_local! {
    static LAST: RefCell<Message> = const { RefCell::new(Message::Static(c"no failure yet")) };
}

/// Runs the body of a function that C called. Turns failures and panics into statuses and messages.
pub(crate) fn guard(body: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    // A panic may leave the NF's state half done; the caller learns that the library is defective.
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::Plain(NETLIB_ERR_PANIC),
    };
    let status = failure.status();
    let message = match failure {
        Failure::Plain(status) => Message::Static(description(status as c_int)),
        other => CString::new(other.to_string())
            .map_or(Message::Static(description(status as c_int)), Message::Own),
    };
    // While the thread's variables are being destroyed, no caller can read a message.
    let _ = LAST.try_with(|last| last.replace(message));
    status as c_int
}

fn description(code: c_int) -> &'static CStr {
    let known = ALL.iter().find(|(status, _)| *status as c_int == code);
    known.map_or(c"unknown status", |(_, text)| text)
}

/// A description of a status, never NULL. Valid as long as the program.
#[unsafe(no_mangle)]
pub extern "C" fn netlib_strerror(code: c_int) -> *const c_char {
    description(code).as_ptr()
}

/// The details of this thread's last failure, never NULL. Valid until the thread's next failure.
#[unsafe(no_mangle)]
pub extern "C" fn netlib_last_error() -> *const c_char {
    let message = LAST.try_with(|last| match &*last.borrow() {
        Message::Static(text) => text.as_ptr(),
        Message::Own(text) => text.as_ptr(),
    });
    message.unwrap_or(c"".as_ptr())
}

/// The version of the library; compare it with NETLIB_VERSION.
#[unsafe(no_mangle)]
pub extern "C" fn netlib_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> &'static str {
        // SAFETY: never NULL, and this thread has no other failure while it reads the message.
        unsafe { CStr::from_ptr(netlib_last_error()) }.to_str().unwrap()
    }

    #[test]
    fn a_panic_becomes_a_status() {
        assert_eq!(guard(|| panic!("on purpose")), NETLIB_ERR_PANIC as c_int);
        assert_eq!(last(), "libnetlib panicked");
        assert_eq!(guard(|| Ok(7)), 7);
    }

    #[test]
    fn messages_belong_to_the_failing_thread() {
        guard(|| Err(Failure::Null("options")));
        std::thread::spawn(|| {
            assert_eq!(last(), "no failure yet");
            guard(|| Err(Failure::Name("port")));
        })
        .join()
        .unwrap();
        assert_eq!(last(), "options is NULL");
    }

    #[test]
    fn every_status_has_a_description() {
        for (status, text) in ALL {
            assert_eq!(description(status as c_int), text);
        }
        assert_eq!(description(99), c"unknown status");
    }
}
