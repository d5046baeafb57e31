// SPDX-License-Identifier: Apache-2.0
//! Programs that know nothing of netvm are hops of chains.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;
mod fail;
mod foreign;
mod instances;
mod page;
mod pass;
mod routed;
mod seen;
mod site;

use common::{Forward, PROGRAM};
use netlib::Options;

/// Not a test: runs as an NF if the environment says so.
#[test]
fn be_the_program() {
    if std::env::var(PROGRAM).is_ok() {
        netlib::run(&Options::new("forward"), |_| Forward).unwrap();
    }
}
