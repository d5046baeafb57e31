// SPDX-License-Identifier: Apache-2.0
//! What protocols say of packets and connections: [`Handled`], [`Stage`].

/// What became of a packet that may belong to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handled {
    /// It belongs to it.
    Valid,
    /// It belongs to it, but does not lengthen its life.
    WithoutRefresh,
    /// It may belong to it, and its receiver knows: a SYN after the handshake, or a reset in the window that is not the
    /// next segment. The receiver answers with a challenge acknowledgment (RFC 5961 sections 3 and 4).
    WithoutEffect,
    /// It cannot belong to it, and the connection is unchanged.
    Invalid,
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It has had no answer, or its handshake is not complete.
    HalfOpen,
    /// It is not evicted.
    Open,
    /// It was open, or at least answered, and was closed.
    Closed,
}
