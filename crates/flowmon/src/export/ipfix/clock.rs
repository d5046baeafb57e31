// SPDX-License-Identifier: Apache-2.0
//! [`Clock`]: the times of records.

/// Cycles as Unix time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// A moment in cycles.
    pub cycles: u64,
    /// The same moment as Unix time in microseconds.
    pub unix_micros: u64,
    /// Cycles per second.
    pub per_second: u64,
}

impl Clock {
    /// Unix time in microseconds.
    #[must_use]
    pub fn micros(&self, cycles: u64) -> u64 {
        let since = i128::from(cycles) - i128::from(self.cycles);
        let micros = since * 1_000_000 / i128::from(self.per_second.max(1));
        u64::try_from(i128::from(self.unix_micros) + micros).unwrap_or(0)
    }

    /// Unix time in milliseconds.
    #[must_use]
    pub fn millis(&self, cycles: u64) -> u64 {
        self.micros(cycles) / 1000
    }
}
