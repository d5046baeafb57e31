//! What the sample NFs have in common: options, configuration files that can be read again while packets flow, a bounded
//! table, and how a program begins and ends.
#![forbid(unsafe_code)]

mod args;
mod file;
mod live;
mod program;
mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use args::{CommonArgs, MalformedPolicy};
pub use file::{ConfigError, LineError, Lines};
pub use live::{Live, View};
pub use program::{Failure, exit_code, run};
pub use table::{FastMap, LruTable, SharedTable};
