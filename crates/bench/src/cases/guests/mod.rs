// SPDX-License-Identifier: Apache-2.0
//! Guests with network cards.

pub mod e1000;
pub mod switching;
pub mod vhost;
