//! What a host should be: the model that the engine and the manager work by, its TOML form with errors that name the
//! line and the remedy, and what has to change to get from one host to another.
//!
//! ```
//! let text = r#"
//!     [[port]]
//!     name = "client"
//!     kind = "source"
//!
//!     [[nf]]
//!     role = "firewall"
//!     command = ["netvm-firewall"]
//!
//!     [[chain]]
//!     name = "web"
//!     hops = ["firewal"]
//!
//!     [[rule]]
//!     from = "client"
//!     chain = "web"
//! "#;
//! let error = netvm_config::parse("host.toml", text).unwrap_err();
//! assert!(error.render(false).contains("did you mean `firewall`?"));
//! let loaded = netvm_config::parse("host.toml", &text.replace("firewal\"", "firewall\"")).unwrap();
//! assert!(loaded.warnings.is_empty());
//! ```
#![forbid(unsafe_code)]

mod check;
mod document;
mod error;
mod field;
mod finding;
mod ids;
mod load;
pub mod model;
mod names;
mod plan;
mod raw;
mod read;
mod render;
mod resolve;
mod stable;
mod suggest;

pub use error::ConfigError;
pub use finding::{Finding, Kind};
pub use ids::{assign_ids, new_rule_id};
pub use load::{Loaded, load, parse, parse_rules};
pub use plan::{Action, Change, Effect, ItemKind, Plan, plan};
