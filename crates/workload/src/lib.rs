// SPDX-License-Identifier: Apache-2.0
//! Rule sets, routing tables and captures for tests and benchmarks.
//!
//! Everything comes from a seed and from published distributions, so that every clone measures and tests the same,
//! without files from elsewhere. Each module names the source of its parameters. Equal seeds give equal output on
//! every machine: only integers are used.
//!
//! In: a seed and a size. Out: ClassBench text ([`rules`]), prefixes ([`routes`]), files of packets ([`captures`]).
//!
//! Larger public sets are optional: [`data`] adds those in the folder that `NETVM_DATA` names.
#![forbid(unsafe_code)]

pub mod captures;
pub mod data;
mod random;
pub mod routes;
pub mod rules;

pub use random::Random;
