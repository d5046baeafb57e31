// SPDX-License-Identifier: Apache-2.0
//! Sets up what benchmarks measure: engines, guests, routing tables and traffic.

pub mod guest;
pub mod huge_pages;
pub mod layout;
pub mod network;
pub mod rig;
pub mod routes;
pub mod sandbox;
pub mod sender;
pub mod traffic;
