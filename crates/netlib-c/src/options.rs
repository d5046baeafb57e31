// SPDX-License-Identifier: Apache-2.0
//! The options of an NF in C. In: `netlib_options`. Out: checked netlib options.

use std::ffi::{CStr, c_char, c_int};
use std::path::PathBuf;

use netlib::{MAX_COUNTERS, Options, Waiting};

use crate::status::{Failure, guard, netlib_status};

/// How an NF thread waits for packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum netlib_waiting {
    /// Spin for 2 microseconds, yield the core until 50 have passed, then sleep until woken.
    NETLIB_ADAPTIVE = 0,
    /// Spin. Lowest latency, for an NF with a dedicated core.
    NETLIB_POLL = 1,
}

/// How an NF attaches. Call netlib_options_init(), then set the members that differ. netlib copies the strings, which
/// are UTF-8.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct netlib_options {
    /// Size of this struct, set by netlib_options_init(), so that later versions can extend it.
    pub size: usize,
    /// The program's name, for people. Must be set.
    pub name: *const c_char,
    /// The role that the NF serves; NULL for $NETVM_ROLE (which netvmd sets), else the name.
    pub role: *const c_char,
    /// netvmd's socket; NULL for the one in the environment, else the default.
    pub socket: *const c_char,
    /// Names of the NF's own counters.
    pub counters: *const *const c_char,
    /// Number of these names.
    pub counter_count: usize,
    /// Threads that receive packets; netlib_options_init() sets $NETVM_THREADS (which netvmd sets), else 1. Packets go
    /// to all threads, so a program that serves only one endpoint must set 1.
    pub threads: u16,
    /// A netlib_waiting.
    pub waiting: c_int,
    /// Not 0: the NF takes offload work as it comes, that is, TCP segments and UDP datagrams of up to 64 KB, and
    /// checksums of TCP and UDP that are not computed yet. It must neither rely on the checksum field nor put headers
    /// of its own in front of IP. All NFs of a trust group must set it; otherwise each gets finished packets.
    pub offloads: c_int,
    /// Not 0: the NF takes messages of other NFs and of netvmd (netlib_next_message()).
    pub messages: c_int,
}

/// Initialises the options: the number of threads from $NETVM_THREADS, else 1; adaptive waiting; all pointers NULL.
///
/// @return NETLIB_OK, NETLIB_ERR_NULL.
///
/// # Safety
/// `options` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_options_init(options: *mut netlib_options) -> c_int {
    guard(|| {
        if options.is_null() {
            return Err(Failure::Null("options"));
        }
        let initial = netlib_options {
            size: size_of::<netlib_options>(),
            name: std::ptr::null(),
            role: std::ptr::null(),
            socket: std::ptr::null(),
            counters: std::ptr::null(),
            counter_count: 0,
            threads: Options::new("").threads,
            waiting: netlib_waiting::NETLIB_ADAPTIVE as c_int,
            offloads: 0,
            messages: 0,
        };
        // SAFETY: not NULL, and writable by the caller's promise.
        unsafe { options.write(initial) };
        Ok(netlib_status::NETLIB_OK as c_int)
    })
}

/// Checks C's options and converts them to netlib's.
///
/// # Safety
/// `options` is NULL or valid. Its strings are NULL or zero-terminated, and its list of counters is NULL or has
/// `counter_count` strings.
pub(crate) unsafe fn read(options: *const netlib_options) -> Result<Options, Failure> {
    if options.is_null() {
        return Err(Failure::Null("options"));
    }
    // SAFETY: the first member of every version of the struct.
    let size = unsafe { (&raw const (*options).size).read() };
    if size != size_of::<netlib_options>() {
        return Err(Failure::Argument(
            "options.size does not match this version of netlib: call netlib_options_init()",
        ));
    }
    // SAFETY: the caller's promise, and the size matches.
    let given = unsafe { options.read() };
    // SAFETY: the caller's promise about each string.
    let (name, role, socket) = unsafe {
        (
            text(given.name, "options.name")?,
            text(given.role, "options.role")?,
            text(given.socket, "options.socket")?,
        )
    };
    let name = name.ok_or(Failure::Null("options.name"))?;
    if given.threads == 0 {
        return Err(Failure::Argument("options.threads is 0"));
    }
    if given.counter_count > MAX_COUNTERS {
        return Err(Failure::Argument("options.counter_count exceeds the limit of counters"));
    }
    if given.counters.is_null() && given.counter_count > 0 {
        return Err(Failure::Null("options.counters"));
    }
    let mut options = Options::new(name);
    for n in 0..given.counter_count {
        // SAFETY: the caller's list has that many strings.
        let counter = unsafe { text(given.counters.add(n).read(), "options.counters")? };
        options.counters.push(counter.ok_or(Failure::Null("a name in options.counters"))?.to_owned());
    }
    if let Some(role) = role {
        role.clone_into(&mut options.role);
    }
    options.socket = socket.map(PathBuf::from);
    options.threads = given.threads;
    options.offloads = given.offloads != 0;
    options.messages = given.messages != 0;
    options.waiting = match given.waiting {
        waiting if waiting == netlib_waiting::NETLIB_ADAPTIVE as c_int => Waiting::Adaptive,
        waiting if waiting == netlib_waiting::NETLIB_POLL as c_int => Waiting::Poll,
        _ => return Err(Failure::Argument("options.waiting is not a netlib_waiting")),
    };
    Ok(options)
}

/// The text of a C string; `None` for NULL.
///
/// # Safety
/// `string` is NULL or zero-terminated, and outlives the returned text.
pub(crate) unsafe fn text<'a>(string: *const c_char, what: &'static str) -> Result<Option<&'a str>, Failure> {
    if string.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(string) };
    bytes.to_str().map(Some).map_err(|_| Failure::Utf8(what))
}
