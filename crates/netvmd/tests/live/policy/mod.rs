// SPDX-License-Identifier: Apache-2.0
//! What decides where packets go, besides what is in them: the time, loads, and NFs that steer flows.

mod conditions;
pub mod messages;
pub mod scaling;
pub mod steering;
