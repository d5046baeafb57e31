// SPDX-License-Identifier: Apache-2.0
//! Which vector instructions netvm uses. In: the processor, and `NETVM_CPU` of the environment. Out: one [`Level`] for
//! the whole process, read once.
//!
//! Whatever is chosen at run time by the processor asks here, so that one setting makes every such choice as another
//! processor would: look-ups of routes, the prefilter, `rte_acl`, and DPDK's limit on vectors. Code of other projects
//! that chooses by itself (the C library's `memcpy`, `aho-corasick`) is not affected.
//!
//! ```text
//!  NETVM_CPU   unset: the best that the processor has
//!              baseline | avx2 | avx512: that level, also on a processor that has more
//! ```

#![forbid(unsafe_code)]

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::sync::OnceLock;

use thiserror::Error;

/// The environment variable that limits the level.
pub const VARIABLE: &str = "NETVM_CPU";

/// A set of instructions; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// What every processor of the architecture has; code that asks for it may use POPCNT, which came with SSE4.2,
    /// without which DPDK does not start.
    Baseline,
    /// AVX2, BMI1 and BMI2 (x86-64-v3).
    Avx2,
    /// AVX-512 F, BW, CD, DQ and VL (x86-64-v4).
    Avx512,
}

/// `NETVM_CPU` cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LevelError {
    /// It names no level.
    #[error("{VARIABLE}={0:?} is unknown: set it to baseline, avx2 or avx512, or leave it unset")]
    Unknown(OsString),
    /// The processor has less.
    #[error("{VARIABLE}={wanted}, but this processor has {has} only: set a lower level, or leave it unset")]
    Missing {
        /// The level asked for.
        wanted: Level,
        /// The processor's.
        has: Level,
    },
}

impl Level {
    /// All levels, the lowest first.
    pub const ALL: [Self; 3] = [Self::Baseline, Self::Avx2, Self::Avx512];

    /// The best level of this processor, whatever the environment says.
    #[must_use]
    pub fn of_processor() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if !(has!("avx2") && has!("bmi1") && has!("bmi2")) {
                return Self::Baseline;
            }
            let wide = has!("avx512f") && has!("avx512bw") && has!("avx512cd");
            if wide && has!("avx512dq") && has!("avx512vl") { Self::Avx512 } else { Self::Avx2 }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Self::Baseline
    }

    /// The levels that this processor can run, the lowest first. Tests run each.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|level| *level <= Self::of_processor())
    }

    /// The level of this process. A setting that cannot be followed counts as unset; [`check`] reports it.
    #[inline]
    #[must_use]
    pub fn current() -> Self {
        chosen().0
    }

    /// The name in `NETVM_CPU`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// Bits of the widest vector.
    #[must_use]
    pub const fn vector_bits(self) -> u16 {
        match self {
            Self::Baseline => 128,
            Self::Avx2 => 256,
            Self::Avx512 => 512,
        }
    }

    /// The level by the value of `NETVM_CPU` on a processor that has `has`.
    fn choose(value: Option<OsString>, has: Self) -> Result<Self, LevelError> {
        let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(has) };
        let Some(wanted) = Self::ALL.into_iter().find(|level| value == level.name()) else {
            return Err(LevelError::Unknown(value));
        };
        if wanted <= has { Ok(wanted) } else { Err(LevelError::Missing { wanted, has }) }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[inline]
fn chosen() -> &'static (Level, Option<LevelError>) {
    static CHOSEN: OnceLock<(Level, Option<LevelError>)> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let has = Level::of_processor();
        match Level::choose(env::var_os(VARIABLE), has) {
            Ok(level) => (level, None),
            Err(error) => (has, Some(error)),
        }
    })
}

/// The level of this process, or why `NETVM_CPU` cannot be followed. Programs call it when they start.
///
/// # Errors
/// [`LevelError`].
pub fn check() -> Result<Level, LevelError> {
    match chosen() {
        (level, None) => Ok(*level),
        (_, Some(error)) => Err(error.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_lowers_the_level_and_never_raises_it() {
        for has in Level::ALL {
            assert_eq!(Level::choose(None, has), Ok(has));
            assert_eq!(Level::choose(Some("".into()), has), Ok(has));
            for wanted in Level::ALL {
                let expected =
                    if wanted <= has { Ok(wanted) } else { Err(LevelError::Missing { wanted, has }) };
                assert_eq!(Level::choose(Some(wanted.name().into()), has), expected);
            }
            let error = Level::choose(Some("avx".into()), has).unwrap_err();
            assert!(error.to_string().contains("baseline, avx2 or avx512"), "{error}");
        }
    }

    #[test]
    fn the_process_has_a_level_that_the_processor_can_run() {
        assert!(Level::available().any(|level| level == Level::current()));
        assert_eq!(Level::available().last(), Some(Level::of_processor()));
    }
}
