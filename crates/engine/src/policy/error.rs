//! Why a policy cannot be compiled.

use netvm_policy::FlattenError;

/// Why rules and ports' policies cannot be compiled; what is in force stays.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The rules have too many combinations.
    #[error(transparent)]
    Flatten(#[from] FlattenError),
    /// The classifier could not be built.
    #[error(transparent)]
    Build(#[from] netvm_classifier::BuildError),
    /// The forwarding database could not be made.
    #[error(transparent)]
    Fdb(#[from] netvm_switch::FdbError),
    /// The ports of the switch.
    #[error(transparent)]
    Bridge(#[from] netvm_switch::BridgeError),
    /// Anti-spoofing of a port.
    #[error(transparent)]
    Guard(#[from] netvm_switch::GuardError),
    /// A rate that no token bucket can keep.
    #[error(transparent)]
    Rate(#[from] netvm_switch::PolicerError),
    /// The compiled rules need more memory than is set aside.
    #[error(
        "the rules need {needed} MiB and {allowed} MiB are set aside for them: raise `memory` in [policy], or write fewer rules"
    )]
    Memory {
        /// MiB that they need.
        needed: usize,
        /// MiB that they may have.
        allowed: usize,
    },
}
