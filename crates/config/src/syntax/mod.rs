// SPDX-License-Identifier: Apache-2.0
//! The TOML form: places, names, tables, values, and findings about them.

pub(crate) mod field;
pub(crate) mod file_table;
pub(crate) mod finding;
pub(crate) mod form;
pub(crate) mod merge;
pub(crate) mod names;
pub(crate) mod source;
pub(crate) mod table;
