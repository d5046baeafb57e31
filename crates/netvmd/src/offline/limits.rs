// SPDX-License-Identifier: Apache-2.0
//! Limits of a replay.

use std::time::Duration;

/// Bytes before each frame.
pub(super) const HEADROOM: u16 = 256;
/// The largest buffer in bytes, headroom included.
pub(super) const MAX_BUFFER: u32 = 65_472;
/// The replay fails after this time without progress.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_secs(30);
