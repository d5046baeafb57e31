//! How large a cache is and what it forgets.

use thiserror::Error;

use crate::set::WAYS;

/// Which flow gives way when a set is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Eviction {
    /// CLOCK, with four degrees: the next cold one. A new flow is cold until its second packet hits, so that a scan evicts
    /// mostly itself; one that was hit is passed over until there have been 17 to 24 insertions into its set without
    /// another hit.
    #[default]
    Clock,
    /// The one of the set that was least recently used. Each hit writes one more cache line: for small caches. With 1024
    /// entries it is what sNICh's prototype has (section 5), but for its one set of 1024: of flows drawn from 512, 0.3 % fewer
    /// packets hit; from 900, 5 %; from 4000, 0.2 %.
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
    /// 262,144 entries (34 MiB), CLOCK, no idle limit.
    fn default() -> Self {
        Self { entries: 1 << 18, eviction: Eviction::Clock, idle: Self::NEVER }
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
