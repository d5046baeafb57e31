// SPDX-License-Identifier: Apache-2.0
//! Measurements for studies (`./dev study`). A command sets up one combination, reads rates from standard input, and
//! prints the result of each as a JSON object on one line.

pub mod chains;
mod delays;
pub mod receive;
pub mod routers;
pub mod trial;
