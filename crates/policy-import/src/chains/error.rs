// SPDX-License-Identifier: Apache-2.0
//! Why chains cannot be expanded, and the limits.

use thiserror::Error;

/// Deepest nesting of chains; four times the kernel's `NFT_JUMP_STACK_SIZE`.
pub const MAX_DEPTH: usize = 64;
/// Most rules of an import.
pub const MAX_RULES: usize = 1 << 20;
/// Most values (addresses, ports, ...) in all rules together.
pub const MAX_VALUES: usize = 1 << 24;
/// Chains cannot be expanded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ExpandError {
    /// A chain leads to itself.
    #[error("line {line}: chain {chain} leads back to itself: remove the jump")]
    Loop {
        /// The line of the jump.
        line: u32,
        /// Its name.
        chain: String,
    },
    /// Chains are nested too deeply.
    #[error("line {line}: chain {chain} is nested more than {MAX_DEPTH} deep: use fewer nested jumps")]
    TooDeep {
        /// The line of the jump.
        line: u32,
        /// Its name.
        chain: String,
    },
    /// The result is too large.
    #[error(
        "line {line}: chain {chain}, written out wherever it is jumped to, makes more than {MAX_RULES} rules or \
         {MAX_VALUES} values: jump to it from fewer places"
    )]
    TooLarge {
        /// The rule that exceeds the limit.
        line: u32,
        /// Its chain.
        chain: String,
    },
}
