// SPDX-License-Identifier: Apache-2.0
//! What tracking reads of packets.

pub(crate) mod fragments;
pub(crate) mod headers;
pub(crate) mod kind;
pub(crate) mod options;
pub(crate) mod tuple;
