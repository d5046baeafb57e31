// SPDX-License-Identifier: Apache-2.0
//! Captures DPDK's log during control calls: DPDK and its drivers log the reason for a failure, and the text becomes
//! part of the error.

use std::ffi::{CString, NulError};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The level of DPDK's log that goes to standard error. The log of a failing call is always part of its error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Errors on the packet path. The log of a successful control call is discarded.
    #[default]
    Error,
    /// Possible problems.
    Warning,
    /// Unusual events.
    Notice,
    /// Actions.
    Info,
    /// Everything.
    Debug,
}

impl LogLevel {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Notice => "notice",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

/// Locked during every call that creates, changes or removes an object in DPDK: most of these calls are not
/// thread-safe, and only one caller at a time can capture the log.
static CONTROL: Mutex<()> = Mutex::new(());

/// Whether to discard the log of a successful call: drivers also log errors that they recover from.
static DISCARDS_LOG: AtomicBool = AtomicBool::new(true);

/// Sets the level of the log that goes to standard error.
pub(crate) fn set_level(level: LogLevel) {
    DISCARDS_LOG.store(level == LogLevel::Error, Ordering::Relaxed);
    // RTE_LOG_ERR is 4, and each further level one more.
    // SAFETY: sets a variable under a lock.
    unsafe { dpdk_sys::netvm_log_print_up_to(4 + level as u32) };
}

/// Exclusive access to DPDK's control functions.
pub(crate) struct Control {
    catching: bool,
    _turn: MutexGuard<'static, ()>,
}

impl Control {
    /// Waits for its turn and starts to capture the log.
    pub(crate) fn enter() -> Self {
        let turn = CONTROL.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: no arguments; the mutex keeps it to one caller at a time.
        let catching = unsafe { dpdk_sys::netvm_log_begin() } == 0;
        Self { catching, _turn: turn }
    }

    /// Ends the capture and returns the log since `enter`, for an error message.
    pub(crate) fn log(mut self) -> String {
        self.take()
    }

    fn take(&mut self) -> String {
        if !std::mem::take(&mut self.catching) {
            return String::new();
        }
        let mut text = vec![0_u8; 4096];
        // SAFETY: `text` has the length given.
        let length = unsafe { dpdk_sys::netvm_log_end(text.as_mut_ptr().cast(), text.len()) };
        text.truncate(length);
        String::from_utf8_lossy(&text).trim_end().to_owned()
    }
}

impl Drop for Control {
    /// Called after success: the log is not part of an error.
    fn drop(&mut self) {
        let text = self.take();
        if !text.is_empty() && !DISCARDS_LOG.load(Ordering::Relaxed) {
            // Standard error may be closed.
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }
}

/// DPDK's log lines as the end of an error message.
pub(crate) fn quoted(log: &str) -> String {
    let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() { String::new() } else { format!(" (DPDK says: {})", lines.join("; ")) }
}

/// The text of an error that DPDK gave as a negative errno.
pub(crate) fn reason(errno: i32) -> String {
    std::io::Error::from_raw_os_error(errno.abs()).to_string()
}

/// A C string of a name or number; it fails only if the caller put a NUL byte into it.
pub(crate) fn c_string(text: &str) -> Result<CString, NulError> {
    CString::new(text)
}
