// SPDX-License-Identifier: Apache-2.0
//! Errors of compiling a policy.

use netvm_policy::FlattenError;

/// Why rules and port policies cannot be compiled. The policy in force stays.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The rules have too many combinations.
    #[error(transparent)]
    Flatten(#[from] FlattenError),
    /// The classifier could not be built.
    #[error(transparent)]
    Build(#[from] netvm_classifier::BuildError),
    /// The forwarding database could not be created.
    #[error(transparent)]
    Fdb(#[from] netvm_switch::FdbError),
    /// The switch ports are inconsistent.
    #[error(transparent)]
    Bridge(#[from] netvm_switch::BridgeError),
    /// A port's anti-spoofing guard is invalid.
    #[error(transparent)]
    Guard(#[from] netvm_switch::GuardError),
    /// A rate is out of a token bucket's range.
    #[error(transparent)]
    Rate(#[from] netvm_switch::PolicerError),
    /// The compiled rules need more memory than `[policy] memory` allows.
    #[error(
        "the compiled rules need {needed} MiB, but `memory` in [policy] allows {allowed} MiB: raise it, or use fewer rules"
    )]
    Memory {
        /// MiB needed.
        needed: usize,
        /// MiB allowed.
        allowed: usize,
    },
}
