//! What a host should be: the model that the engine and the manager work by, its TOML form, and what has to change to
//! get from one host to another.
#![forbid(unsafe_code)]

mod ids;
pub mod model;

pub use ids::assign_ids;
