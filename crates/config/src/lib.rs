// SPDX-License-Identifier: Apache-2.0
//! The configuration file: the TOML form of the model, errors that name the line and the remedy, and plans of the
//! changes between two hosts.
//!
//! A file goes in; a [`netvm_model::Host`] or a [`ConfigError`] comes out. `keys` lists the keys of each item once; the
//! same list reads the item and writes it.
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
mod fragment;
mod keys;
mod load;
mod missing;
mod plan;
mod syntax;

pub use document::{Document, SharedFragment, fragment_names};
pub use error::ConfigError;
pub use fragment::{Fragment, fragment};
pub use load::{Loaded, load, parse, parse_document, parse_on, parse_parts, parse_routes, parse_rules};
pub use missing::{Missing, MissingKind};
pub use plan::{Change, ChangeKind, Effect, ItemKind, Plan, plan, to_toml, to_toml_of};
pub use syntax::finding::{Finding, Kind};
pub use syntax::source::Part;
