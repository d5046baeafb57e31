// SPDX-License-Identifier: Apache-2.0
//! Configuration that is replaced under traffic.
//!
//! SIGHUP sets a flag. The first packet thread that sees it in a tick starts a thread to read the file, so no packet
//! waits. Once a burst, packet threads compare a generation number to find a new value. After an error, the old value
//! stays and the error is printed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::ConfigError;

type Load<T> = dyn Fn() -> Result<T, ConfigError> + Send;

/// A value that all threads of an NF share, and the function that reloads it.
pub struct Live<T> {
    /// Locked from the load to the publication, so that concurrent reloads publish in order.
    load: Mutex<Box<Load<T>>>,
    current: Mutex<Arc<T>>,
    generation: AtomicU64,
    requested: Arc<AtomicBool>,
}

impl<T> std::fmt::Debug for Live<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl<T: Send + Sync + 'static> Live<T> {
    /// Reads the value for the first time.
    ///
    /// # Errors
    /// The error of `load`.
    pub fn new(load: impl Fn() -> Result<T, ConfigError> + Send + 'static) -> Result<Arc<Self>, ConfigError> {
        let first = load()?;
        Ok(Arc::new(Self {
            load: Mutex::new(Box::new(load)),
            current: Mutex::new(Arc::new(first)),
            generation: AtomicU64::new(0),
            requested: Arc::new(AtomicBool::new(false)),
        }))
    }

    /// The flag that requests a reload.
    #[must_use]
    pub fn request(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.requested)
    }

    /// A view for one thread.
    #[must_use]
    pub fn view(self: &Arc<Self>) -> View<T> {
        let generation = self.generation.load(Ordering::Acquire);
        View { value: self.current(), live: Arc::clone(self), generation }
    }

    fn current(&self) -> Arc<T> {
        // After a panic, the value is intact: a holder of the lock only replaces the Arc.
        Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Loads the value again and publishes it.
    fn reload(&self) {
        let load = self.load.lock().unwrap_or_else(PoisonError::into_inner);
        let read = load().map(|value| {
            let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *current, Arc::new(value))
        });
        match read {
            Ok(old) => {
                self.generation.fetch_add(1, Ordering::Release);
                drop(load);
                eprintln!("reloaded the configuration");
                outlive_readers(&old);
            }
            Err(error) => eprintln!("{error}\nkept the old configuration"),
        }
    }
}

/// Keeps the old value until no packet thread uses it, so that none has to free it. Gives up after some seconds: a
/// thread that still holds it has had no packets.
fn outlive_readers<T>(old: &Arc<T>) {
    for _ in 0..100 {
        if Arc::strong_count(old) == 1 {
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// A thread's view of a [`Live`] value.
#[derive(Debug)]
pub struct View<T> {
    live: Arc<Live<T>>,
    generation: u64,
    value: Arc<T>,
}

impl<T: Send + Sync + 'static> View<T> {
    /// The value as of the last [`View::refresh`].
    #[inline]
    #[must_use]
    pub fn get(&self) -> &T {
        &self.value
    }

    /// Increases with every value that [`View::refresh`] takes.
    #[inline]
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether a newer value exists.
    #[inline]
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.live.generation.load(Ordering::Acquire) != self.generation
    }

    /// Takes the newest value; true if it is new. Call once a burst; costs a load of a rarely changing word.
    #[inline]
    pub fn refresh(&mut self) -> bool {
        let generation = self.live.generation.load(Ordering::Acquire);
        if generation == self.generation {
            return false;
        }
        self.generation = generation;
        self.value = self.live.current();
        true
    }

    /// Starts a reload if one was requested. Call periodically.
    pub fn tick(&self) {
        if self.live.requested.swap(false, Ordering::AcqRel) {
            let live = Arc::clone(&self.live);
            if let Err(error) = thread::Builder::new().name("reload".into()).spawn(move || live.reload()) {
                eprintln!("cannot reload the configuration: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lines;
    use crate::testing::until;
    use std::path::Path;

    #[test]
    fn a_new_value_reaches_every_view_once_and_a_wrong_one_none() {
        let source = Arc::new(Mutex::new("1"));
        let reads = Arc::new(AtomicU64::new(0));
        let (text, count) = (Arc::clone(&source), Arc::clone(&reads));
        let live = Live::new(move || {
            let lines = Lines::from_text(Path::new("f"), *text.lock().unwrap());
            count.fetch_add(1, Ordering::Relaxed);
            lines.parse(|line| line.parse::<u32>().map_err(|e| e.to_string()))
        })
        .unwrap();
        let (mut a, mut b) = (live.view(), live.view());
        assert!(!a.refresh() && a.get() == &[1]);

        *source.lock().unwrap() = "2\n3";
        a.tick();
        assert!(!a.refresh(), "no reload was requested");
        live.request().store(true, Ordering::Relaxed);
        a.tick();
        b.tick();
        until("the reload", || a.refresh());
        assert_eq!(a.get(), &[2, 3]);
        assert!(!a.refresh());
        assert_eq!(b.get(), &[1], "unchanged until it refreshes");
        assert!(b.refresh() && b.get() == &[2, 3]);
        assert_eq!(reads.load(Ordering::Relaxed), 2, "one request causes one load");

        *source.lock().unwrap() = "x";
        live.reload();
        assert_eq!(reads.load(Ordering::Relaxed), 3);
        assert!(!a.refresh() && !b.refresh() && a.get() == &[2, 3]);
    }

    #[test]
    fn a_wrong_first_value_is_an_error() {
        let read = || Lines::read(Path::new("/nonexistent/x")).map(|_| ());
        assert!(Live::new(read).is_err());
    }
}
