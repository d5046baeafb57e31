//! How large a cache is and what it forgets.

use thiserror::Error;

use crate::set::WAYS;

/// Which flow gives way when a set is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Eviction {
    /// CLOCK: one that had no packet since the hand last passed it. A new flow counts as such until its second packet
    /// hits, so that a scan evicts mostly itself.
    #[default]
    Clock,
    /// The least recently used, exactly. Each hit writes one more cache line: for small caches.
    Lru,
}

/// What a cache is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Flows it holds at most; rounded up to a power of two, at least 8.
    pub entries: u32,
    /// Which flow gives way when a set is full.
    pub eviction: Eviction,
    /// Ticks without a packet after which an entry counts no more; [`Options::NEVER`] for no such limit.
    pub idle: u32,
}

impl Options {
    /// A time that never comes.
    pub const NEVER: u32 = u32::MAX;
    /// Most entries that can be asked for.
    pub const MAX_ENTRIES: u32 = 1 << 28;

    /// The power of two that the number of entries is rounded up to.
    pub(crate) fn order(&self) -> Result<u32, CacheError> {
        if self.entries == 0 || self.entries > Self::MAX_ENTRIES {
            return Err(CacheError::Entries(self.entries));
        }
        Ok(self.entries.next_power_of_two().max(WAYS as u32).trailing_zeros())
    }
}

impl Default for Options {
    /// 131,072 entries (17 MB), CLOCK, no idle limit.
    fn default() -> Self {
        Self { entries: 1 << 17, eviction: Eviction::Clock, idle: Self::NEVER }
    }
}

/// Why a cache cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CacheError {
    /// A number of entries that no cache has.
    #[error("a flow cache of {0} entries: write 1 to {max}", max = Options::MAX_ENTRIES)]
    Entries(u32),
    /// The system has not that much memory.
    #[error("no memory for a flow cache table of {bytes} bytes: ask for fewer entries")]
    Memory {
        /// Bytes that were asked for.
        bytes: usize,
    },
}
