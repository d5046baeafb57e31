// SPDX-License-Identifier: Apache-2.0
//! What other workers own from now on, on its way to them.

pub(crate) mod connections;
pub(crate) mod flows;
