// SPDX-License-Identifier: Apache-2.0
//! `netvm explain`.

use netvm_api::explain::{self, Explanation};
use serde::Serialize;

use crate::error::CliError;
use crate::output::{Output, lines};

/// An explanation as JSON.
#[derive(Serialize)]
struct Explained {
    name: &'static str,
    kind: String,
    text: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    remedy: &'static str,
}

impl From<Explanation> for Explained {
    fn from(one: Explanation) -> Self {
        Self { name: one.name(), kind: one.kind(), text: one.text(), remedy: one.remedy() }
    }
}

/// Explains a name, or lists all names.
pub fn explain(output: &Output, name: Option<&str>, markdown: bool) -> Result<(), CliError> {
    if markdown {
        return output.text(&explain::page());
    }
    let found: Vec<Explanation> = match name {
        None => Explanation::all().collect(),
        Some(name) => Explanation::of(name),
    };
    if let Some(name) = name.filter(|_| found.is_empty()) {
        return Err(CliError::NotExplained { name: name.to_owned(), like: Explanation::like(name) });
    }
    if output.json {
        let all: Vec<Explained> = found.into_iter().map(Explained::from).collect();
        return output.value(&all);
    }
    if name.is_some() {
        return output.text(&found.iter().map(|one| format!("{one}\n")).collect::<Vec<_>>().join("\n"));
    }
    let mut table = output.table(&["NAME", "KIND"]);
    for one in found {
        table.add_row([one.name().to_owned(), one.kind()]);
    }
    output.text(&lines(table))
}
