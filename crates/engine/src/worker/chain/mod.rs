// SPDX-License-Identifier: Apache-2.0
//! Chains of NFs.

pub(crate) mod entry;
pub(crate) mod flow_verdicts;
pub(crate) mod hop;
pub(crate) mod kept;
pub(crate) mod pair;
pub(crate) mod routed;
