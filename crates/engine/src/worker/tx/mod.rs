// SPDX-License-Identifier: Apache-2.0
//! The tx stage: packets into a port's tx queue.

pub(crate) mod copy;
pub(crate) mod offload;
