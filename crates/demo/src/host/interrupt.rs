// SPDX-License-Identifier: Apache-2.0
//! Signals that stop the demo. Every step and wait checks for them, so the demo always ends by the normal path, which
//! removes everything that it created.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::Failure;

/// Poll interval of a wait.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Whether a signal has arrived.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs handlers that only set a flag.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn listen() -> io::Result<Self> {
        let interrupt = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&interrupt.0))?;
        }
        Ok(interrupt)
    }

    /// # Errors
    /// [`Failure::Interrupted`] after a signal.
    pub fn check(&self) -> Result<(), Failure> {
        if self.0.load(Ordering::Relaxed) { Err(Failure::Interrupted) } else { Ok(()) }
    }

    /// Sleeps until a signal at most.
    ///
    /// # Errors
    /// [`Failure::Interrupted`] after a signal.
    pub fn sleep(&self, time: Duration) -> Result<(), Failure> {
        let end = Instant::now() + time;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(POLL_INTERVAL));
        }
    }

    /// Polls until `ask` returns a value.
    ///
    /// # Errors
    /// [`Failure::Interrupted`], [`Failure::TooLate`] with `what`, or what `ask` fails with.
    pub fn wait_for<T>(
        &self,
        what: &str,
        limit: Duration,
        mut ask: impl FnMut() -> Result<Option<T>, Failure>,
    ) -> Result<T, Failure> {
        let end = Instant::now() + limit;
        loop {
            if let Some(answer) = ask()? {
                return Ok(answer);
            }
            if Instant::now() >= end {
                return Err(Failure::TooLate { what: what.to_owned(), seconds: limit.as_secs() });
            }
            self.sleep(POLL_INTERVAL)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_ends_every_wait() {
        let interrupt = Interrupt::default();
        interrupt.sleep(Duration::from_millis(1)).unwrap();
        let late = interrupt.wait_for("nothing", Duration::from_millis(30), || Ok(None::<()>));
        assert!(matches!(late, Err(Failure::TooLate { .. })));
        interrupt.0.store(true, Ordering::Relaxed);
        let long = Duration::from_secs(60);
        assert!(matches!(interrupt.sleep(long), Err(Failure::Interrupted)));
        assert!(matches!(interrupt.wait_for("x", long, || Ok(None::<()>)), Err(Failure::Interrupted)));
    }
}
