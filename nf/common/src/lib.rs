// SPDX-License-Identifier: Apache-2.0
//! Code common to the sample NFs: options, configuration files with live reload, bounded LRU tables, and program start
//! and exit.
#![forbid(unsafe_code)]

mod args;
mod file;
mod live;
mod program;
mod shared_table;
mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use args::{CommonArgs, MalformedPolicy};
pub use file::{ConfigError, LineError, Lines};
pub use live::{Live, View};
pub use program::{Failure, arguments, exit_code, run};
pub use shared_table::SharedTable;
pub use table::{FastMap, LruTable};
