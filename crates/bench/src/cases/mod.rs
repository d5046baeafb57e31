//! The benchmarks, one file each.

use crate::cli::BenchArgs;
use crate::error::BenchError;
use crate::report::Row;

pub mod chain;
pub mod copy;
pub mod hop;
pub mod idle;
pub mod overload;
pub mod reclaim;

/// What measures a benchmark.
pub type Measure = fn(&BenchArgs) -> Result<Vec<Row>, BenchError>;
