// SPDX-License-Identifier: Apache-2.0
//! What bounds a table: its slots, and quotas.

pub(super) mod quotas;
pub(super) mod slots;
