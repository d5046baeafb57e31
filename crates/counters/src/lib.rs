//! Drop reasons and violations of NFs as users see them, each written once.
#![forbid(unsafe_code)]

mod drops;

pub use drops::{DropReason, Explained, Violation};
