//! What functions return, and the words for it.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use netlib::{Error, IvshmemError};
use netvm_attach::AttachError;

/// What a function returns when it has nothing to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum netlib_status {
    /// Done.
    NETLIB_OK = 0,
    /// No failure: the NF is to end, because the engine says so, has gone, or netlib_stop() was called.
    NETLIB_END = -1,
    /// A pointer is NULL that must not be.
    NETLIB_ERR_NULL = -2,
    /// An argument is out of range, or the call does not belong here.
    NETLIB_ERR_ARGUMENT = -3,
    /// netvmd does not answer; trying again later may help.
    NETLIB_ERR_CONNECT = -4,
    /// netvmd does not let this NF in.
    NETLIB_ERR_REFUSED = -5,
    /// netvmd and this library do not understand each other: built from different versions, most likely.
    NETLIB_ERR_PROTOCOL = -6,
    /// The kernel refused something: memory, a thread, a descriptor.
    NETLIB_ERR_SYSTEM = -7,
    /// The packet has no such room, or not so many bytes.
    NETLIB_ERR_SPACE = -8,
    /// The packet is not of the burst that the endpoint holds now.
    NETLIB_ERR_STALE = -9,
    /// There is no port or role of that name.
    NETLIB_ERR_NAME = -10,
    /// A defect in the library: it panicked, and says more on standard error.
    NETLIB_ERR_PANIC = -11,
}

use netlib_status::*;

const ALL: [(netlib_status, &CStr); 12] = [
    (NETLIB_OK, c"done"),
    (NETLIB_END, c"the NF is to end"),
    (NETLIB_ERR_NULL, c"a pointer is NULL that must not be"),
    (NETLIB_ERR_ARGUMENT, c"an argument is out of range, or the call does not belong here"),
    (NETLIB_ERR_CONNECT, c"netvmd does not answer"),
    (NETLIB_ERR_REFUSED, c"netvmd does not let this NF in"),
    (NETLIB_ERR_PROTOCOL, c"netvmd and libnetlib do not understand each other"),
    (NETLIB_ERR_SYSTEM, c"the kernel refused"),
    (NETLIB_ERR_SPACE, c"the packet has no such room, or not so many bytes"),
    (NETLIB_ERR_STALE, c"the packet is not of the burst that the endpoint holds now"),
    (NETLIB_ERR_NAME, c"no port or role of that name"),
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
    /// Nothing to add to the code's own words. On the packet path: no allocation.
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

/// Runs the body of a function that C called: failures become codes and messages, panics too.
pub(crate) fn guard(body: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    // A panic may leave the NF's state half done; the caller learns that the library is defective.
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::Plain(NETLIB_ERR_PANIC),
    };
    let status = failure.status();
    let message = match failure {
        Failure::Plain(status) => Message::Static(words(status as c_int)),
        other => {
            CString::new(other.to_string()).map_or(Message::Static(words(status as c_int)), Message::Own)
        }
    };
    // While the thread's variables are being destroyed, no caller can read a message.
    let _ = LAST.try_with(|last| last.replace(message));
    status as c_int
}

fn words(code: c_int) -> &'static CStr {
    let known = ALL.iter().find(|(status, _)| *status as c_int == code);
    known.map_or(c"a code that libnetlib does not have", |(_, words)| words)
}

/// A few words for a code, never NULL. They live as long as the program.
#[unsafe(no_mangle)]
pub extern "C" fn netlib_strerror(code: c_int) -> *const c_char {
    words(code).as_ptr()
}

/// What exactly failed in the last call of this thread that failed, never NULL. Valid until the thread's next failure.
#[unsafe(no_mangle)]
pub extern "C" fn netlib_last_error() -> *const c_char {
    let message = LAST.try_with(|last| match &*last.borrow() {
        Message::Static(text) => text.as_ptr(),
        Message::Own(text) => text.as_ptr(),
    });
    message.unwrap_or(c"".as_ptr())
}

/// The library's version, as NETLIB_VERSION was when it was built.
#[unsafe(no_mangle)]
pub extern "C" fn netlib_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> &'static str {
        // SAFETY: never NULL, and no failure follows in this thread while it is read.
        unsafe { CStr::from_ptr(netlib_last_error()) }.to_str().unwrap()
    }

    #[test]
    fn a_panic_becomes_a_code() {
        assert_eq!(guard(|| panic!("on purpose")), NETLIB_ERR_PANIC as c_int);
        assert_eq!(last(), "libnetlib panicked");
        assert_eq!(guard(|| Ok(7)), 7);
    }

    #[test]
    fn messages_are_of_the_thread_that_failed() {
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
    fn every_code_has_words() {
        for (status, text) in ALL {
            assert_eq!(words(status as c_int), text);
        }
        assert_eq!(words(99), c"a code that libnetlib does not have");
    }
}
