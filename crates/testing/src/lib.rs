// SPDX-License-Identifier: Apache-2.0
//! For tests: waits until something is so. A fixed sleep is too short on a loaded machine and too long on all others.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long something may take on a loaded machine that takes no time on another one.
pub const LIMIT: Duration = Duration::from_secs(30);

/// The pauses between two looks grow from this.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
/// To this.
const MAX_PAUSE: Duration = Duration::from_millis(10);

/// Waits until `is_so`, at most for the limit; whether it is so. It is asked at least once, and once more at the end.
pub fn within(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    let mut pause = FIRST_PAUSE;
    loop {
        let is_last = Instant::now() >= end;
        if is_so() {
            return true;
        }
        if is_last {
            return false;
        }
        sleep(pause);
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

/// Waits until `is_so`, at most for [`LIMIT`].
///
/// # Panics
/// It is still not so.
#[track_caller]
pub fn until(what: &str, is_so: impl FnMut() -> bool) {
    assert!(within(LIMIT, is_so), "not within {} s: {what}", LIMIT.as_secs());
}

/// Waits until there is a value, at most for [`LIMIT`].
///
/// # Panics
/// There is still none.
#[track_caller]
pub fn until_some<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let mut found = None;
    until(what, || {
        found = find();
        found.is_some()
    });
    found.unwrap_or_else(|| unreachable!("it was found"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_is_waited_for_and_what_does_not_come_is_not_for_long() {
        let mut asked = 0;
        assert!(within(LIMIT, || {
            asked += 1;
            asked == 20
        }));
        assert_eq!(until_some("twenty-one", || (asked == 20).then_some(21)), 21);
        let mut asked = 0;
        let is_so = within(Duration::ZERO, || {
            asked += 1;
            false
        });
        assert!(!is_so && asked == 1);
        assert!(!within(Duration::from_millis(5), || false));
        assert!(std::panic::catch_unwind(|| until("never", || true)).is_ok());
    }
}
